"""Qwen3 in torch: what prefill, decode and greedy_sample must compute, rounding by rounding.

Each function has the parameters of the HOST wrapper of its name, in the same order, and writes its
Out and InOut tensors in place. The extents (NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE,
REAL_VOCAB) and EPS are names of the model config, injected before this module runs.

A dot product multiplies bf16 by bf16, which is exact in fp32, and accumulates in fp32. Its order is
free. Every other rounding to bf16 is to the nearest, ties to even, and stands where the kernels do
it. The programs differ by intention, as the public PyPTO model does:

| point            | decode                                        | prefill                    |
| ---------------- | --------------------------------------------- | -------------------------- |
| residual         | fp32 across layers                            | bf16 at each layer's end   |
| input, post norm | bf16(x * gamma); inv_rms scales the fp32 dots | bf16(x * inv_rms * gamma)  |
| softmax          | fp32 probabilities                            | bf16 ones, a page at a time |

The same in both: q and k are normalized, rotated and then rounded once; v is rounded at the cache;
scores are scaled by 1/sqrt(HEAD_DIM) in fp32, after the dot; the attention's result and
silu(gate) * up are rounded before their projections; the final norm is bf16(x * inv_rms * gamma).
"""

from __future__ import annotations

import torch
from torch import Tensor

Q_PER_KV = NUM_HEADS // NUM_KV_HEADS
SCALE = HEAD_DIM**-0.5
VOCAB_STEP = 16384  # rows of lm_head held in fp32 at a time


def prefill(
    hidden_states: Tensor,  # bf16 [tokens, HIDDEN]: the chunks, packed
    seq_lens: Tensor,  # int32 [batch]: length of the sequence after this chunk
    chunk_lens: Tensor,  # int32 [batch]: tokens of the chunk; 0 where a sequence has none
    chunk_offsets: Tensor,  # int32 [batch]: row of the chunk's first token in hidden_states
    input_rms_weight: Tensor,  # fp32 [layers, HIDDEN]
    wq: Tensor,  # bf16 [layers * HIDDEN, NUM_HEADS * HEAD_DIM]
    wk: Tensor,  # bf16 [layers * HIDDEN, NUM_KV_HEADS * HEAD_DIM]
    wv: Tensor,  # bf16 [layers * HIDDEN, NUM_KV_HEADS * HEAD_DIM]
    q_norm_weight: Tensor,  # fp32 [layers, HEAD_DIM]
    k_norm_weight: Tensor,  # fp32 [layers, HEAD_DIM]
    rope_cos: Tensor,  # fp32 [positions, HEAD_DIM]
    rope_sin: Tensor,  # fp32 [positions, HEAD_DIM]
    block_table: Tensor,  # int32 [batch * pages per sequence]
    slot_mapping: Tensor,  # int32 [tokens]: page * PAGE_SIZE + token in page
    k_cache: Tensor,  # bf16 [layers * pages * PAGE_SIZE * NUM_KV_HEADS, HEAD_DIM], in-out
    v_cache: Tensor,  # bf16, likewise, in-out
    wo: Tensor,  # bf16 [layers * NUM_HEADS * HEAD_DIM, HIDDEN]
    w_gate: Tensor,  # bf16 [layers * HIDDEN, INTERMEDIATE]
    w_up: Tensor,  # bf16 [layers * HIDDEN, INTERMEDIATE]
    w_down: Tensor,  # bf16 [layers * INTERMEDIATE, HIDDEN]
    post_rms_weight: Tensor,  # fp32 [layers, HIDDEN]
    final_norm_weight: Tensor,  # fp32 [1, HIDDEN]
    lm_head_weight: Tensor,  # bf16 [VOCAB, HIDDEN]
    out: Tensor,  # fp32 [batch, VOCAB], out: logits of each chunk's last token
) -> None:
    """Run one chunk of each sequence.

    A sequence with `chunk_len` 0 gets a row of zeros and keeps its cache. Rows of `hidden_states`
    that no chunk covers do not matter.
    """
    layers = input_rms_weight.shape[0]
    k_slots, v_slots = _slots(k_cache, layers), _slots(v_cache, layers)
    tables = block_table.view(seq_lens.shape[0], -1)
    lens = zip(seq_lens.tolist(), chunk_lens.tolist(), chunk_offsets.tolist(), strict=True)
    out.zero_()
    for row, (seq_len, chunk_len, offset) in enumerate(lens):
        if chunk_len == 0:
            continue
        chunk = slice(offset, offset + chunk_len)
        start = seq_len - chunk_len
        cos, sin = rope_cos[start:seq_len, None], rope_sin[start:seq_len, None]
        context = _context(tables[row], seq_len)
        hidden = hidden_states[chunk]
        for layer in range(layers):
            x = hidden.float()
            normed = _bf16(x * _inverse_rms(x) * input_rms_weight[layer])
            q, k, v = (_heads(_dot(normed, _layer(w, layer, layers))) for w in (wq, wk, wv))
            q = _bf16(_rotate(_norm(q, q_norm_weight[layer]), cos, sin))
            slots = slot_mapping[chunk].long()
            k_slots[layer, slots] = _bf16(_rotate(_norm(k, k_norm_weight[layer]), cos, sin))
            v_slots[layer, slots] = _bf16(v)
            attention = _bf16(
                _causal_attention(q, k_slots[layer, context], v_slots[layer, context])
            )
            x = x + _dot(attention.flatten(1), _layer(wo, layer, layers))
            normed = _bf16(x * _inverse_rms(x) * post_rms_weight[layer])
            gate = _dot(normed, _layer(w_gate, layer, layers))
            up = _dot(normed, _layer(w_up, layer, layers))
            x = x + _dot(_bf16(_silu(gate) * up), _layer(w_down, layer, layers))
            hidden = _bf16(x)
        last = hidden[-1:].float()
        out[row : row + 1] = _logits(last, final_norm_weight, lm_head_weight)


