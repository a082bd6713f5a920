"""Bring programs up to date in a store.

What is up to date is found in this process. What is not is compiled in a process of its own, one a
program.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from aotc import provenance
from aotc.child import Failed
from aotc.config import Config
from aotc.driver import Job, Made, Note, level_one_key
from aotc.errors import AotcError, ExitCode
from aotc.program.key import BuildKey
from aotc.store.artifact import StoredProgram, publish
from aotc.store.cache import Built, Cache
from aotc.store.layout import Layout, StoreError

if TYPE_CHECKING:
    from aotc.builder import task
    from aotc.builder.processes import Ended
    from aotc.registry import RemoteCache


class Status(Enum):
    """How a build of one program ended."""

    BUILT = "built"
    FETCHED = "fetched"
    UP_TO_DATE = "up to date"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Outcome:
    """What became of one program: the artifact, or the error; `log` is what its sources print."""

    job: Job
    status: Status
    seconds: float
    stored: StoredProgram | None = None
    error: AotcError | None = None
    warnings: tuple[str, ...] = ()
    log: str = ""


class Observer:
    """Is told what becomes of each job, as it happens; it does nothing itself."""

    def started(self, job: Job) -> None:
        """The job is being compiled: it was not up to date."""

    def entered(self, job: Job, stage: str) -> None:
        """The job has come to a stage, one of `STAGES`."""

    def finished(self, outcome: Outcome) -> None:
        """A job has ended."""


class BuildError(AotcError):
    """The process that compiled a program ended without an answer, or was ended."""

    exit_code = ExitCode.ENVIRONMENT


def build(
    wanted: Sequence[Job],
    store: Path,
    *,
    warn: Note,
    observer: Observer | None = None,
    limit: int | None = None,
    timeout: float | None = None,
    accept: Callable[[StoredProgram], None] = lambda _: None,
    remote: Callable[[], RemoteCache | None] = lambda: None,
) -> list[Outcome]:
    """Bring the programs of `wanted` up to date in `store`, and publish them model by model.

    What is not up to date is fetched from `remote`, which is asked for only then, if that has it.

    A program that fails does not stop the others. At most `limit` are compiled at once, by default
    as many as cores and memory allow, each for at most `timeout` seconds. What `accept` raises an
    AotcError for has failed, and is not published. After an interrupt what had not ended is
    `INTERRUPTED`, and nothing is published. `warn` is told of what was found damaged. Raises
    StoreError where the store cannot be written, and what `remote` raises.
    """
    build = _Build(store, warn, observer or Observer(), accept, remote)
    return build.run(wanted, limit, timeout)


class _Build:
    """One build: what becomes of its jobs, each by its position."""

    def __init__(
        self,
        store: Path,
        warn: Note,
        observer: Observer,
        accept: Callable[[StoredProgram], None],
        remote: Callable[[], RemoteCache | None],
    ):
        warned: set[str] = set()

        # Not of `self`: the lease on the store ends when nothing refers to this build any more.
        def warn_once(text: str) -> None:
            if text not in warned:
                warned.add(text)
                warn(text)

        self.layout = Layout.create(store)
        self.cache = Cache(self.layout, warn_once)
        self.warn = warn_once
        self.open_remote = remote
        self.remote: RemoteCache | None = None
        self.observer = observer
        self.accept = accept
        self.outcomes: dict[int, Outcome] = {}
        self.made: dict[int, Callable[[StoredProgram], provenance.Build]] = {}

    def run(self, wanted: Sequence[Job], limit: int | None, timeout: float | None) -> list[Outcome]:
        try:
            stale = [index for index, job in enumerate(wanted) if not self._find(index, job)]
            if stale:
                self.remote = self.open_remote()
                self._compile({index: wanted[index] for index in stale}, limit, timeout)
        except KeyboardInterrupt:
            for index, job in enumerate(wanted):
                if index not in self.outcomes:
                    self._finish(index, Outcome(job, Status.INTERRUPTED, 0.0))
        else:
            self._publish()
        return [self.outcomes[index] for index in range(len(wanted))]

    def _find(self, index: int, job: Job) -> bool:
        begin = time.monotonic()
        key = level_one_key(job.config, job.program, job.target)
        stored = self.cache.lookup_inputs(key, job.config.source)
        if stored is None:
            return False
        self.made[index] = lambda stored: provenance.Build(stored, key, None, compiled=False)
        seconds = time.monotonic() - begin
        self._finish(index, Outcome(job, Status.UP_TO_DATE, seconds, stored))
        return True

    def _compile(self, stale: Mapping[int, Job], limit: int | None, timeout: float | None) -> None:
        from aotc.builder import processes, resources, task
        from aotc.builder.task import Entered, Task, Warned, decode

        order = list(stale)
        store = self.layout.root.absolute()
        tasks = [Task(store, stale[each], self.remote).encode() for each in order]
        running: dict[int, float] = {}
        events = processes.run(
            tasks,
            limit=limit or resources.default_jobs(),
            timeout=timeout,
            has_room=resources.has_room,
        )
        answers: dict[int, task.Made | Failed] = {}
        with closing(events):
            for event in events:
                index = order[event.index]
                job = stale[index]
                match event:
                    case processes.Started():
                        running[index] = time.monotonic()
                        self.observer.started(job)
                    case processes.Said():
                        match answer := decode(event.line):
                            case Entered():
                                self.observer.entered(job, answer.stage)
                            case Warned():
                                self.warn(answer.text)
                            case task.Made() | Failed():
                                answers[index] = answer
                    case processes.Refused():
                        error = not_started(job, event.error)
                        self._finish(index, Outcome(job, Status.FAILED, 0.0, error=error))
                    case processes.Ended():
                        seconds = time.monotonic() - running[index]
                        self._end(index, job, answers.get(index), event, seconds)

    def _end(
        self,
        index: int,
        job: Job,
        answer: task.Made | Failed | None,
        ended: Ended,
        seconds: float,
    ) -> None:
        log = "" if answer is None else ended.log
        error: AotcError
        if answer is None:
            error = without_answer(job, ended, seconds)
        elif isinstance(answer, Failed):
            error = answer.error()
        elif (stored := self.cache.lookup(BuildKey(answer.canonical))) is not None:
            built = Built(stored, answer.compiled)
            inputs = BuildKey(answer.inputs)
            made = Made(
                built,
                inputs,
                answer.files,
                tuple(answer.warnings),
                tuple(answer.outside),
                answer.fetched,
            )
            self._finish_made(index, job, made, seconds, log)
            return
        else:
            error = StoreError(f"{job} has gone from the store meanwhile", hint="build again")
        self._finish(index, Outcome(job, Status.FAILED, seconds, error=error, log=log))

    def _finish_made(self, index: int, job: Job, made: Made, seconds: float, log: str = "") -> None:
        new = Status.FETCHED if made.fetched else Status.BUILT
        status = new if made.built.compiled else Status.UP_TO_DATE
        self.made[index] = lambda stored: provenance.Build(
            stored, made.inputs, made.files, made.outside, made.built.compiled
        )
        self._finish(
            index, Outcome(job, status, seconds, made.built.program, None, made.warnings, log)
        )

    def _finish(self, index: int, outcome: Outcome) -> None:
        if outcome.stored is not None:
            try:
                self.accept(outcome.stored)
            except AotcError as error:
                outcome = Outcome(
                    outcome.job,
                    Status.FAILED,
                    outcome.seconds,
                    error=error,
                    warnings=outcome.warnings,
                    log=outcome.log,
                )
        self.outcomes[index] = outcome
        self.observer.finished(outcome)

    def _publish(self) -> None:
        models: dict[str, tuple[Config, list[StoredProgram]]] = {}
        for outcome in self.outcomes.values():
            if outcome.stored is not None:
                config = outcome.job.config
                models.setdefault(config.model, (config, []))[1].append(outcome.stored)
        for name, (config, stored) in models.items():
            publish(self.layout, name, stored, declared=config.programs, warn=self.warn)
        made = [
            self.made[index](outcome.stored)
            for index, outcome in self.outcomes.items()
            if outcome.stored is not None
        ]
        try:
            provenance.record(self.cache, made)
        except AotcError as error:
            # What was built is there and listed; a later build records the rest.
            self.warn(f"{error}")


def not_started(job: Job, error: OSError) -> BuildError:
    """Return the error for a process that the system does not start."""
    return BuildError(
        f"no process can be started for {job}: {error.strerror or error}",
        hint="build fewer at once, with -j 1, or raise the limits: `ulimit -a` shows them",
    )


def without_answer(job: Job, ended: Ended, seconds: float) -> BuildError:
    """Return the error for a process that has ended without an answer."""
    if ended.timed_out:
        message = f"{job} was stopped after {seconds:.1f} s"
        return BuildError(message, hint="a longer --timeout gives it more time")
    said = f"\n{ended.log}" if ended.log else ""
    if ended.code == -signal.SIGKILL:
        from aotc.builder.task import NO_MEMORY

        return BuildError(f"the compilation of {job} was killed{said}", hint=NO_MEMORY)
    if ended.code < 0:
        name = signal.Signals(-ended.code).name
        return BuildError(f"the compilation of {job} crashed with {name}{said}")
    error = BuildError(f"the compilation of {job} ended without a result{said}")
    error.exit_code = ExitCode.INTERNAL
    return error
