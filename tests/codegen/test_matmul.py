"""Contractions on every target that runs here: edges, windows, orders of accumulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compare import MATRIX_TARGETS, TARGETS_HERE, contract_of, from_bf16, run_native, to_bf16

from aotc.codegen.source import generate
from aotc.ir.text import parse_program
from aotc.ops.verify import verify
from aotc.passes import run_passes
from aotc.toolchain.zig import TARGETS, compile_shared_object


def text(a_trans: bool, b_trans: bool) -> str:
    """Return a program of products of windows, one of them added to `start`; `k` says how long."""
    a = "dim.K, dim.M" if a_trans else "dim.M, dim.K"
    b = "dim.N, dim.K" if b_trans else "dim.K, dim.N"
    return f"""
program("windows")
a: In[bf16[dim.A, dim.B]]
b: In[bf16[dim.C, dim.D]]
start: In[fp32[dim.M, dim.N]]
k: In[bf16[dim.K]]
out: Out[fp32[dim.M, dim.N]]
more: Out[fp32[dim.E, dim.F]]
x: bf16[{a}] = slice(a, [{a}], [1, 2], [], [], clamp=False)
y: bf16[{b}] = slice(b, [{b}], [2, 1], [], [], clamp=False)
c: fp32[dim.M, dim.N] = matmul(x, y, a_trans={a_trans}, b_trans={b_trans}, out_dtype=fp32)
d: fp32[dim.M, dim.N] = matmul_acc(start, x, y, [], a_trans={a_trans}, b_trans={b_trans})
out_1: fp32[dim.M, dim.N] = assemble(out, c, [0, 0])
more_1: fp32[dim.E, dim.F] = assemble(more, d, [0, 3])
yields(out_1, more_1)
"""


def bf16(seed: int, *shape: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return from_bf16(to_bf16(values))


def run(
    x: np.ndarray,
    y: np.ndarray,
    *,
    target: str,
    threads: int = 1,
    a_trans: bool = False,
    b_trans: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return x @ y, and x @ y + 0.5; all around the operands in memory is NaN."""
    (m, k), n = x.shape, y.shape[1]

    def inside(value: np.ndarray, row: int, column: int) -> np.ndarray:
        whole = np.full((value.shape[0] + 3, value.shape[1] + 4), np.nan, np.float32)
        whole[row : row + value.shape[0], column : column + value.shape[1]] = value
        return whole

    results = run_native(
        text(a_trans, b_trans),
        {
            "a": inside(x.T if a_trans else x, 1, 2),
            "b": inside(y.T if b_trans else y, 2, 1),
            "start": np.full((m, n), 0.5, np.float32),
            "k": np.zeros(k, np.float32),
            "out": np.full((m, n), np.nan, np.float32),
            "more": np.full((m + 3, n + 5), 7, np.float32),
        },
        threads,
        target,
    )
    more = results["more"]
    product = more[:m, 3 : 3 + n].copy()
    more[:m, 3 : 3 + n] = 7
    assert (more == 7).all()
    return results["out"], product


def assert_close(x: np.ndarray, y: np.ndarray, out: np.ndarray, more: np.ndarray) -> None:
    """Assert the bound on the error of K additions in float, in any order."""
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    bound = (x.shape[1] + 2) * 2.0**-24 * (np.abs(wide_x) @ np.abs(wide_y) + 0.5)
    assert (np.abs(out - wide_x @ wide_y) <= bound).all()
    assert (np.abs(more - wide_x @ wide_y - 0.5) <= bound).all()


@pytest.mark.parametrize("target", TARGETS_HERE)
@pytest.mark.parametrize(("a_trans", "b_trans"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *[(m, 45, 70) for m in (1, 2, 5, 15, 16, 17, 31, 32, 33, 48, 49, 65)],
        *[(3, n, 33) for n in (1, 15, 16, 17, 31, 32, 33, 63, 64, 65)],
        *[(18, 17, k) for k in (1, 2, 15, 16, 17, 31, 32, 33, 64)],
        *[(4, 600, 40), (20, 530, 20), (40, 1050, 20), (34, 20, 1050), (2, 40, 8300)],
    ],
)
def test_products_of_windows(
    target: str, a_trans: bool, b_trans: bool, m: int, n: int, k: int
) -> None:
    x, y = bf16(m, m, k), bf16(n, k, n)
    assert_close(x, y, *run(x, y, target=target, a_trans=a_trans, b_trans=b_trans, threads=2))


