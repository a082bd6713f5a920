"""The pipeline, top to bottom: a program of a model config to an artifact in the store.

`aotc.builder` does it for many programs, in processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotc.config import Config
from aotc.contract import Argument, to_json
from aotc.errors import AotcError, suggestion
from aotc.program.key import BuildKey, canonical_key, inputs_key, text_digest
from aotc.program.model import DistributedCompiledProgram
from aotc.runtime.host import Host
from aotc.store.cache import Built, Cache
from aotc.store.layout import StoreError
from aotc.toolchain import TOOLCHAINS, Lowered, toolchain_for

Note = Callable[[str], None]


# What a compilation goes through, in order; each takes longer than those before it together.
STAGES = ("front end", "machine code")


@dataclass(frozen=True)
class Job:
    """A program of a model, to be built for a target."""

    config: Config
    program: str
    target: str

    def __str__(self) -> str:
        return f"{self.config.model}/{self.program} for {self.target}"


@dataclass(frozen=True)
class Compiled:
    """A program as the front end leaves it, and its canonical key."""

    key: BuildKey
    lowered: Lowered


def default_target() -> str:
    """Return the best CPU level that runs here; the first known one where none does."""
    return next(iter([*Host.current().targets(), *TOOLCHAINS[0].targets]))


def program_names(config: Config, chosen: Sequence[str] = ()) -> list[str]:
    """Return the chosen programs of the model, or all; raise AotcError for an unknown one."""
    for name in chosen:
        if name not in config.programs:
            known = ", ".join(config.programs) or "none"
            raise AotcError(
                f"`{config.model}` has no program `{name}`",
                hint=suggestion(name, config.programs) or f"its programs: {known}",
            )
    return [name for name in config.programs if name in chosen or not chosen]


def lower(
    config: Config, name: str, target: str, arguments: Sequence[Argument] | None = None
) -> Compiled:
    """Run the front end; nothing is compiled to what runs.

    With `arguments` the types come from samples, else from the wrapper's signature. Raises
    AotcError for a mistake in the sources, with its place.
    """
    toolchain = toolchain_for(target)
    lowered = toolchain.lower(config, name, target, arguments)
    key = canonical_key(
        model=config.model,
        program=name,
        contract=to_json(lowered.contract),
        ir=lowered.ir,
        target=target,
        toolchain=toolchain.identity(),
        flags=toolchain.flags(target),
        abi_version=toolchain.abi_version,
        device_ids=config.device_ids,
        environment=os.environ,
    )
    return Compiled(key, lowered)


def compile_program(
    config: Config, name: str, target: str, compiled: Compiled
) -> DistributedCompiledProgram:
    """Run the rest of the compiler; raise AotcError or ToolchainError where it fails."""
    toolchain = toolchain_for(target)
    return DistributedCompiledProgram(
        model=config.model,
        name=name,
        target=target,
        abi_version=toolchain.abi_version,
        contract=to_json(compiled.lowered.contract),
        layers=toolchain.compile(config, name, target, compiled.lowered),
        identity=compiled.key.components,
        device_ids=config.device_ids,
    )


def jobs(config: Config, targets: Sequence[str], chosen: Sequence[str] = ()) -> list[Job]:
    """Return a job for each target and each of the chosen programs of the model, or all.

    Raises AotcError for an unknown program.
    """
    names = program_names(config, chosen)
    return [Job(config, name, target) for target in targets for name in names]


@dataclass(frozen=True)
class Made:
    """A program brought up to date: with its level-one key and the files that it came from.

    `outside` says what else it may have come from; `fetched` whether it was not compiled here.
    """

    built: Built
    inputs: BuildKey
    files: Mapping[str, str | None]
    warnings: tuple[str, ...]
    outside: tuple[str, ...] = ()
    fetched: bool = False


# What finds a program by its canonical key somewhere else, or does not.
Fetch = Callable[[BuildKey], DistributedCompiledProgram | None]


def compile_into(
    cache: Cache, job: Job, entered: Note = lambda _: None, fetch: Fetch = lambda _: None
) -> Made:
    """Lower a program, compile it unless the store or `fetch` has it, and record what it came from.

    Nothing is published. A program that may have come from more than its files is looked up by its
    IR every time, with a warning that says why. `entered` is told each of `STAGES`. Raises
    AotcError for a mistake in the sources, ToolchainError where the compiler fails and StoreError
    where the store cannot be written.
    """
    config, name, target = job.config, job.program, job.target
    key = level_one_key(config, name, target)
    entered(STAGES[0])
    compiled = lower(config, name, target)
    lowered = compiled.lowered

    fetched = False

    def machine_code() -> DistributedCompiledProgram:
        nonlocal fetched
        found = fetch(compiled.key)
        if found is not None:
            fetched = True
            return found
        entered(STAGES[1])
        return compile_program(config, name, target, compiled)

    built = cache.build_once(compiled.key, machine_code)
    warnings = [f"{each}, which no key has" for each in lowered.outside]
    if not lowered.outside:
        try:
            texts = _texts(config.source, lowered.files)
            cache.record_inputs(key, lowered.files, built.program, texts)
        except StoreError as error:
            # The program is there; only the next build has to run the front end again.
            cache.warn(f"{error}")
    said = (*lowered.warnings, *warnings)
    return Made(built, key, lowered.files, said, lowered.outside, fetched)


def _texts(folder: Path, files: Mapping[str, str | None]) -> dict[str, str]:
    """Return the texts of `files`, but of those that have changed since they were read."""
    found = {}
    for name, digest in files.items():
        if digest is not None:
            try:
                content = (folder / name).read_bytes()
                text = content.decode("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if text_digest(content) == digest:
                found[name] = text
    return found


def level_one_key(config: Config, name: str, target: str) -> BuildKey:
    """Return the key of what a build of the program depends on besides its source files."""
    toolchain = toolchain_for(target)
    return inputs_key(
        config=config,
        program=name,
        target=target,
        toolchain=toolchain.identity(),
        flags=toolchain.flags(target),
        abi_version=toolchain.abi_version,
        environment=os.environ,
        platform=toolchain.platform(target),
    )
