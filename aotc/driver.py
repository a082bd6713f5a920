"""The pipeline, top to bottom: a program of a model config to an artifact in the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from aotc.config import Config
from aotc.contract import Argument, Contract, to_json
from aotc.errors import AotcError, suggestion
from aotc.program.key import BuildKey, canonical_key, inputs_key
from aotc.program.model import DistributedCompiledProgram
from aotc.runtime.host import Host
from aotc.runtime.library import ABI_VERSION
from aotc.store.artifact import StoredProgram, publish
from aotc.store.cache import Built, Cache
from aotc.store.layout import Layout, StoreError
from aotc.toolchain import zig

PLATFORM = "cpu"
Note = Callable[[str], None]


class Status(Enum):
    """How a build of one program ended."""

    BUILT = "built"
    UP_TO_DATE = "up to date"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of one program: the artifact, or the error."""

    program: str
    status: Status
    seconds: float
    stored: StoredProgram | None = None
    error: AotcError | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A program before it is compiled to machine code: canonical IR, contract and its key."""

    key: BuildKey
    contract: Contract
    ir: str
    source: Callable[[], str]
    files: Mapping[str, str | None]
    warnings: tuple[str, ...]


def default_target() -> str:
    """Return the best target that runs here; the first known one where none does."""
    return next(iter([*Host.current().targets(), *zig.TARGETS]))


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
    """Run the front end and the passes; nothing is compiled to machine code.

    With `arguments` the types come from samples, else from the wrapper's signature. Raises
    AotcError for a mistake in the sources, with its place.
    """
    from aotc import frontend
    from aotc.codegen.source import generate
    from aotc.ir.text import print_program
    from aotc.ops.verify import verify
    from aotc.passes import run_passes

    lowered = frontend.lower(config, PLATFORM, str(config.programs[name].wrapper), arguments)
    program = run_passes(lowered.program, verify)
    symbols = [symbol.name for symbol in lowered.contract.symbols]
    text = print_program(program)
    key = canonical_key(
        model=config.model,
        program=name,
        contract=to_json(lowered.contract),
        ir=text,
        target=target,
        toolchain=zig.identity(),
        flags=zig.flags(target),
        abi_version=ABI_VERSION,
        device_ids=config.device_ids,
        environment=os.environ,
    )
    return Compiled(
        key,
        lowered.contract,
        text,
        lambda: generate(program, symbols),
        lowered.files,
        lowered.warnings,
    )


def compile_program(
    config: Config, name: str, target: str, compiled: Compiled
) -> DistributedCompiledProgram:
    """Generate C and compile it; raise AotcError or ToolchainError where either fails."""
    source = compiled.source()
    return DistributedCompiledProgram(
        model=config.model,
        name=name,
        target=target,
        abi_version=ABI_VERSION,
        contract=to_json(compiled.contract),
        object=zig.compile_shared_object(source, zig.TARGETS[target]),
        ir=compiled.ir,
        source=source,
        identity=compiled.key.components,
        device_ids=config.device_ids,
    )


def build(
    config: Config,
    store: Path,
    target: str,
    chosen: Sequence[str] = (),
    *,
    warn: Note,
    started: Note = lambda _: None,
    finished: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Bring the chosen programs of a model, or all, up to date in `store`, and publish them.

    A program that fails does not stop the others. `started` and `finished` are told of each;
    `warn` of what was found damaged. Raises AotcError for an unknown program and StoreError where
    the store cannot be written.
    """
    names = program_names(config, chosen)
    layout = Layout.create(store)
    cache = Cache(layout, warn)
    outcomes: list[Outcome] = []
    # The front end of a program runs while the machine code of those before it is compiled.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = []
        for name in names:
            started(name)
            pending.append(_begin(config, name, target, cache, pool, warn))
        for finish in pending:
            outcomes.append(finish())
            finished(outcomes[-1])
    stored = [each.stored for each in outcomes if each.stored is not None]
    if stored:
        publish(layout, config.model, stored, declared=config.programs, warn=warn)
    return outcomes


def _begin(
    config: Config, name: str, target: str, cache: Cache, pool: ThreadPoolExecutor, warn: Note
) -> Callable[[], Outcome]:
    """Look the program up, or lower it and start to compile it; return what waits for the end."""
    begin = time.monotonic()
    key = level_one_key(config, name, target)
    stored = cache.lookup_inputs(key, config.source)
    if stored is not None:
        found = Outcome(name, Status.UP_TO_DATE, time.monotonic() - begin, stored)
        return lambda: found
    try:
        compiled = lower(config, name, target)
    except AotcError as error:
        failed = Outcome(name, Status.FAILED, time.monotonic() - begin, error=error)
        return lambda: failed

    def compile_once() -> tuple[Built, float]:
        built = cache.build_once(
            compiled.key, lambda: compile_program(config, name, target, compiled)
        )
        return built, time.monotonic() - begin

    future = pool.submit(compile_once)

    def finish() -> Outcome:
        try:
            built, seconds = future.result()
        except AotcError as error:
            return Outcome(name, Status.FAILED, time.monotonic() - begin, error=error)
        try:
            cache.record_inputs(key, compiled.files, built.program)
        except StoreError as error:
            # The program is there; only the next build has to run the front end again.
            warn(f"{error}")
        status = Status.BUILT if built.compiled else Status.UP_TO_DATE
        return Outcome(name, status, seconds, built.program, warnings=compiled.warnings)

    return finish


def level_one_key(config: Config, name: str, target: str) -> BuildKey:
    """Return the key of what a build of the program depends on besides its source files."""
    return inputs_key(
        config=config,
        program=name,
        target=target,
        toolchain=zig.identity(),
        flags=zig.flags(target),
        abi_version=ABI_VERSION,
        environment=os.environ,
    )
