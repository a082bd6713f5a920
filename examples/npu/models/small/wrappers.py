"""The HOST wrappers."""

import pypto.language as pl

from .kernels import affine, gemm, twice


@pl.jit.host
def affine_host(
    x: pl.Tensor[[ROWS_DYN, COLS], pl.FP32], y: pl.Out[pl.Tensor[[ROWS_DYN, COLS], pl.FP32]]
) -> pl.Tensor[[ROWS_DYN, COLS], pl.FP32]:
    """Return 2 * SCALE * x + 1."""
    y = affine(x, y)
    return y


@pl.jit.host
def gemm_host(
    a: pl.Tensor[[COLS, COLS], pl.FP32],
    b: pl.Tensor[[COLS, COLS], pl.FP32],
    c: pl.Out[pl.Tensor[[COLS, COLS], pl.FP32]],
) -> pl.Tensor[[COLS, COLS], pl.FP32]:
    """Return a @ b."""
    c = gemm(a, b, c)
    return c


@pl.jit.host
def twice_host(
    x: pl.Tensor[[TILE, COLS], pl.FP32], y: pl.Out[pl.Tensor[[TILE, COLS], pl.FP32]]
) -> pl.Tensor[[TILE, COLS], pl.FP32]:
    """Return 2 * x."""
    y = twice(x, y)
    return y
