"""`aotc ls`."""

from __future__ import annotations

import click

from aotc.cli.options import Project, needs_build, output_options, project_options
from aotc.cli.output import Printer, size_text, table
from aotc.errors import AotcError, ExitCode, suggestion
from aotc.store.artifact import Entry, NotFoundError, StoredProgram, find, list_programs


@click.command("ls")
@click.argument("model", required=False)
@project_options
@output_options
def command(model: str | None, project: Project, printer: Printer) -> int:
    """List the programs in the store.

    All of them, or those of MODEL. The size is that of the object, the IR and the C together.
    """
    with needs_build(model or "MODEL"):
        entries = list_programs(project.store)
    if model is not None:
        models = {entry.model for entry in entries}
        if model not in models:
            raise NotFoundError(
                f"no model `{model}` in the store in {project.store}",
                hint=suggestion(model, models) or f"`aotc build {model}` makes it",
            )
        entries = [entry for entry in entries if entry.model == model]
    found: list[tuple[Entry, StoredProgram | None]] = []
    code = ExitCode.OK
    for entry in entries:
        try:
            stored = find(project.store, entry.model, entry.program, entry.target)
        except AotcError as error:
            # One that is damaged does not hide the others.
            if code is ExitCode.OK:
                code = error.exit_code
            printer.warning(f"{entry}: {error.message}")
            found.append((entry, None))
        else:
            found.append((entry, stored))
    if printer.as_json:
        printer.document([_document(entry, stored) for entry, stored in found])
    elif not found:
        printer.note(f"no programs in {project.store}")
    else:
        titles = ("MODEL", "PROGRAM", "TARGET", "MANIFEST", "SIZE")
        rows = [_row(entry, stored) for entry, stored in found]
        printer.data(table([titles, *rows], right=[4]))
    return code


def _row(entry: Entry, stored: StoredProgram | None) -> tuple[str, ...]:
    if stored is None:
        return (entry.model, entry.program, entry.target, "damaged", "")
    digest = stored.manifest_digest.hex[:12]
    return (entry.model, entry.program, entry.target, digest, size_text(_size(stored)))


def _document(entry: Entry, stored: StoredProgram | None) -> dict[str, str | int | None]:
    return {
        "model": entry.model,
        "program": entry.program,
        "target": entry.target,
        "manifest": None if stored is None else str(stored.manifest_digest),
        "size": None if stored is None else _size(stored),
    }


def _size(stored: StoredProgram) -> int:
    return sum(layer.size for layer in stored.manifest.layers)
