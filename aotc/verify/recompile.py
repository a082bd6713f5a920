"""The other side of the level equivalence: compile in a process of its own."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from aotc import child
from aotc import config as configs
from aotc.config import Config
from aotc.contract import Contract
from aotc.errors import AotcError
from aotc.program.key import text_digest
from aotc.verify import bindings

SIGNATURE = "signature"

# How a program can be compiled, and where the samples lie within the dynamic dimensions.
MODES: dict[str, bindings.Choose | None] = {
    SIGNATURE: None,
    "numpy arrays": bindings.inner,
    "torch meta tensors": bindings.greatest,
    "torch tensors": bindings.least,
}

# A toolchain that takes seconds for what takes milliseconds elsewhere is asked less.
_FEW_MODES = (SIGNATURE, "torch meta tensors", "torch tensors")


def modes_for(target: str) -> list[str]:
    """Return the modes, of `MODES`, in which programs for `target` are compiled again."""
    from aotc.toolchain import toolchain_for

    return list(MODES) if toolchain_for(target).name == "native" else list(_FEW_MODES)


# The types of samples, with numpy's stand-in for bf16.
_NUMPY = {"bf16": "uint16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


class Task(msgspec.Struct, tag="recompile"):
    """Compile `programs` of the model in `models` for `target`, the way of `mode`."""

    model: str
    models: str
    programs: list[str]
    target: str
    mode: str


class Recompiled(msgspec.Struct):
    """What came out for a program: an error, or what its manifest is a function of.

    `skipped` says why the mode cannot be tried here.

    `components` are those of the canonical key, with the digests of contract, IR, toolchain and
    flags; `source` is the digest of the generated C. Only the mode `signature` makes machine code,
    which is a function of these: it has `layers`, by `Descriptor.part`, and `manifest`.
    """

    program: str
    seconds: float = 0.0
    error: str | None = None
    skipped: str | None = None
    components: dict[str, str] = {}
    source: str | None = None
    layers: dict[str, str] = {}
    manifest: str | None = None


def answer(task: Task) -> Iterator[Recompiled]:
    """Compile the programs of `task`, one after the other."""
    if not task.mode.startswith("torch"):
        # None makes an import fail: neither the compiler nor a wrapper may need it.
        sys.modules["torch"] = None  # type: ignore[assignment]
    elif not child.has_torch():
        yield from (Recompiled(each, skipped="torch cannot be imported") for each in task.programs)
        return
    config = configs.load(task.model, Path(task.models))
    for program in task.programs:
        begin = time.monotonic()
        try:
            found = _recompile(config, program, task.target, task.mode)
        except AotcError as error:
            found = Recompiled(program, error=error.render())
        found.seconds = time.monotonic() - begin
        yield found


def _recompile(config: Config, name: str, target: str, mode: str) -> Recompiled:
    from aotc import driver
    from aotc.samples import arguments_of
    from aotc.store.artifact import write_program
    from aotc.store.layout import Layout

    choose = MODES[mode]
    compiled = driver.lower(config, name, target)
    if choose is None:
        program = driver.compile_program(config, name, target, compiled)
        with tempfile.TemporaryDirectory(prefix="aotc-verify-") as folder:
            stored = write_program(Layout.create(Path(folder)), program)
        return Recompiled(
            name,
            components=dict(compiled.key.components),
            source=text_digest(compiled.lowered.source()),
            layers={each.part: each.digest for each in stored.manifest.layers},
            manifest=str(stored.manifest_digest),
        )
    parameters = compiled.lowered.contract.parameters
    arguments = arguments_of(_samples(compiled.lowered.contract, mode, choose), parameters)
    compiled = driver.lower(config, name, target, arguments)
    return Recompiled(
        name,
        components=dict(compiled.key.components),
        source=text_digest(compiled.lowered.source()),
    )


def _samples(contract: Contract, mode: str, choose: bindings.Choose) -> Sequence[Any]:
    """Return a tensor for each parameter; none is written to, so none takes memory."""
    values = bindings.bind(contract, choose)
    shapes = [bindings.shape_of(each.dims, values) for each in contract.parameters]
    dtypes = [each.dtype for each in contract.parameters]
    if mode == "numpy arrays":
        import numpy

        return [
            numpy.empty(shape, _NUMPY.get(dtype, dtype))
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
    import torch

    device = "meta" if mode == "torch meta tensors" else "cpu"
    return [
        torch.empty(shape, dtype=getattr(torch, _TORCH.get(dtype, dtype)), device=device)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
