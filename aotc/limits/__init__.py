"""What the machine gives to a team of threads: loops in C, compiled and run where it is asked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import resources

from aotc import driver
from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.runtime import Program, Worker, load_program
from aotc.toolchain.zig import TARGETS, compile_shared_object

_PRELUDE = ("runtime/include/aotc_abi.h", "codegen/library/pool.h")
_STREAMS = 8
_FMAS = 12
_LINE = 32  # floats between the results of two threads


def native(body: str, parameters: Sequence[Parameter], symbols: Sequence[str] = ()) -> Program:
    """Compile the C text `body`, after the ABI and the pool, for this host."""
    target = driver.default_target()
    package = resources.files("aotc")
    prelude = [(package / name).read_text(encoding="utf-8") for name in _PRELUDE]
    contract = Contract(tuple(parameters), tuple(map(DynamicSymbol, symbols)))
    content = compile_shared_object("\n".join([*prelude, body]), TARGETS[target])
    return load_program(contract, content, target)


class Limits:
    """The rates that a worker's team reaches: reading memory, and multiplying in registers.

    `nbytes` is the size of what is read: more than the caches hold. `reads` and `fmas` keep all
    that was measured.
    """

    def __init__(self, worker: Worker, nbytes: int):
        self.worker = worker
        threads = worker.threads
        out = Parameter("out", "fp32", (threads * _LINE,), Direction.INOUT)
        result = worker.alloc_tensor((threads * _LINE,), "fp32")

        # An odd number of lines apart, so that the streams do not share the sets of a cache.
        length = max(nbytes // (threads * _STREAMS * 4) // 1024, 1) * 1024 + 80
        data = worker.alloc_tensor((threads * _STREAMS, length), "fp32")
        data.numpy().fill(1.0)
        reader = native(_text("read"), [Parameter("data", "fp32", ("S", "L")), out], ["S", "L"])
        self._read = worker.load(reader).bind(data, result)
        self._nbytes = data.nbytes

        multiplier = native(_text("fma"), [Parameter("loops", "int64", ()), out])
        self._fma = worker.load(multiplier)
        self._result, self._threads = result, threads
        self.reads: list[float] = []
        self.fmas: list[float] = []
        self._loops = 1 << 20
        self.fma()
        self._loops = max(1, int(self._loops * 0.1 / self._seconds))
        self.fmas.clear()

    def read(self) -> float:
        """Return the bytes read a second."""
        begin = time.perf_counter()
        self._read()
        self.reads.append(self._nbytes / (time.perf_counter() - begin))
        return self.reads[-1]

    def fma(self) -> float:
        """Return the fp32 operations a second, an FMA being two; a tenth of a second long."""
        call = self._fma.bind(self._loops, self._result)
        begin = time.perf_counter()
        call()
        self._seconds = time.perf_counter() - begin
        flops = self._threads * self._loops * _FMAS * self.lanes * 2
        self.fmas.append(flops / self._seconds)
        return self.fmas[-1]

    @property
    def lanes(self) -> int:
        """The floats in a vector."""
        return int(self._result.numpy()[1])


def _text(name: str) -> str:
    return (resources.files("aotc") / "limits" / f"{name}.c").read_text(encoding="utf-8")
