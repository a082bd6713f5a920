"""Equivalence: is it the same program, however it is compiled?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aotc import child
from aotc.config import Config
from aotc.elsewhere import copy_model
from aotc.errors import AotcError
from aotc.program.key import BuildKey, Difference
from aotc.store.artifact import StoredProgram
from aotc.toolchain import toolchain_for
from aotc.verify.check import EQUIVALENCE, Check
from aotc.verify.recompile import SIGNATURE, Recompiled, Task, modes_for

_PROCESSES = 2  # at a time: one has torch to import, the other compiles


def check(config: Config, stored: Sequence[StoredProgram]) -> Iterator[Check]:
    """Compile the programs again in every mode, each in a process and a folder of its own.

    From the signature, machine code included, the manifest must be the stored one. From samples,
    everything that the manifest is a function of must be as from the signature.
    """
    if not stored:
        return
    with (
        tempfile.TemporaryDirectory(prefix="aotc-verify-") as folder,
        ThreadPoolExecutor(_PROCESSES) as pool,
    ):
        pending = {
            mode: pool.submit(_compile, config, stored, mode, number, Path(folder))
            for number, mode in enumerate(modes_for(stored[0].target))
        }
        signature: dict[str, Recompiled] = {}
        for mode, future in pending.items():
            for each, answer in zip(stored, future.result(), strict=True):
                if mode == SIGNATURE:
                    signature[each.program] = answer
                    yield from _against_stored(each, answer)
                else:
                    yield from _against_signature(mode, signature[each.program], answer)


def _compile(
    config: Config, stored: Sequence[StoredProgram], mode: str, number: int, folder: Path
) -> list[Recompiled]:
    """Return the answer for each program; a process that fails is an error for each."""
    programs = [each.program for each in stored]
    begin = time.monotonic()
    try:
        # Each process has sources of its own, at a depth of its own.
        own = folder.joinpath(*["deeper"] * number, f"mode{number}")
        platform = toolchain_for(stored[0].target).platform(stored[0].target)
        models = copy_model(config, own, platform)
        task = Task(config.model, str(models), programs, stored[0].target, mode)
        hash_seed = {"PYTHONHASHSEED": str(number + 1)}
        return list(child.run("aotc.verify", task, Recompiled, folder=own, environment=hash_seed))
    except AotcError as error:
        seconds = time.monotonic() - begin
        return [Recompiled(each, seconds=seconds, error=error.render()) for each in programs]


def _against_stored(stored: StoredProgram, answer: Recompiled) -> Iterator[Check]:
    name = stored.program
    if answer.error is not None:
        message = f"the sources do not compile: {answer.error}"
        yield _check(answer, SIGNATURE, message)
        return
    found = str(stored.manifest_digest)
    if answer.manifest == found:
        yield _check(answer, SIGNATURE, f"bytes: compiled again: {found}", passed=True)
        return
    differences = BuildKey(answer.components).explain(BuildKey(stored.record.identity))
    if differences:
        names = ", ".join(each.component for each in differences)
        changed = {each.component for each in differences} & {"contract", "ir"}
        subject = "built by another compiler, with the same canonical form"
        if changed:
            subject = "the sources now give another program"
        message = f"{subject} (changed: {names}): run `aotc build {stored.model}`"
        yield _check(answer, SIGNATURE, message, differences[0])
        return
    layers = {each.part: each.digest for each in stored.manifest.layers}
    for part, digest in answer.layers.items():
        if layers.get(part) != digest:
            message = f"equal inputs gave another {part}: `{name}` does not compile the same"
            difference = Difference(part, digest, layers.get(part))
            yield _check(answer, SIGNATURE, f"{message} twice", difference)
            return
    message = "equal inputs gave another manifest"
    yield _check(answer, SIGNATURE, message, Difference("manifest", answer.manifest, found))


def _against_signature(mode: str, signature: Recompiled, answer: Recompiled) -> Iterator[Check]:
    if answer.skipped is not None:
        yield _check(answer, mode, f"not compiled from {mode}: {answer.skipped}", passed=True)
        return
    if answer.error is not None:
        # Sources that do not compile at all are reported once.
        if signature.error is None:
            yield _check(answer, mode, f"not compiled from {mode}: {answer.error}")
        return
    if signature.error is not None:
        message = f"compiled from {mode}, not from the signature"
        yield _check(answer, mode, message)
        return
    mine = BuildKey({**signature.components, "source": signature.source or ""})
    differences = mine.explain(BuildKey({**answer.components, "source": answer.source or ""}))
    if not differences:
        message = f"canonical form: compiled from {mode}: as from the signature"
        yield _check(answer, mode, message, passed=True)
        return
    names = ", ".join(each.component for each in differences)
    message = f"compiled from {mode}, it is not the program of the signature: {names} differ"
    yield _check(answer, mode, message, differences[0])


def _check(
    answer: Recompiled,
    mode: str,
    message: str,
    difference: Difference | None = None,
    *,
    passed: bool = False,
) -> Check:
    return Check(
        EQUIVALENCE,
        answer.program,
        passed,
        message,
        subject=mode,
        field=None if difference is None else difference.component,
        expected=None if difference is None else difference.mine,
        found=None if difference is None else difference.other,
        seconds=answer.seconds,
    )
