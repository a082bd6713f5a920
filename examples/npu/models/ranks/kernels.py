"""One chip of the two: its rows, and its rank added to them."""

import pypto.language as pl


@pl.jit
def add_rank(
    x: pl.Tensor[[ROWS_DYN, COLS], pl.FP32],
    y: pl.Out[pl.Tensor[[ROWS_DYN, COLS], pl.FP32]],
    rank: pl.Scalar[pl.INT32],
):
    rows = pl.tensor.dim(x, 0)
    for r in pl.parallel(0, rows, TILE):
        with pl.at(level=pl.Level.CORE_GROUP):
            a = pl.slice(x, [TILE, COLS], [r, 0])
            b = pl.add(a, pl.cast(rank, target_type=pl.FP32))
            y = pl.assemble(y, b, [r, 0])
    return y
