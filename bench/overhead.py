"""What a call, a load, an upload and a lack of processors cost beside the work itself."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aotc.runtime import Worker
from aotc.runtime.host import MAX_THREADS
from bench.measure import Row
from bench.native import Copy, nothing, phases

_PARAMETERS = 25
_CALLS = 1000
_PHASES = 1000
_STEPS = 150_000  # of a thread in a phase: some 100 us, as in a step of a small model

# A server's start: nothing is imported before, and torch never.
_LOAD = """
import sys, time
begin = time.perf_counter()
from aotc.runtime import load
imported = time.perf_counter()
model, program, store, threads = sys.argv[1:]
with load(model, program, store).prepare(int(threads)):
    end = time.perf_counter()
assert "torch" not in sys.modules
print(imported - begin, end - imported)
"""

# Never rests, but ends with the process that started it.
_BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


def dispatch(worker: Worker, quick: bool) -> list[Row]:
    """Return rows for a bound call of an empty program, on the team and on one thread."""
    program = nothing(_PARAMETERS)
    rows = []
    with program.prepare(1) as single:
        for each in (worker, single):
            tensors = [each.alloc_tensor((16,), "fp32") for _ in range(_PARAMETERS)]
            call = each.load(program).bind(*tensors)
            name = f"bound call, {_PARAMETERS} parameters, {each.threads} threads"
            rows.append(Row(name, _per_call(call, 5 if quick else 25) * 1e6, "us"))
    return rows[: 1 if worker.threads == 1 else 2]


def loading(model: str, program: str, store: Path, threads: int, quick: bool) -> list[Row]:
    """Return rows for a fresh process: from an artifact to a program ready to be called."""
    command = [sys.executable, "-c", _LOAD, model, program, str(store), str(threads)]
    times = []
    for _ in range(3 if quick else 11):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        middle = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        end = time.perf_counter()
        imports, loads = map(float, done.stdout.split())
        times.append(
            (loads, imports, end - middle, middle - begin, (middle - begin) / (end - middle))
        )
    loads, imports, whole, start, share = map(statistics.median, zip(*times, strict=True))
    return [
        Row("load to a ready handle", loads * 1e3, "ms"),
        Row("  import of aotc.runtime before it", imports * 1e3, "ms"),
        Row("  the whole process", whole * 1e3, "ms"),
        Row("  start of a process", start * 1e3, "ms", share, "of the whole one"),
    ]


def upload(allocated: float, copied: float, worker: Worker, nbytes: int) -> list[Row]:
    """Return rows for `alloc_tensor`, and for a copy into memory that is there, in bytes a second.

    They are held against a plain copy of `nbytes` by the same threads. `alloc_tensor` includes that
    the system finds and clears the memory, which only it can hasten.
    """
    copy = Copy(worker, nbytes)
    plain = statistics.median(copy.rate() for _ in range(5))
    copy.free()
    against = "copy"
    return [
        Row("plain copy by all threads", plain / 1e9, "GB/s"),
        Row("alloc_tensor of the weights", allocated / 1e9, "GB/s", allocated / plain, against),
        Row("  copied again, memory in place", copied / 1e9, "GB/s", copied / plain, against),
    ]


def oversubscription(quick: bool) -> list[Row]:
    """Return rows for phases between barriers, where there is more to run than processors.

    A team with a thread for each processor is held against itself beside as many busy processes,
    which leave it half of the time, and against a team twice as large with the same work.
    """
    processors = len(os.sched_getaffinity(0))
    more = min(2 * processors, MAX_THREADS)
    program, rounds = phases(), []
    with (
        program.prepare(processors) as team,
        program.prepare(more) as crowd,
        _busy(processors) as send,
    ):
        run, run_crowd = (
            each.load(program).bind(_PHASES, _STEPS * processors) for each in (team, crowd)
        )
        for _ in range(6 if quick else 10):
            send(signal.SIGSTOP)
            quiet = _seconds(run), _seconds(run_crowd)
            send(signal.SIGCONT)
            rounds.append((*quiet, _seconds(run)))
    # In the first round the busy processes were starting.
    alone, crowded, beside = zip(*rounds[1:], strict=True)

    def row(name: str, seconds: Sequence[float], against: str) -> Row:
        ratio = statistics.median(b / a for a, b in zip(alone, seconds, strict=True))
        return Row(name, statistics.median(seconds) / _PHASES * 1e6, "us", ratio, against)

    name = f"phase between barriers, {processors} threads"
    return [
        Row(name, statistics.median(alone) / _PHASES * 1e6, "us"),
        row(f"  beside {processors} busy processes", beside, "over it alone: 2 is ideal"),
        row(f"  on {more} threads", crowded, f"over {processors} threads: 1 is ideal"),
    ]


@contextlib.contextmanager
def _busy(count: int) -> Iterator[Callable[[signal.Signals], None]]:
    """Start processes that never rest; what it yields sends them all a signal."""
    command = [sys.executable, "-c", _BUSY]
    processes = [subprocess.Popen(command, process_group=0) for _ in range(count)]

    def send(number: signal.Signals) -> None:
        for each in processes:
            each.send_signal(number)

    try:
        yield send
    finally:
        send(signal.SIGKILL)
        for each in processes:
            each.wait()


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _per_call(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - begin) / _CALLS)
    return statistics.median(times)
