"""Small programs with an identity of their own, as the driver makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aotc.program.key import BuildKey, canonical_key
from aotc.program.model import FILE_TYPE, DistributedCompiledProgram, Layer, machine_code
from aotc.toolchain.pypto.canonical import program_files, readable

CONTRACT = b'{"parameters":[],"symbols":[],"returns":[]}'


def build_key(model: str = "tiny", name: str = "decode", **changes: Any) -> BuildKey:
    """Return the canonical key of a program, with `changes` to its parts."""
    parts: dict[str, Any] = {
        "contract": CONTRACT,
        "ir": "program decode\n",
        "target": "x86_64_v3",
        "toolchain": "clang 1 sha256:00",
        "flags": ("-O3",),
        "abi_version": 1,
        "environment": {},
        "compiler": "0" * 64,
    }
    return canonical_key(model=model, program=name, **{**parts, **changes})


def build_program(
    model: str = "tiny",
    name: str = "decode",
    *,
    target: str = "x86_64_v3",
    code: bytes = b"\x7fELF" + bytes(range(64)),
    ir: str = "program decode\n",
) -> DistributedCompiledProgram:
    """Return a program; its code is not any that runs."""
    return DistributedCompiledProgram(
        model=model,
        name=name,
        target=target,
        abi_version=1,
        contract=CONTRACT,
        layers=machine_code(code, ir, "void aotc_run(void) {}\n"),
        identity=build_key(model, name, target=target, ir=ir).components,
    )


RECORDED = Path(__file__).parents[1] / "data" / "pypto"


def folder_program(
    model: str = "ranks", recorded: str = "ranks-signature", *, target: str = "a2a3sim"
) -> DistributedCompiledProgram:
    """Return a program of PyPTO as far as MLIR, of what was recorded of examples/npu."""
    root = RECORDED / recorded
    files = program_files(
        {
            each.relative_to(root).as_posix(): each.read_bytes()
            for each in root.rglob("*.*")
            if each.is_file()
        }
    )
    return DistributedCompiledProgram(
        model=model,
        name="add_rank",
        target=target,
        abi_version=2,
        contract=CONTRACT,
        layers=tuple(Layer(FILE_TYPE, content, path) for path, content in files.items()),
        identity=build_key(model, "add_rank", target=target, ir=readable(files)).components,
        device_ids=(0, 1),
    )
