"""Prefill: one chunk of each sequence, the chunks packed one after the other, through all layers.

The residual is fp32 inside a layer and bf16 at its end. Attention runs over blocks of a chunk's
tokens, counted from the start of the chunk, so what a sequence gets does not depend on the others.
"""

import pypto.language as pl

from .attention import (
    GROUP_HIDDEN,
    LOWEST,
    Q_PER_KV,
    first_slot_of_layer,
    merge_tile,
    page_tile,
    scores_of,
    store_token,
)
from .layers import layer_row, logits_of, project, rms_norm, swiglu

BLOCK_TOKENS = 32
BLOCK_ROWS = BLOCK_TOKENS * Q_PER_KV  # row: token * Q_PER_KV + head of the group
STEEP = 1.0e30


@pl.jit.inline
def first_rows(x: pl.Tensor, rows: pl.Scalar[pl.INDEX]):
    """Return `x`, [height, width], with only its first rows valid."""
    height, width = pl.tensor.dim(x, 0), pl.tensor.dim(x, 1)
    return pl.slice(x, [height, width], [0, 0], valid_shape=[rows, width])


@pl.jit.inline
def query_positions(position: pl.Scalar[pl.INDEX]):
    """Return the position of each row's token, fp32 [BLOCK_ROWS, 1]; `position` is the first's."""
    tokens = pl.arange(pl.cast(position, pl.INT32), [1, BLOCK_TOKENS], dtype=pl.INT32)
    column = pl.reshape(pl.cast(tokens, target_type=pl.FP32), [BLOCK_TOKENS, 1])
    heads = pl.full([BLOCK_TOKENS, Q_PER_KV], dtype=pl.FP32, value=0.0)
    return pl.reshape(pl.row_expand(heads, column), [BLOCK_ROWS, 1])


@pl.jit.inline
def hide_later_keys(scores: pl.Tensor, positions: pl.Tensor, first_key: pl.Scalar[pl.INDEX]):
    """Push scores fp32 [BLOCK_ROWS, PAGE_SIZE] of keys after the row's token far below all others.

    The limit of a score is half of STEEP or more where the key is visible, and minus that or less
    where it is not: so low that its exponential is 0, yet finite, as a page may hold no visible
    key of a token.
    """
    numbers = pl.arange(pl.cast(first_key, pl.INT32), [1, PAGE_SIZE], dtype=pl.INT32)
    keys = pl.col_expand(scores, pl.cast(numbers, target_type=pl.FP32))
    ahead = pl.row_expand_sub(keys, positions)
    return pl.minimum(scores, pl.mul(pl.sub(ahead, 0.5), -STEEP))


