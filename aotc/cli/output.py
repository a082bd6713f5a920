"""What commands print: data to stdout, messages to stderr, progress where a person looks on."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from aotc.errors import AotcError, ExitCode

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class OutputError(AotcError):
    """Standard output cannot be written."""

    exit_code = ExitCode.ENVIRONMENT


class Printer:
    """Prints for one command; `quiet` leaves data and errors, `as_json` makes both JSON."""

    def __init__(self, *, quiet: bool = False, as_json: bool = False):
        self.quiet = quiet
        self.as_json = as_json
        self._live: Progress | None = None

    def data(self, text: str) -> None:
        """Print what the command was asked for; raise OutputError where it cannot be written."""
        self._write(text, sys.stdout)

    def document(self, value: Any) -> None:
        """Print what the command was asked for, as JSON."""
        self.data(json.dumps(value, indent=2))

    def result(self, text: str) -> None:
        """Print a line on what was done, which a JSON document tells otherwise."""
        if not self.quiet and not self.as_json:
            self.data(text)

    def note(self, text: str) -> None:
        """Print a message on the way."""
        if not self.quiet:
            self._write(text, sys.stderr)

    def warning(self, text: str) -> None:
        """Print a warning."""
        self.note(f"{_styled('warning:', 'yellow', sys.stderr)} {text}")

    def error(self, error: AotcError, exit_code: int | None = None) -> None:
        """Print `error`: as text to stderr, or as the JSON object of stdout."""
        if self.as_json and not isinstance(error, OutputError):
            self.document({"error": error_document(error, exit_code)})
        else:
            head = _styled("error:", "red", sys.stderr)
            self._write(error.render().replace("error:", head, 1), sys.stderr)

    def _write(self, text: str, stream: TextIO) -> None:
        if self._live is not None and stream.isatty():
            from rich.text import Text

            self._live.console.print(Text.from_ansi(text), soft_wrap=True)
            return
        try:
            print(text, file=stream, flush=True)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            # What is left in the buffer must not fail once more when the interpreter ends.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
            raise OutputError(f"cannot write the output: {error.strerror}") from None

    @contextmanager
    def progress(self, *, bars: bool = False) -> Iterator[Running]:
        """Show what is running meanwhile, if stderr is a terminal; with `bars`, how far it is."""
        if self.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield Running(None)
            return
        # A fifth of the time of a build that has nothing to do, so only for who sees it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        bar = (BarColumn(bar_width=16), TextColumn("{task.fields[step]}")) if bars else ()
        name = TextColumn("{task.description}")
        columns = (SpinnerColumn(), name, *bar, TimeElapsedColumn())
        with Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            self._live = live
            try:
                yield Running(live)
            finally:
                self._live = None


class Running:
    """What is running: a line with a spinner and the time for each, on a terminal.

    With bars, also how many of its steps are done, and which one it is at.
    """

    def __init__(self, live: Progress | None):
        self._live = live
        self._tasks: dict[str, TaskID] = {}

    def start(self, name: str, steps: int | None = None) -> None:
        """Show `name`, which takes so many `steps`, from now on."""
        if self._live is not None:
            self._tasks[name] = self._live.add_task(name, total=steps, step="")

    def enter(self, name: str, done: int, step: str) -> None:
        """Show that `name` has come to `step`, after `done` others."""
        if self._live is not None and name in self._tasks:
            self._live.update(self._tasks[name], completed=done, step=step)

    def finish(self, name: str) -> None:
        """Show `name` no longer."""
        if self._live is not None and name in self._tasks:
            self._live.remove_task(self._tasks.pop(name))
            self._live.refresh()


def error_document(error: AotcError, exit_code: int | None = None) -> dict[str, Any]:
    """Return `error` as JSON has it: message, place, hint, exit code."""
    place = error.place
    return {
        "message": error.message,
        "place": None
        if place is None
        else {"path": str(place.path), "line": place.line, "column": place.column},
        "hint": error.hint,
        "exit_code": int(error.exit_code if exit_code is None else exit_code),
    }


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return `rows`, the first of which are the titles, in aligned columns; `right` to the right.

    There is no space at the end of a line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def size_text(nbytes: int) -> str:
    """Return a number of bytes for a reader, for instance `1.5 KiB`."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"


def _styled(text: str, color: str, stream: TextIO) -> str:
    plain = os.environ.get("NO_COLOR") or not stream.isatty()
    return text if plain else click.style(text, fg=color, bold=True)
