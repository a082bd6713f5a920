"""What an NPU program needs of this host: PyPTO and its runtime, as it was built for."""

from __future__ import annotations

import importlib
import json
import shutil
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
        here = {"platform": target, **_runtime_here()}
        for name, value in here.items():
            if built.get(name) != value:
                raise LoadError(
                    f"`{chip.name}` was built for {name.replace('_', ' ')} {built.get(name)}, "
                    f"this host has {value}",
                    hint="build it again with what is here, or install what it was built for",
                )


def _runtime_here() -> dict[str, str]:
    """Return what PyPTO compares of the binaries' context, but for the platform.

    Also checks that the runtime finds what it asks for by name, though it will run none of it.
    """
    try:
        bindings = importlib.import_module("_task_interface")
        setup = importlib.import_module("simpler_setup.pto_isa")
    except ImportError as error:
        raise LoadError(f"PyPTO's runtime is not here: {error}", hint=_REMEDY) from None
    for name in ("git", "gcc", "g++"):
        if shutil.which(name) is None:
            raise LoadError(
                f"PyPTO's runtime looks for `{name}` on PATH, and it is not there",
                hint=f"install it; an executable of that name is enough: ln -s /bin/true {name}"
                if name != "git"
                else "install git: the runtime asks it for the commit of its pto-isa checkout",
            )
    return {
        "runtime_revision": str(getattr(bindings, "__build_commit__", "")),
        "pto_isa_revision": str(setup.read_pto_isa_pin()),
    }


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
