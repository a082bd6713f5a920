"""Processes of their own for tasks: what one of them does, or comes to, does not touch the others.

Each leads a process group, so that its compiler ends with it, and has a folder for temporary files,
which is removed after it, however it ended. It watches its standard input, which stays open for as
long as this process lives: no task outlives who asked for it.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from aotc.child import python_path

_TICK_SECONDS = 0.1
_GRACE_SECONDS = 2.0  # to remove what is half done, before it is killed
_LOG_BYTES = 64 << 10  # kept of what a task prints


@dataclass(frozen=True)
class Started:
    """The task of this index runs."""

    index: int


@dataclass(frozen=True)
class Said:
    """The task of this index has written a line, without its end."""

    index: int
    line: bytes


@dataclass(frozen=True)
class Ended:
    """The process of a task is gone: its exit code or minus a signal, and what it has printed."""

    index: int
    code: int
    log: str
    timed_out: bool = False


@dataclass(frozen=True)
class Refused:
    """No process could be started for the task of this index, and none was running."""

    index: int
    error: OSError


Event = Started | Said | Ended | Refused


def run(
    tasks: Sequence[bytes],
    *,
    limit: int,
    timeout: float | None = None,
    has_room: Callable[[], bool] = lambda: True,
) -> Generator[Event, None, None]:
    """Run `python -m aotc.builder` for each of `tasks`, at most `limit` at once; yield events.

    One is started while others run only where `has_room` says so, and the system lets it; else it
    waits for one of them to end. A task that takes longer than `timeout` seconds is ended. Closing
    the iterator ends what runs and waits for that.
    """
    waiting = list(enumerate(tasks))[::-1]
    running: list[_Process] = []
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or running:
                while waiting and len(running) < limit and (not running or has_room()):
                    index, task = waiting.pop()
                    try:
                        process = _Process(index, task, timeout)
                    except OSError as error:
                        if running:
                            waiting.append((index, task))
                            break
                        yield Refused(index, error)
                        continue
                    running.append(process)
                    selector.register(process.output, selectors.EVENT_READ, process)
                    yield Started(index)
                selector.select(_TICK_SECONDS)
                for process in list(running):
                    has_ended = process.has_ended()
                    lines, is_open = process.read()
                    yield from (Said(process.index, line) for line in lines)
                    timed_out = process.deadline <= time.monotonic()
                    if has_ended or timed_out or not is_open:
                        selector.unregister(process.output)
                        ended = process.end(timed_out=is_open and timed_out and not has_ended)
                        running.remove(process)
                        yield ended
    finally:
        _stop(running)


class _Process:
    def __init__(self, index: int, task: bytes, timeout: float | None):
        self.index = index
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self.log = tempfile.TemporaryFile()
        try:
            self.folder = tempfile.mkdtemp(prefix="aotc-")
        except OSError:
            self.log.close()
            raise
        added = {"PYTHONPATH": python_path(), "TMPDIR": self.folder}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "aotc.builder"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                process_group=0,
                env={**os.environ, **added},
            )
        except BaseException:
            self._clean()
            raise
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.output: IO[bytes] = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self._partial = b""
        with suppress(BrokenPipeError):  # it is gone already, and how it ended is what counts
            self.process.stdin.write(b"%d\n%b" % (len(task), task))
            self.process.stdin.flush()

    def has_ended(self) -> bool:
        """Tell whether the process itself is gone; one that it has forked may go on."""
        return self.process.poll() is not None

    def read(self) -> tuple[list[bytes], bool]:
        """Return the lines that are there, and whether there can be more."""
        is_open = True
        with suppress(BlockingIOError):
            while is_open:
                content = os.read(self.output.fileno(), 1 << 16)
                self._partial += content
                is_open = bool(content)
        *lines, self._partial = self._partial.split(b"\n")
        return lines, is_open

    def end(self, timed_out: bool = False) -> Ended:
        """Wait for the end, or bring it about, and return how it was."""
        if timed_out:
            self.ask()
        self.wait(time.monotonic() + _GRACE_SECONDS)
        self.kill()
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - _LOG_BYTES))
        text = self.log.read().decode(errors="replace").strip()
        self.close()
        return Ended(self.index, self.process.returncode, text, timed_out)

    def ask(self) -> None:
        """Ask the process to end, and to tidy up before."""
        self.process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait until it has ended, or for the deadline."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """End the process and all that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End the process now, if it has not ended, and remove what it leaves."""
        self.kill()
        self._clean()
        self.output.close()
        with suppress(BrokenPipeError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def _clean(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.close()


def _stop(processes: Sequence[_Process]) -> None:
    """End what runs; a second interrupt meanwhile takes the time to tidy up from it."""
    try:
        for each in processes:
            each.ask()
        deadline = time.monotonic() + _GRACE_SECONDS
        for each in processes:
            each.wait(deadline)
    finally:
        for each in processes:
            each.close()
