from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare import check, from_bf16, to_bf16

SOFTMAX = """
program("softmax")
x: In[fp32[dim.M, dim.N]]
out: Out[fp32[dim.M, dim.N]]
m: fp32[dim.M, 1] = row_max(x, tmp_tile=None)
d: fp32[dim.M, dim.N] = row_expand_sub(x, m)
e: fp32[dim.M, dim.N] = exp(d)
s: fp32[dim.M, 1] = row_sum(e, tmp_tile=None)
p: fp32[dim.M, dim.N] = row_expand_div(e, s)
out_1: fp32[dim.M, dim.N] = assemble(out, p, [0, 0])
yields(out_1)
"""


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bf16(seed: int, *shape: int) -> np.ndarray:
    return from_bf16(to_bf16(normal(seed, *shape)))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 16), (5, 15), (4, 17), (7, 100), (1, 300)])
def test_rows_are_reduced_and_expanded(m: int, n: int) -> None:
    out = check(SOFTMAX, {"x": normal(0, m, n), "out": np.zeros((m, n), np.float32)})["out"]
    np.testing.assert_allclose(out.sum(axis=1), 1, rtol=1e-5)


def test_no_rows() -> None:
    check(SOFTMAX, {"x": normal(0, 0, 4), "out": np.zeros((0, 4), np.float32)})


def matmul_text(transpose: bool, dtype: str = "bf16", result: str = "fp32") -> str:
    right = f"{dtype}[dim.N, dim.K]" if transpose else f"{dtype}[dim.K, dim.N]"
    return f"""
program("matmul")
a: In[{dtype}[dim.M, dim.K]]
b: In[{right}]
out: Out[{result}[dim.M, dim.N]]
c: {result}[dim.M, dim.N] = matmul(a, b, a_trans=False, b_trans={transpose}, out_dtype={result})
out_1: {result}[dim.M, dim.N] = assemble(out, c, [0, 0])
yields(out_1)
"""


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 40, 7), (2, 33, 16), (3, 8, 9), (8, 65, 24), (9, 17, 30), (13, 270, 600)],
)
def test_matmul(transpose: bool, dtype: str, m: int, n: int, k: int) -> None:
    make = bf16 if dtype == "bf16" else normal
    b = make(2, n, k) if transpose else make(2, k, n)
    arguments = {"a": make(1, m, k), "b": b, "out": np.zeros((m, n), np.float32)}
    check(matmul_text(transpose, dtype), arguments, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("rows", [*range(1, 18), 33, 40, 50])
def test_a_row_alone_has_the_bits_it_has_in_a_batch(transpose: bool, rows: int) -> None:
    a, b = bf16(1, rows, 70), bf16(2, *((50, 70) if transpose else (70, 50)))
    text = matmul_text(transpose)
    zeros = np.zeros((rows, 50), np.float32)
    whole = check(text, {"a": a, "b": b, "out": zeros}, rtol=1e-4, atol=1e-4)["out"]
    for row in (0, rows - 1):
        alone = check(
            text,
            {"a": a[row : row + 1], "b": b, "out": zeros[:1]},
            rtol=1e-4,
            atol=1e-4,
            threads=(1,),
        )["out"]
        assert alone.tobytes() == whole[row : row + 1].tobytes()


def test_integer_matmul_is_exact() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-128, 128, (5, 40)).astype(np.int8)
    b = rng.integers(-128, 128, (40, 23)).astype(np.int8)
    arguments = {"a": a, "b": b, "out": np.zeros((5, 23), np.int32)}
    check(matmul_text(False, "int8", "int32"), arguments)


