"""Where the time of a program goes: a build of its own, with time stamps, that is never stored.

The profile build records an event for each time that a thread runs a region or waits in a barrier;
each region counts the flops and the bytes of what it does (`codegen/counting.py`). What is stored
and shipped is compiled without any of it.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aotc.codegen.source import BARRIER, CALL, generate_profiled
from aotc.config import Config
from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.limits import Limits
from aotc.runtime import DeviceTensor, Program, Worker, load_program
from aotc.toolchain import native
from aotc.toolchain.zig import TARGETS, compile_shared_object

if TYPE_CHECKING:
    from numpy import ndarray

# The parameter and the symbols that a profile build has besides those of its program.
_EVENTS, _THREADS, _WORDS = "aotc_events", "aotc_threads", "aotc_words"
_EVENT_WORDS = 5  # region, first and last tick, flops, bytes: see codegen/library/profile.h
_FIRST_EVENTS = 4096
_CALIBRATION = 0.1  # seconds between the calls whose ticks tell the length of a tick
READ_BYTES = 1 << 30  # more than caches hold


@dataclass(frozen=True)
class ProfileBuild:
    """A profile build, loaded: `ir` is the text of what it was made from."""

    program: Program
    regions: tuple[str, ...]
    ir: str


@dataclass(frozen=True)
class Region:
    """What one call does in a region: `seconds` is the mean of the threads.

    `flops` and `bytes` are those of all threads, and exact. `share` is the time that the machine's
    limits allow for them, over the time taken.
    """

    name: str
    runs: int
    seconds: float
    flops: int
    bytes: int
    share: float | None = None


@dataclass(frozen=True)
class Event:
    """Something that a thread did: `begin` and `end` in seconds from the start of the call."""

    name: str
    thread: int
    begin: float
    end: float
    flops: int
    bytes: int


@dataclass(frozen=True)
class Profile:
    """One call, in seconds, of which a thread spends so many on average, and its `events`.

    `call` is the whole; what is neither in `regions` nor in `waiting`, at barriers, is the rest.
    `read` and `fma` are the limits of the machine, bytes and fp32 operations a second.
    """

    call: float
    waiting: float
    regions: tuple[Region, ...]
    read: float
    fma: float
    events: tuple[Event, ...]

    @property
    def rest(self) -> float:
        """Seconds outside of regions and barriers."""
        return self.call - self.waiting - sum(each.seconds for each in self.regions)


def build(config: Config, name: str, target: str) -> ProfileBuild:
    """Compile the profile build of a program; nothing is stored.

    Raises AotcError for a mistake in the sources, and ToolchainError.
    """
    from aotc.ir.text import print_program

    lowered = native.lower(config, name, target)
    made = generate_profiled(lowered.program, lowered.contract)
    content = compile_shared_object(made.source, TARGETS[target])
    loaded = load_program(with_events(lowered.contract), content, target)
    return ProfileBuild(loaded, made.regions, print_program(lowered.program))


def with_events(contract: Contract) -> Contract:
    """Return the contract of a profile build of a program of `contract`."""
    events = Parameter(_EVENTS, "int64", (_THREADS, _WORDS), Direction.INOUT)
    return dataclasses.replace(
        contract,
        parameters=(*contract.parameters, events),
        symbols=(*contract.symbols, DynamicSymbol(_THREADS), DynamicSymbol(_WORDS)),
    )


def measure(
    built: ProfileBuild,
    worker: Worker,
    arguments: Sequence[DeviceTensor],
    repeat: int,
    read_bytes: int,
) -> Profile:
    """Return the call of median time of `repeat` on `arguments`.

    What the machine gives is measured between them, the reading over `read_bytes`: what slows the
    machine for a while slows both.
    """
    recorder = _Recorder(built, worker, arguments)
    first = recorder.run()
    time.sleep(_CALIBRATION)
    limits = Limits(worker, read_bytes)
    calls = []
    for _ in range(repeat):
        limits.read()
        limits.fma()
        recorder.run()  # the limits have emptied the caches
        calls.append(recorder.run())
    last = calls[-1]
    tick = (last.began - first.began) / (last.first_tick - first.first_tick)
    call = sorted(calls, key=lambda each: each.ticks(CALL))[repeat // 2]
    read, fma = statistics.median(limits.reads), statistics.median(limits.fmas)

    def seconds(number: int) -> float:
        return call.ticks(number) * tick / worker.threads

    regions = []
    for number, name in enumerate(built.regions):
        if number in (CALL, BARRIER):
            continue
        took, (runs, flops, nbytes) = seconds(number), call.work(number)
        allowed = max(nbytes / read, flops / fma)
        share = allowed / took if took and allowed else None
        regions.append(Region(name, runs // worker.threads, took, flops, nbytes, share))
    return Profile(
        seconds(CALL),
        seconds(BARRIER),
        tuple(regions),
        read,
        fma,
        tuple(call.events(built.regions, tick)),
    )


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Return the events for a viewer of Chrome traces (`chrome://tracing`, Perfetto), as JSON."""
    threads = sorted({each.thread for each in profile.events})
    named = [
        {
            **{"name": "thread_name", "ph": "M", "pid": 0, "tid": thread},
            "args": {"name": f"thread {thread}"},
        }
        for thread in threads
    ]
    events = [
        {
            **{"name": each.name, "ph": "X", "pid": 0, "tid": each.thread},
            **{"ts": each.begin * 1e6, "dur": (each.end - each.begin) * 1e6},
            "args": {"flops": each.flops, "bytes": each.bytes},
        }
        for each in profile.events
    ]
    return {"displayTimeUnit": "ns", "traceEvents": [*named, *events]}


