"""`aotc verify`."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from aotc import config, driver, junit
from aotc import verify as verification
from aotc.cli.delivery import policy_option
from aotc.cli.options import Project, needs_build, output_options, project_options, target_option
from aotc.cli.output import Printer
from aotc.config import Config
from aotc.errors import AotcError, ExitCode
from aotc.store.artifact import find
from aotc.verify import Check

POLICY = "policy"


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
@target_option("CPU level of the artifacts.  [default: the best that runs here]")
@policy_option
@click.option(
    "--junit",
    "junit_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the checks to this file as JUnit XML too.",
)
@project_options
@output_options
def command(
    model: str,
    programs: tuple[str, ...],
    levels: tuple[str, ...],
    target: str | None,
    policy: Path | None,
    junit_file: Path | None,
    project: Project,
    printer: Printer,
) -> int:
    """Check that the artifacts of MODEL are what its sources say.

    \b
    integrity    the bytes are what they were
    contract     the contracts are those of the sources
    equivalence  compiling again, from the signature and from samples, gives the same program
    numerics     the results are those of the golden

    With --policy nothing else is checked where an artifact is not trusted: what it says may run.
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
        checks = [] if policy is None else _trust(policy, resolved, project.store, target, programs)
        trusted = all(check.passed for check in checks)
        for check in checks:
            report(check)
        if trusted:
            checks += verification.verify(
                resolved,
                project.store,
                target,
                programs,
                levels or verification.LEVELS,
                report,
            )
    if junit_file is not None:
        junit_file.write_text(junit.render(checks, f"aotc.{model}.{target}"), encoding="utf-8")
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
    return verification.exit_code(checks) if trusted else ExitCode.INTEGRITY


def _trust(
    path: Path, resolved: Config, store: Path, target: str, programs: tuple[str, ...]
) -> list[Check]:
    """Check each program against the policy in the file `path`; nothing of it is run."""
    from aotc.signing import Policy, check_policy

    policy = Policy.load(path)
    checks = []
    for name in driver.program_names(resolved, programs):
        begin = time.monotonic()
        stored = find(store, resolved.model, name, target)
        try:
            passed, message = True, str(check_policy(policy, stored))
        except AotcError as error:
            passed, message = False, error.message
        seconds = time.monotonic() - begin
        checks.append(Check(POLICY, name, passed, message, seconds=seconds))
    return checks


def _line(check: Check) -> str:
    outcome = "ok" if check.passed else "FAILED"
    subject = f" {check.program}" if check.program else ""
    values = ""
    if check.expected is not None or check.found is not None:
        values = f": expected {check.expected}, found {check.found}"
    return f"{outcome}  {check.level}{subject}: {check.message}{values}"
