"""The HOST wrappers of Qwen3-14B on an NPU, over the kernels of hw-native-sys/pypto-lib.

`kernels` in the model config names their folder, models/qwen3_14b of a checkout. They take what
`wrappers.py` takes, but for prefill, which looks up the embeddings itself, and with the number of
layers, the length of the RoPE tables and the rows of the sampler fixed.
"""

import pypto.language as pl
from decode_fwd import decode_fwd
from greedy_sample import greedy_sample_fwd
from prefill_fwd import prefill_fwd


@pl.jit.host
def qwen3_prefill_host(
    input_ids: pl.Tensor[[PREFILL_TOKENS_DYN], pl.INT32],
    seq_lens: pl.Tensor[[BATCH_DYN], pl.INT32],
    chunk_lens: pl.Tensor[[BATCH_DYN], pl.INT32],
    chunk_offsets: pl.Tensor[[BATCH_DYN], pl.INT32],
    input_rms_weight: pl.Tensor[[LAYER_DYN, HIDDEN], pl.FP32],
    wq: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, HIDDEN], pl.BF16],
    wk: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, KV_HIDDEN], pl.BF16],
    wv: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, KV_HIDDEN], pl.BF16],
    q_norm_weight: pl.Tensor[[LAYER_DYN, HEAD_DIM], pl.FP32],
    k_norm_weight: pl.Tensor[[LAYER_DYN, HEAD_DIM], pl.FP32],
    rope_cos: pl.Tensor[[MAX_SEQ, HEAD_DIM], pl.FP32],
    rope_sin: pl.Tensor[[MAX_SEQ, HEAD_DIM], pl.FP32],
    block_table: pl.Tensor[[BLOCK_TABLE_FLAT_DYN], pl.INT32],
    slot_mapping: pl.Tensor[[PREFILL_TOKENS_DYN], pl.INT32],
    k_cache: pl.Tensor[[KV_CACHE_ROWS_DYN, HEAD_DIM], pl.BF16],
    v_cache: pl.Tensor[[KV_CACHE_ROWS_DYN, HEAD_DIM], pl.BF16],
    wo: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, HIDDEN], pl.BF16],
    post_rms_weight: pl.Tensor[[LAYER_DYN, HIDDEN], pl.FP32],
    w_gate: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, INTERMEDIATE], pl.BF16],
    w_up: pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, INTERMEDIATE], pl.BF16],
    w_down: pl.Tensor[[LAYER_INTER_ROWS_DYN, HIDDEN], pl.BF16],
    final_norm_weight: pl.Tensor[[1, HIDDEN], pl.FP32],
    lm_head_weight: pl.Tensor[[VOCAB, HIDDEN], pl.BF16],
    embed_weight: pl.Tensor[[VOCAB, HIDDEN], pl.BF16],
    out: pl.Out[pl.Tensor[[BATCH_DYN, VOCAB], pl.FP32]],
) -> pl.Tensor[[BATCH_DYN, VOCAB], pl.FP32]:
    """Run one chunk of each sequence; return the logits of its last token."""
    logits = prefill_fwd(
        input_ids,
        seq_lens,
        chunk_lens,
        chunk_offsets,
        input_rms_weight,
        wq,
        wk,
        wv,
        q_norm_weight,
        k_norm_weight,
        rope_cos,
        rope_sin,
        block_table,
        slot_mapping,
        k_cache,
        v_cache,
        wo,
        post_rms_weight,
        w_gate,
        w_up,
        w_down,
        final_norm_weight,
        lm_head_weight,
        embed_weight,
        out,
    )
    return logits