ATTENTION = """
program("attention")
q: In[bf16[dim.B, 128]]
k: In[bf16[dim.T, 128]]
v: In[bf16[dim.T, 128]]
lens: In[int32[dim.B]]
out: Out[bf16[dim.B, 128]]
for b in parallel(0, dim.B, 1):
    out_1: bf16[dim.B, 128] = carry(out, out_3)
    n: int32 = read(lens, [b])
    q_row: bf16[1, 128] = slice(q, [1, 128], [b, 0], [], [], clamp=False)
    m: fp32[1, 1] = full([1, 1], dtype=fp32, value=-1e+30)
    l: fp32[1, 1] = full([1, 1], dtype=fp32, value=0.0)
    acc: fp32[1, 128] = full([1, 128], dtype=fp32, value=0.0)
    for p in range(0, (convert(n, index) + 15) // 16, 1):
        m_1: fp32[1, 1] = carry(m, m_4)
        l_1: fp32[1, 1] = carry(l, l_4)
        acc_1: fp32[1, 128] = carry(acc, acc_4)
        keys: bf16[16, 128].valid[min(16, convert(n, index) - p * 16), 128] = slice(k, [16, 128], [p * 16, 0], [min(16, convert(n, index) - p * 16), 128], [], clamp=False)
        values: bf16[16, 128].valid[min(16, convert(n, index) - p * 16), 128] = slice(v, [16, 128], [p * 16, 0], [min(16, convert(n, index) - p * 16), 128], [], clamp=False)
        s: fp32[1, 16].valid[1, min(16, convert(n, index) - p * 16)] = matmul(q_row, keys, a_trans=False, b_trans=True, out_dtype=fp32)
        s_max: fp32[1, 1] = row_max(s, tmp_tile=None)
        m_2: fp32[1, 1] = maximum(m_1, s_max)
        s_1: fp32[1, 16].valid[1, min(16, convert(n, index) - p * 16)] = row_expand_sub(s, m_2)
        e: fp32[1, 16].valid[1, min(16, convert(n, index) - p * 16)] = exp(s_1)
        e_1: bf16[1, 16].valid[1, min(16, convert(n, index) - p * 16)] = cast(e, mode="round", target_type=bf16)
        d: fp32[1, 1] = sub(m_1, m_2)
        alpha: fp32[1, 1] = exp(d)
        l_2: fp32[1, 1] = mul(l_1, alpha)
        e_sum: fp32[1, 1] = row_sum(e, tmp_tile=None)
        l_3: fp32[1, 1] = add(l_2, e_sum)
        acc_2: fp32[1, 128] = row_expand_mul(acc_1, alpha)
        pv: fp32[1, 128] = matmul(e_1, values, a_trans=False, b_trans=False, out_dtype=fp32)
        acc_3: fp32[1, 128] = add(acc_2, pv)
        yields(m_2, l_3, acc_3)
    o: fp32[1, 128] = row_expand_div(acc_4, l_4)
    o_1: bf16[1, 128] = cast(o, mode="round", target_type=bf16)
    out_2: bf16[dim.B, 128] = assemble(out_1, o_1, [b, 0])
    yields(out_2)
yields(out_3)
"""


