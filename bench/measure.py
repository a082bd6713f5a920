"""Rounds of runs that are compared with each other, and rows of results."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.native import Limits
from bench.work import Action

_SETTLE = 0.03  # seconds in which threads that another engine left spinning go to sleep


@dataclass(frozen=True)
class Row:
    """A result, and what it is compared with; `others` is the processor time that was not ours.

    A ratio above a few percent of `others` says little: the same run on an idle machine says more.
    `group` is the part of the benchmark, `peer` the engine whose speed it is, where not aotc's.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str = ""
    others: float | None = None
    group: str = ""
    peer: str = ""

    def document(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """One run, and what the machine gave right before: bytes and fp32 operations a second."""

    seconds: float
    read: float
    fma: float


def interleave(
    actions: Mapping[str, Action],
    limits: Limits,
    *,
    rounds: int,
    seconds: float,
    until: float = math.inf,
) -> dict[str, list[Run]]:
    """Run every action once to warm up, then all in turn, `rounds` times, or for `seconds`.

    Runs of one round belong together: what slows the machine for a while slows all of them. Only
    the first is begun where it might not be over by `until`, a time of `time.perf_counter`.
    """
    for action in actions.values():
        action()
    runs: dict[str, list[Run]] = {name: [] for name in actions}
    deadline = time.perf_counter() + seconds
    for _ in range(rounds):
        start = time.perf_counter()
        for name, action in actions.items():
            time.sleep(_SETTLE)
            read, fma = limits.read(), limits.fma()
            begin = time.perf_counter()
            reported = action()
            took = time.perf_counter() - begin
            runs[name].append(Run(reported if isinstance(reported, float) else took, read, fma))
        now = time.perf_counter()
        if now > deadline or now + (now - start) > until:
            break
    return runs


def median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    """Return the median of a value over the runs."""
    return statistics.median(map(value, runs))


def faster(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """Return how many times as fast `ours` is: the median over the rounds."""
    return statistics.median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True))


def table(rows: Sequence[Row]) -> str:
    """Return the rows as aligned text."""
    cells = [("", "value", "unit", "ratio", "others", "against")]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        others = "" if row.others is None else f"{row.others:.0%}"
        name = f"{row.name}: {row.peer}" if row.peer else row.name
        cells.append((name, short(row.value), row.unit, ratio, others, row.against))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, value, unit, ratio, others, against in cells:
        line = (
            f"{name:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}"
            f"  {ratio:>{widths[3]}}  {others:>{widths[4]}}  {against}"
        )
        lines.append(line.rstrip())
    return "\n".join(lines)


def short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
