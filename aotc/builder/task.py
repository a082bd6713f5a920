"""What goes to the process that compiles one program, and what comes back, line by line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aotc.child import Failed
from aotc.driver import Fetch, Job, compile_into, lower
from aotc.errors import AotcError, ExitCode
from aotc.store.cache import Cache
from aotc.store.layout import Layout

if TYPE_CHECKING:
    from aotc.registry import RemoteCache


NO_MEMORY = "if the memory was used up, build fewer at once: -j 1"


@dataclass(frozen=True)
class Task:
    """Compile a program into a store, or fetch it from a registry."""

    store: Path
    job: Job
    remote: RemoteCache | None = None

    def encode(self) -> bytes:
        """Return it for a process that this one starts."""
        return pickle.dumps(self)


@dataclass(frozen=True)
class Lower:
    """Run the front end on a program, and no more: nothing is written."""

    job: Job

    def encode(self) -> bytes:
        """Return it for a process that this one starts."""
        return pickle.dumps(self)


class Entered(msgspec.Struct, tag="entered"):
    """The program has come to a stage of `aotc.driver.STAGES`."""

    stage: str


class Warned(msgspec.Struct, tag="warned"):
    """Something was found damaged."""

    text: str


class Made(msgspec.Struct, tag="made"):
    """The program is in the store, under the canonical key of these components."""

    inputs: dict[str, str]
    canonical: dict[str, str]
    files: dict[str, str | None]
    compiled: bool
    fetched: bool
    outside: list[str]
    warnings: list[str]


class Canonical(msgspec.Struct, tag="canonical"):
    """What the front end has made: the components of the canonical key, and the IR."""

    components: dict[str, str]
    ir: str


Answer = Entered | Warned | Made | Canonical | Failed


def decode(line: bytes) -> Answer:
    """Return the answer that `serve` said."""
    answer: Answer = msgspec.json.decode(line, type=Answer)
    return answer


def _fetch(task: Task, cache: Cache) -> Fetch:
    if task.remote is None:
        return lambda _: None
    from aotc.registry import fetcher

    return fetcher(task.remote, cache.layout, cache.warn)


def serve(text: bytes, say: Callable[[bytes], None]) -> None:
    """Be the process: do the task that is encoded as `text`, and `say` the answers."""

    def tell(answer: Answer) -> None:
        say(msgspec.json.encode(answer))

    # It comes from the process that started this one, over a pipe that nobody else has.
    task: Task | Lower = pickle.loads(text)
    try:
        if isinstance(task, Lower):
            compiled = lower(task.job.config, task.job.program, task.job.target)
            tell(Canonical(dict(compiled.key.components), compiled.lowered.ir))
            return
        cache = Cache(Layout.create(task.store), lambda text: tell(Warned(text)))
        fetch = _fetch(task, cache)
        made = compile_into(cache, task.job, lambda stage: tell(Entered(stage)), fetch)
    except AotcError as error:
        tell(Failed.of(error))
        return
    except MemoryError:
        short = AotcError(f"no memory is left for {task.job}", hint=NO_MEMORY)
        short.exit_code = ExitCode.ENVIRONMENT
        tell(Failed.of(short))
        return
    tell(
        Made(
            dict(made.inputs.components),
            made.built.program.record.identity,
            dict(made.files),
            made.built.compiled,
            made.fetched,
            list(made.outside),
            list(made.warnings),
        )
    )
