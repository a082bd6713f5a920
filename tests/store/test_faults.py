"""A fault at each file operation of a build leaves a sound store, and the next build works.

The operations are counted and failed below Python (faults.c), so none can be forgotten here: a
step that is added to a build is a step of these tests.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_layer import KILL, environment

RUNS = Path(__file__).with_name("fault_runs.py")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is such a file system: thousands of syncs are waited for."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("scenario", "error", "first", "stride", "least"),
    [
        # What is written by a whole `aotc build` into no store; half of it each.
        ("build", KILL, 1, 2, 50),
        ("build", KILL, 2, 2, 50),
        # All that a build of a changed program does to the store.
        ("update", KILL, 1, 1, 200),
        ("update", errno.ENOSPC, 1, 1, 200),
        ("update", errno.EDQUOT, 1, 1, 200),
        ("update", errno.EROFS, 1, 1, 200),
        ("update", errno.EIO, 1, 1, 200),
        ("update", errno.EACCES, 1, 1, 200),
        # The same into no store; and where every operation from the step on fails.
        ("create", errno.EIO, 1, 1, 200),
        ("full", errno.ENOSPC, 1, 1, 200),
        # And then a collection.
        ("gc", KILL, 1, 1, 300),
        ("gc", errno.EIO, 1, 1, 300),
    ],
)
def test_a_fault_at_every_step(
    folder: Path,
    shim: Path,
    scenario: str,
    error: int,
    first: int,
    stride: int,
    least: int,
    record_property: Callable[[str, str], None],
) -> None:
    done = subprocess.run(
        [sys.executable, RUNS, folder, scenario, *map(str, (error, first, stride))],
        env=environment(shim, folder / "control"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["steps"] >= least
    assert {"rename", "fsync", "write", "open64", "flock", "unlink"} <= set(found["calls"])
    name = errno.errorcode.get(error, "SIGKILL")
    record_property("total", f"{name} at each of {found['steps']} operations, {found['calls']}")
