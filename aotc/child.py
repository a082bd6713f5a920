"""A task in a fresh Python process: it goes in, answers come out, line by line.

What a process does cannot depend on what this one has imported, and its crash is an answer too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

import aotc
from aotc.errors import AotcError, ExitCode, Place


class ChildError(AotcError):
    """The process ended without an answer: how, and the last it said."""


class Failed(msgspec.Struct, tag="failed"):
    """What is told of an error, so that it can be raised in the other process."""

    message: str
    exit_code: int
    hint: str | None
    place: tuple[str, int, int] | None

    @staticmethod
    def of(error: AotcError) -> Failed:
        """Return what is told of `error`."""
        place = error.place
        return Failed(
            error.message,
            int(error.exit_code),
            error.hint,
            None if place is None else (str(place.path), place.line, place.column),
        )

    def error(self) -> AotcError:
        """Return the error again."""
        place = None
        if self.place is not None:
            path, line, column = self.place
            place = Place(Path(path), line, column)
        error = AotcError(self.message, place=place, hint=self.hint)
        error.exit_code = ExitCode(self.exit_code)
        return error


def run(
    module: str,
    task: msgspec.Struct,
    answer: Any,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Any]:
    """Yield the answers of `python -m MODULE` to `task`, as they come.

    The process runs in `folder`, with `environment` added. Raises ChildError where it fails.
    """
    added = {"PYTHONPATH": python_path(), **(environment or {})}
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env={**os.environ, **added},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with process.stdin, process.stdout:
                process.stdin.write(msgspec.json.encode(task))
                process.stdin.close()
                for line in process.stdout:
                    yield msgspec.json.decode(line, type=answer)
            code = process.wait()
        except BrokenPipeError:
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code != 0:
            log.seek(0)
            raise ChildError(_describe(code, log.read().strip().splitlines()))


def serve(task: Any, answer: Callable[[Any], Iterator[msgspec.Struct]]) -> None:
    """Be the process: read a task of the type, or types, `task`; write the answers."""
    # Whatever the sources print must not come between the answers.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        for each in answer(msgspec.json.decode(sys.stdin.buffer.read(), type=task)):
            answers.write(msgspec.json.encode(each) + b"\n")
            answers.flush()


def python_path() -> str:
    """Return the PYTHONPATH of a process that is to import this aotc, before what is set here."""
    package = str(Path(aotc.__file__).parents[1])
    return os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])


def has_torch() -> bool:
    """Return whether torch can be imported; most of verify does not need it."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def _describe(code: int, log: list[str]) -> str:
    last = f": {log[-1]}" if log else ""
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}{last}"
    return f"the process ended with exit code {code}{last}"
