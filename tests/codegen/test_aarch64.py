"""Objects for aarch64 give the bits that those for x86-64 give, on one thread and on a team."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aarch64 import needs_qemu, run
from compare import TARGETS_HERE, contract_of, run_native, to_bf16
from test_batch import batch_text
from test_generator import ATTENTION, SOFTMAX, bf16, matmul_text, normal

from aotc import config, driver, inputs
from aotc.codegen.source import generate
from aotc.contract import Argument, Direction
from aotc.dtypes import BF16
from aotc.ir.nodes import TensorVar
from aotc.ir.text import parse_program
from aotc.ops.verify import verify
from aotc.passes import run_passes
from aotc.runtime import load_program
from aotc.toolchain.zig import TARGETS, compile_shared_object

MODELS = Path(__file__).parents[2] / "models"

pytestmark = [
    needs_qemu,
    pytest.mark.skipif("x86_64_v3" not in TARGETS_HERE, reason="there is no x86-64 to compare"),
]

ELEMENTWISE = """
program("elementwise")
x: In[fp32[dim.M, dim.N]]
out: Out[bf16[dim.M, dim.N]]
e: fp32[dim.M, dim.N] = exp(x)
t: fp32[dim.M, dim.N] = add(e, fp32(1.0))
l: fp32[dim.M, dim.N] = log(t, high_precision=False)
q: fp32[dim.M, dim.N] = rsqrt(t, high_precision=False, tmp=None)
s: fp32[dim.M, dim.N] = sqrt(l)
r: fp32[dim.M, dim.N] = add(q, s)
p: fp32[dim.M, dim.N] = div(r, t, high_precision=False)
c: bf16[dim.M, dim.N] = cast(p, mode="round", target_type=bf16)
out_1: bf16[dim.M, dim.N] = assemble(out, c, [0, 0])
yields(out_1)
"""
ARGMAX = """
program("argmax")
x: In[fp32[dim.M, dim.N]]
out: Out[int32[dim.M, 1]]
at: int32[dim.M, 1] = row_argmax(x, tmp_tile=None)
out_1: int32[dim.M, 1] = assemble(out, at, [0, 0])
yields(out_1)
"""


def check(text: str, arguments: Mapping[str, Any]) -> None:
    """Assert that both give the same bits in everything that the program writes."""
    program = run_passes(parse_program(text), verify)
    contract = contract_of(program)
    source = generate(program, contract)
    content = compile_shared_object(source, TARGETS["aarch64"])
    passed = []
    for each in program.parameters:
        assert isinstance(each.variable, TensorVar)
        value = arguments[each.name]
        passed.append(to_bf16(value) if each.variable.dtype == BF16 else value)
    symbols = contract.bind(
        [
            Argument(parameter.dtype, value.shape)
            for parameter, value in zip(contract.parameters, passed, strict=True)
        ]
    )
    expected = run_native(text, arguments, 1, "x86_64_v3")
    for threads in (1, 2, 3):
        after = run(content, passed, list(symbols.values()), threads)
        for each, found in zip(program.parameters, after, strict=True):
            if each.direction is not Direction.IN:
                wanted = expected[each.name]
                bits = to_bf16(wanted) if found.dtype == np.uint16 else wanted
                assert found.tobytes() == bits.tobytes(), (each.name, threads)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 7), (3, 65, 70), (16, 33, 48), (50, 50, 300)])
def test_contractions(transpose: bool, dtype: str, m: int, n: int, k: int) -> None:
    make = bf16 if dtype == "bf16" else normal
    b = make(2, n, k) if transpose else make(2, k, n)
    out = np.zeros((m, n), np.float32)
    check(matmul_text(transpose, dtype), {"a": make(1, m, k), "b": b, "out": out})


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("s", "m", "n", "k"), [(3, 5, 37, 35), (2, 6, 32, 64)])
def test_batches(transpose: bool, s: int, m: int, n: int, k: int) -> None:
    b = bf16(2, *((n, s, k) if transpose else (k, s, n)))
    arguments = {"a": bf16(1, s, m, k), "b": b, "out": np.zeros((s, m, n), np.float32)}
    check(batch_text(True, transpose, "bf16"), arguments)


def test_integer_contraction() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-128, 128, (5, 40)).astype(np.int8)
    b = rng.integers(-128, 128, (40, 23)).astype(np.int8)
    arguments = {"a": a, "b": b, "out": np.zeros((5, 23), np.int32)}
    check(matmul_text(False, "int8", "int32"), arguments)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 15), (4, 17), (7, 100)])
def test_softmax(m: int, n: int) -> None:
    check(SOFTMAX, {"x": normal(0, m, n), "out": np.zeros((m, n), np.float32)})


def test_attention() -> None:
    arguments = {
        "q": bf16(1, 5, 128),
        "k": bf16(2, 64, 128),
        "v": bf16(3, 64, 128),
        "lens": np.array([1, 16, 17, 64, 33], np.int32),
        "out": np.zeros((5, 128), np.float32),
    }
    check(ATTENTION, arguments)


def test_elements() -> None:
    x = normal(4, 6, 37) * np.float32(20)
    x[0, :4] = [0, -90, 88, -0.0]
    check(ELEMENTWISE, {"x": x, "out": np.zeros((6, 37), np.float32)})


def test_argmax() -> None:
    x = normal(5, 4, 50)
    x[1] = 3  # all alike: the first
    x[2, 49] = x[2, 20] = 9
    check(ARGMAX, {"x": x, "out": np.zeros((4, 1), np.int32)})


@pytest.mark.parametrize("program", ["decode", "prefill", "greedy_sample"])
def test_programs_of_a_model(program: str) -> None:
    tiny = config.load("qwen3-tiny", MODELS)
    lowered = driver.lower(tiny, program, "x86_64_v3").lowered
    contract, source = lowered.contract, lowered.source()
    sizes = {
        **{"BATCH_DYN": 3, "LAYER_DYN": 2, "PREFILL_TOKENS_DYN": 20, "ROPE_SEQ_DYN": 40},
        **{"BLOCK_TABLE_FLAT_DYN": 9, "KV_CACHE_ROWS_DYN": 2 * 2 * 16 * 9},
    }
    known = {each.name for each in contract.symbols}
    given = {name: value for name, value in sizes.items() if name in known}
    symbols = inputs.symbol_values(contract, given)
    integers = inputs.integers(tiny, program, "cpu", symbols)
    native = compile_shared_object(source, TARGETS["x86_64_v3"])
    with load_program(contract, native, "x86_64_v3").prepare(1) as worker:
        tensors = inputs.device_tensors(worker, contract, symbols, integers)
        before = [np.frombuffer(bytes(each.memory.view()), np.uint8) for each in tensors]
        worker(*tensors)
        expected = [bytes(each.memory.view()) for each in tensors]
        packed = [each.panels is not None for each in tensors]
    content = compile_shared_object(source, TARGETS["aarch64"])
    for threads in (1, 2):
        found = run(content, before, list(symbols.values()), threads, packed)
        for parameter, mine, theirs in zip(contract.parameters, found, expected, strict=True):
            assert mine.tobytes() == theirs, (parameter.name, threads)
    assert any(a.tobytes() != b for a, b in zip(before, expected, strict=True))
    assert any(packed) == (program != "greedy_sample")
