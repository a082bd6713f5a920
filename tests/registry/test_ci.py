"""The example of CI, run: the script of the workflows, and what a container would carry."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import yaml
from registry_server import free_port
from small_model import SMALL, Project
from test_signing import make_key

import aotc
from aotc.runtime.host import Host

pytest.importorskip("oras")
pytest.importorskip("securesystemslib")

PACKAGE = Path(aotc.__file__).parent
CI = PACKAGE.parent / "docs" / "ci"
TARGET = Host.current().targets()[-1]  # runs on every host of this kind
OTHER = "aarch64" if TARGET != "aarch64" else "x86_64_v3"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@dataclass
class Checkout:
    """A project with a model, a lock file, keys and a policy; and `aotc` on its PATH."""

    project: Project
    environment: dict[str, str]

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.project.root,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def aotc(self, *arguments: str) -> str:
        done = self.run("aotc", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def prebuild(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(CI / "prebuild.sh"), **variables)


def check_out(root: Path) -> Checkout:
    project = Project(root)
    project.write_model()
    binaries = root / "bin"
    binaries.mkdir()
    script = binaries / "aotc"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m aotc "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    environment = {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PACKAGE.parent),
        "HOME": str(root),
        "MODEL": "small",
        "TARGETS": TARGET,
        "LEVELS": "integrity contract",
    }
    return Checkout(project, environment)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = check_out(tmp_path / "checkout")
    make_key(made.project.root / "release.key")
    text = "schema: 1\nkeys: {release: release.pub}\n"
    (made.project.root / "policy.yaml").write_text(text, encoding="utf-8")
    made.aotc("build", "small", "--target", TARGET, "--target", OTHER, "--lock")
    shutil.rmtree(made.project.store)  # CI starts from the checkout
    return made


def test_build_verify_sign_push_pull_run(
    checkout: Checkout, reference: str, tmp_path: Path
) -> None:
    signed = {"KEY": "release.key", "POLICY": "policy.yaml", "REF": reference}
    done = checkout.prebuild(**signed, TARGETS=f"{TARGET} {OTHER}")
    assert done.returncode == 0, done.stderr
    pinned = (checkout.project.root / "reports" / "small.digest").read_text().strip()
    assert pinned.startswith(reference.removesuffix(":v1") + "@sha256:")
    reports = sorted(path.name for path in (checkout.project.root / "reports").glob("*.xml"))
    assert reports == sorted(
        f"small-{target}{kind}.xml" for target in (TARGET, OTHER) for kind in ("", "-policy")
    )
    for name in reports:
        suites = ElementTree.parse(checkout.project.root / "reports" / name).getroot()
        assert int(suites.get("tests") or 0) >= 3
        assert suites.get("failures") == "0"

    # What the container recipe carries: the loader, one more package, the pulled artifacts.
    store, loader = tmp_path / "artifacts", tmp_path / "loader"
    pulling = ("pull", pinned, "--target", TARGET, "--store", str(store))
    checkout.aotc(*pulling, "--policy", "policy.yaml")
    for package in (PACKAGE, Path(msgspec.__file__).parent):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, loader / package.name, ignore=ignored)
    removed = left_out()
    assert {"codegen", "frontend", "toolchain", "cli"} <= set(removed)
    for name in removed:
        shutil.rmtree(loader / "aotc" / name)
    code = (
        "import array, sys\n"
        "from aotc.runtime import load\n"
        "def make(): return memoryview(array.array('f', [3] * 16)).cast('B').cast('f', [2, 8])\n"
        "x, y = make(), make()\n"
        "with load('small', 'square').prepare(threads=1) as worker: worker(x, y)\n"
        "print(y[1, 7], *sorted({name.partition('.')[0] for name in sys.modules} & "
        "{'torch', 'numpy', 'yaml', 'click', 'ziglang'}))\n"
    )
    environment = {"PYTHONPATH": str(loader), "AOTC_STORE": str(store), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("9.0\n", "")


def left_out() -> list[str]:
    """Return the folders of aotc that the container recipe leaves out."""
    recipe = (CI / "Containerfile").read_text(encoding="utf-8")
    match = re.search(r"cd aotc && \\\n    rm -rf ([a-z ]+)\n", recipe)
    assert match is not None
    return match[1].split()


def test_the_next_run_compiles_nothing(checkout: Checkout, reference: str) -> None:
    assert checkout.prebuild(KEY="release.key", REF=reference).returncode == 0
    for trust in ({"POLICY": "policy.yaml"}, {}):
        shutil.rmtree(checkout.project.store)
        again = checkout.prebuild(CACHE=reference, **trust)
        assert again.returncode == 0, again.stderr
        assert (again.stdout.count(": fetched in "), again.stdout.count(": built")) == (2, 0)


def test_what_is_not_trusted_serves_no_build(checkout: Checkout, reference: str) -> None:
    assert checkout.prebuild(REF=reference).returncode == 0
    shutil.rmtree(checkout.project.store)
    again = checkout.prebuild(CACHE=reference, POLICY="policy.yaml")
    assert again.stderr.count("is not signed by release; compiling instead") == 2
    assert (again.stdout.count(": fetched in "), again.stdout.count(": built")) == (0, 2)


def test_a_registry_that_is_away_costs_time_only(checkout: Checkout) -> None:
    done = checkout.prebuild(CACHE=f"127.0.0.1:{free_port()}/team/small:v1")
    assert (done.returncode, done.stdout.count(": built")) == (0, 2), done.stderr
    assert done.stderr.count("; building without it") == 1


def test_a_source_that_the_lock_does_not_have(checkout: Checkout, reference: str) -> None:
    checkout.project.write_model(config=SMALL.replace("WIDTH: 8", "WIDTH: 16"))
    done = checkout.prebuild(REF=reference)
    assert done.returncode != 0
    assert "aotc.lock" in done.stderr
    assert checkout.run("aotc", "pull", reference).returncode == 1


def test_what_is_not_signed_is_not_pushed(checkout: Checkout, reference: str) -> None:
    done = checkout.prebuild(POLICY="policy.yaml", REF=reference)
    assert (done.returncode, checkout.run("aotc", "pull", reference).returncode) == (3, 1)
    assert "FAILED  policy twice: `twice` of `small`" in done.stdout
    name = f"small-{TARGET}-policy.xml"
    suites = ElementTree.parse(checkout.project.root / "reports" / name).getroot()
    assert (suites.get("tests"), suites.get("failures")) == ("2", "2")


def test_a_pull_with_a_policy_lists_nothing_unsigned(
    checkout: Checkout, reference: str, tmp_path: Path
) -> None:
    assert checkout.prebuild(REF=reference).returncode == 0
    store = str(tmp_path / "store")
    done = checkout.run("aotc", "pull", reference, "--policy", "policy.yaml", "--store", store)
    assert (done.returncode, done.stdout) == (3, "")
    assert "is not signed by release" in done.stderr
    assert checkout.aotc("ls", "--store", store) == ""


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_workflows_run_the_script(name: str) -> None:
    workflow = yaml.safe_load((CI / name).read_text(encoding="utf-8"))
    assert "docs/ci/prebuild.sh" in str(workflow)
    known = (CI / "prebuild.sh").read_text(encoding="utf-8")
    for variable in ("MODEL", "TARGETS", "CACHE", "REF", "KEY", "POLICY"):
        assert variable in str(workflow)
        assert f"${{{variable}:" in known


def test_the_page_names_what_there_is() -> None:
    page = (CI.parent / "ci.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`(?:docs/ci/)?([A-Za-z-]+(?:\.yml|\.sh)|Containerfile)`", page)):
        assert (CI / name).is_file(), name
    script = (CI / "prebuild.sh").read_text(encoding="utf-8")
    for variable in re.findall(r"^#   ([A-Z]+) ", script, re.MULTILINE):
        assert f"| `{variable}` |" in page, variable


def test_the_commands_of_the_page_are_understood(checkout: Checkout) -> None:
    """Each is parsed as it stands: `--help` at the end runs none of it."""
    page = (CI.parent / "ci.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (aotc [^|#\n]*)", page, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        assert "Usage: " in checkout.aotc(*line.split()[1:], "--help"), line
