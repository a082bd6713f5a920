"""What an NPU program needs of this host: PyPTO and its runtime, as it was built for."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aotc.runtime.library import LoadError
from aotc.runtime.worker import WorkerError

_REMEDY = "`aotc doctor` tells what is missing, and how to get it"


def import_pypto() -> Any:
    """Return PyPTO's DistributedCompiledProgram; raise LoadError where PyPTO is not here."""
    try:
        module = importlib.import_module("pypto.ir.distributed_compiled_program")
    except ImportError as error:
        raise LoadError(f"an NPU program needs PyPTO: {error}", hint=_REMEDY) from None
    return module.DistributedCompiledProgram


def check_folder(folder: Path, target: str) -> None:
    """Check that all binaries are there, and of the runtime that is here.

    PyPTO would compile what it does not trust; a loader never compiles. Raises LoadError.
    """
    chips = sorted(each for each in (folder / "next_levels").glob("*") if each.is_dir())
    for chip in chips:
        stamp = chip / "cache" / "binary_context.json"
        if not stamp.is_file():
            stage = "C++" if (chip / "kernel_config.py").is_file() else "MLIR"
            raise LoadError(
                f"it has {stage} for `{chip.name}`, no binaries",
                hint="build it where ptoas, the runtime and the compiler are: "
                "`aotc build --require-binaries`",
            )
        built = json.loads(stamp.read_text(encoding="utf-8"))
        here = _context(target, built)
        for name, value in built.items():
            if here.get(name) != value:
                raise LoadError(
                    f"`{chip.name}` was built for {name.replace('_', ' ')} {value}, "
                    f"this host has {here.get(name)}",
                    hint="build it again with what is here, or install what it was built for",
                )


def _context(target: str, built: dict[str, Any]) -> dict[str, Any]:
    """Return the context that binaries built here for the same runtime would have."""
    try:
        device = importlib.import_module("pypto.runtime.device_runner")
        compiler = importlib.import_module("pypto.runtime.kernel_compiler")
        found = device._current_binary_context(
            compiler.KernelCompiler(platform=target),
            platform=target,
            runtime_name=built.get("runtime_name"),
            pto_isa_root=device.ensure_pto_isa_root(),
        )
    except Exception as error:
        raise LoadError(f"PyPTO's runtime is not ready: {error}", hint=_REMEDY) from None
    return {} if found is None else dict(found.to_dict())


def start_worker(compiled: Sequence[Any], device_ids: Sequence[int]) -> Any:
    """Return PyPTO's worker for these programs; raise WorkerError where it does not start."""
    primary, *others = compiled
    for each in compiled:
        each._distributed_config.device_ids = list(device_ids)
    try:
        return primary.prepare(extra_compiled=others)
    except Exception as error:
        raise WorkerError(
            f"PyPTO does not start its workers: {type(error).__name__}: {error}", hint=_REMEDY
        ) from error
