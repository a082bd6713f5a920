"""`aotc build`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aotc import lock
from aotc.builder import build as builder
from aotc.builder.build import Observer, Outcome, Status
from aotc.cli.delivery import plain_http_option, policy_option
from aotc.cli.main import INTERRUPTED
from aotc.cli.options import (
    Project,
    chosen_jobs,
    output_options,
    part_of,
    project_options,
    shard,
    target_option,
)
from aotc.cli.output import Printer, Running, error_document
from aotc.config import Config
from aotc.driver import STAGES, Job
from aotc.errors import AotcError, ExitCode
from aotc.store import artifact
from aotc.store.artifact import StoredProgram

if TYPE_CHECKING:
    from aotc.registry import RemoteCache

_MODES = ("lock", "locked", "check", "check_repro")


@click.command("build")
@click.argument("names", metavar="[MODEL [PROGRAM]...]...", nargs=-1)
@click.option("--all", "all_models", is_flag=True, help="Build every model.")
@target_option(
    "CPU level or NPU platform; may be repeated.  [default: the best that runs here]", multiple=True
)
@click.option(
    "-j",
    "--jobs",
    "limit",
    type=click.IntRange(min=1),
    help="Programs to compile at once.  [default: by cores and free memory]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the compilation of a program after so long.",
)
@click.option(
    "--shard",
    "part",
    type=shard,
    metavar="I/N",
    help="Build the I-th of N parts only, for N machines; name the targets then.",
)
@click.option(
    "--from-registry",
    metavar="REF",
    help="Fetch what was pushed to this reference, instead of compiling it again.",
)
@policy_option
@plain_http_option
@click.option("--check", is_flag=True, help="Compile nothing: tell what is up to date.")
@click.option("--lock", is_flag=True, help="Write what was built into `aotc.lock`.")
@click.option("--locked", is_flag=True, help="Fail for what `aotc.lock` does not have.")
@click.option("--require-binaries", is_flag=True, help="Fail for what a host has to compile yet.")
@click.option("--check-repro", is_flag=True, help="Build again elsewhere, and compare.")
@click.option("--json-lines", is_flag=True, help="Print each event as a line of JSON.")
@project_options
@output_options
def command(
    names: tuple[str, ...],
    all_models: bool,
    targets: tuple[str, ...],
    limit: int | None,
    timeout: float | None,
    part: tuple[int, int] | None,
    from_registry: str | None,
    policy: Path | None,
    plain_http: bool | None,
    json_lines: bool,
    require_binaries: bool,
    project: Project,
    printer: Printer,
    **modes: bool,
) -> int:
    """Compile programs of each MODEL into the store.

    All of them, or each PROGRAM named after its model; what is up to date is left alone. One that
    fails does not stop the others; the exit code is that of the first that failed.

    With --from-registry a program is fetched where its build key is there, with --policy if it is
    trusted; where the registry cannot be asked it is compiled.
    """
    given = [name for name in _MODES if modes[name]]
    if len(given) > 1:
        first, second = (f"--{name.replace('_', '-')}" for name in given[:2])
        raise click.UsageError(f"{first} and {second} cannot be combined")
    if from_registry is None and (policy, plain_http) != (None, None):
        option = "--policy" if policy is not None else "--plain-http"
        raise click.UsageError(f"{option} goes with --from-registry")
    if from_registry is not None and modes["check"]:
        raise click.UsageError("--check fetches nothing: leave out --from-registry")
    events = _Events(printer, json_lines)
    try:
        chosen = chosen_jobs(project.models, names, targets, all_models=all_models)
        jobs = chosen.jobs if part is None else part_of(chosen.jobs, *part)
        if not jobs and chosen.jobs:
            printer.note("this shard has nothing to build")
        remote = _remote(from_registry, policy, plain_http, printer)
        run = _Run(chosen.configs, jobs, project, events, limit, timeout, remote, require_binaries)
        return int(run.check() if modes["check"] else run.build(modes))
    except AotcError as error:
        if not json_lines:
            raise
        events.emit("error", **error_document(error))
        return error.exit_code


Remote = Callable[[], "RemoteCache | None"]


def _remote(
    reference: str | None, policy: Path | None, plain_http: bool | None, printer: Printer
) -> Remote:
    """Return what asks the registry, if there is anything to ask for; a mistake is told now."""
    if reference is None:
        return lambda: None
    from aotc import registry

    registry.Reference.parse(reference)
    if policy is not None:
        from aotc.signing import Policy

        Policy.load(policy)
    return lambda: registry.open_cache(
        reference, policy=policy, plain_http=plain_http, warn=printer.warning
    )


class _Events:
    """Where messages go: lines of JSON, one JSON document at the end, or text."""

    def __init__(self, printer: Printer, json_lines: bool):
        self.printer = printer
        self.json_lines = json_lines
        printer.as_json = printer.as_json or json_lines

    def emit(self, event: str, **fields: Any) -> None:
        if self.json_lines:
            self.printer.data(json.dumps({"event": event, **fields}))

    def report(self, code: int, **fields: Any) -> None:
        """Print all there is to know in the end, as JSON."""
        if self.json_lines:
            self.emit("report", **fields, exit_code=int(code))
        elif self.printer.as_json:
            self.printer.document(fields)


class _Run:
    """One command: what it is asked for, and how it goes on."""

    def __init__(
        self,
        configs: Sequence[Config],
        jobs: Sequence[Job],
        project: Project,
        events: _Events,
        limit: int | None,
        timeout: float | None,
        remote: Remote,
        require_binaries: bool,
    ):
        self.configs = configs
        self.jobs = jobs
        self.project = project
        self.events = events
        self.printer = events.printer
        self.limit = limit
        self.timeout = timeout
        self.remote = remote
        self.require_binaries = require_binaries
        self.label = labels(jobs)
        for each in configs:
            if not each.programs:
                self.printer.note(f"`{each.model}` has no programs")

    def build(self, modes: Mapping[str, bool]) -> int:
        locked: dict[lock.Program, lock.Entry] = {}
        if modes["locked"]:
            locked = _locked(self.project)

        def accept(stored: StoredProgram) -> None:
            if modes["locked"]:
                lock.require(locked, stored)
            if self.require_binaries:
                artifact.require_binaries(stored)

        with self.printer.progress(bars=True) as running:
            outcomes = builder.build(
                self.jobs,
                self.project.store,
                warn=self.printer.warning,
                observer=_Reporter(self, running),
                limit=self.limit,
                timeout=self.timeout,
                accept=accept,
                remote=self.remote,
            )
        code = _exit_code(outcomes)
        fields: dict[str, Any] = {"programs": [_document(each) for each in outcomes]}
        self._count(outcomes)
        if code == ExitCode.OK and modes["lock"]:
            fields["lock"] = self._write_lock(outcomes)
        if code == ExitCode.OK and modes["check_repro"]:
            code, fields["reproduced"] = self._reproduce(outcomes)
        self.events.report(code, **fields)
        if code == INTERRUPTED and not self.printer.as_json:
            self.printer.error(AotcError("interrupted"))
        return code

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        """Say how it went in one line, where the lines of the programs may not show that."""
        counts = Counter(outcome.status for outcome in outcomes)
        ended_well = not {Status.FAILED, Status.INTERRUPTED} & {*counts}
        if ended_well and len({(job.config.model, job.target) for job in self.jobs}) <= 1:
            return
        words = ", ".join(f"{counts[each]} {each.value}" for each in Status if counts[each])
        self.printer.result(words)

    def _write_lock(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        stored = [outcome.stored for outcome in outcomes if outcome.stored is not None]
        declared = {each.model: each.programs for each in self.configs}
        changed = lock.update(self.project.models, stored, declared)
        path = self.project.models / lock.LOCK_FILE
        self.printer.result(f"{path}: {'written' if changed else 'unchanged'}")
        return {"path": str(path), "changed": changed}

    def _reproduce(self, outcomes: Sequence[Outcome]) -> tuple[int, list[dict[str, Any]]]:
        from aotc.builder import reproduce, resources

        wanted = [(each.job, each.stored) for each in outcomes if each.stored is not None]
        with self.printer.progress() as running:
            running.start("building again elsewhere")
            found = reproduce.rebuild(
                wanted, limit=self.limit or resources.default_jobs(), timeout=self.timeout
            )
        documents = []
        for each in found:
            documents.append({**_names(each.job), "difference": each.difference})
            if each.difference is None:
                self.printer.result(f"{self.label(each.job)}: the same elsewhere")
            elif not self.printer.as_json:
                self.printer.data(f"{self.label(each.job)}: differs: {each.difference}")
        failed = any(each.difference is not None for each in found)
        return (ExitCode.INPUT if failed else ExitCode.OK), documents

    def check(self) -> int:
        from aotc.builder import state
        from aotc.cli.explain import verdict_document, verdict_lines

        locked = lock.read(self.project.models)
        verdicts = []
        for job in self.jobs:
            verdict = state.judge(job, self.project.store, locked)
            verdicts.append(verdict)
            self.events.emit("checked", **verdict_document(verdict))
            if verdict.error is not None and not self.printer.as_json:
                self.printer.error(verdict.error)
            lines = verdict_lines(verdict, self.label(job))
            if verdict.condition is state.Condition.FRESH:
                self.printer.result(lines[0])
            elif not self.printer.as_json:
                self.printer.data("\n".join(lines))
        conditions = [verdict.condition for verdict in verdicts]
        left = state.orphans(self.configs, locked)
        for model, program, target in left:
            conditions.append(state.Condition.STALE)
            text = f"{lock.LOCK_FILE} has {model}/{program} for {target}, the config has not"
            if not self.printer.as_json:
                self.printer.data(text)
        worst = state.gravest(conditions)
        code = state.CODES[worst]
        if worst is state.Condition.BROKEN:
            code = next(each.error.exit_code for each in verdicts if each.error is not None)
        self.events.report(
            code,
            status=worst.value,
            programs=[verdict_document(verdict) for verdict in verdicts],
            only_locked=[list(names) for names in left],
        )
        return code


class _Reporter(Observer):
    """Tells of each job as it goes on."""

    def __init__(self, run: _Run, running: Running):
        self.run = run
        self.running = running

    def started(self, job: Job) -> None:
        self.running.start(self.run.label(job), len(STAGES))
        self.run.events.emit("started", **_names(job))

    def entered(self, job: Job, stage: str) -> None:
        self.running.enter(self.run.label(job), STAGES.index(stage), stage)
        self.run.events.emit("stage", **_names(job), stage=stage)

    def finished(self, outcome: Outcome) -> None:
        printer, label = self.run.printer, self.run.label(outcome.job)
        self.running.finish(label)
        self.run.events.emit("finished", **_document(outcome))
        new = outcome.status in (Status.BUILT, Status.FETCHED)
        took = f" in {outcome.seconds:.1f} s" if new else ""
        printer.result(f"{label}: {outcome.status.value}{took}")
        if outcome.error is not None and not printer.as_json:
            printer.error(outcome.error)
        for warning in outcome.warnings:
            printer.warning(f"{label}: {warning}")
        for line in outcome.log.splitlines():
            printer.note(f"{label}: {line}")


def labels(jobs: Sequence[Job]) -> Callable[[Job], str]:
    """Return what names a job among `jobs`: its program, or with its model and target."""
    if len({(job.config.model, job.target) for job in jobs}) == 1:
        return lambda job: job.program
    return str


def _locked(project: Project) -> dict[lock.Program, lock.Entry]:
    path = project.models / lock.LOCK_FILE
    if not path.exists():
        raise lock.NotLockedError(f"there is no {path}", hint="`aotc build --lock` writes it")
    return lock.read(project.models)


def _exit_code(outcomes: Sequence[Outcome]) -> int:
    if any(outcome.status is Status.INTERRUPTED for outcome in outcomes):
        return INTERRUPTED
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    return errors[0].exit_code if errors else ExitCode.OK


def _names(job: Job) -> dict[str, Any]:
    return {"model": job.config.model, "program": job.program, "target": job.target}


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        **_names(outcome.job),
        "status": outcome.status.value,
        "seconds": round(outcome.seconds, 3),
        "manifest": None if outcome.stored is None else str(outcome.stored.manifest_digest),
        "warnings": list(outcome.warnings),
        "error": None if outcome.error is None else error_document(outcome.error),
    }
