"""Run a program of textual IR on the machine and in the reference interpreter, and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from aotc import reference
from aotc.codegen.panels import panels
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
MATRIX_TARGETS = {"x86_64_amx"}


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
    program, contract, source = source_of(text, target)
    return program, load_program(contract, compile_shared_object(source, TARGETS[target]), target)


# Instead of the barrier: one thread after the other runs up to the next barrier, in an order that
# every call changes. What a thread needs of another one that comes later is then not there.
_PHASES = """
static int32_t test_turn, test_finished, test_calls;
static int32_t test_place(const aotc_call *call, int32_t thread) {
    int32_t turned = (thread + test_calls / 2) % call->threads;
    return test_calls % 2 ? call->threads - 1 - turned : turned;
}
static void test_begin(const aotc_call *call, int32_t thread) {
    while (__atomic_load_n(&test_turn, __ATOMIC_ACQUIRE) != test_place(call, thread))
        aotc_system_call(AOTC_SYSTEM_SCHED_YIELD, 0, 0, 0, 0);
}
static void test_end(const aotc_call *call) {
    __atomic_store_n(&test_turn, (test_turn + 1) % call->threads, __ATOMIC_RELEASE);
}
static void test_barrier(const aotc_call *call, int32_t thread) {
    test_end(call);
    test_begin(call, thread);
}
static void test_run(const aotc_call *call, int32_t thread);
AOTC_EXPORT void aotc_run(const aotc_call *call, int32_t thread) {
    test_begin(call, thread);
    test_run(call, thread);
    if (++test_finished == call->threads) {
        test_finished = 0;
        ++test_calls;
    }
    test_end(call);
}
"""
BARRIER = "aotc_barrier(call, thread);"
_RUN = "AOTC_EXPORT void aotc_run(const aotc_call *call, int32_t thread) {"


def source_of(text: str, target: str) -> tuple[Program, Contract, str]:
    """Return a program of textual IR, its contract, and its C."""
    program = parse_program(text)
    verify(program)
    ir = run_passes(program, verify)
    contract = contract_of(program).with_panels(panels(ir) if TARGETS[target].panels else {})
    return program, contract, generate(ir, contract)


@cache
def compiled_in_phases(text: str, without: int | None = None) -> tuple[Program, Any]:
    """Return the program such that one thread runs at a time, in any order, between barriers.

    `without` is the number of a barrier that is left out.
    """
    target = TARGETS_HERE[0]
    program, contract, source = source_of(text, target)
    before, after = source.split(_RUN)
    pieces = after.split(BARRIER)
    if without is not None:
        pieces[without : without + 2] = ["".join(pieces[without : without + 2])]
    body = "test_barrier(call, thread);".join(pieces)
    source = before + _PHASES + _RUN.replace("AOTC_EXPORT void aotc", "static void test") + body
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
    return _run(*compiled(text, target), arguments, threads)


def phases_agree(
    text: str, arguments: Mapping[str, Any], threads: int, without: int | None = None
) -> bool:
    """Whether any order of the threads between barriers gives what a thread alone gives."""
    program, loaded = compiled_in_phases(text, without)
    alone = run_native(text, arguments, 1, TARGETS_HERE[0])
    return all(
        value.tobytes() == alone[name].tobytes()
        for _ in range(2 * threads)
        for name, value in _run(program, loaded, arguments, threads).items()
    )


def _run(
    program: Program, loaded: Any, arguments: Mapping[str, Any], threads: int
) -> dict[str, np.ndarray]:
    with loaded.prepare(threads=threads) as worker:
        passed: list[Any] = []
        for each in program.parameters:
            value = arguments[each.name]
            if isinstance(each.variable, TensorVar):
                bits = to_bf16(value) if each.variable.dtype == BF16 else value
                dtype = each.variable.dtype.name
                # Weights are packed: that row-major ones give the same is a test of its own.
                tensor = worker.alloc_tensor(bits.shape, dtype, init=bits, parameter=each.name)
                passed.append(tensor)
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

    It must give the same bits for every team size and every target that runs here, but those with
    a matrix unit, which has an order of its own. Returns the outputs of the best target.
    """
    program, _ = compiled(text, TARGETS_HERE[0])
    expected = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    reference.run(program, expected)
    first: dict[tuple[str, bool], np.ndarray] = {}
    runs = [(count, target) for target in TARGETS_HERE[:2] for count in threads]
    for count, target in [*runs, *((1, other) for other in TARGETS_HERE[2:])]:
        results = run_native(text, arguments, count, target)
        for name, value in results.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=atol)
            else:
                np.testing.assert_array_equal(value, expected[name])
            same = first.setdefault((name, target in MATRIX_TARGETS), value)
            assert same.tobytes() == value.tobytes(), (name, count, target)
    return {
        name: value
        for (name, by_matrix), value in first.items()
        if by_matrix == (TARGETS_HERE[0] in MATRIX_TARGETS)
    }