@pytest.mark.parametrize("target", TARGETS_HERE)
@pytest.mark.parametrize("b_trans", [False, True])
def test_bits_depend_on_no_other_row_and_on_no_thread(target: str, b_trans: bool) -> None:
    x, y = bf16(1, 49, 70), bf16(2, 70, 50)
    whole = run(x, y, target=target, b_trans=b_trans)
    for rows in (*range(1, 18), 32, 33, 49):
        for threads in (1, 2, 3):
            some = run(x[:rows], y, target=target, b_trans=b_trans, threads=threads)
            for part, all_rows in zip(some, whole, strict=True):
                assert part.tobytes() == all_rows[:rows].tobytes(), (rows, threads)


def in_steps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the product in the order of accumulation that matmul_tiles.h states."""
    total = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for start in range(0, x.shape[1], 32):
        chains = []
        for parity in range(2):
            chain = np.zeros_like(total)
            for p in range(start + parity, min(start + 32, x.shape[1]), 2):
                # In float64 the product is exact, and the sum all but exact: a fused operation.
                exact = np.outer(x[:, p], y[p]).astype(np.float64) + chain
                chain = exact.astype(np.float32)
            chains.append(chain)
        total += chains[0] + chains[1]
    return total


@pytest.mark.skipif(TARGETS_HERE[0] not in MATRIX_TARGETS, reason="no matrix unit here")
@pytest.mark.parametrize("b_trans", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 33, 70), (17, 40, 96), (40, 70, 600), (2, 40, 8300)])
def test_the_order_of_a_matrix_unit(b_trans: bool, m: int, n: int, k: int) -> None:
    x, y = bf16(1, m, k), bf16(2, k, n)
    out, _ = run(x, y, target=TARGETS_HERE[0], b_trans=b_trans, threads=2)
    assert out.tobytes() == in_steps(x, y).tobytes()


@pytest.mark.skipif(TARGETS_HERE[0] not in MATRIX_TARGETS, reason="no matrix unit here")
def test_denormals_are_zeros_for_a_matrix_unit_alone() -> None:
    x, y = np.full((1, 32), 2.0**-130, np.float32), np.ones((32, 16), np.float32)
    assert not run(x, y, target=TARGETS_HERE[0])[0].any()
    assert (run(x, y, target=TARGETS_HERE[1])[0] == 2.0**-125).all()


@pytest.mark.parametrize("target", TARGETS_HERE)
@pytest.mark.parametrize(
    ("n", "k", "scale"), [(50, 70, 2.0**-62), (33, 31, -(2.0**-64)), (41100, 33, 1)]
)
def test_bits_of_few_rows_near_the_denormals_and_of_many_columns(
    target: str, n: int, k: int, scale: float
) -> None:
    x, y = bf16(1, 5, k) * np.float32(scale), bf16(2, k, n) * np.float32(abs(scale))
    whole = run(x, y, target=target)
    for rows in range(1, 4):
        for part, all_rows in zip(run(x[:rows], y, target=target), whole, strict=True):
            assert part.tobytes() == all_rows[:rows].tobytes(), rows


@pytest.mark.skipif(TARGETS_HERE[0] not in MATRIX_TARGETS, reason="no matrix unit here")
def test_an_object_asks_for_the_tiles_itself(tmp_path: Path) -> None:
    program = parse_program(
        """
program("bare")
a: In[bf16[1, 32]]
b: In[bf16[32, 16]]
out: Out[fp32[1, 16]]
c: fp32[1, 16] = matmul(a, b, a_trans=False, b_trans=False, out_dtype=fp32)
out_1: fp32[1, 16] = assemble(out, c, [0, 0])
yields(out_1)
"""
    )
    source = generate(run_passes(program, verify), contract_of(program))
    path = tmp_path / "bare.so"
    path.write_bytes(compile_shared_object(source, TARGETS[TARGETS_HERE[0]]))
    code = """
import ctypes, sys
from ctypes import addressof, c_char, c_int32, c_void_p
library = ctypes.CDLL(sys.argv[1])
a, b = (ctypes.c_uint16 * 32)(*[0x3F80] * 32), (ctypes.c_uint16 * 512)(*[0x3F80] * 512)
out = (ctypes.c_float * 16)()
library.aotc_workspace_bytes.restype = ctypes.c_int64
room = (c_char * (library.aotc_workspace_bytes(None, c_int32(1)) + 64))()
arguments = (c_void_p * 3)(*map(addressof, (a, b, out)))
aligned = (addressof(room) + 63) // 64 * 64
call = (c_void_p * 6)(addressof(arguments), 0, aligned, 0, 1, 0)
library.aotc_run(call, c_int32(0))
assert list(out) == [32.0] * 16
"""
    command = [sys.executable, "-S", "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