@pl.jit.host
def qwen3_decode_host(
    input_rms_weight: pl.Tensor[[NUM_LAYERS, HIDDEN], pl.FP32],
    wq: pl.Tensor[[NUM_LAYERS * HIDDEN, HIDDEN], pl.BF16],
    wk: pl.Tensor[[NUM_LAYERS * HIDDEN, KV_HIDDEN], pl.BF16],
    wv: pl.Tensor[[NUM_LAYERS * HIDDEN, KV_HIDDEN], pl.BF16],
    q_norm_weight: pl.Tensor[[NUM_LAYERS, HEAD_DIM], pl.FP32],
    k_norm_weight: pl.Tensor[[NUM_LAYERS, HEAD_DIM], pl.FP32],
    seq_lens: pl.Tensor[[BATCH_DYN], pl.INT32],
    block_table: pl.Tensor[[BLOCK_TABLE_FLAT_DYN], pl.INT32],
    slot_mapping: pl.Tensor[[BATCH_DYN], pl.INT32],
    rope_cos: pl.Tensor[[ROPE_SEQ_DYN, HEAD_DIM], pl.FP32],
    rope_sin: pl.Tensor[[ROPE_SEQ_DYN, HEAD_DIM], pl.FP32],
    k_cache: pl.Tensor[[KV_CACHE_ALL_ROWS_DYN, HEAD_DIM], pl.BF16],
    v_cache: pl.Tensor[[KV_CACHE_ALL_ROWS_DYN, HEAD_DIM], pl.BF16],
    wo: pl.Tensor[[NUM_LAYERS * HIDDEN, HIDDEN], pl.BF16],
    w_gate: pl.Tensor[[NUM_LAYERS * HIDDEN, INTERMEDIATE], pl.BF16],
    w_up: pl.Tensor[[NUM_LAYERS * HIDDEN, INTERMEDIATE], pl.BF16],
    w_down: pl.Tensor[[NUM_LAYERS * INTERMEDIATE, HIDDEN], pl.BF16],
    post_rms_weight: pl.Tensor[[NUM_LAYERS, HIDDEN], pl.FP32],
    final_norm_weight: pl.Tensor[[1, HIDDEN], pl.FP32],
    lm_head_weight: pl.Tensor[[VOCAB, HIDDEN], pl.BF16],
    out: pl.Out[pl.Tensor[[BATCH_DYN, VOCAB], pl.FP32]],
    embed_weight: pl.Tensor[[VOCAB, HIDDEN], pl.BF16],
    sampled_ids_in: pl.Tensor[[BATCH_DYN, SAMPLED_IDS_PAD], pl.INT32],
    sampled_ids: pl.Out[pl.Tensor[[BATCH_DYN, SAMPLED_IDS_PAD], pl.INT32]],
    next_hidden: pl.Out[pl.Tensor[[BATCH_DYN, HIDDEN], pl.BF16]],
) -> tuple[pl.Tensor, pl.Tensor, pl.Tensor]:
    """Run one token of each sequence; return logits, sampled ids and the token's embedding."""
    logits, sampled_ids, next_hidden = decode_fwd(
        input_rms_weight,
        wq,
        wk,
        wv,
        q_norm_weight,
        k_norm_weight,
        seq_lens,
        block_table,
        slot_mapping,
        rope_cos,
        rope_sin,
        k_cache,
        v_cache,
        wo,
        w_gate,
        w_up,
        w_down,
        post_rms_weight,
        final_norm_weight,
        lm_head_weight,
        out,
        embed_weight,
        sampled_ids_in,
        sampled_ids,
        next_hidden,
    )
    return logits, sampled_ids, next_hidden


@pl.jit.host
def qwen3_greedy_sample_host(
    logits: pl.Tensor[[MAX_BATCH, VOCAB], pl.FP32],
    sampled_ids: pl.Out[pl.Tensor[[MAX_BATCH, SAMPLED_IDS_PAD], pl.INT32]],
) -> pl.Tensor[[MAX_BATCH, SAMPLED_IDS_PAD], pl.INT32]:
    """Return the id of the greatest logit of each row, in column 0."""
    sampled_ids = greedy_sample_fwd(logits, sampled_ids)
    return sampled_ids