def decode(
    input_rms_weight: Tensor,  # weights, RoPE tables and caches: as for prefill
    wq: Tensor,
    wk: Tensor,
    wv: Tensor,
    q_norm_weight: Tensor,
    k_norm_weight: Tensor,
    seq_lens: Tensor,  # int32 [batch]: length of the sequence with this token, at least 1
    block_table: Tensor,  # int32 [batch * pages per sequence]
    slot_mapping: Tensor,  # int32 [batch]: page * PAGE_SIZE + token in page
    rope_cos: Tensor,
    rope_sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    wo: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    post_rms_weight: Tensor,
    final_norm_weight: Tensor,
    lm_head_weight: Tensor,
    out: Tensor,  # fp32 [batch, VOCAB], out: logits
    embed_weight: Tensor,  # bf16 [VOCAB, HIDDEN]
    sampled_ids_in: Tensor,  # int32 [batch, SAMPLED_IDS_PAD]: the token to run, in column 0
    sampled_ids: Tensor,  # int32 [batch, SAMPLED_IDS_PAD], out: see greedy_sample
    next_hidden: Tensor,  # bf16 [batch, HIDDEN], out: the embedding of the token that ran
) -> None:
    """Run one token of each sequence, and sample the next one."""
    layers = input_rms_weight.shape[0]
    k_slots, v_slots = _slots(k_cache, layers), _slots(v_cache, layers)
    tables = block_table.view(seq_lens.shape[0], -1)
    positions, slots = seq_lens.long() - 1, slot_mapping.long()
    cos, sin = rope_cos[positions, None], rope_sin[positions, None]
    contexts = [_context(table, n) for table, n in zip(tables, seq_lens.tolist(), strict=True)]

    next_hidden.copy_(embed_weight[sampled_ids_in[:, 0].long()])
    x = next_hidden.float()
    for layer in range(layers):
        normed, inv_rms = _bf16(x * input_rms_weight[layer]), _inverse_rms(x)
        q, k, v = (_heads(_dot(normed, _layer(w, layer, layers)) * inv_rms) for w in (wq, wk, wv))
        q = _bf16(_rotate(_norm(q, q_norm_weight[layer]), cos, sin))
        k_slots[layer, slots] = _bf16(_rotate(_norm(k, k_norm_weight[layer]), cos, sin))
        v_slots[layer, slots] = _bf16(v)
        attention = _bf16(
            torch.stack(
                [
                    _attention(q[row], k_slots[layer, context], v_slots[layer, context])
                    for row, context in enumerate(contexts)
                ]
            )
        )
        x = x + _dot(attention.flatten(1), _layer(wo, layer, layers))
        normed, inv_rms = _bf16(x * post_rms_weight[layer]), _inverse_rms(x)
        gate = _dot(normed, _layer(w_gate, layer, layers)) * inv_rms
        up = _dot(normed, _layer(w_up, layer, layers)) * inv_rms
        x = x + _dot(_bf16(_silu(gate) * up), _layer(w_down, layer, layers))
    out.copy_(_logits(x, final_norm_weight, lm_head_weight))
    greedy_sample(out, sampled_ids)


