"""Programs written by hand in C; the limits of the machine are aotc's own."""

from __future__ import annotations

import time
from pathlib import Path

from aotc.contract import Direction, Parameter
from aotc.limits import Limits, native
from aotc.runtime import Program, Worker

__all__ = ["Copy", "Limits", "nothing", "phases"]


def nothing(parameters: int) -> Program:
    """Return a program that does nothing with so many tensors."""
    return native(_text("nothing"), [Parameter(f"p{i}", "fp32", (16,)) for i in range(parameters)])


def phases() -> Program:
    """Return a program whose threads share out work and wait for each other, again and again.

    Its parameters are how often, and the work: steps of a cycle or two.
    """
    return native(_text("phases"), [Parameter(name, "int64", ()) for name in ("phases", "steps")])


class Copy:
    """A copy of `nbytes` of memory by a worker's team: what an upload is held against."""

    def __init__(self, worker: Worker, nbytes: int):
        self._tensors = [worker.alloc_tensor((max(nbytes // 64, 1) * 16,), "fp32") for _ in "ab"]
        for tensor in self._tensors:
            tensor.numpy().fill(1.0)
        target = Parameter("to", "fp32", ("L",), Direction.INOUT)
        program = native(_text("copy"), [Parameter("from", "fp32", ("L",)), target], ["L"])
        self._call = worker.load(program).bind(*self._tensors)

    def rate(self) -> float:
        """Return the bytes copied a second, each read once and written once."""
        begin = time.perf_counter()
        self._call()
        return self._tensors[0].nbytes / (time.perf_counter() - begin)

    def free(self) -> None:
        """Give the memory back."""
        for tensor in self._tensors:
            tensor.free()


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.c").read_text(encoding="utf-8")
