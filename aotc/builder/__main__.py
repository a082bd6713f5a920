"""The process of one task, as `processes.run` starts it: a task comes in, lines go out."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import NoReturn

from aotc.errors import ExitCode


class _Asked(BaseException):
    """The process was asked to end."""


def _main() -> NoReturn:
    code = ExitCode.INTERNAL
    try:
        # Whoever asks for an end with Ctrl-C is asked to end us in his turn.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _raise)
        code = _answer()
    except _Asked:
        pass
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    # There is a thread that waits, and nothing that has to be cleaned up any more.
    os._exit(code)


def _answer() -> ExitCode:
    # What the model's modules print must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # which is not kept back in a buffer that no one writes
    task = _read_task()
    threading.Thread(target=_end_with_parent, daemon=True).start()

    from aotc.builder.task import serve

    def say(line: bytes) -> None:
        answers.write(line + b"\n")
        answers.flush()

    serve(task, say)
    return ExitCode.OK


def _read_task() -> bytes:
    text = b""
    while b"\n" not in text:
        text += _read()
    length, _, task = text.partition(b"\n")
    while len(task) < int(length):
        task += _read()
    return task


def _read() -> bytes:
    piece = os.read(0, 1 << 16)
    if not piece:
        raise EOFError("the parent process is gone")
    return piece


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ExitCode.INTERNAL)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Asked


if __name__ == "__main__":
    _main()
