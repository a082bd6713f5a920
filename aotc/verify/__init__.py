"""Verify what is in a store, on four levels; each failure names level, program, field and value.

| level       | question                            | how                               |
| ----------- | ----------------------------------- | --------------------------------- |
| integrity   | are the bytes what they were?       | every digest, size and media type |
| contract    | does it match the sources now?      | contracts, field by field         |
| equivalence | the same program, however compiled? | compiled again in fresh processes |
| numerics    | does it compute the right thing?    | run against the model's golden    |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aotc.config import Config
from aotc.errors import AotcError, suggestion
from aotc.store.artifact import StoredProgram, find
from aotc.store.layout import IntegrityError
from aotc.verify import contract, equivalence, integrity, numerics
from aotc.verify.check import CONTRACT, EQUIVALENCE, INTEGRITY, LEVELS, NUMERICS, Check, exit_code

__all__ = ["LEVELS", "Check", "exit_code", "verify"]


def verify(
    config: Config,
    store: Path,
    target: str,
    programs: Sequence[str] = (),
    levels: Sequence[str] = LEVELS,
    report: Callable[[Check], None] = lambda _: None,
) -> list[Check]:
    """Verify the `programs` of a model, or all, built for `target`, on the chosen `levels`.

    Returns every check, failed or not; `report` is told of each as it ends. Bytes found damaged
    are a failed check of the level integrity, also where it was not chosen, and end the
    verification: nothing can be said of what they were. Raises AotcError for an unknown level or
    program, NotFoundError for a program that is not in the store, StoreError where there is none.
    """
    for level in levels:
        if level not in LEVELS:
            hint = suggestion(level, LEVELS) or f"levels: {', '.join(LEVELS)}"
            raise AotcError(f"unknown level `{level}`", hint=hint)
    checks: list[Check] = []
    for check in _checks(config, store, target, programs, levels):
        checks.append(check)
        report(check)
    return checks


def _checks(
    config: Config, store: Path, target: str, programs: Sequence[str], levels: Sequence[str]
) -> Iterator[Check]:
    from aotc.driver import program_names

    names = program_names(config, programs)
    sound = True
    if INTEGRITY in levels:
        for check in integrity.check(store, config.model):
            sound = sound and check.passed
            yield check
    stored: list[StoredProgram] = []
    for name in names if sound else ():
        try:
            stored.append(_open(store, config.model, name, target))
        except IntegrityError as error:
            sound = False
            yield Check(INTEGRITY, name, False, error.message)
    if not sound:
        return
    if CONTRACT in levels:
        for each in stored:
            yield from contract.check(config, each)
    if EQUIVALENCE in levels:
        yield from equivalence.check(config, stored)
    if NUMERICS in levels:
        yield from numerics.check(config, store, stored)


def _open(store: Path, model: str, program: str, target: str) -> StoredProgram:
    """Find a program and read all of it; raise IntegrityError where any of it is damaged."""
    found = find(store, model, program, target)
    found.check()
    return found
