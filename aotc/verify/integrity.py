"""Integrity: are the bytes what they were?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from aotc.store.validate import Problem, validate
from aotc.verify.check import INTEGRITY, Check


def check(store: Path, model: str) -> Iterator[Check]:
    """Check every blob that the model leads to, of all its programs and targets.

    A damaged blob of one program may be shared by others. Raises StoreError where the store
    cannot be read.
    """
    begin = time.monotonic()
    problems = validate(store, model)
    seconds = time.monotonic() - begin
    if not problems:
        yield Check(INTEGRITY, None, True, "every blob has its digest and size", seconds=seconds)
    for problem in problems:
        yield Check(
            INTEGRITY,
            _program(problem),
            False,
            problem.message,
            field=problem.where,
            seconds=seconds,
        )


def _program(problem: Problem) -> str | None:
    """Return the program that `where` leads to: `index.json > MODEL > PROGRAM TARGET > ...`."""
    path = problem.where.split(" > ")
    return path[2].split()[0] if len(path) > 2 else None
