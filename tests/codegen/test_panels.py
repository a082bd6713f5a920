"""Packed weights: which are worth it, the layouts, and the same bits as row-major ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import aarch64
import numpy as np
import pytest
from compare import TARGETS_HERE, contract_of, from_bf16, to_bf16

from aotc import config
from aotc.codegen.panels import panels
from aotc.codegen.source import generate
from aotc.ir.text import parse_program
from aotc.ops.verify import verify
from aotc.passes import run_passes
from aotc.runtime import ContractError, TensorError, Worker, WorkerError
from aotc.runtime.loader import load_program
from aotc.toolchain import native
from aotc.toolchain.zig import TARGETS, compile_shared_object

MODELS = Path(__file__).parents[2] / "models"
LAYERS = 3
# The registers of AVX-512 on vectors of any width: the same text, other numbers of rows.
WIDE = "wide registers"
KERNELS = [*(each for each in TARGETS_HERE if TARGETS[each].panels), WIDE]


def text(n: int, k: int, b_trans: bool, more: str = "") -> str:
    """Return a product with one layer of a stacked weight, added to what is there."""
    height, width = (n, k) if b_trans else (k, n)
    return f"""
program("layer")
a: In[bf16[dim.M, {k}]]
w: In[bf16[dim.R, {width}]]
layer: In[int32[1]]
start: In[fp32[dim.M, {n}]]
out: Out[fp32[dim.M, {n}]]
total: Out[fp32[dim.M, {n}]]
i: int32 = read(layer, [0])
y: bf16[{height}, {width}] = slice(w, [{height}, {width}], [convert(i, index) * {height}, 0], \
[], [], clamp=False)
c: fp32[dim.M, {n}] = matmul(a, y, a_trans=False, b_trans={b_trans}, out_dtype=fp32)
d: fp32[dim.M, {n}] = matmul_acc(start, a, y, [], a_trans=False, b_trans={b_trans})
{more}
out_1: fp32[dim.M, {n}] = assemble(out, c, [0, 0])
total_1: fp32[dim.M, {n}] = assemble(total, d, [0, 0])
yields(out_1, total_1)
"""


def asked(source: str) -> dict[str, int]:
    return panels(run_passes(parse_program(source), verify))


@cache
def loaded(kernel: str, n: int, k: int, b_trans: bool) -> Any:
    program = run_passes(parse_program(text(n, k, b_trans)), verify)
    contract = contract_of(program).with_panels(panels(program))
    source = generate(program, contract)
    if kernel == WIDE:
        source = source.replace("defined(__AVX512F__)", "1")
        kernel = "x86_64_v3"
    return load_program(contract, compile_shared_object(source, TARGETS[kernel]), kernel)


def bits(seed: int, *shape: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return to_bf16(values)


def run(worker: Worker, a: np.ndarray, w: object, layer: int, n: int) -> tuple[np.ndarray, ...]:
    out, total = np.full((2, len(a), n), np.nan, np.float32)
    start = np.full((len(a), n), 0.5, np.float32)
    left = worker.alloc_tensor(a.shape, "bf16", a)
    worker(left, w, np.array([layer], np.int32), start, out, total)
    left.free()
    return out, total


SHAPES = [
    *[(False, 320, 512), (False, 16, 64), (False, 48, 768), (False, 80, 96)],
    *[(True, 320, 512), (True, 16, 128), (True, 80, 1280)],
]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("b_trans", "n", "k"), SHAPES)
def test_packed_and_row_major_weights_give_the_same_bits(
    kernel: str, b_trans: bool, n: int, k: int
) -> None:
    program = loaded(kernel, n, k, b_trans)
    assert program.contract.panels() == {"w": 0 if b_trans else {512: 256, 768: 256}.get(k, k & -k)}
    w = bits(1, *((LAYERS * n, k) if b_trans else (LAYERS * k, n)))
    layer = from_bf16(w)[n : 2 * n].T if b_trans else from_bf16(w)[k : 2 * k]
    whole: tuple[np.ndarray, ...] | None = None
    for threads in (1, 2, 3):
        with program.prepare(threads=threads) as worker:
            plain = worker.alloc_tensor(w.shape, "bf16", w)
            packed = worker.alloc_tensor(w.shape, "bf16", w, parameter="w")
            in_place = worker.alloc_tensor(w.shape, "bf16", w)
            in_place.pack("w")
            assert (plain.panels, packed.panels, in_place.panels) == (
                *(None, program.contract.panels()["w"]),
                program.contract.panels()["w"],
            )
            for rows in (390, *range(1, 27), 64, 130, 200) if threads == 1 else (390, 1, 7, 16, 25):
                a = bits(2, 390, k)[:rows]
                given = [run(worker, a, each, 1, n) for each in (plain, packed, in_place)]
                whole = whole or given[0]
                for each in given:
                    for part, all_rows in zip(each, whole, strict=True):
                        assert part.tobytes() == all_rows[:rows].tobytes(), (rows, threads)
    assert whole is not None
    expected = from_bf16(bits(2, 390, k)).astype(np.float64) @ layer
    bound = (k + 2) * 2.0**-24 * (np.abs(from_bf16(bits(2, 390, k))) @ np.abs(layer) + 1)
    assert (np.abs(whole[0] - expected) <= bound).all()
    assert (np.abs(whole[1] - expected - 0.5) <= bound).all()


@pytest.mark.parametrize(("b_trans", "n", "k"), [(False, 48, 96), (True, 32, 256)])
@aarch64.needs_qemu
def test_aarch64_reads_what_was_packed_here(b_trans: bool, n: int, k: int) -> None:
    program = loaded("x86_64_v3", n, k, b_trans)
    ir = run_passes(parse_program(text(n, k, b_trans)), verify)
    content = compile_shared_object(generate(ir, program.contract), TARGETS["aarch64"])
    w = bits(1, *((LAYERS * n, k) if b_trans else (LAYERS * k, n)))
    with program.prepare(threads=2) as worker:
        tensor = worker.alloc_tensor(w.shape, "bf16", w, parameter="w")
        panel_bytes = np.frombuffer(tensor.memory.view(), np.uint16).reshape(w.shape).copy()
        for rows in (1, 2, 3, 4, 5, 6, 7, 16, 25):
            a, layer = bits(2, rows, k), np.array([2], np.int32)
            start, out = np.full((rows, n), 0.5, np.float32), np.zeros((rows, n), np.float32)
            expected = run(worker, a, tensor, 2, n)
            arguments = [a, panel_bytes, layer, start, out, out]
            flags = [False, True, False, False, False, False]
            after = aarch64.run(content, arguments, [rows, len(w)], 1 + rows % 2, flags)
            assert after[4].tobytes() == expected[0].tobytes()
            assert after[5].tobytes() == expected[1].tobytes()


@pytest.mark.parametrize(("b_trans", "n", "k"), SHAPES)
def test_the_layouts(b_trans: bool, n: int, k: int) -> None:
    program = loaded(KERNELS[-1], n, k, b_trans)
    depth = program.contract.panels()["w"]
    w = bits(1, *((LAYERS * n, k) if b_trans else (LAYERS * k, n)))
    if b_trans:
        expected = w.reshape(-1, 16, k // 32, 2, 16).transpose(0, 4, 2, 1, 3)
    else:
        expected = w.reshape(-1, depth // 2, 2, n // 16, 16).transpose(0, 3, 1, 4, 2)
    for threads in (1, 3):
        with program.prepare(threads=threads) as worker:
            tensor = worker.alloc_tensor(w.shape, "bf16", w, parameter="w")
            assert bytes(tensor.memory.view()) == np.ascontiguousarray(expected).tobytes()
            back = np.zeros_like(w)
            tensor.copy_to(back)
            assert (back == w).all()


@pytest.mark.parametrize(
    ("n", "k", "b_trans", "expected"),
    [
        (32, 256, False, {"w": 256}),
        (32, 5120, False, {"w": 256}),
        (32, 96, False, {"w": 32}),
        (32, 80, False, {}),  # blocks of 16 rows are too few
        (40, 256, False, {}),
        (32, 256, True, {"w": 0}),
        (32, 192, True, {}),
        (24, 256, True, {}),
        (32, 65536, True, {}),
    ],
)
def test_what_is_worth_packing(n: int, k: int, b_trans: bool, expected: dict[str, int]) -> None:
    assert asked(text(n, k, b_trans)) == expected


@pytest.mark.parametrize(
    "use",
    [
        "z: bf16[256, 32] = slice(w, [256, 32], [1, 0], [], [], clamp=False)\n"
        "e: fp32[dim.M, 32] = matmul(a, z, a_trans=False, b_trans=False, out_dtype=fp32)",
        "z: bf16[256, 16] = slice(w, [256, 16], [0, 16], [], [], clamp=False)\n"
        "e: fp32[dim.M, 16] = matmul(a, z, a_trans=False, b_trans=False, out_dtype=fp32)",
        "e: bf16[256, 32] = neg(y)",
        "e: fp32[256, 256] = matmul(y, y, a_trans=False, b_trans=True, out_dtype=fp32)",
        "e: bf16 = read(w, [0, 0])",
    ],
)
def test_one_other_use_keeps_a_weight_row_major(use: str) -> None:
    assert panels(parse_program(text(32, 256, False, use))) == {}
    verify(parse_program(text(32, 256, False, use)))


def test_the_weights_of_qwen3_are_packed_but_for_a_matrix_unit() -> None:
    chosen = config.load("qwen3-14b", MODELS)
    stacked = dict.fromkeys(("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"), 256)
    for program in ("decode", "prefill"):
        found = native.lower(chosen, program, "x86_64_v3").contract
        assert found.panels() == {**stacked, "lm_head_weight": 0}
        assert native.lower(chosen, program, "x86_64_amx").contract.panels() == {}


def test_a_packed_tensor_is_used_as_what_it_is() -> None:
    n, k = 320, 512
    program, other = loaded("x86_64_v3", n, k, False), loaded("x86_64_v3", n, k, True)
    w = bits(1, LAYERS * k, n)
    with program.prepare(threads=1) as worker:
        tensor = worker.alloc_tensor(w.shape, "bf16", parameter="w")
        for look in (tensor.numpy, tensor.__dlpack__):
            with pytest.raises(TensorError, match="is packed and has no view"):
                look()
        with pytest.raises(TensorError, match="a packed tensor"):
            worker.alloc_tensor(w.shape, "bf16", tensor)
        tensor.copy_from(w)
        expected = run(worker, bits(2, 3, k), w_of(worker, w), 0, n)
        assert all(map(np.array_equal, run(worker, bits(2, 3, k), tensor, 0, n), expected))
        with pytest.raises(ContractError, match="`a`: the tensor is packed for another parameter"):
            worker(tensor, tensor, *[np.zeros(1)] * 4)

        # What does not fit, and what nothing asks for, stays row-major.
        assert worker.alloc_tensor((k + 1, n), "bf16", parameter="w").panels is None
        assert worker.alloc_tensor((k, n), "fp32", parameter="w").panels is None
        assert worker.alloc_tensor((k, n), "bf16", parameter="a").panels is None
        assert worker.alloc_tensor((0, n), "bf16", parameter="w").panels == 256

        plain = w_of(worker, w)
        arguments = worker.alloc_tensor((1, k), "bf16"), plain, np.zeros(1, np.int32)
        call = worker.bind(*arguments, *np.zeros((3, 1, n), np.float32))
        plain.pack("w")
        plain.pack("w")  # twice is once
        with pytest.raises(WorkerError, match="was packed"):
            call()

        # Programs that ask for different things get neither.
        worker.load(other)
        assert worker.alloc_tensor(w.shape, "bf16", w, parameter="w").panels is None


def w_of(worker: Worker, w: np.ndarray) -> Any:
    return worker.alloc_tensor(w.shape, "bf16", w)


@pytest.mark.parametrize("b_trans", [False, True])
def test_a_turned_left_operand_changes_no_bit(b_trans: bool) -> None:
    n, k = 32, 256
    turned = text(n, k, b_trans).replace(f"a: In[bf16[dim.M, {k}]]", f"a: In[bf16[{k}, dim.M]]")
    ir = run_passes(parse_program(turned.replace("a_trans=False", "a_trans=True")), verify)
    contract = contract_of(ir).with_panels(panels(ir))
    content = compile_shared_object(generate(ir, contract), TARGETS["x86_64_v3"])
    w = bits(1, *((LAYERS * n, k) if b_trans else (LAYERS * k, n)))
    with load_program(contract, content, "x86_64_v3").prepare(threads=1) as worker:
        packed = worker.alloc_tensor(w.shape, "bf16", w, parameter="w")
        assert packed.panels is not None
        a = worker.alloc_tensor((k, 7), "bf16", np.ascontiguousarray(bits(2, 7, k).T))
        found = []
        for weight in (w_of(worker, w), packed):
            out, total = np.zeros((2, 7, n), np.float32)
            start = np.full((7, n), 0.5, np.float32)
            worker(a, weight, np.array([1], np.int32), start, out, total)
            found.append(out.tobytes() + total.tobytes())
        assert found[0] == found[1]
