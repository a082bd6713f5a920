"""Decode: one token of each sequence through all layers, and the next one sampled.

The residual stays fp32 across layers. The RMS norms before the projections scale by gamma first
and by the inverse RMS after the dot, which is linear, so that no product waits for a reduction.
"""

import pypto.language as pl

from .attention import (
    GROUP_HIDDEN,
    LOWEST,
    Q_PER_KV,
    first_slot_of_layer,
    merge_tile,
    page_heads,
    scores_of,
    store_key_value,
)
from .layers import (
    inverse_rms,
    layer_row,
    logits_of,
    normed_rotated_heads,
    project,
    swiglu,
)
from .sampling import greedy_ids

# A sequence is attended to in splits of so many pages, whatever else is in the batch and however
# many threads there are: the order in which they are merged does not depend on either.
SPLIT_PAGES = 4
SPLIT_TOKENS = SPLIT_PAGES * PAGE_SIZE


@pl.jit.inline
def embed(embed_weight: pl.Tensor, sampled_ids_in: pl.Tensor, next_hidden: pl.Tensor):
    """Write the embedding of column 0 of the ids, [batch, SAMPLED_IDS_PAD], to [batch, HIDDEN]."""
    for row in pl.parallel(pl.tensor.dim(next_hidden, 0)):
        with pl.at(level=pl.Level.CORE_GROUP, name_hint="embed"):
            token = pl.cast(pl.read(sampled_ids_in, [row, 0]), pl.INDEX)
            next_hidden = pl.assemble(next_hidden, layer_row(embed_weight, token), [row, 0])
    return next_hidden


@pl.jit.inline
def scaled_by_gamma(x: pl.Tensor, gamma: pl.Tensor):
    """fp32 [rows, HIDDEN] * gamma [1, HIDDEN] -> bf16 [rows, HIDDEN]."""
    return pl.cast(pl.col_expand_mul(x, gamma), target_type=pl.BF16)


@pl.jit.inline
def splits_of(seq_lens: pl.Tensor, row: pl.Scalar[pl.INDEX]):
    """Return in how many splits the sequence of `row` is attended to."""
    length = pl.cast(pl.read(seq_lens, [row]), pl.INDEX)
    return (length + SPLIT_TOKENS - 1) // SPLIT_TOKENS


@pl.jit.inline
def splits_before(seq_lens: pl.Tensor, row: pl.Scalar[pl.INDEX]):
    """Return how many splits the sequences before `row` have."""
    count = 0
    for each in pl.range(row):
        count = count + splits_of(seq_lens, each)
    return count


@pl.jit.inline
def row_of_split(seq_lens: pl.Tensor, split: pl.Scalar[pl.INDEX]):
    """Return the sequence that has `split` of all, and the first of its splits."""
    row, first, end = 0, 0, 0
    for each in pl.range(pl.tensor.dim(seq_lens, 0)):
        if end <= split:
            row = each
            first = end
        end = end + splits_of(seq_lens, each)
    return row, first


