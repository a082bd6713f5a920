"""`aotc build`."""

from __future__ import annotations

from typing import Any

import click

from aotc import config, driver
from aotc.cli.options import Project, output_options, project_options
from aotc.cli.output import Printer, error_document
from aotc.driver import Outcome, Status
from aotc.errors import ExitCode
from aotc.store.oci import PLATFORMS


@click.command("build")
@click.argument("model")
@click.argument("programs", metavar="[PROGRAM]...", nargs=-1)
@click.option(
    "--target",
    type=click.Choice(list(PLATFORMS)),
    help="CPU level to compile for.  [default: the best that runs here]",
)
@project_options
@output_options
def command(
    model: str, programs: tuple[str, ...], target: str | None, project: Project, printer: Printer
) -> int:
    """Compile programs of MODEL into the store.

    All of them, or each PROGRAM named; what is up to date is left alone. One that fails does not
    stop the others; the exit code is that of the first that failed.
    """
    resolved = config.load(model, project.models)
    target = target or driver.default_target()
    with printer.progress() as running:

        def finished(outcome: Outcome) -> None:
            running.finish(outcome.program)
            _report(outcome, printer)

        outcomes = driver.build(
            resolved,
            project.store,
            target,
            programs,
            warn=printer.warning,
            started=running.start,
            finished=finished,
        )
    if not outcomes:
        printer.note(f"`{model}` has no programs")
    if printer.as_json:
        documents = [_document(outcome) for outcome in outcomes]
        printer.document({"model": model, "target": target, "programs": documents})
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    return errors[0].exit_code if errors else ExitCode.OK


def _report(outcome: Outcome, printer: Printer) -> None:
    took = f" in {outcome.seconds:.1f} s" if outcome.status is Status.BUILT else ""
    printer.result(f"{outcome.program}: {outcome.status.value}{took}")
    if outcome.error is not None and not printer.as_json:
        printer.error(outcome.error)
    for warning in outcome.warnings:
        printer.warning(f"{outcome.program}: {warning}")


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "program": outcome.program,
        "status": outcome.status.value,
        "seconds": round(outcome.seconds, 3),
        "manifest": None if outcome.stored is None else str(outcome.stored.manifest_digest),
        "warnings": list(outcome.warnings),
        "error": None if outcome.error is None else error_document(outcome.error),
    }
