"""How a team shares contractions and what is around them, and where it waits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compare import BARRIER, TARGETS_HERE, check, from_bf16, phases_agree, source_of, to_bf16

from aotc import config, frontend
from aotc.codegen.source import generate
from aotc.ops.verify import verify
from aotc.passes import run_passes

# A norm whose scale comes after the product, as in the layers of a model, and a gated product.
LAYERS = """
program("layers")
x: In[fp32[dim.M, 48]]
gamma: In[fp32[1, 48]]
up: In[bf16[48, 80]]
gate: In[bf16[48, 80]]
down: In[bf16[80, 48]]
out: Out[fp32[dim.M, 48]]
for layer in range(0, dim.L, 1):
    h: fp32[dim.M, 48] = carry(x, h_2)
    scaled: fp32[dim.M, 48] = col_expand_mul(h, gamma)
    a: bf16[dim.M, 48] = cast(scaled, mode="round", target_type=bf16)
    squares: fp32[dim.M, 48] = mul(h, h)
    sum: fp32[dim.M, 1] = row_sum(squares, tmp_tile=None)
    mean: fp32[dim.M, 1] = mul(sum, fp32(0.020833334))
    root: fp32[dim.M, 1] = rsqrt(mean, high_precision=False, tmp=None)
    g: fp32[dim.M, 80] = matmul(a, gate, a_trans=False, b_trans=False, out_dtype=fp32)
    g_1: fp32[dim.M, 80] = row_expand_mul(g, root)
    u: fp32[dim.M, 80] = matmul(a, up, a_trans=False, b_trans=False, out_dtype=fp32)
    u_1: fp32[dim.M, 80] = row_expand_mul(u, root)
    product: fp32[dim.M, 80] = mul(g_1, u_1)
    b: bf16[dim.M, 80] = cast(product, mode="round", target_type=bf16)
    d: fp32[dim.M, 48] = matmul(b, down, a_trans=False, b_trans=False, out_dtype=fp32)
    h_1: fp32[dim.M, 48] = add(h, d)
    yields(h_1)
out_1: fp32[dim.M, 48] = assemble(out, h_2, [0, 0])
yields(out_1)
"""


def layers(rows: int, hidden: int = 48, inner: int = 80) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)

    def draw(*shape: int) -> np.ndarray:
        values = rng.standard_normal(shape).astype(np.float32) / np.float32(shape[0] ** 0.5)
        return from_bf16(to_bf16(values))

    return {
        "x": draw(rows, hidden) * np.float32(rows**0.5),
        "gamma": 1 + draw(1, hidden) / 10,
        "up": draw(hidden, inner),
        "gate": draw(hidden, inner),
        "down": draw(inner, hidden),
        "out": np.zeros((rows, hidden), np.float32),
    }


def body(text: str) -> str:
    """Return the C of the run itself."""
    return source_of(text, TARGETS_HERE[0])[2].split(
        "aotc_run(const aotc_call *call, int32_t thread) {"
    )[1]


TEXT = LAYERS.replace("dim.L", "3")


def test_a_layer_waits_only_for_what_a_contraction_reads() -> None:
    """Once for the first operand of each group of contractions; nothing waits for epilogues."""
    inside = body(TEXT).split("for (int64_t layer")[1]
    assert inside.count(BARRIER) == 2
    assert body(TEXT).count(BARRIER) == 2


@pytest.mark.parametrize("rows", [1, 2, 5, 70])
def test_layers(rows: int) -> None:
    check(TEXT, layers(rows), rtol=1e-2, atol=1e-2, threads=(1, 2, 3, 5))


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_of_layers_do_not_depend_on_the_batch(rows: int) -> None:
    arguments = layers(9)
    whole = check(TEXT, arguments, rtol=1e-2, atol=1e-2)["out"]
    part = {**arguments, "x": arguments["x"][:rows], "out": arguments["out"][:rows]}
    assert check(TEXT, part, rtol=1e-2, atol=1e-2)["out"].tobytes() == whole[:rows].tobytes()


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("rows", [1, 3])
def test_threads_may_run_in_any_order_between_barriers(rows: int, threads: int) -> None:
    assert phases_agree(TEXT, layers(rows), threads)


@pytest.mark.parametrize("barrier", [0, 1])
def test_without_a_barrier_the_order_shows(barrier: int) -> None:
    assert not phases_agree(TEXT, layers(3), 3, without=barrier)


# The same with weights that are packed into panels, whose columns threads take from each other.
PACKED = TEXT.replace("48", "64").replace("80", "128")


def test_threads_that_help_each_other_wait_no_more_often() -> None:
    inside = body(PACKED).split("for (int64_t layer")[1]
    assert inside.count(BARRIER) == 2
    assert "(call, thread, 128, 16, aotc_packed_gate && aotc_packed_up)" in inside
    assert "(call, thread, 64, 16, aotc_packed_down)" in inside


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_packed_layers(rows: int) -> None:
    check(PACKED, layers(rows, 64, 128), rtol=1e-2, atol=1e-2, threads=(1, 2, 3, 5))


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_packed_layers_in_any_order_between_barriers(threads: int) -> None:
    assert phases_agree(PACKED, layers(3, 64, 128), threads)


@pytest.mark.parametrize("barrier", [0, 1])
def test_packed_layers_without_a_barrier(barrier: int) -> None:
    assert not phases_agree(PACKED, layers(3, 64, 128), 3, without=barrier)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 48])
@pytest.mark.parametrize("reduction", ["row_sum", "row_max", "row_min"])
def test_rows_are_reduced_by_units(reduction: str, columns: int) -> None:
    """By the units of columns that the threads share, whatever their number."""
    text = f"""
program("reduced")
a: In[bf16[dim.M, {columns}]]
b: In[bf16[{columns}, 32]]
x: In[fp32[dim.M, {columns}]]
out: Out[fp32[dim.M, 32]]
c: fp32[dim.M, 32] = matmul(a, b, a_trans=False, b_trans=False, out_dtype=fp32)
s: fp32[dim.M, 1] = {reduction}(x, tmp_tile=None)
h: fp32[dim.M, 1] = mul(s, fp32(0.5))
d: fp32[dim.M, 32] = row_expand_sub(c, h)
out_1: fp32[dim.M, 32] = assemble(out, d, [0, 0])
yields(out_1)
"""
    rng = np.random.default_rng(columns)
    arguments = {
        "a": from_bf16(to_bf16(rng.standard_normal((3, columns)).astype(np.float32))),
        "b": from_bf16(to_bf16(rng.standard_normal((columns, 32)).astype(np.float32))),
        "x": rng.standard_normal((3, columns)).astype(np.float32),
        "out": np.zeros((3, 32), np.float32),
    }
    check(text, arguments, rtol=1e-4, atol=1e-4, threads=(1, 2, 5))
    assert phases_agree(text, arguments, 3)


def test_a_decoded_layer_waits_six_times_at_most() -> None:
    chosen = config.load("qwen3-14b", Path(__file__).parents[2] / "models")
    lowered = frontend.lower(chosen, "cpu", str(chosen.wrapper("decode", "cpu")), None)
    source = generate(run_passes(lowered.program, verify), lowered.contract)
    before, inside = source.split("    for (int64_t layer ")
    layer, after = inside.split("\n    }\n", 1)
    assert layer.count(BARRIER) <= 6
    assert before.count(BARRIER) + after.count(BARRIER) <= 5
