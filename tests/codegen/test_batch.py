"""Batches of contractions: the bits of each contraction alone, however the matrices lie.

Alone on a target without matrix units, that is: batches do not use them.
"""

from __future__ import annotations

import numpy as np
import pytest
from compare import TARGETS_HERE, check, run_native
from test_generator import bf16, matmul_text, normal

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def batch_text(interleaved: bool, transpose: bool, left: str) -> str:
    """`b` holds a matrix for each s: bf16 [N, K] with `transpose`, else [K, N]."""
    rows, columns = ("dim.N", "dim.K") if transpose else ("dim.K", "dim.N")
    shape = f"[dim.S, {rows}, {columns}]"
    stored = f"[{rows}, dim.S, {columns}]" if interleaved else shape
    matrices = (
        f"matrices: bf16{shape} = transpose(b, axis1=0, axis2=1, tmp_tile=None)\n"
        if interleaved
        else ""
    )
    name = "matrices" if interleaved else "b"
    wide = "" if left == "bf16" else f"wide: fp32{shape} = {widened(name)}\n"
    return f"""
program("batch")
a: In[{left}[dim.S, dim.M, dim.K]]
b: In[bf16{stored}]
out: Out[fp32[dim.S, dim.M, dim.N]]
{matrices}{wide}c: fp32[dim.S, dim.M, dim.N] = \
matmul(a, {"wide" if wide else name}, a_trans=False, b_trans={transpose}, out_dtype=fp32)
out_1: fp32[dim.S, dim.M, dim.N] = assemble(out, c, [0, 0, 0])
yields(out_1)
"""


@pytest.mark.parametrize("left", ["bf16", "fp32"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("s", "m", "n", "k"),
    [
        *((3, m, 37, 35) for m in range(1, 10)),
        (1, 5, 33, 32),
        (8, 5, 128, 128),
        (2, 5, 1, 16),
        (5, 1, 16, 1),
        (2, 3, 17, 64),
        (4, 4, 19, 3),
    ],
)
def test_each_product_has_the_bits_it_has_alone(
    left: str, transpose: bool, interleaved: bool, s: int, m: int, n: int, k: int
) -> None:
    make = bf16 if left == "bf16" else normal
    a, b = make(1, s, m, k), bf16(2, s, *((n, k) if transpose else (k, n)))
    zeros = np.zeros((s, m, n), np.float32)
    stored = np.ascontiguousarray(b.swapaxes(0, 1)) if interleaved else b
    text = batch_text(interleaved, transpose, left)
    out = check(text, {"a": a, "b": stored, "out": zeros}, **TOLERANCE)["out"]
    for each in range(s):
        arguments = {"a": a[each], "b": b[each], "out": zeros[each]}
        alone = run_native(alone_text(transpose, left), arguments, 1, TARGETS_HERE[-1])["out"]
        assert alone.tobytes() == out[each].tobytes()


def alone_text(transpose: bool, left: str) -> str:
    """Return one contraction of `left` with bf16."""
    if left == "bf16":
        return matmul_text(transpose)
    shape = "[dim.N, dim.K]" if transpose else "[dim.K, dim.N]"
    wide = f"wide: fp32{shape} = {widened('b')}\nc:"
    text = matmul_text(transpose).replace("a: In[bf16", "a: In[fp32").replace("c:", wide)
    return text.replace("matmul(a, b", "matmul(a, wide")


def widened(name: str) -> str:
    """Return the conversion of bf16 to the fp32 that a contraction of fp32 takes."""
    return f'cast({name}, mode="round", target_type=fp32)'
