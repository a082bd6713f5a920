"""The errors that reach a user, and the exit codes that they map to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit codes of the command line; stable, documented in README.md."""

    OK = 0
    INPUT = 1
    USAGE = 2
    INTEGRITY = 3
    ENVIRONMENT = 4
    STALE = 5
    MISSING = 6
    UNVERIFIABLE = 7
    INTERNAL = 70


@dataclass(frozen=True)
class Place:
    """A position in an input file; `line` and `column` count from 1, in characters."""

    path: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class AotcError(Exception):
    """A mistake in what the user gave: what is wrong, where, and what to do about it."""

    exit_code = ExitCode.INPUT

    def __init__(self, message: str, *, place: Place | None = None, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def render(self) -> str:
        """Return the plain text shown to the user: message, place, excerpt with caret, hint."""
        lines = [f"error: {self.message}"]
        if self.place is not None:
            lines.append(f"  --> {self.place}")
            excerpt = self._excerpt(self.place)
            if excerpt is not None:
                gutter = f"{self.place.line} | "
                lines.append(f"  {gutter}{excerpt}")
                lines.append("  " + " " * (len(gutter) + self.place.column - 1) + "^")
        if self.hint is not None:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    @staticmethod
    def _excerpt(place: Place) -> str | None:
        try:
            text = place.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        # A tab would move the caret away from the column that it marks.
        return text[place.line - 1].replace("\t", " ") if place.line <= len(text) else None


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the name in `known` closest to `name`, or None where none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else None
