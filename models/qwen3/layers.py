"""The parts of a Qwen3 layer that prefill and decode share.

Each function computes rows independently of each other. The names in capitals are those of the
model config.
"""

import pypto.language as pl

HALF_DIM = HEAD_DIM // 2


@pl.jit.inline
def inverse_rms(x: pl.Tensor):
    """fp32 [rows, width] -> 1 / sqrt(mean(x * x) + EPS), fp32 [rows, 1]."""
    mean = pl.mul(pl.row_sum(pl.mul(x, x)), 1.0 / pl.tensor.dim(x, 1))
    return pl.rsqrt(pl.add(mean, EPS))


@pl.jit.inline
def layer_row(stacked: pl.Tensor, layer: pl.Scalar[pl.INDEX]):
    """[layers, width] -> the row of `layer`, [1, width]."""
    return pl.slice(stacked, [1, pl.tensor.dim(stacked, 1)], [layer, 0])


@pl.jit.inline
def rms_norm(x: pl.Tensor, gamma: pl.Tensor):
    """fp32 [rows, width], gamma fp32 [1, width] -> x * inverse_rms * gamma, fp32 [rows, width]."""
    return pl.col_expand_mul(pl.row_expand_mul(x, inverse_rms(x)), gamma)


@pl.jit.inline
def project(x: pl.Tensor, stacked: pl.Tensor, layer: pl.Scalar[pl.INDEX]):
    """bf16 [rows, K] @ the bf16 [K, N] of `layer` in [layers * K, N] -> fp32 [rows, N]."""
    height = pl.tensor.dim(x, 1)
    weight = pl.slice(stacked, [height, pl.tensor.dim(stacked, 1)], [layer * height, 0])
    return pl.matmul(x, weight, out_dtype=pl.FP32)


@pl.jit.inline
def swiglu(gate: pl.Tensor, up: pl.Tensor):
    """fp32 [rows, INTERMEDIATE] twice -> silu(gate) * up, bf16 [rows, INTERMEDIATE]."""
    sigmoid = pl.recip(pl.add(pl.exp(pl.neg(gate)), 1.0))
    return pl.cast(pl.mul(pl.mul(gate, sigmoid), up), target_type=pl.BF16)


@pl.jit.inline
def rotary_embedding(x: pl.Tensor, cos: pl.Tensor, sin: pl.Tensor):
    """Rotate fp32 heads [heads, HEAD_DIM] by the angles of one position, fp32 [1, HEAD_DIM]."""
    low, high = x[:, 0:HALF_DIM], x[:, HALF_DIM:HEAD_DIM]
    rotated_low = pl.sub(
        pl.col_expand_mul(low, cos[:, 0:HALF_DIM]), pl.col_expand_mul(high, sin[:, 0:HALF_DIM])
    )
    rotated_high = pl.add(
        pl.col_expand_mul(high, cos[:, HALF_DIM:HEAD_DIM]),
        pl.col_expand_mul(low, sin[:, HALF_DIM:HEAD_DIM]),
    )
    return pl.concat(rotated_low, rotated_high)


@pl.jit.inline
def normed_rotated_heads(projected: pl.Tensor, gamma: pl.Tensor, cos: pl.Tensor, sin: pl.Tensor):
    """One token's projection, fp32 [1, heads * HEAD_DIM] -> its heads, bf16 [heads, HEAD_DIM]."""
    heads = pl.reshape(projected, [pl.tensor.dim(projected, 1) // HEAD_DIM, HEAD_DIM])
    rotated = rotary_embedding(rms_norm(heads, gamma), cos, sin)
    return pl.cast(rotated, target_type=pl.BF16)


@pl.jit.inline
def logits_of(x: pl.Tensor, final_norm_weight: pl.Tensor, lm_head_weight: pl.Tensor):
    """fp32 [rows, HIDDEN] -> fp32 [rows, VOCAB]."""
    normed = pl.cast(rms_norm(x, final_norm_weight), target_type=pl.BF16)
    return pl.matmul(normed, lm_head_weight, out_dtype=pl.FP32, b_trans=True)
