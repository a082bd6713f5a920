"""Locks between processes that no dead process holds, and what stands in where there are none.

A lock is one that the system holds on an open file (`flock`): it ends with its owner, however that
ends. Where a file system has none, a file beside it names the owner: its machine, process and
start. A process of this machine that is gone, or one of another that has held the lock for an
hour, has lost it; nothing is corrupted should that be wrong, as every write is of whole files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

_FOREIGN_SECONDS = 3600  # no program takes that long to compile
_POLL_SECONDS = (0.001, 0.05)  # shortest and longest time between two attempts
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


class Held:
    """A lock of this process, until `release`, or until the process ends."""

    def __init__(self, path: Path, descriptor: int | None):
        self._path = path
        self._descriptor = descriptor
        self._process = os.getpid()

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up, also its file if `remove`; in a forked child nothing happens."""
        if self._process != os.getpid():
            return
        self._process = -1
        if remove:
            with suppress(OSError):
                os.unlink(self._path)
        if self._descriptor is None:
            with suppress(OSError):
                os.unlink(_owner_file(self._path))
            return
        # A forked child may have it open too: closing it alone would not end the lock.
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(self._descriptor)


def acquire(path: Path, timeout: float = -1) -> Held | None:
    """Return the lock of the file `path`, made if need be, or None after `timeout` seconds.

    With a negative `timeout` it waits as long as it takes, with 0 it does not wait. Raises OSError
    where the file cannot be made.
    """
    deadline = time.monotonic() + timeout
    pause, longest = _POLL_SECONDS
    while True:
        held = _attempt(path)
        if held is not None:
            return held
        if 0 <= timeout and deadline <= time.monotonic():
            return None
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _attempt(path: Path) -> Held | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    kept = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed the file: the lock is then on a file without a name.
        kept = _is_file(path, descriptor)
        return Held(path, descriptor) if kept else None
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        if error.errno not in _NO_LOCKS:
            raise
        return Held(path, None) if _own(_owner_file(path)) else None
    finally:
        if not kept:
            with suppress(OSError):
                os.close(descriptor)


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _owner_file(path: Path) -> Path:
    return path.with_name(path.name + ".owner")


def _own(path: Path) -> bool:
    """Make `path`, which names this process as the owner, or tell that another has it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileExistsError:
        _remove_if_dead(path)
        return False
    with open(descriptor, "wb") as file:
        file.write(_identity(os.getpid()).encode())
    return True


def _remove_if_dead(path: Path) -> None:
    try:
        owner = path.read_text(encoding="utf-8", errors="replace")
        age = time.time() - path.stat().st_mtime
    except OSError:
        return  # it has just been given up
    machine, _, process = owner.rpartition(" process ")
    if machine == _machine():
        number = process.partition(" ")[0]
        alive = number.isdecimal() and _identity(int(number)) == owner
    else:
        alive = age < _FOREIGN_SECONDS
    if not alive:
        # Of several that find it dead, one gets to move it; the others look again.
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        with suppress(OSError):
            try:
                os.rename(path, aside)
            except FileNotFoundError:
                return
            except OSError:  # no rename here either
                os.unlink(path)
                return
            if aside.read_text(encoding="utf-8", errors="replace") == owner:
                os.unlink(aside)
            else:
                os.rename(aside, path)


def _identity(process: int) -> str:
    """Return the words for a process, which no other ever has; without a start if it is gone."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        start = status.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        start = "gone"
    return f"{_machine()} process {process} started {start}"


@cache
def _machine() -> str:
    """Return the words for this boot of this machine, and for the numbering of its processes."""
    words = [os.uname().nodename]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        words.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(words)
