"""Faults of a file system, injected below Python: between it and the C library."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REFUSE_RENAME, REFUSE_FLOCK, REFUSE_FCHMOD, REFUSE_FOLDER_SYNC, LOSE_RENAME = 1, 2, 4, 8, 16
KILL = 0

_HEAD = struct.Struct("llIIIIII")  # as `struct control` of faults.c
_PREFIX, _LAST = 4096, 64
_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN_SECONDS = 20
_SIZE = _HEAD.size + _PREFIX + _LAST


def compile_shim(folder: Path) -> Path:
    """Compile faults.c with the pinned compiler and return the shared object."""
    source = Path(__file__).with_name("faults.c")
    library = folder / "faults.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-O1", "-shared", "-fPIC", "-o", library]
    subprocess.run([*command, source, "-ldl"], check=True, timeout=120)
    return library


def environment(library: Path, control: Path) -> dict[str, str]:
    """Return the environment of a process that has the shim; makes the file `control`."""
    control.write_bytes(bytes(_SIZE))
    return {**os.environ, "LD_PRELOAD": str(library), "FAULTS": str(control)}


class Faults:
    """Controls the shim in this process, and in those forked from it."""

    def __init__(self) -> None:
        with open(os.environ["FAULTS"], "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    def arm(
        self,
        folder: Path,
        at: int,
        error: int = KILL,
        *,
        sticky: bool = False,
        writes_only: bool = False,
        refused: int = 0,
    ) -> None:
        """Make operation `at`, from 1, on files in `folder` fail with `error`, or kill the group.

        Called by the process that leads the group.
        """
        prefix = os.fsencode(folder).ljust(_PREFIX, b"\0") + bytes(_LAST)
        head = _HEAD.pack(0, at, error, sticky, writes_only, refused, os.getpid(), 0)
        self._memory[:] = head + prefix

    def disarm(self) -> tuple[int, str]:
        """Stop it; return how many operations there were, and which call was made to fail."""
        count = _HEAD.unpack_from(self._memory)[0]
        last = self._memory[-_LAST:].rstrip(b"\0").decode()
        self._memory[:] = bytes(_SIZE)
        return count, last


def fork(body: Callable[[], int], errors: Path) -> int:
    """Run `body` in a forked child that leads its own process group.

    Returns its result as the exit status, or the negative number of the signal that ended it; what
    it prints goes to the file `errors`.
    """
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setsid()
            output = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = body()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    _wait_for_orphans()
    return os.waitstatus_to_exitcode(status)


def adopt_orphans() -> None:
    """Be the parent of processes whose parent is killed: `fork` waits for those too."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _wait_for_orphans() -> None:
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    raise AssertionError("a process outlives its build")
                time.sleep(0.005)
        except ChildProcessError:
            return
