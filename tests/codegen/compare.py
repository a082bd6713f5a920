"""Run a program of textual IR on the machine and in the reference interpreter, and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from aotc import reference
from aotc.codegen.source import generate
from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.dtypes import BF16
from aotc.ir.nodes import Program, TensorVar
from aotc.ir.scalar import Constant, Symbol
from aotc.ir.text import parse_program
from aotc.ops.verify import verify
from aotc.passes import run_passes
from aotc.runtime.host import Host
from aotc.runtime.loader import load_program
from aotc.toolchain.zig import TARGETS, compile_shared_object

# What runs here, best first; on any other host the first tests fail and say so.
TARGETS_HERE = Host.current().targets()


def contract_of(program: Program) -> Contract:
    """Return the call contract of a program whose dims are integers or plain symbols."""
    parameters = []
    symbols: list[str] = []
    for each in program.parameters:
        variable = each.variable
        dims = []
        for dim in variable.shape if isinstance(variable, TensorVar) else ():
            assert isinstance(dim, Constant | Symbol)
            dims.append(dim.name if isinstance(dim, Symbol) else int(dim.value))
            if isinstance(dim, Symbol) and dim.name not in symbols:
                symbols.append(dim.name)
        parameters.append(Parameter(each.name, variable.dtype.name, tuple(dims), each.direction))
    return Contract(tuple(parameters), tuple(map(DynamicSymbol, symbols)))


@cache
def compiled(text: str, target: str) -> tuple[Program, Any]:
    """Return the parsed program and the loaded machine code of it after all passes."""
    program = parse_program(text)
    verify(program)
    contract = contract_of(program)
    source = generate(run_passes(program, verify), [each.name for each in contract.symbols])
    return program, load_program(contract, compile_shared_object(source, TARGETS[target]), target)


def to_bf16(array: np.ndarray) -> np.ndarray:
    """Return the bit patterns of a float32 array that holds bf16 values."""
    return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Return the float32 values of bf16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def run_native(
    text: str, arguments: Mapping[str, Any], threads: int, target: str
) -> dict[str, np.ndarray]:
    """Return what Out and InOut parameters hold after a call; `arguments` are not changed."""
    program, loaded = compiled(text, target)
    with loaded.prepare(threads=threads) as worker:
        passed: list[Any] = []
        for each in program.parameters:
            value = arguments[each.name]
            if isinstance(each.variable, TensorVar):
                bits = to_bf16(value) if each.variable.dtype == BF16 else value
                passed.append(worker.alloc_tensor(bits.shape, each.variable.dtype.name, init=bits))
            else:
                passed.append(value)
        worker(*passed)
        results = {}
        for each, tensor in zip(program.parameters, passed, strict=True):
            if each.direction is not Direction.IN:
                held = tensor.numpy().copy()
                is_bf16 = each.variable.dtype == BF16
                results[each.name] = from_bf16(held) if is_bf16 else held
    return results


def check(
    text: str,
    arguments: Mapping[str, Any],
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    threads: Sequence[int] = (1, 2, 3),
) -> dict[str, np.ndarray]:
    """Assert that machine code agrees with the reference; integers and bools must be equal.

    It must give the same bits for every team size and every target that runs here. Returns the
    outputs.
    """
    program, _ = compiled(text, TARGETS_HERE[0])
    expected = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    reference.run(program, expected)
    first: dict[str, np.ndarray] = {}
    runs = [(count, TARGETS_HERE[0]) for count in threads]
    for count, target in [*runs, *((1, other) for other in TARGETS_HERE[1:])]:
        results = run_native(text, arguments, count, target)
        for name, value in results.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=atol)
            else:
                np.testing.assert_array_equal(value, expected[name])
            first.setdefault(name, value)
            assert first[name].tobytes() == value.tobytes(), (name, count, target)
    return first