def test_online_softmax_in_a_parallel_loop() -> None:
    arguments = {
        "q": bf16(1, 5, 128),
        "k": bf16(2, 64, 128),
        "v": bf16(3, 64, 128),
        "lens": np.array([1, 16, 17, 64, 33], np.int32),
        "out": np.zeros((5, 128), np.float32),
    }
    check(ATTENTION, arguments, rtol=1e-2, atol=1e-3)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a view keeps its value when its storage is updated": (
        """
program("snapshot")
x: InOut[fp32[8, 4]]
out: Out[fp32[4, 4]]
head: fp32[4, 4] = slice(x, [4, 4], [0, 0], [], [], clamp=False)
tail: fp32[4, 4] = slice(x, [4, 4], [4, 0], [], [], clamp=False)
sum: fp32[4, 4] = add(head, tail)
x_1: fp32[8, 4] = assemble(x, tail, [0, 0])
twice: fp32[4, 4] = add(head, sum)
out_1: fp32[4, 4] = assemble(out, twice, [0, 0])
yields(x_1, out_1)
""",
        {"x": normal(0, 8, 4), "out": np.zeros((4, 4), np.float32)},
    ),
    "an update may read what it overwrites": (
        """
program("shift")
x: InOut[fp32[8, 4]]
window: fp32[7, 4] = slice(x, [7, 4], [0, 0], [], [], clamp=False)
double: fp32[7, 4] = mul(window, fp32(2.0))
x_1: fp32[8, 4] = assemble(x, double, [1, 0])
yields(x_1)
""",
        {"x": normal(0, 8, 4)},
    ),
    "carried values change places": (
        """
program("swap")
x: In[fp32[4, 4]]
y: In[fp32[4, 4]]
out: Out[fp32[4, 4]]
x_0: fp32[4, 4] = neg(x)
y_0: fp32[4, 4] = neg(y)
for i in range(0, 5, 1):
    a: fp32[4, 4] = carry(x_0, a_2)
    b: fp32[4, 4] = carry(y_0, b_2)
    a_1: fp32[4, 4] = add(a, fp32(1.0))
    yields(b, a_1)
d: fp32[4, 4] = sub(a_2, b_2)
out_1: fp32[4, 4] = assemble(out, d, [0, 0])
yields(out_1)
""",
        {"x": normal(0, 4, 4), "y": normal(1, 4, 4), "out": np.zeros((4, 4), np.float32)},
    ),
    "one value starts two loops": (
        """
program("restart")
x: In[fp32[4, 4]]
out: Out[fp32[8, 4]]
start: fp32[4, 4] = exp(x)
row: fp32[1, 4] = slice(x, [1, 4], [2, 0], [], [], clamp=False)
for i in range(0, 3, 1):
    a: fp32[4, 4] = carry(start, a_2)
    a_1: fp32[4, 4] = add(a, row)
    yields(a_1)
for j in range(0, 2, 1):
    b: fp32[4, 4] = carry(start, b_2)
    b_1: fp32[4, 4] = add(b, b)
    yields(b_1)
out_1: fp32[8, 4] = assemble(out, a_2, [0, 0])
out_2: fp32[8, 4] = assemble(out_1, b_2, [4, 0])
yields(out_2)
""",
        {"x": normal(0, 4, 4), "out": np.zeros((8, 4), np.float32)},
    ),
    "scalars are carried, read and written": (
        """
program("prefix")
x: In[int32[dim.N]]
out: Out[int32[dim.N]]
for i in range(0, dim.N, 1):
    total: int32 = carry(int32(0), total_2)
    out_1: int32[dim.N] = carry(out, out_3)
    value: int32 = read(x, [i])
    out_2: int32[dim.N] = write(out_1, [i], total + value)
    yields(total + value, out_2)
yields(out_3)
""",
        {"x": np.arange(1, 10, dtype=np.int32), "out": np.zeros(9, np.int32)},
    ),
    "a branch chooses a tensor": (
        """
program("choose")
x: In[fp32[4, 4]]
flag: In[int32[1]]
out: Out[fp32[4, 4]]
f: int32 = read(flag, [0])
y: fp32[4, 4]
s: int32
if f > int32(0):
    up: fp32[4, 4] = add(x, fp32(1.0))
    yields(up, f + int32(1))
else:
    down: fp32[4, 4] = sub(x, fp32(1.0))
    yields(down, f)
z: fp32[4, 4] = mul(y, fp32(3.0))
out_1: fp32[4, 4] = assemble(out, z, [0, 0])
yields(out_1)
""",
        {
            "x": normal(0, 4, 4),
            "flag": np.array([1], np.int32),
            "out": np.zeros((4, 4), np.float32),
        },
    ),
    "columns are reduced": (
        """
program("columns")
x: In[fp32[dim.M, dim.N]]
out: Out[fp32[2, dim.N]]
s: fp32[1, dim.N] = col_sum(x, tmp_tile=None)
m: fp32[1, dim.N] = col_max(x, tmp_tile=None)
out_1: fp32[2, dim.N] = assemble(out, s, [0, 0])
out_2: fp32[2, dim.N] = assemble(out_1, m, [1, 0])
yields(out_2)
""",
        {"x": normal(0, 5, 19), "out": np.zeros((2, 19), np.float32)},
    ),
    "the first of equal maxima is found": (
        """
program("argmax")
x: In[fp32[dim.M, dim.N]]
out: Out[int32[dim.M, 1]]
i: int32[dim.M, 1] = row_argmax(x, tmp_tile=None)
out_1: int32[dim.M, 1] = assemble(out, i, [0, 0])
yields(out_1)
""",
        {
            "x": np.round(normal(0, 6, 50)).astype(np.float32),
            "out": np.zeros((6, 1), np.int32),
        },
    ),
    "a loop accumulates a contraction in place": (
        """
program("accumulate")
a: In[bf16[5, 64]]
b: In[bf16[64, 24]]
out: Out[fp32[5, 24]]
zero: fp32[5, 24] = full([5, 24], dtype=fp32, value=0.0)
for p in range(0, 4, 1):
    c: fp32[5, 24] = carry(zero, c_2)
    left: bf16[5, 16] = slice(a, [5, 16], [0, p * 16], [], [], clamp=False)
    right: bf16[16, 24] = slice(b, [16, 24], [p * 16, 0], [], [], clamp=False)
    c_1: fp32[5, 24] = matmul_acc(c, left, right, [], a_trans=False, b_trans=False)
    yields(c_1)
out_1: fp32[5, 24] = assemble(out, c_2, [0, 0])
yields(out_1)
""",
        {"a": bf16(0, 5, 64), "b": bf16(1, 64, 24), "out": np.zeros((5, 24), np.float32)},
    ),
    "rows outside of the product's valid region keep what they had": (
        """
program("partial")
a: In[bf16[5, 16]]
b: In[bf16[16, 24]]
c: In[fp32[5, 24]]
out: Out[fp32[10, 24]]
some: bf16[5, 16].valid[3, 16] = set_validshape(a, 3, 16)
d: fp32[5, 24] = matmul_acc(c, some, b, [], a_trans=False, b_trans=False)
twice: fp32[5, 24] = add(c, d)
out_1: fp32[10, 24] = assemble(out, d, [0, 0])
out_2: fp32[10, 24] = assemble(out_1, twice, [5, 0])
yields(out_2)
""",
        {
            "a": bf16(0, 5, 16),
            "b": bf16(1, 16, 24),
            "c": normal(2, 5, 24),
            "out": np.zeros((10, 24), np.float32),
        },
    ),
    "a contraction is computed where it is put, unless that storage is read before": (
        """
program("placed")
a: In[bf16[3, 16]]
b: In[bf16[16, 24]]
out: Out[fp32[8, 40]]
c: fp32[3, 24] = matmul(a, b, a_trans=False, b_trans=False, out_dtype=fp32)
out_1: fp32[8, 40] = assemble(out, c, [2, 8])
d: fp32[3, 24] = matmul(a, b, a_trans=False, b_trans=False, out_dtype=fp32)
part: fp32[3, 24] = slice(out_1, [3, 24], [1, 8], [], [], clamp=False)
kept: fp32[3, 24] = add(part, fp32(1.0))
out_2: fp32[8, 40] = assemble(out_1, kept, [5, 0])
out_3: fp32[8, 40] = assemble(out_2, d, [1, 8])
yields(out_3)
""",
        {"a": bf16(0, 3, 16), "b": bf16(1, 16, 24), "out": np.zeros((8, 40), np.float32)},
    ),
    "a contraction reads what an exact cast converts": (
        """
program("mixed")
a: In[fp32[5, 33]]
b: In[bf16[33, 24]]
c: In[fp16[24, 24]]
out: Out[fp32[5, 24]]
wide: fp32[33, 24] = cast(b, mode="round", target_type=fp32)
p: fp32[5, 24] = matmul(a, wide, a_trans=False, b_trans=False, out_dtype=fp32)
wide_c: fp32[24, 24] = cast(c, mode="round", target_type=fp32)
q: fp32[5, 24] = matmul(p, wide_c, a_trans=False, b_trans=True, out_dtype=fp32)
out_1: fp32[5, 24] = assemble(out, q, [0, 0])
yields(out_1)
""",
        {
            "a": normal(0, 5, 33),
            "b": bf16(1, 33, 24),
            "c": (0.01 * normal(2, 24, 24)).astype(np.float16),
            "out": np.zeros((5, 24), np.float32),
        },
    ),
    "a transposed view is multiplied": (
        """
program("transposed")
x: In[fp32[6, 10]]
out: Out[fp32[10, 10]]
t: fp32[10, 6] = transpose(x, axis1=0, axis2=1, tmp_tile=None)
g: fp32[10, 10] = matmul(t, x, a_trans=False, b_trans=False, out_dtype=fp32)
out_1: fp32[10, 10] = assemble(out, g, [0, 0])
yields(out_1)
""",
        {"x": normal(0, 6, 10), "out": np.zeros((10, 10), np.float32)},
    ),
    "a strided slice is reshaped": (
        """
program("reshaped")
x: In[fp32[6, 10]]
out: Out[fp32[3, 8]]
s: fp32[6, 4] = slice(x, [6, 4], [0, 3], [], [], clamp=False)
r: fp32[3, 8] = reshape(s, [3, 8])
d: fp32[3, 8] = add(r, r)
out_1: fp32[3, 8] = assemble(out, d, [0, 0])
yields(out_1)
""",
        {"x": normal(0, 6, 10), "out": np.zeros((3, 8), np.float32)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_program(name: str) -> None:
    text, arguments = CASES[name]
    check(text, arguments)


def test_a_loop_runs_while_its_condition_holds() -> None:
    text = """
program("collatz")
x: In[int32[1]]
out: Out[int32[1]]
start: int32 = read(x, [0])
while loop:
    n: int32 = carry(start, n_2)
    steps: int32 = carry(int32(0), steps_2)
    condition(n > int32(1))
    half: int32
    if n % int32(2) == int32(0):
        yields(n // int32(2))
    else:
        yields(n * int32(3) + int32(1))
    yields(half, steps + int32(1))
out_1: int32[1] = write(out, [0], steps_2)
yields(out_1)
"""
    out = check(text, {"x": np.array([27], np.int32), "out": np.zeros(1, np.int32)})["out"]
    assert out[0] == 111
