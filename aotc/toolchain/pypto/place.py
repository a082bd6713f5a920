"""A folder that is at the same path wherever and by whomever a program is compiled.

C++ compilers put the paths of their sources into what they make. PyPTO's call of them takes no
flag that would change it, so equal programs are compiled at equal paths.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aotc.toolchain.base import ToolchainError

# Not TMPDIR: it may differ between machines.
_PARENT = "/tmp"
_PREFIX = "aotc-pypto-"
# As long as the parent's, so that nothing moves where it stands in machine code.
_NEUTRAL = "aotc"
_PATIENCE = 600  # seconds; another compilation of the same program takes less


@contextmanager
def fixed_folder(digest: str) -> Iterator[Path]:
    """Make the folder for the program of this digest, for this process alone; remove it after.

    Raises ToolchainError where it cannot be made, or others hold it for long.
    """
    folder = Path(_PARENT, f"{_PREFIX}{digest[:32]}")
    lock_path = folder.with_suffix(".lock")
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if not isinstance(error, PermissionError) or time.monotonic() > deadline:
                raise ToolchainError(f"cannot use {lock_path}: {error.strerror}") from None
            time.sleep(0.2)  # another user compiles the same program
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, lock_path):  # else its last holder has removed it meanwhile
                try:
                    _make(folder)
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                    lock_path.unlink(missing_ok=True)
                return
        finally:
            os.close(lock)


def neutral(content: bytes, folder: Path) -> bytes:
    """Return `content` with the path of `folder` made relative, of the same length."""
    path = os.fsencode(folder)
    return content.replace(path, os.fsencode(_NEUTRAL) + path[len(_PARENT) :])


def _make(folder: Path) -> None:
    try:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)  # of a process that was killed
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ToolchainError(f"cannot make {folder}: {error.strerror}") from None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