def greedy_sample(
    logits: Tensor,  # fp32 [batch, VOCAB]
    sampled_ids: Tensor,  # int32 [batch, SAMPLED_IDS_PAD], out
) -> None:
    """Put the id of the greatest logit below REAL_VOCAB, the lowest of equals, into column 0.

    The other columns become 0.
    """
    sampled_ids.zero_()
    sampled_ids[:, 0] = logits[:, :REAL_VOCAB].argmax(dim=-1)


def _bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def _dot(x: Tensor, weight: Tensor) -> Tensor:
    """bf16 [m, k] @ bf16 [k, n] -> fp32."""
    return x.float() @ weight.float()


def _layer(stacked: Tensor, layer: int, layers: int) -> Tensor:
    return stacked.view(layers, -1, stacked.shape[1])[layer]


def _heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1, HEAD_DIM)


def _inverse_rms(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)


def _norm(x: Tensor, gamma: Tensor) -> Tensor:
    return x * _inverse_rms(x) * gamma


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _slots(cache: Tensor, layers: int) -> Tensor:
    """View a cache as [layers, slots, NUM_KV_HEADS, HEAD_DIM]."""
    return cache.view(layers, -1, NUM_KV_HEADS, HEAD_DIM)


def _context(table: Tensor, length: int) -> Tensor:
    """Return the slots of a sequence's first `length` tokens, from its row of the block table."""
    slots = table[:, None].long() * PAGE_SIZE + torch.arange(PAGE_SIZE)
    return slots.flatten()[:length]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one token: q [NUM_HEADS, HEAD_DIM] over k, v [n, NUM_KV_HEADS, HEAD_DIM]."""
    grouped = q.view(NUM_KV_HEADS, Q_PER_KV, HEAD_DIM)
    probabilities = torch.softmax(_dot(grouped, k.permute(1, 2, 0)) * SCALE, dim=-1)
    return (probabilities @ v.float().transpose(0, 1)).view(NUM_HEADS, HEAD_DIM)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a chunk: q [m, NUM_HEADS, HEAD_DIM], the last m of k, v's n tokens.

    A page of the context is one tile: its probabilities are relative to the tile's maximum,
    rounded to bf16, and their sum is that of the rounded ones. Tiles are merged in fp32.
    """
    m, n = q.shape[0], k.shape[0]
    tiles = -(-n // PAGE_SIZE)
    padding = (0, 0, 0, 0, 0, tiles * PAGE_SIZE - n)
    k, v = (torch.nn.functional.pad(each, padding) for each in (k, v))
    visible = torch.arange(tiles * PAGE_SIZE) <= torch.arange(n - m, n)[:, None]
    grouped = q.view(m, NUM_KV_HEADS, Q_PER_KV, HEAD_DIM)
    results = []
    for head in range(NUM_KV_HEADS):
        scores = _dot(grouped[:, head].transpose(0, 1), k[:, head].T) * SCALE
        scores = scores.masked_fill(~visible, -torch.inf).view(Q_PER_KV, m, tiles, PAGE_SIZE)
        # A tile after the token has no visible score: a finite maximum keeps its terms zero.
        tile_max = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        rounded = _bf16(torch.exp(scores - tile_max)).float()
        share = torch.exp(tile_max - tile_max.amax(-2, keepdim=True))
        total = (rounded.sum(-1, keepdim=True) * share).sum(-2)
        values = v[:, head].float().view(tiles, PAGE_SIZE, HEAD_DIM)
        weighted = torch.einsum("gmtp,tpd->gmtd", rounded, values)
        results.append((weighted * share).sum(-2) / total)
    return torch.cat(results).transpose(0, 1)


def _logits(x: Tensor, final_norm_weight: Tensor, lm_head_weight: Tensor) -> Tensor:
    normed = _bf16(_norm(x, final_norm_weight))
    parts = [_dot(normed, rows.T) for rows in lm_head_weight.split(VOCAB_STEP)]
    return torch.cat(parts, dim=1)
