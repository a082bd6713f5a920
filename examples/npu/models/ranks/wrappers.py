"""The HOST wrapper, which starts the kernel on each rank."""

import pypto.language as pl
import pypto.language.distributed as pld

from .kernels import add_rank


@pl.jit.host
def add_rank_host(
    x: pl.Tensor[[RANKS, ROWS_DYN, COLS], pl.FP32],
    y: pl.Out[pl.Tensor[[RANKS, ROWS_DYN, COLS], pl.FP32]],
):
    for r in pl.range(pld.world_size()):
        add_rank(x[r], y[r], r, device=r)
