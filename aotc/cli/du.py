"""`aotc du`."""

from __future__ import annotations

import click

from aotc.cli.options import Project, output_options, project_options
from aotc.cli.output import Printer, size_text, table
from aotc.errors import ExitCode
from aotc.store.gc import usage


@click.command("du")
@project_options
@output_options
def command(project: Project, printer: Printer) -> int:
    """Show what takes room in the store.

    Each listed program, and the whole: programs listed, what `aotc gc` can free (unlisted,
    quarantine, staging), and the keys of the build cache. What programs share counts once in the
    whole.
    """
    used = usage(project.store)
    whole = {
        "listed": used.listed,
        "unlisted": used.unlisted,
        "keys": used.keys,
        "quarantine": used.quarantine,
        "staging": used.staging,
        "total": used.total,
    }
    if printer.as_json:
        programs = [
            {"model": each.model, "program": each.program, "target": each.target, "size": size}
            for each, size in sorted(used.programs.items())
        ]
        printer.document({"programs": programs, **whole})
        return ExitCode.OK
    if used.programs:
        rows = [
            (each.model, each.program, each.target, size_text(size))
            for each, size in sorted(used.programs.items())
        ]
        printer.data(table([("MODEL", "PROGRAM", "TARGET", "SIZE"), *rows], right=[3]) + "\n")
    titles = ("WHOLE", "SIZE")
    printer.data(table([titles, *((n, size_text(size)) for n, size in whole.items())], right=[1]))
    return ExitCode.OK