@pl.jit.inline
def attend_split(
    q: pl.Tensor,
    k_cache: pl.Tensor,
    v_cache: pl.Tensor,
    block_table: pl.Tensor,
    first_page: pl.Scalar[pl.INDEX],
    first_slot: pl.Scalar[pl.INDEX],
    length: pl.Scalar[pl.INDEX],
):
    """Attention of a token's heads, bf16 [NUM_HEADS, HEAD_DIM], over `length` tokens of some pages.

    `first_page` is that of the pages in the block table. The probabilities are fp32. All heads go
    through a page together, as its tokens have the rows of all heads side by side. Returns the
    state of the online softmax, of NUM_HEADS rows.
    """
    heads = pl.reshape(q, [NUM_KV_HEADS, Q_PER_KV, HEAD_DIM])
    peak = pl.full([NUM_HEADS, 1], dtype=pl.FP32, value=LOWEST)
    total = pl.full([NUM_HEADS, 1], dtype=pl.FP32, value=0.0)
    result = pl.full([NUM_HEADS, HEAD_DIM], dtype=pl.FP32, value=0.0)
    for page in pl.range((length + PAGE_SIZE - 1) // PAGE_SIZE):
        keys = pl.min(PAGE_SIZE, length - page * PAGE_SIZE)
        page_id = pl.cast(pl.read(block_table, [first_page + page]), pl.INDEX)
        slot = first_slot + page_id * PAGE_SIZE
        padded = pl.fillpad(
            scores_of(heads, page_heads(k_cache, slot, keys)), pad_value=pl.PadValue.min
        )
        scores = pl.reshape(padded, [NUM_HEADS, PAGE_SIZE])
        tile_peak = pl.row_max(scores)
        weights = pl.exp(pl.row_expand_sub(scores, tile_peak))
        # Beyond the context a page may hold anything: the product reads its valid keys alone.
        tile_result = pl.matmul(
            pl.slice(
                pl.reshape(weights, [NUM_KV_HEADS, Q_PER_KV, PAGE_SIZE]),
                [NUM_KV_HEADS, Q_PER_KV, PAGE_SIZE],
                [0, 0, 0],
                valid_shape=[NUM_KV_HEADS, Q_PER_KV, keys],
            ),
            pl.cast(page_heads(v_cache, slot, keys), target_type=pl.FP32),
        )
        peak, total, result = merge_tile(
            peak,
            total,
            result,
            tile_peak,
            pl.row_sum(weights),
            pl.reshape(tile_result, [NUM_HEADS, HEAD_DIM]),
        )
    return peak, total, result


@pl.jit.inline
def merge_splits(
    peaks: pl.Tensor,
    totals: pl.Tensor,
    results: pl.Tensor,
    first: pl.Scalar[pl.INDEX],
    splits: pl.Scalar[pl.INDEX],
    kv_head: pl.Scalar[pl.INDEX],
):
    """Return the attention of one group of a sequence, bf16 [1, GROUP_HIDDEN].

    The states are of splits * NUM_HEADS rows; the sequence has `splits`, from `first` on.
    """
    peak = pl.full([Q_PER_KV, 1], dtype=pl.FP32, value=LOWEST)
    total = pl.full([Q_PER_KV, 1], dtype=pl.FP32, value=0.0)
    result = pl.full([Q_PER_KV, HEAD_DIM], dtype=pl.FP32, value=0.0)
    for split in pl.range(splits):
        row = (first + split) * NUM_HEADS + kv_head * Q_PER_KV
        peak, total, result = merge_tile(
            peak,
            total,
            result,
            pl.slice(peaks, [Q_PER_KV, 1], [row, 0]),
            pl.slice(totals, [Q_PER_KV, 1], [row, 0]),
            pl.slice(results, [Q_PER_KV, HEAD_DIM], [row, 0]),
        )
    attention = pl.cast(pl.row_expand_div(result, total), target_type=pl.BF16)
    return pl.reshape(attention, [1, GROUP_HIDDEN])


@pl.jit
def decode_fwd(
    input_rms_weight: pl.Tensor[[LAYER_DYN, HIDDEN], pl.FP32],
    wq: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, Q_HIDDEN], pl.BF16],
    wk: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, KV_HIDDEN], pl.BF16],
    wv: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, KV_HIDDEN], pl.BF16],
    q_norm_weight: pl.Tensor[[LAYER_DYN, HEAD_DIM], pl.FP32],
    k_norm_weight: pl.Tensor[[LAYER_DYN, HEAD_DIM], pl.FP32],
    seq_lens: pl.Tensor[[BATCH_DYN], pl.INT32],
    block_table: pl.Tensor[[BLOCK_TABLE_FLAT_DYN], pl.INT32],
    slot_mapping: pl.Tensor[[BATCH_DYN], pl.INT32],
    rope_cos: pl.Tensor[[ROPE_SEQ_DYN, HEAD_DIM], pl.FP32],
    rope_sin: pl.Tensor[[ROPE_SEQ_DYN, HEAD_DIM], pl.FP32],
    k_cache: pl.InOut[pl.Tensor[[KV_CACHE_ROWS_DYN, HEAD_DIM], pl.BF16]],
    v_cache: pl.InOut[pl.Tensor[[KV_CACHE_ROWS_DYN, HEAD_DIM], pl.BF16]],
    wo: pl.Tensor[[LAYER_Q_ROWS_DYN, HIDDEN], pl.BF16],
    w_gate: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, INTERMEDIATE], pl.BF16],
    w_up: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, INTERMEDIATE], pl.BF16],
    w_down: pl.Tensor[[LAYER_INTER_ROWS_DYN, HIDDEN], pl.BF16],
    post_rms_weight: pl.Tensor[[LAYER_DYN, HIDDEN], pl.FP32],
    final_norm_weight: pl.Tensor[[1, HIDDEN], pl.FP32],
    lm_head_weight: pl.Tensor[[VOCAB, HIDDEN], pl.BF16],
    out: pl.Out[pl.Tensor[[BATCH_DYN, VOCAB], pl.FP32]],
    embed_weight: pl.Tensor[[VOCAB, HIDDEN], pl.BF16],
    sampled_ids_in: pl.Tensor[[BATCH_DYN, SAMPLED_IDS_PAD], pl.INT32],
    sampled_ids: pl.Out[pl.Tensor[[BATCH_DYN, SAMPLED_IDS_PAD], pl.INT32]],
    next_hidden: pl.Out[pl.Tensor[[BATCH_DYN, HIDDEN], pl.BF16]],
):
    """Run one token of each sequence; return logits, sampled ids and the token's embedding."""
    batch = pl.tensor.dim(seq_lens, 0)
    layers = pl.tensor.dim(input_rms_weight, 0)
    pages_per_sequence = pl.tensor.dim(block_table, 0) // batch
    most_splits = batch * ((pages_per_sequence + SPLIT_PAGES - 1) // SPLIT_PAGES)
    splits = splits_before(seq_lens, batch)

    next_hidden = embed(embed_weight, sampled_ids_in, next_hidden)
    with pl.at(level=pl.Level.CORE_GROUP, name_hint="residual"):
        x = pl.cast(next_hidden, target_type=pl.FP32)

    for layer in pl.range(layers):
        first_slot = first_slot_of_layer(k_cache, layers, layer)

        with pl.at(level=pl.Level.CORE_GROUP, name_hint="qkv_projection"):
            normed = scaled_by_gamma(x, layer_row(input_rms_weight, layer))
            scale = inverse_rms(x)
            q_projected = pl.row_expand_mul(project(normed, wq, layer), scale)
            k_projected = pl.row_expand_mul(project(normed, wk, layer), scale)
            v_projected = pl.row_expand_mul(project(normed, wv, layer), scale)

        peaks = pl.create_tensor([most_splits * NUM_HEADS, 1], dtype=pl.FP32)
        totals = pl.create_tensor([most_splits * NUM_HEADS, 1], dtype=pl.FP32)
        results = pl.create_tensor([most_splits * NUM_HEADS, HEAD_DIM], dtype=pl.FP32)
        for split in pl.parallel(splits):
            with pl.at(level=pl.Level.CORE_GROUP, name_hint="attention"):
                row, first = row_of_split(seq_lens, split)
                begin = (split - first) * SPLIT_TOKENS
                length = pl.cast(pl.read(seq_lens, [row]), pl.INDEX)
                cos, sin = layer_row(rope_cos, length - 1), layer_row(rope_sin, length - 1)
                q = normed_rotated_heads(
                    q_projected[row : row + 1, :], layer_row(q_norm_weight, layer), cos, sin
                )
                if begin + SPLIT_TOKENS >= length:
                    # The only split that reads the new token, which thus needs no pass of its own.
                    k_cache, v_cache = store_key_value(
                        k_cache,
                        v_cache,
                        k_projected[row : row + 1, :],
                        v_projected[row : row + 1, :],
                        layer_row(k_norm_weight, layer),
                        cos,
                        sin,
                        first_slot + pl.cast(pl.read(slot_mapping, [row]), pl.INDEX),
                    )
                peak, total, result = attend_split(
                    q,
                    k_cache,
                    v_cache,
                    block_table,
                    row * pages_per_sequence + begin // PAGE_SIZE,
                    first_slot,
                    pl.min(SPLIT_TOKENS, length - begin),
                )
                peaks = pl.assemble(peaks, peak, [split * NUM_HEADS, 0])
                totals = pl.assemble(totals, total, [split * NUM_HEADS, 0])
                results = pl.assemble(results, result, [split * NUM_HEADS, 0])

        attention = pl.create_tensor([batch, Q_HIDDEN], dtype=pl.BF16)
        for item in pl.parallel(batch * NUM_KV_HEADS):
            with pl.at(level=pl.Level.CORE_GROUP, name_hint="merge_splits"):
                row = item // NUM_KV_HEADS
                kv_head = item % NUM_KV_HEADS
                heads = merge_splits(
                    peaks,
                    totals,
                    results,
                    splits_before(seq_lens, row),
                    splits_of(seq_lens, row),
                    kv_head,
                )
                attention = pl.assemble(attention, heads, [row, kv_head * GROUP_HIDDEN])

        with pl.at(level=pl.Level.CORE_GROUP, name_hint="output_projection_mlp"):
            x = pl.add(x, project(attention, wo, layer))
            normed = scaled_by_gamma(x, layer_row(post_rms_weight, layer))
            scale = inverse_rms(x)
            gate = pl.row_expand_mul(project(normed, w_gate, layer), scale)
            up = pl.row_expand_mul(project(normed, w_up, layer), scale)
            x = pl.add(x, project(swiglu(gate, up), w_down, layer))

    with pl.at(level=pl.Level.CORE_GROUP, name_hint="lm_head"):
        out = pl.assemble(out, logits_of(x, final_norm_weight, lm_head_weight), [0, 0])
    sampled_ids = greedy_ids(out, sampled_ids)
    return out, sampled_ids, next_hidden