@pl.jit.inline
def attend_block(
    q: pl.Tensor,
    k_cache: pl.Tensor,
    v_cache: pl.Tensor,
    block_table: pl.Tensor,
    first_page: pl.Scalar[pl.INDEX],
    first_slot: pl.Scalar[pl.INDEX],
    kv_head: pl.Scalar[pl.INDEX],
    position: pl.Scalar[pl.INDEX],
    tokens: pl.Scalar[pl.INDEX],
):
    """Causal attention of one group's heads, bf16 [BLOCK_TOKENS, GROUP_HIDDEN], `tokens` valid.

    `position` is that of the first token, `first_page` the sequence's first entry of the block
    table. The probabilities of a page are relative to its greatest score and rounded to bf16.
    Returns bf16 of the shape of `q`, with as many valid rows.
    """
    rows = tokens * Q_PER_KV
    end = position + tokens
    positions = query_positions(position)
    heads = first_rows(pl.reshape(pl.fillpad(q), [BLOCK_ROWS, HEAD_DIM]), rows)
    peak = pl.set_validshape(pl.full([BLOCK_ROWS, 1], dtype=pl.FP32, value=LOWEST), rows, 1)
    total = pl.set_validshape(pl.full([BLOCK_ROWS, 1], dtype=pl.FP32, value=0.0), rows, 1)
    result = pl.set_validshape(
        pl.full([BLOCK_ROWS, HEAD_DIM], dtype=pl.FP32, value=0.0), rows, HEAD_DIM
    )
    for page in pl.range((end + PAGE_SIZE - 1) // PAGE_SIZE):
        first_key = page * PAGE_SIZE
        keys = pl.min(PAGE_SIZE, end - first_key)
        page_id = pl.cast(pl.read(block_table, [first_page + page]), pl.INDEX)
        slot = first_slot + page_id * PAGE_SIZE
        k = page_tile(k_cache, slot, kv_head, keys)
        v = page_tile(v_cache, slot, kv_head, keys)
        causal = hide_later_keys(scores_of(heads, k), positions, first_key)
        scores = pl.set_validshape(pl.fillpad(causal, pad_value=pl.PadValue.min), rows, PAGE_SIZE)
        tile_peak = pl.row_max(scores)
        weights = pl.cast(pl.exp(pl.row_expand_sub(scores, tile_peak)), target_type=pl.BF16)
        tile_total = pl.row_sum(pl.cast(weights, target_type=pl.FP32))
        # Beyond the context a page may hold anything: the product reads its valid keys alone.
        tile_result = pl.matmul(pl.set_validshape(weights, rows, keys), v, out_dtype=pl.FP32)
        peak, total, result = merge_tile(peak, total, result, tile_peak, tile_total, tile_result)
    attention = pl.fillpad(pl.cast(pl.row_expand_div(result, total), target_type=pl.BF16))
    return first_rows(pl.reshape(attention, [BLOCK_TOKENS, GROUP_HIDDEN]), tokens)


@pl.jit.inline
def last_tokens(hidden: pl.Tensor, chunk_lens: pl.Tensor, chunk_offsets: pl.Tensor):
    """bf16 [tokens, HIDDEN] -> each chunk's last row, fp32 [batch, HIDDEN]; zeros without one."""
    batch = pl.tensor.dim(chunk_lens, 0)
    with pl.at(level=pl.Level.CORE_GROUP, name_hint="no_tokens"):
        last = pl.full([batch, HIDDEN], dtype=pl.FP32, value=0.0)
    for row in pl.parallel(batch):
        chunk_len = pl.cast(pl.read(chunk_lens, [row]), pl.INDEX)
        if chunk_len > 0:
            with pl.at(level=pl.Level.CORE_GROUP, name_hint="last_token"):
                token = pl.cast(pl.read(chunk_offsets, [row]), pl.INDEX) + chunk_len - 1
                final = pl.cast(layer_row(hidden, token), target_type=pl.FP32)
                last = pl.assemble(last, final, [row, 0])
    return last


@pl.jit
def prefill_fwd(
    hidden_states: pl.Tensor[[PREFILL_TOKENS_DYN, HIDDEN], pl.BF16],
    seq_lens: pl.Tensor[[BATCH_DYN], pl.INT32],
    chunk_lens: pl.Tensor[[BATCH_DYN], pl.INT32],
    chunk_offsets: pl.Tensor[[BATCH_DYN], pl.INT32],
    input_rms_weight: pl.Tensor[[LAYER_DYN, HIDDEN], pl.FP32],
    wq: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, Q_HIDDEN], pl.BF16],
    wk: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, KV_HIDDEN], pl.BF16],
    wv: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, KV_HIDDEN], pl.BF16],
    q_norm_weight: pl.Tensor[[LAYER_DYN, HEAD_DIM], pl.FP32],
    k_norm_weight: pl.Tensor[[LAYER_DYN, HEAD_DIM], pl.FP32],
    rope_cos: pl.Tensor[[ROPE_SEQ_DYN, HEAD_DIM], pl.FP32],
    rope_sin: pl.Tensor[[ROPE_SEQ_DYN, HEAD_DIM], pl.FP32],
    block_table: pl.Tensor[[BLOCK_TABLE_FLAT_DYN], pl.INT32],
    slot_mapping: pl.Tensor[[PREFILL_TOKENS_DYN], pl.INT32],
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
):
    """Run one chunk of each sequence; return the logits of each chunk's last token."""
    rows = pl.tensor.dim(hidden_states, 0)
    batch = pl.tensor.dim(chunk_lens, 0)
    layers = pl.tensor.dim(input_rms_weight, 0)
    pages_per_sequence = pl.tensor.dim(block_table, 0) // batch

    hidden = hidden_states
    for layer in pl.range(layers):
        first_slot = first_slot_of_layer(k_cache, layers, layer)

        with pl.at(level=pl.Level.CORE_GROUP, name_hint="qkv_projection"):
            x = pl.cast(hidden, target_type=pl.FP32)
            normed = pl.cast(rms_norm(x, layer_row(input_rms_weight, layer)), target_type=pl.BF16)
            q_projected = project(normed, wq, layer)
            k_projected = project(normed, wk, layer)
            v_projected = project(normed, wv, layer)

        q = pl.create_tensor([rows, Q_HIDDEN], dtype=pl.BF16)
        for sequence in pl.range(batch):
            chunk_len = pl.cast(pl.read(chunk_lens, [sequence]), pl.INDEX)
            offset = pl.cast(pl.read(chunk_offsets, [sequence]), pl.INDEX)
            start = pl.cast(pl.read(seq_lens, [sequence]), pl.INDEX) - chunk_len
            for token in pl.parallel(chunk_len):
                with pl.at(level=pl.Level.CORE_GROUP, name_hint="store_token"):
                    row = offset + token
                    q, k_cache, v_cache = store_token(
                        q,
                        k_cache,
                        v_cache,
                        q_projected,
                        k_projected,
                        v_projected,
                        q_norm_weight,
                        k_norm_weight,
                        rope_cos,
                        rope_sin,
                        layer,
                        row,
                        start + token,
                        first_slot + pl.cast(pl.read(slot_mapping, [row]), pl.INDEX),
                    )

        attention = pl.create_tensor([rows, Q_HIDDEN], dtype=pl.BF16)
        for sequence in pl.range(batch):
            chunk_len = pl.cast(pl.read(chunk_lens, [sequence]), pl.INDEX)
            offset = pl.cast(pl.read(chunk_offsets, [sequence]), pl.INDEX)
            start = pl.cast(pl.read(seq_lens, [sequence]), pl.INDEX) - chunk_len
            blocks = (chunk_len + BLOCK_TOKENS - 1) // BLOCK_TOKENS
            for item in pl.parallel(blocks * NUM_KV_HEADS):
                with pl.at(level=pl.Level.CORE_GROUP, name_hint="attention"):
                    first = item // NUM_KV_HEADS * BLOCK_TOKENS
                    kv_head = item % NUM_KV_HEADS
                    tokens = pl.min(BLOCK_TOKENS, chunk_len - first)
                    place = [offset + first, kv_head * GROUP_HIDDEN]
                    heads = attend_block(
                        pl.slice(
                            q,
                            [BLOCK_TOKENS, GROUP_HIDDEN],
                            place,
                            valid_shape=[tokens, GROUP_HIDDEN],
                        ),
                        k_cache,
                        v_cache,
                        block_table,
                        sequence * pages_per_sequence,
                        first_slot,
                        kv_head,
                        start + first,
                        tokens,
                    )
                    attention = pl.assemble(attention, heads, place)

        with pl.at(level=pl.Level.CORE_GROUP, name_hint="output_projection_mlp"):
            x = pl.add(x, project(attention, wo, layer))
            normed = pl.cast(rms_norm(x, layer_row(post_rms_weight, layer)), target_type=pl.BF16)
            activated = swiglu(project(normed, w_gate, layer), project(normed, w_up, layer))
            x = pl.add(x, project(activated, w_down, layer))
            hidden = pl.cast(x, target_type=pl.BF16)

    last = last_tokens(hidden, chunk_lens, chunk_offsets)
    with pl.at(level=pl.Level.CORE_GROUP, name_hint="lm_head"):
        out = pl.assemble(out, logits_of(last, final_norm_weight, lm_head_weight), [0, 0])
    return out
