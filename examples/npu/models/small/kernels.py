"""Kernels: two inlined functions and a loop, a matrix product, and one written in C++."""

import pypto.language as pl


@pl.jit.inline
def scaled(x: pl.Tensor[[TILE, COLS], pl.FP32]):
    half = pl.mul(x, SCALE)
    return half


@pl.jit.inline
def shifted(x: pl.Tensor[[TILE, COLS], pl.FP32]):
    half = scaled(x)
    more = pl.add(half, 1.0)
    return more


@pl.jit
def affine(
    x: pl.Tensor[[ROWS_DYN, COLS], pl.FP32], y: pl.Out[pl.Tensor[[ROWS_DYN, COLS], pl.FP32]]
):
    rows = pl.tensor.dim(x, 0)
    for r in pl.parallel(0, rows, TILE):
        with pl.at(level=pl.Level.CORE_GROUP):
            a = pl.slice(x, [TILE, COLS], [r, 0])
            one = shifted(a)
            two = scaled(a)
            y = pl.assemble(y, pl.add(one, two), [r, 0])
    return y


@pl.jit
def gemm(
    a: pl.Tensor[[COLS, COLS], pl.FP32],
    b: pl.Tensor[[COLS, COLS], pl.FP32],
    c: pl.Out[pl.Tensor[[COLS, COLS], pl.FP32]],
):
    with pl.at(level=pl.Level.CORE_GROUP):
        c = pl.assemble(c, pl.matmul(a, b), [0, 0])
    return c


@pl.jit.extern(core_type="aiv", source="cpp/twice.cpp")
def twice_tile(
    x: pl.Tensor[[TILE, COLS], pl.FP32], y: pl.Out[pl.Tensor[[TILE, COLS], pl.FP32]]
): ...


@pl.jit
def twice(x: pl.Tensor[[TILE, COLS], pl.FP32], y: pl.Out[pl.Tensor[[TILE, COLS], pl.FP32]]):
    y = twice_tile(x, y)
    return y
