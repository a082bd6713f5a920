"""`aotc explain`."""

from __future__ import annotations

from typing import Any

import click

from aotc import lock
from aotc.builder import state
from aotc.builder.state import Verdict
from aotc.cli.options import Project, chosen_jobs, output_options, project_options, target_option
from aotc.cli.output import Printer, error_document
from aotc.errors import ExitCode


@click.command("explain")
@click.argument("names", metavar="MODEL [PROGRAM]...", nargs=-1, required=True)
@target_option("CPU level; may be repeated.  [default: the best that runs here]", multiple=True)
@project_options
@output_options
def command(
    names: tuple[str, ...], targets: tuple[str, ...], project: Project, printer: Printer
) -> int:
    """Tell why programs of MODEL are up to date, stale or missing.

    Each is compared with the nearest build that the store remembers: every component of its key,
    every source file. Nothing is compiled and nothing is written.
    """
    chosen = chosen_jobs(project.models, names, targets)
    locked = lock.read(project.models)
    verdicts = [state.judge(job, project.store, locked) for job in chosen.jobs]
    if printer.as_json:
        printer.document({"programs": [verdict_document(each) for each in verdicts]})
    for verdict in verdicts:
        if not printer.as_json:
            printer.data("\n".join(verdict_lines(verdict, str(verdict.job))))
            if verdict.error is not None:
                printer.error(verdict.error)
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    return errors[0].exit_code if errors else ExitCode.OK


def verdict_lines(verdict: Verdict, label: str) -> list[str]:
    """Return what there is to say of a program: what it is, why, what has changed."""
    lines = [f"{label}: {verdict.condition.value}"]
    if verdict.error is None:
        lines += [f"  {reason}" for reason in verdict.reasons]
    if verdict.nearest is not None:
        changes = "as now" if not verdict.changes else "from which it differs:"
        lines.append(f"  the nearest build is {verdict.nearest}, {changes}")
        lines += [f"    {change}" for change in verdict.changes]
        lines.append(f"    {len(verdict.equal)} components and files are the same")
    return lines


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON has it."""
    job = verdict.job
    return {
        "model": job.config.model,
        "program": job.program,
        "target": job.target,
        "status": verdict.condition.value,
        "reasons": list(verdict.reasons),
        "manifest": None if verdict.stored is None else str(verdict.stored.manifest_digest),
        "nearest": verdict.nearest,
        "changes": [
            {
                "component": change.component,
                "old": change.old,
                "new": change.new,
                "path": change.path,
                "line": change.line,
                "old_line": change.old_line,
                "new_line": change.new_line,
            }
            for change in verdict.changes
        ],
        "equal": list(verdict.equal),
        "error": None if verdict.error is None else error_document(verdict.error),
    }
