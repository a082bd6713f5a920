"""What goes to the process that compiles one program, and what comes back, line by line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aotc.child import Failed
from aotc.driver import Job, compile_into
from aotc.errors import AotcError
from aotc.store.cache import Cache
from aotc.store.layout import Layout


@dataclass(frozen=True)
class Task:
    """Compile a program into a store."""

    store: Path
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
    warnings: list[str]


Answer = Entered | Warned | Made | Failed


def decode(line: bytes) -> Answer:
    """Return the answer that `serve` said."""
    answer: Answer = msgspec.json.decode(line, type=Answer)
    return answer


def serve(text: bytes, say: Callable[[bytes], None]) -> None:
    """Be the process: do the task that is encoded as `text`, and `say` the answers."""

    def tell(answer: Answer) -> None:
        say(msgspec.json.encode(answer))

    # It comes from the process that started this one, over a pipe that nobody else has.
    task: Task = pickle.loads(text)
    try:
        cache = Cache(Layout.create(task.store), lambda text: tell(Warned(text)))
        made = compile_into(cache, task.job, lambda stage: tell(Entered(stage)))
    except AotcError as error:
        tell(Failed.of(error))
        return
    tell(
        Made(
            dict(made.inputs.components),
            made.built.program.record.identity,
            dict(made.files),
            made.built.compiled,
            list(made.warnings),
        )
    )
