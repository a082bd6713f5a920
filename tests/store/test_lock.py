"""A lock is held by one, and by nobody once its owner is gone, however it went."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc.store import lock
from aotc.store.lock import acquire

OWNER = "x.lock.owner"


@pytest.fixture(params=["flock", "owner file"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a lock, on a file system with locks and on one without."""
    if request.param == "owner file":

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", refuse)
    return tmp_path / "x.lock"


def test_one_holds_it(path: Path) -> None:
    held = acquire(path)
    assert held is not None
    begin = time.monotonic()
    assert acquire(path, 0) is None
    assert acquire(path, 0.1) is None
    assert time.monotonic() - begin >= 0.1
    held.release()
    again = acquire(path, 0)
    assert again is not None
    held.release()  # once more does nothing to who has it now
    assert acquire(path, 0) is None


def test_who_waits_gets_it(path: Path) -> None:
    held = acquire(path)
    assert held is not None
    threading.Timer(0.1, held.release).start()
    assert acquire(path, 10) is not None


def test_a_removed_one_is_made_anew(path: Path) -> None:
    held = acquire(path)
    assert held is not None
    held.release(remove=True)
    assert not path.exists()
    assert acquire(path, 0) is not None


def test_a_killed_owner_has_lost_it(path: Path, in_child: Callable[..., Any]) -> None:
    def body() -> None:
        assert acquire(path, 0) is not None
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(body) == -signal.SIGKILL
    assert acquire(path, 5) is not None


def test_a_forked_child_does_not_give_it_up(path: Path, in_child: Callable[..., Any]) -> None:
    held = acquire(path)
    assert held is not None
    in_child(held.release)
    assert acquire(path, 0) is None


def test_a_child_that_outlives_the_owner_does_not_keep_it(path: Path) -> None:
    """Neither one that was forked nor one that was started."""
    held = acquire(path)
    assert held is not None
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        held.release()
        assert acquire(path, 0) is not None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        started.kill()
        started.wait()


def test_where_it_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        acquire(tmp_path / "absent" / "x.lock")
    (tmp_path / "target").touch()
    (tmp_path / "link.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        acquire(tmp_path / "link.lock")


@pytest.mark.parametrize(
    ("owner", "age", "taken_over"),
    [
        ("{machine} process 1 started 5", 0, True),  # another process had that number
        ("{machine} process 999999999 started 5", 0, True),
        ("{machine} process x started 5", 0, True),
        ("another machine process 1 started 5", 0, False),
        ("another machine process 1 started 5", 3599, False),
        ("another machine process 1 started 5", 3700, True),
        ("", 0, False),  # its owner is about to write its name
        ("", 3700, True),
        ("\udcff" * 9, 3700, True),
    ],
)
def test_who_owns_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, age: float, taken_over: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = tmp_path / OWNER
    text = owner.format(machine=lock._machine())
    file.write_bytes(text.encode(errors="surrogateescape"))
    then = time.time() - age
    os.utime(file, (then, then))
    assert (acquire(tmp_path / "x.lock", 0.05) is not None) == taken_over


def test_another_error_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        acquire(tmp_path / "x.lock")
