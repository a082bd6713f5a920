"""The PyPTO that is installed, and the programs of examples/npu built with it for the simulator."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from npu_project import TARGET, Project, copy_examples

from aotc.toolchain.pypto import installed


def missing() -> str | None:
    """Return why these tests cannot run here."""
    if installed.pypto() is None:
        return "hw-native-sys/pypto is not installed"
    done = subprocess.run(
        [sys.executable, "-c", "import pypto.runtime"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return f"pypto does not import: {done.stderr.strip().splitlines()[-1]}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = [each for each in items if each.path.is_relative_to(here)]
    reason = missing() if mine else None
    for each in mine:
        each.add_marker(pytest.mark.pypto)
        if reason is not None:
            each.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project of which nothing is built."""
    return copy_examples(tmp_path)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project built to binaries."""
    if installed.stage(TARGET) != "binaries":
        pytest.skip(f"only the stage `{installed.stage(TARGET)}` can be reached here")
    made = copy_examples(tmp_path_factory.mktemp("built"))
    made.build("small", "ranks", "--require-binaries")
    return made


@pytest.fixture(scope="session")
def without_compilers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with no compiler: only names that the runtime looks for."""
    folder = tmp_path_factory.mktemp("path")
    git = shutil.which("git")
    assert git is not None
    (folder / "git").symlink_to(git)
    for name in ("gcc", "g++"):
        (folder / name).symlink_to("/bin/true")
    return {"PATH": str(folder), "PTOAS_ROOT": ""}