@dataclass(frozen=True)
class _Call:
    """One call: when it began, by the clock of this process, and its events.

    `rows` is int64 [events, 6]: thread, region, first and last tick, flops, bytes.
    """

    began: float
    rows: ndarray[Any, Any]

    @property
    def first_tick(self) -> int:
        """The tick at which thread 0 entered."""
        of_thread_0 = self.rows[self.rows[:, 0] == 0]
        return int(of_thread_0[of_thread_0[:, 1] == CALL][0, 2])

    def ticks(self, region: int) -> int:
        """Return the ticks that all threads spent in a region."""
        rows = self._of(region)
        return int((rows[:, 3] - rows[:, 2]).sum())

    def work(self, region: int) -> tuple[int, int, int]:
        """Return how often threads ran the region, its flops, and its bytes."""
        rows = self._of(region)
        return len(rows), int(rows[:, 4].sum()), int(rows[:, 5].sum())

    def events(self, names: Sequence[str], tick: float) -> Iterator[Event]:
        """Yield the events, those of a thread in the order in which they began."""
        start = self.rows[:, 2].min()
        # Of two that begin at one tick the longer is around the other.
        order = sorted(self.rows.tolist(), key=lambda row: (row[0], row[2], -row[3]))
        for thread, region, begin, end, flops, nbytes in order:
            first, last = float(begin - start) * tick, float(end - start) * tick
            yield Event(names[region], thread, first, last, flops, nbytes)

    def _of(self, region: int) -> ndarray[Any, Any]:
        rows: ndarray[Any, Any] = self.rows[self.rows[:, 1] == region]
        return rows


class _Recorder:
    """Runs a profile build, with memory for all of its events."""

    def __init__(self, built: ProfileBuild, worker: Worker, arguments: Sequence[DeviceTensor]):
        self._worker, self._arguments = worker, arguments
        self._loaded = worker.load(built.program)
        self._bind(_FIRST_EVENTS)
        self.run()

    def _bind(self, events: int) -> None:
        shape = (self._worker.threads, 1 + events * _EVENT_WORDS)
        self._memory = self._worker.alloc_tensor(shape, "int64")
        self._call = self._loaded.bind(*self._arguments, self._memory)

    def run(self) -> _Call:
        """Run once; again with more memory where the events do not fit."""
        import numpy

        began = time.perf_counter()
        self._call()
        counts = self._memory.numpy()[:, 0]
        room = self._memory.shape[1] // _EVENT_WORDS
        if counts.max() > room:
            self._bind(2 * int(counts.max()))
            return self.run()
        parts = []
        for thread, count in enumerate(counts):
            rows = self._memory.numpy()[thread, 1 : 1 + count * _EVENT_WORDS]
            rows = rows.reshape(-1, _EVENT_WORDS)
            parts.append(numpy.insert(rows, 0, thread, axis=1))
        return _Call(began, numpy.concatenate(parts))
