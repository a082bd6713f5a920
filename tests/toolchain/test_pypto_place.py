"""The folder for a compilation: one process at a time, always empty, gone after."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from aotc.toolchain.base import ToolchainError
from aotc.toolchain.pypto import place
from aotc.toolchain.pypto.place import fixed_folder


@pytest.fixture
def digest() -> str:
    """A program that nobody else compiles."""
    return uuid.uuid4().hex


def test_the_same_place_each_time(digest: str) -> None:
    with fixed_folder(digest) as first:
        assert first.is_dir()
        assert first.stat().st_mode & 0o777 == 0o700
        assert [*first.iterdir()] == []
    assert not first.exists()
    assert not first.with_suffix(".lock").exists()
    with fixed_folder(digest) as second:
        assert second == first
    with pytest.raises(KeyError), fixed_folder(digest):
        raise KeyError
    assert not first.exists()


def test_leftovers_of_a_killed_process(digest: str) -> None:
    with fixed_folder(digest) as folder:
        pass
    folder.mkdir()
    (folder / "left").write_text("over")
    folder.with_suffix(".lock").touch()
    with fixed_folder(digest):
        assert [*folder.iterdir()] == []


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_folder_is_refused(digest: str, tmp_path: Path, kind: str) -> None:
    with fixed_folder(digest) as folder:
        pass
    if kind == "file":
        folder.touch()
    else:
        (tmp_path / "kept").touch()
        folder.symlink_to(tmp_path)
    try:
        with pytest.raises(ToolchainError, match="cannot make"), fixed_folder(digest):
            pass
    finally:
        folder.unlink(missing_ok=True)
        folder.with_suffix(".lock").unlink(missing_ok=True)
    if kind == "link":
        assert (tmp_path / "kept").exists()


def test_a_lock_that_leads_elsewhere_is_refused(digest: str, tmp_path: Path) -> None:
    with fixed_folder(digest) as folder:
        pass
    lock = folder.with_suffix(".lock")
    lock.symlink_to(tmp_path / "victim")
    try:
        with pytest.raises(ToolchainError, match="cannot use"), fixed_folder(digest):
            pass
    finally:
        lock.unlink()
    assert not (tmp_path / "victim").exists()


def test_another_owner_is_waited_for(
    digest: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A lock that cannot be opened is someone else's; after a while it is told."""
    opened = place.os.open

    def refuse(path: Path, *arguments: int) -> int:
        if Path(path).suffix == ".lock":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments)

    monkeypatch.setattr(place.os, "open", refuse)
    monkeypatch.setattr(place, "_PATIENCE", 0.5)
    with pytest.raises(ToolchainError, match="Permission denied"), fixed_folder(digest):
        pass


SCRIPT = """
import sys, time
from aotc.toolchain.pypto.place import fixed_folder
for _ in range(20):
    with fixed_folder(sys.argv[1]) as folder:
        assert not [*folder.iterdir()]
        (folder / "mine").touch()
        time.sleep(0.002)
        assert len([*folder.iterdir()]) == 1
"""


def test_processes_take_turns(digest: str) -> None:
    root = str(Path(__file__).parents[2])
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, digest], cwd=root) for _ in range(3)
    ]
    assert [each.wait(timeout=60) for each in processes] == [0, 0, 0]
