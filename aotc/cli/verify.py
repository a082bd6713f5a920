"""`aotc verify`."""

from __future__ import annotations

import click
import msgspec

from aotc import config, driver
from aotc import verify as verification
from aotc.cli.options import Project, needs_build, output_options, project_options
from aotc.cli.output import Printer
from aotc.store.oci import PLATFORMS
from aotc.verify import Check


@click.command("verify")
@click.argument("model")
@click.argument("programs", metavar="[PROGRAM]...", nargs=-1)
@click.option(
    "--level",
    "levels",
    type=click.Choice(verification.LEVELS),
    multiple=True,
    help="What to check; may be repeated.  [default: all of them]",
)
@click.option(
    "--target",
    type=click.Choice(list(PLATFORMS)),
    help="CPU level of the artifacts.  [default: the best that runs here]",
)
@project_options
@output_options
def command(
    model: str,
    programs: tuple[str, ...],
    levels: tuple[str, ...],
    target: str | None,
    project: Project,
    printer: Printer,
) -> int:
    """Check that the artifacts of MODEL are what its sources say.

    \b
    integrity    the bytes are what they were
    contract     the contracts are those of the sources
    equivalence  compiling again, from the signature and from samples, gives the same program
    numerics     the results are those of the golden
    """
    resolved = config.load(model, project.models)
    target = target or driver.default_target()

    def report(check: Check) -> None:
        if check.passed:
            printer.result(_line(check))
        elif not printer.as_json:
            printer.data(_line(check))

    with printer.progress() as running, needs_build(model):
        running.start(f"verifying {model}")
        checks = verification.verify(
            resolved,
            project.store,
            target,
            programs,
            levels or verification.LEVELS,
            report,
        )
    failed = sum(not check.passed for check in checks)
    if printer.as_json:
        printer.document(
            {
                "model": model,
                "target": target,
                "passed": not failed,
                "checks": [msgspec.to_builtins(check) for check in checks],
            }
        )
    else:
        printer.result(f"{len(checks)} checks, {failed or 'none'} failed")
    return verification.exit_code(checks)


def _line(check: Check) -> str:
    outcome = "ok" if check.passed else "FAILED"
    subject = f" {check.program}" if check.program else ""
    values = ""
    if check.expected is not None or check.found is not None:
        values = f": expected {check.expected}, found {check.found}"
    return f"{outcome}  {check.level}{subject}: {check.message}{values}"
