"""Attention over the paged K/V cache: what prefill and decode share.

A cache is bf16 [layers * pages * PAGE_SIZE * NUM_KV_HEADS, HEAD_DIM]. A slot, which is a token's
place in it, holds NUM_KV_HEADS rows. A page is a tile of an online softmax, whose state is

    peak    fp32 [rows, 1]         the greatest score so far
    total   fp32 [rows, 1]         the sum of exp(score - peak)
    result  fp32 [rows, HEAD_DIM]  the sum of exp(score - peak) * value
"""

import pypto.language as pl

from .layers import layer_row, normed_rotated_heads

Q_PER_KV = NUM_HEADS // NUM_KV_HEADS
GROUP_HIDDEN = Q_PER_KV * HEAD_DIM  # the query columns that share a kv head
SCALE = HEAD_DIM**-0.5
LOWEST = -3.0e38  # below every score, and finite, so that a difference of two is a number


@pl.jit.inline
def first_slot_of_layer(cache: pl.Tensor, layers: pl.Scalar[pl.INDEX], layer: pl.Scalar[pl.INDEX]):
    """Return the slot where the pages of `layer` begin."""
    return layer * (pl.tensor.dim(cache, 0) // (layers * NUM_KV_HEADS))


@pl.jit.inline
def store_token(
    q: pl.Tensor,
    k_cache: pl.Tensor,
    v_cache: pl.Tensor,
    q_projected: pl.Tensor,
    k_projected: pl.Tensor,
    v_projected: pl.Tensor,
    q_norm_weight: pl.Tensor,
    k_norm_weight: pl.Tensor,
    rope_cos: pl.Tensor,
    rope_sin: pl.Tensor,
    layer: pl.Scalar[pl.INDEX],
    row: pl.Scalar[pl.INDEX],
    position: pl.Scalar[pl.INDEX],
    slot: pl.Scalar[pl.INDEX],
):
    """Norm and rotate the token in `row` of the projections, and store its q, k and v.

    q bf16 [rows, Q_HIDDEN], projections fp32 [rows, Q_HIDDEN | KV_HIDDEN]. `position` is the
    token's place in its sequence, `slot` in the caches. Returns q and the caches.
    """
    cos, sin = layer_row(rope_cos, position), layer_row(rope_sin, position)
    q_heads = normed_rotated_heads(
        q_projected[row : row + 1, :], layer_row(q_norm_weight, layer), cos, sin
    )
    q = pl.assemble(q, pl.reshape(q_heads, [1, Q_HIDDEN]), [row, 0])
    k_cache, v_cache = store_key_value(
        k_cache,
        v_cache,
        k_projected[row : row + 1, :],
        v_projected[row : row + 1, :],
        layer_row(k_norm_weight, layer),
        cos,
        sin,
        slot,
    )
    return q, k_cache, v_cache


@pl.jit.inline
def store_key_value(
    k_cache: pl.Tensor,
    v_cache: pl.Tensor,
    k_projected: pl.Tensor,
    v_projected: pl.Tensor,
    gamma: pl.Tensor,
    cos: pl.Tensor,
    sin: pl.Tensor,
    slot: pl.Scalar[pl.INDEX],
):
    """Store k and v of one token, projections fp32 [1, KV_HIDDEN], in `slot`; return the caches."""
    k_heads = normed_rotated_heads(k_projected, gamma, cos, sin)
    v_heads = pl.reshape(v_projected, [NUM_KV_HEADS, HEAD_DIM])
    k_cache = pl.assemble(k_cache, k_heads, [slot * NUM_KV_HEADS, 0])
    v_cache = pl.assemble(v_cache, pl.cast(v_heads, target_type=pl.BF16), [slot * NUM_KV_HEADS, 0])
    return k_cache, v_cache


@pl.jit.inline
def page_tile(
    cache: pl.Tensor,
    slot: pl.Scalar[pl.INDEX],
    kv_head: pl.Scalar[pl.INDEX],
    length: pl.Scalar[pl.INDEX],
):
    """Return one kv head of the page at `slot`, bf16 [PAGE_SIZE, HEAD_DIM], `length` rows valid."""
    rows = pl.slice(cache, [PAGE_SIZE * NUM_KV_HEADS, HEAD_DIM], [slot * NUM_KV_HEADS, 0])
    page = pl.reshape(rows, [PAGE_SIZE, KV_HIDDEN])
    return pl.slice(
        page, [PAGE_SIZE, HEAD_DIM], [0, kv_head * HEAD_DIM], valid_shape=[length, HEAD_DIM]
    )


@pl.jit.inline
def page_heads(
    cache: pl.Tensor,
    slot: pl.Scalar[pl.INDEX],
    length: pl.Scalar[pl.INDEX],
):
    """Return all heads of the page at `slot`, bf16 [NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM].

    `length` tokens are valid.
    """
    rows = pl.slice(cache, [PAGE_SIZE * NUM_KV_HEADS, HEAD_DIM], [slot * NUM_KV_HEADS, 0])
    page = pl.slice(
        pl.reshape(rows, [PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM]),
        [PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM],
        [0, 0, 0],
        valid_shape=[length, NUM_KV_HEADS, HEAD_DIM],
    )
    return pl.transpose(page, 0, 1)


@pl.jit.inline
def scores_of(q: pl.Tensor, k: pl.Tensor):
    """bf16 q [rows, HEAD_DIM], k [PAGE_SIZE, HEAD_DIM] -> scaled scores fp32 [rows, PAGE_SIZE].

    Both may be of many heads, which then come first.
    """
    return pl.mul(pl.matmul(q, k, out_dtype=pl.FP32, b_trans=True), SCALE)


@pl.jit.inline
def merge_tile(
    peak: pl.Tensor,
    total: pl.Tensor,
    result: pl.Tensor,
    tile_peak: pl.Tensor,
    tile_total: pl.Tensor,
    tile_result: pl.Tensor,
):
    """Return the state of the online softmax with one more tile."""
    highest = pl.maximum(peak, tile_peak)
    kept = pl.exp(pl.sub(peak, highest))
    added = pl.exp(pl.sub(tile_peak, highest))
    total = pl.add(pl.mul(total, kept), pl.mul(tile_total, added))
    result = pl.add(pl.row_expand_mul(result, kept), pl.row_expand_mul(tile_result, added))
    return highest, total, result
