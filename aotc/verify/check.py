"""What a verification finds."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aotc.errors import ExitCode

INTEGRITY, CONTRACT, EQUIVALENCE, NUMERICS = LEVELS = (
    "integrity",
    "contract",
    "equivalence",
    "numerics",
)


class Check(msgspec.Struct, frozen=True):
    """One thing that was verified of a program, or of the whole model where `program` is None.

    A failure says, where it can, which field was `expected` to have a value, and what was `found`.
    `subject` tells the checks of one level and program apart; `seconds` is what this one took.
    """

    level: str
    program: str | None
    passed: bool
    message: str
    subject: str | None = None
    field: str | None = None
    expected: str | None = None
    found: str | None = None
    seconds: float = 0.0


def exit_code(checks: Iterable[Check]) -> ExitCode:
    """Return what the command line exits with: damaged bytes outrank everything else."""
    failed = {check.level for check in checks if not check.passed}
    if INTEGRITY in failed:
        return ExitCode.INTEGRITY
    return ExitCode.INPUT if failed else ExitCode.OK
