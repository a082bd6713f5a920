"""`aotc gc`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aotc.cli.options import Project, output_options, project_options
from aotc.cli.output import Printer, size_text
from aotc.errors import ExitCode
from aotc.store.gc import Swept, collect, digests_in, resolve

_AGES = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _amount(units: dict[str, int], example: str) -> Callable[[str], int]:
    """Return what reads a number with a unit."""

    def read(text: str) -> int:
        match = re.fullmatch(r"(\d+)([a-zA-Z]?)", text)
        if match is None or match[2] not in units:
            raise click.BadParameter(f"`{text}` is not one such as {example}")
        return int(match[1]) * units[match[2]]

    return read


@click.command("gc")
@click.option(
    "--keep",
    metavar="DIGEST",
    multiple=True,
    help="Keep this artifact too; its first 8 digits are enough. May be repeated.",
)
@click.option(
    "--lock",
    "locks",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Keep what this lock file names. May be repeated.  [default: those beside the models]",
)
@click.option(
    "--max-age",
    metavar="AGE",
    type=_amount(_AGES, "30m, 12h, 7d"),
    help="Remove only what was not used for so long, for instance 7d.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    type=_amount(_SIZES, "500M, 10G"),
    help="Remove the least recently used until the store has no more, for instance 10G.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@project_options
@output_options
def command(
    keep: tuple[str, ...],
    locks: tuple[Path, ...],
    max_age: int | None,
    max_bytes: int | None,
    dry_run: bool,
    project: Project,
    printer: Printer,
) -> int:
    """Remove from the store what nothing needs.

    What `aotc ls` lists, lock files name, `--keep` names, or a running build uses stays, whatever
    the limits. Replaced programs, leftovers of killed builds and damaged files that were set
    aside go. Builds and readers may run meanwhile.
    """
    kept = {resolve(project.store, each) for each in keep}
    for path in locks or sorted(project.models.glob("*.lock")):
        kept |= digests_in(path)
    swept = collect(project.store, keep=kept, max_age=max_age, max_bytes=max_bytes, dry_run=dry_run)
    if printer.as_json:
        printer.document(_document(swept, dry_run))
        return ExitCode.OK
    verb = "would remove" if dry_run else "removed"
    for each in swept.removed:
        if each.program:
            printer.result(f"{verb} {each.program}, {each.name.rpartition('/')[2][:12]}")
    kinds = Counter(each.kind for each in swept.removed)
    counts = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())) or "nothing"
    freed, left = size_text(swept.removed_bytes), size_text(swept.kept_bytes)
    printer.result(f"{verb} {freed} ({counts}); {left} left")
    if max_bytes is not None and swept.kept_bytes > max_bytes:
        printer.warning(f"the {left} left are needed, or in use by a running build")
    return ExitCode.OK


def _document(swept: Swept, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "removed": [
            {"name": each.name, "kind": each.kind, "size": each.size, "program": each.program}
            for each in swept.removed
        ],
        "removed_bytes": swept.removed_bytes,
        "kept_bytes": swept.kept_bytes,
    }
