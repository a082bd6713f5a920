"""`aotc build --from-registry` and `--shard`: by the command line, against a real registry."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from registry_server import Answer, free_port, proxy
from small_model import SMALL, WRAPPERS, Project
from test_signing import make_key

from aotc.cli.main import main
from aotc.store.artifact import find
from aotc.store.validate import validate

pytest.importorskip("oras")

TARGETS = ("x86_64_v3", "aarch64")


@dataclass
class Machine:
    """One of several with the same checkout: its own store, and `aotc` there."""

    project: Project
    store: Path
    capture: pytest.CaptureFixture[str]

    def run(self, *words: str) -> tuple[int, str, str]:
        places = ("--models-dir", str(self.project.models), "--store", str(self.store))
        self.capture.readouterr()
        code = main([*words, *places])
        return code, *self.capture.readouterr()

    def build(self, *words: str, code: int = 0) -> tuple[dict[str, str], str]:
        """Build for two targets; return the status of each, and the messages."""
        targets = [f"--target={each}" for each in TARGETS]
        done, out, err = self.run("build", "small", *targets, "--json", *words)
        assert done == code, err
        programs: list[dict[str, Any]] = json.loads(out)["programs"]
        return {f"{each['program']} {each['target']}": each["status"] for each in programs}, err

    def fresh(self, name: str) -> Machine:
        return Machine(self.project, self.project.root / name, self.capture)


@pytest.fixture
def machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Machine:
    project = Project(tmp_path / "project")
    project.write_model()
    return Machine(project, project.root / "first", capsys)


@pytest.fixture
def pushed(machine: Machine, reference: str) -> str:
    machine.build()
    assert machine.run("push", "small", reference)[0] == 0
    return reference


def edit(machine: Machine) -> None:
    """Change `square`, and not `twice`."""
    machine.project.write_model(wrappers=WRAPPERS.replace("pl.mul(x, x)", "pl.sub(x, x)"))


def test_what_is_there_is_fetched_and_the_next_build_is_a_hit(
    machine: Machine, pushed: str
) -> None:
    other = machine.fresh("other")
    said, err = other.build("--from-registry", pushed)
    assert (set(said.values()), err) == ({"fetched"}, "")
    assert validate(other.store) == []
    # As if it had been built: the same artifacts, listed, with the same statements and keys.
    assert (other.store / "index.json").read_bytes() == (machine.store / "index.json").read_bytes()
    keys = [sorted(p.name for p in (s / "keys").rglob("*")) for s in (machine.store, other.store)]
    assert keys[0] == keys[1]
    # Nothing is asked for, and no front end runs, where all is up to date.
    gone = f"127.0.0.1:{free_port()}/team/tiny:v1"
    said, err = other.build("--from-registry", gone)
    assert (set(said.values()), err) == ({"up to date"}, "")
    assert other.run("build", "small", "--target", "aarch64", "--check")[0] == 0


def test_what_is_not_there_is_built(machine: Machine, pushed: str) -> None:
    edit(machine)
    said, err = machine.fresh("other").build("--from-registry", pushed)
    assert err == ""
    assert said == {
        **{f"twice {each}": "fetched" for each in TARGETS},
        **{f"square {each}": "built" for each in TARGETS},
    }


def test_a_comment_is_fetched_too(machine: Machine, pushed: str) -> None:
    machine.project.write_model(wrappers=f"# a comment\n{WRAPPERS}")
    assert set(machine.fresh("other").build("--from-registry", pushed)[0].values()) == {"fetched"}


@pytest.mark.parametrize("fault", ["nobody listens", "no such tag", "something else"])
def test_without_it_all_is_built_with_one_warning(
    machine: Machine, reference: str, fault: str
) -> None:
    place = reference
    if fault == "nobody listens":
        place = f"127.0.0.1:{free_port()}/team/tiny:v1"
    elif fault == "something else":
        from aotc.registry import Reference, Transport
        from aotc.store import oci

        index = {"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": []}
        text = json.dumps({**index, "annotations": {"of": "others"}}).encode()
        Transport(Reference.parse(reference)).put_manifest("v1", text, oci.INDEX_TYPE)
    said, err = machine.build("--from-registry", place)
    assert set(said.values()) == {"built"}
    assert (err.count("warning: "), err.count("; building without it")) == (1, 1)


def test_a_registry_that_refuses_is_one_warning(machine: Machine, tmp_path: Path) -> None:
    from registry_server import SERVER, registry

    if SERVER is None:
        pytest.skip("no docker-registry")
    with registry(tmp_path / "closed", authenticated=True) as host:
        said, err = machine.build("--from-registry", f"{host}/team/small:v1")
    assert set(said.values()) == {"built"}
    assert err.count("warning: ") == 1
    assert "wants credentials for team/small" in err


def test_damage_on_the_way_is_refused_and_built(machine: Machine, pushed: str) -> None:
    def flip(answer: Answer) -> None:
        if answer.method == "GET" and "/blobs/" in answer.path:
            answer.body = answer.body[::-1]

    other = machine.fresh("other")
    with proxy(pushed.partition("/")[0], flip) as (host, _):
        place = f"{host}/{pushed.partition('/')[2]}"
        said, err = other.build("--from-registry", place)
    assert set(said.values()) == {"built"}
    assert "has answered with other bytes" in err
    assert "; compiling instead" in err
    assert (other.store / "index.json").read_bytes() == (machine.store / "index.json").read_bytes()


def test_a_policy(machine: Machine, pushed: str) -> None:
    pytest.importorskip("securesystemslib")
    root = machine.project.root
    key = make_key(root / "release.key")
    (root / "policy.yaml").write_text("schema: 1\nkeys: {release: release.pub}\n")
    trusting = ("--from-registry", pushed, "--policy", str(root / "policy.yaml"))
    said, err = machine.fresh("one").build(*trusting)
    assert set(said.values()) == {"built"}
    assert err.count("is not signed by release; compiling instead") == 4
    targets = [f"--target={each}" for each in TARGETS]
    assert machine.run("sign", "small", "--key", str(key), *targets)[0] == 0
    assert machine.run("push", "small", pushed)[0] == 0
    said, err = machine.fresh("two").build(*trusting)
    assert (set(said.values()), err) == ({"fetched"}, "")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--from-registry", "nowhere"], 1, "is not a registry reference"),
        (["--from-registry", "a.b/c:d", "--policy", "none.yaml"], 1, "none.yaml"),
        (["--policy", "none.yaml"], 2, "--policy goes with --from-registry"),
        (["--plain-http"], 2, "--plain-http goes with --from-registry"),
        (["--from-registry", "a.b/c:d", "--check"], 2, "--check fetches nothing"),
        *(
            (["--shard", each], 2, "is not a part such as 1/4")
            for each in ("0/2", "3/2", "1", "a/b")
        ),
    ],
)
def test_wrong_usage(machine: Machine, words: list[str], code: int, message: str) -> None:
    done, _, err = machine.run("build", "small", *words)
    assert (done, message in err) == (code, True), err


@pytest.mark.parametrize("of", [1, 2, 3, 4, 5])
def test_shards_are_parts_of_the_whole(machine: Machine, of: int) -> None:
    found = []
    for part in range(1, of + 1):
        words = ["build", "small", "--shard", f"{part}/{of}", "--check", "--json"]
        targets = [f"--target={each}" for each in TARGETS[:: 1 if part % 2 else -1]]
        _, out, _ = machine.run(*words, *targets)
        found.append([(e["program"], e["target"]) for e in json.loads(out)["programs"]])
    together = [each for part in found for each in part]
    assert sorted(together) == sorted(
        (program, target) for program in ("twice", "square") for target in TARGETS
    )
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_two_machines_build_and_push_a_part_each(machine: Machine, reference: str) -> None:
    for part in ("1/2", "2/2"):
        each = machine.fresh(f"part-{part[0]}")
        said, _ = each.build("--shard", part)
        assert list(said.values()) == ["built"] * 2
        assert each.run("push", "small", reference)[0] == 0
    last = machine.fresh("last")
    assert set(last.build("--from-registry", reference)[0].values()) == {"fetched"}
    machine.build()
    assert (last.store / "index.json").read_bytes() == (machine.store / "index.json").read_bytes()


def test_a_shard_of_nothing(machine: Machine) -> None:
    said, err = machine.build("--shard", "5/5")
    assert (said, err) == ({}, "this shard has nothing to build\n")


def test_what_was_pulled_is_up_to_date_at_once(machine: Machine, pushed: str) -> None:
    """By the first key, which the statements tell: no process is started for a front end."""
    other = machine.fresh("other")
    assert other.run("pull", pushed, "--all-platforms")[0] == 0
    words = ["build", "small", "--models-dir", str(machine.project.models)]
    refuse = "import subprocess\ndef start(*_, **__): raise AssertionError\n"
    refuse += "subprocess.Popen.__init__ = start\n"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{refuse}from aotc.cli.main import main\n"
            f"raise SystemExit(main({[*words, '--store', str(other.store)]!r} + "
            f"{[f'--target={each}' for each in TARGETS]!r}))",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.count(": up to date")) == (0, 4), done.stderr
    edit(machine)
    said, _ = other.build()
    assert sorted(set(said.values())) == ["built", "up to date"]


def test_a_fetched_program_is_reproduced_here(machine: Machine, pushed: str) -> None:
    other = machine.fresh("other")
    target = "--target=aarch64"
    words = ("build", "small", "square", target, "--from-registry", pushed, "--check-repro")
    code, out, err = other.run(*words)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("square: fetched in ")
    assert out.splitlines()[1] == "square: the same elsewhere"
    shutil.rmtree(machine.store)
    machine.run("build", "small", "square", target)
    ours, theirs = (find(each.store, "small", "square") for each in (machine, other))
    assert ours.blobs == theirs.blobs


def test_the_config_counts(machine: Machine, pushed: str) -> None:
    machine.project.write_model(config=SMALL.replace("max: 64", "max: 32"))
    assert set(machine.fresh("other").build("--from-registry", pushed)[0].values()) == {"built"}
