"""`aotc build --check`, `--lock`, `--locked` and `--check-repro`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from small_model import SMALL, WRAPPERS, Project

from aotc import driver
from aotc.errors import ExitCode

HOST = driver.default_target()


def edit(project: Project, old: str = "pl.mul(x, x)", new: str = "pl.sub(x, x)") -> None:
    text = project.wrappers.read_text(encoding="utf-8")
    assert old in text
    project.wrappers.write_text(text.replace(old, new), encoding="utf-8")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_check_of_what_is_up_to_date(aotc, built: Project):
    before = contents(built.root)
    result = aotc("build", "small", "--check")
    assert (result.code, result.err) == (0, "")
    assert result.out == "twice: up to date\nsquare: up to date\n"
    assert contents(built.root) == before


def test_check_of_a_changed_comment(aotc, built: Project):
    edit(built, "import pypto", "# a comment\nimport pypto")
    assert aotc("build", "small", "--check").code == 0


def test_check_of_what_is_stale(aotc, built: Project):
    edit(built)
    before = contents(built.root)
    result = aotc("build", "small", "--check")
    assert (result.code, result.err) == (ExitCode.STALE, "") == (5, "")
    lines = result.out.splitlines()
    assert lines[:3] == [
        "twice: up to date",
        "square: stale",
        "  the artifact is of other inputs",
    ]
    assert any(
        "wrappers.py:" in each and "`y = pl.assemble(y, pl.sub(x, x), [0, 0])`" in each
        for each in lines
    )
    assert contents(built.root) == before
    assert aotc("build", "small", "twice", "--check").code == 0
    assert aotc("build", "small", "--check", "--quiet").out != ""


def test_check_of_what_is_missing(aotc, project: Project):
    project.write_model()
    result = aotc("build", "small", "--check")
    assert (result.code, result.err) == (ExitCode.MISSING, "") == (6, "")
    assert result.out.splitlines()[:2] == ["twice: missing", "  no artifact in artifacts"]
    assert not project.store.exists()
    aotc("build", "small", "twice")
    result = aotc("build", "small", "--check", "--json")
    document = json.loads(result.out)
    assert (result.code, document["status"]) == (6, "missing")
    assert [each["status"] for each in document["programs"]] == ["up to date", "missing"]


@pytest.mark.parametrize("part", ["object", "manifest", "index"])
def test_check_of_what_is_damaged(aotc, built: Project, part):
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    listed = json.loads((built.store / "index.json").read_text())["manifests"]
    digest = {
        "object": shown["layers"][0]["digest"],
        "manifest": shown["manifest"],
        "index": next(each["digest"] for each in listed if "index" in each["mediaType"]),
    }
    path = built.blob(digest[part])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    before = contents(built.store)
    result = aotc("build", "small", "twice", "--check")
    assert (result.code, result.err) == (ExitCode.UNVERIFIABLE, "") == (7, "")
    assert result.out.startswith("twice: unverifiable\n  blob sha256:")
    assert "damaged" in result.out
    assert contents(built.store) == before


def test_check_of_a_store_of_something_else(aotc, built: Project):
    (built.store / "oci-layout").write_text("{}")
    result = aotc("build", "small", "twice", "--check")
    assert (result.code, result.out.splitlines()[0]) == (7, "twice: unverifiable")


def test_check_of_sources_that_do_not_compile(aotc, built: Project):
    edit(built, "pl.mul(x, x)", "pl.mull(x, x)")
    result = aotc("build", "small", "--check")
    assert result.code == 1
    assert "square: broken" in result.out
    assert re.search(r"error: .*mull.*\n  --> \S+wrappers\.py:\d+:\d+\n", result.err)


def test_check_of_what_is_built_but_not_listed(aotc, built: Project):
    edit(built)
    aotc("build", "small")
    edit(built, "pl.sub(x, x)", "pl.mul(x, x)")
    result = aotc("build", "small", "square", "--check")
    assert result.code == 5
    assert "but the store lists sha256:" in result.out
    assert aotc("build", "small", "square").out == "square: up to date\n"
    assert aotc("build", "small", "square", "--check").code == 0


def lock_text(project: Project) -> str:
    return (project.models / "aotc.lock").read_text(encoding="utf-8")


def test_lock_is_the_same_for_the_same_build_anywhere(aotc, built: Project, tmp_path: Path):
    result = aotc("build", "small", "--lock")
    assert (result.code, result.out.splitlines()[-1]) == (0, "models/aotc.lock: written")
    first = lock_text(built)
    assert aotc("build", "small", "--lock").out.splitlines()[-1] == "models/aotc.lock: unchanged"
    elsewhere = Project(tmp_path / "else" / "where")
    shutil.copytree(built.models, elsewhere.models)
    (elsewhere.models / "aotc.lock").unlink()
    document = json.loads(
        aotc("build", "small", "--lock", "--json", "--models-dir", str(elsewhere.models)).out
    )
    assert document["lock"] == {"path": str(elsewhere.models / "aotc.lock"), "changed": True}
    assert [each["status"] for each in document["programs"]] == ["built", "built"]
    assert lock_text(elsewhere) == first
    manifests = {each["manifest"] for each in document["programs"]}
    assert set(re.findall(r'"artifact": "(sha256:\w+)"', first)) == manifests


def test_lock_keeps_other_models_and_targets(aotc, built: Project):
    (built.models / "other.yaml").write_text(SMALL.replace("model: small", "model: other"))
    aotc("build", "other", "twice", "--lock", "--target", "aarch64")
    aotc("build", "small", "--lock")
    locked = json.loads(lock_text(built))["models"]
    assert {name: sorted(programs) for name, programs in locked.items()} == {
        "other": ["twice"],
        "small": ["square", "twice"],
    }


def test_a_failed_build_leaves_the_lock(aotc, built: Project):
    aotc("build", "small", "--lock")
    before = lock_text(built)
    edit(built, "pl.mul(x, x)", "pl.mull(x, x)")
    edit(built, "pl.add(x, x)", "pl.sub(x, x)")
    assert aotc("build", "small", "--lock").code == 1
    assert lock_text(built) == before


def test_check_holds_the_checkout_against_the_lock(aotc, built: Project):
    aotc("build", "small", "--lock")
    assert aotc("build", "small", "--check").code == 0
    edit(built)
    aotc("build", "small")  # the store has it, the lock has not
    result = aotc("build", "small", "--check")
    assert result.code == 5
    assert "square: stale\n  aotc.lock has another key: ir " in result.out
    # Without any store the checkout can be held against it all the same.
    shutil.rmtree(built.store)
    document = json.loads(aotc("build", "small", "--check", "--json").out)
    reasons = {each["program"]: each["reasons"] for each in document["programs"]}
    assert reasons["twice"] == ["no artifact in artifacts"]
    assert [each.partition(":")[0] for each in reasons["square"]] == [
        "no artifact in artifacts",
        "aotc.lock has another key",
    ]


def test_check_holds_the_store_against_the_lock(aotc, built: Project):
    aotc("build", "small", "--lock")
    path = built.models / "aotc.lock"
    artifact = re.findall(r'"artifact": "sha256:(\w+)"', lock_text(built))[0]
    path.write_text(lock_text(built).replace(artifact, "0" * 64))
    result = aotc("build", "small", "--check")
    assert result.code == 7
    assert f"aotc.lock has sha256:{'0' * 64} for the same key as sha256:{artifact}" in result.out


def test_check_of_a_lock_that_lacks_or_has_too_much(aotc, built: Project):
    aotc("build", "small", "twice", "--lock")
    result = aotc("build", "small", "--check")
    assert result.code == 6
    assert "square: missing\n  aotc.lock does not have it" in result.out
    aotc("build", "small", "--lock")
    config = built.models / "small.yaml"
    config.write_text(SMALL.replace('  square: {wrapper: "wrappers:square_host"}\n', ""))
    result = aotc("build", "small", "--check")
    assert result.code == 5
    assert (
        result.out.splitlines()[-1] == f"aotc.lock has small/square for {HOST}, the config has not"
    )


def test_a_lock_of_another_target_holds_nothing_here(aotc, built: Project):
    other = "aarch64" if HOST != "aarch64" else "x86_64_v3"
    aotc("build", "small", "--lock", "--target", other)
    assert aotc("build", "small", "--check").code == 0


@pytest.mark.parametrize("option", ["--check", "--locked", "--lock"])
def test_a_damaged_lock(aotc, built: Project, option):
    aotc("build", "small", "--lock")
    (built.models / "aotc.lock").write_text(lock_text(built)[:-5])
    result = aotc("build", "small", option)
    assert result.code == ExitCode.UNVERIFIABLE
    assert "error: models/aotc.lock is not a lock file: " in result.err


def test_locked(aotc, built: Project):
    result = aotc("build", "small", "--locked")
    assert result.code == 5
    assert result.err.startswith("error: there is no models/aotc.lock\n")
    aotc("build", "small", "--lock")
    shutil.rmtree(built.store)
    assert aotc("build", "small", "--locked").code == 0
    listed = json.loads(aotc("ls", "--json").out)
    edit(built)
    result = aotc("build", "small", "--locked")
    assert result.code == 5
    assert sorted(result.out.splitlines()) == [
        "1 up to date, 1 failed",
        "square: failed",
        "twice: up to date",
    ]
    assert result.err.startswith(
        f"error: small/square for {HOST} is not what aotc.lock has\n  ir: "
    )
    # What is not locked is not what a loader finds.
    assert json.loads(aotc("ls", "--json").out) == listed


def test_locked_refuses_a_program_that_is_not_there(aotc, built: Project):
    aotc("build", "small", "twice", "--lock")
    result = aotc("build", "small", "--locked")
    assert (result.code, "square: failed" in result.out) == (5, True)
    assert f"error: small/square for {HOST} is not in aotc.lock\n" in result.err


def test_check_repro(aotc, built: Project):
    result = aotc("build", "small", "--check-repro")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-2:] == [
        "twice: the same elsewhere",
        "square: the same elsewhere",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "hash('x') % 1000",
        "len(__import__('os').environ['HOME'])",
        "len(__import__('os').getcwd())",
        "len(__file__ if '__file__' in globals() else __spec__.origin)",
        "len(__import__('time').tzname[0]) + len(__import__('os').environ.get('TZ', ''))",
        "len(__import__('os').environ.get('LC_ALL', '') + 'x')",
    ],
)
def test_check_repro_names_the_first_difference(aotc_process, project: Project, value):
    """Whatever a model takes from where it is built shows."""
    odd = WRAPPERS.replace("pl.mul(x, x)", "pl.mul(x, FACTOR)")
    project.write_model(wrappers=odd.replace("\n\n\n", f"\n\nFACTOR = float({value})\n\n\n", 1))
    environment = {"HOME": "/a", "PYTHONHASHSEED": "7", "TZ": "UTC", "LC_ALL": ""}
    done = aotc_process("build", "small", "square", "--check-repro", environment=environment)
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"square: differs: IR, line \d+: here `.*`, elsewhere `.*`", last)
    assert all("which no key has" in line for line in done.stderr.splitlines())


def test_check_repro_of_what_fails_elsewhere(aotc_process, project: Project):
    odd = WRAPPERS.replace("\n\n\n", "\n\nimport os\nassert os.environ['USER'] == 'me'\n\n\n", 1)
    project.write_model(wrappers=odd)
    done = aotc_process("build", "small", "twice", "--check-repro", environment={"USER": "me"})
    assert done.returncode == 1
    assert "error: the build elsewhere failed:\nerror: the module fails" in done.stderr
