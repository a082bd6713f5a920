"""A Qwen3 in plain torch, weights [N, K] by `F.linear`: what the engines of torch share.

A layer is one function of tensors alone, so that it can be compiled once and called for each layer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from bench.work import Action, Work, random_bf16

Tensor = torch.Tensor
Layer = Callable[..., Tensor]
_MATRICES = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Scale the last dimension to a root mean square of one, in fp32."""
    return functional.rms_norm(x.float(), x.shape[-1:], gamma, epsilon).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate halves of the last dimension."""
    low, high = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)


def decode_layer(epsilon: float, heads: int, kv_heads: int) -> Layer:
    """Return a layer for one token of each sequence, the last of its context.

    x [batch, HIDDEN]; cos, sin [1, HEAD_DIM]; keys, values [batch, kv_heads, context, HEAD_DIM],
    where the token's own are stored.
    """

    def layer(
        x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, *weights: Tensor
    ) -> Tensor:
        wq, wk, wv, wo, w_gate, w_up, w_down, input_norm, q_norm, k_norm, post_norm = weights
        batch, dim = x.shape[0], keys.shape[-1]
        normed = rms_norm(x, input_norm, epsilon)
        q = functional.linear(normed, wq).view(batch, heads, dim)
        k = functional.linear(normed, wk).view(batch, kv_heads, dim)
        v = functional.linear(normed, wv).view(batch, kv_heads, dim)
        q = rotate(rms_norm(q, q_norm, epsilon), cos, sin)
        keys[:, :, -1] = rotate(rms_norm(k, k_norm, epsilon), cos, sin)
        values[:, :, -1] = v
        # The heads of a group are rows of one product: K and V are read once.
        grouped = q.view(batch, kv_heads, heads // kv_heads, dim)
        attention = functional.scaled_dot_product_attention(grouped, keys, values)
        return feed_forward(
            x + functional.linear(attention.reshape(batch, heads * dim), wo),
            *(post_norm, w_gate, w_up, w_down, epsilon),
        )

    return layer


def prefill_layer(epsilon: float, heads: int, kv_heads: int) -> Layer:
    """Return a layer for a prompt from its start: x [tokens, HIDDEN], cos, sin [tokens, HEAD_DIM].

    keys, values [1, kv_heads, at least tokens, HEAD_DIM] are stored.
    """

    def layer(
        x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, *weights: Tensor
    ) -> Tensor:
        wq, wk, wv, wo, w_gate, w_up, w_down, input_norm, q_norm, k_norm, post_norm = weights
        tokens, dim = x.shape[0], keys.shape[-1]
        normed = rms_norm(x, input_norm, epsilon)
        q = functional.linear(normed, wq).view(tokens, heads, dim).transpose(0, 1)
        k = functional.linear(normed, wk).view(tokens, kv_heads, dim).transpose(0, 1)
        v = functional.linear(normed, wv).view(tokens, kv_heads, dim).transpose(0, 1)
        q = rotate(rms_norm(q, q_norm, epsilon), cos, sin)
        k = rotate(rms_norm(k, k_norm, epsilon), cos, sin)
        keys[0, :, :tokens] = k
        values[0, :, :tokens] = v
        attention = functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        )
        joined = attention[0].transpose(0, 1).reshape(tokens, heads * dim)
        return feed_forward(
            x + functional.linear(joined, wo), post_norm, w_gate, w_up, w_down, epsilon
        )

    return layer


def feed_forward(
    x: Tensor, norm: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, epsilon: float
) -> Tensor:
    """Add the SwiGLU of the normed rows."""
    normed = rms_norm(x, norm, epsilon)
    activated = functional.silu(functional.linear(normed, w_gate)) * functional.linear(normed, w_up)
    return x + functional.linear(activated, w_down)


class Qwen:
    """Weights and caches of one dtype; a step by whatever runs a layer."""

    def __init__(self, work: Work, dtype: torch.dtype):
        torch.set_num_threads(work.threads)
        self.work, self.dtype = work, dtype
        self.shape = (
            float(work.names["EPS"]),
            work.size("NUM_HEADS"),
            work.size("NUM_KV_HEADS"),
        )
        self.layers = [self._layer(number) for number in range(work.layers)]
        self.head = bits(work.head()).to(dtype)
        self.norm = torch.ones(work.size("HIDDEN"))
        self._caches: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.logits: Tensor | None = None

    def decode(self, layer: Layer, batch: int, context: int) -> Action:
        """Return a step of `batch` sequences."""
        cos, sin = map(torch.from_numpy, self.work.angles([context - 1]))
        caches = self.caches(batch, context)
        ids = torch.arange(1, batch + 1)

        @torch.inference_mode()
        def run() -> None:
            x = self.head[ids]
            for cache, weights in zip(caches, self.layers, strict=True):
                x = layer(x, cos, sin, *cache, *weights)
            self.logits = functional.linear(rms_norm(x, self.norm, self.shape[0]), self.head)
            self.logits.argmax(-1)

        return run

    def prefill(self, layer: Layer, tokens: int) -> Action:
        """Return a prefill; its embeddings are rows 5, 6, ... of the matrix."""
        cos, sin = map(torch.from_numpy, self.work.angles(range(tokens)))
        caches = self.caches(1, tokens)
        first = self.head[5 : 5 + tokens]

        @torch.inference_mode()
        def run() -> None:
            x = first
            for cache, weights in zip(caches, self.layers, strict=True):
                x = layer(x, cos, sin, *cache, *weights)
            self.logits = functional.linear(rms_norm(x[-1:], self.norm, self.shape[0]), self.head)

        return run

    def computed(self) -> Any:
        """Return the logits of the last run."""
        assert self.logits is not None
        return self.logits.float().numpy()

    def caches(self, batch: int, context: int) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of each layer; cases of one context share memory."""
        if context not in self._caches:
            most = max(self.work.plan.batches)
            shape = (most, self.work.size("NUM_KV_HEADS"), context, self.work.size("HEAD_DIM"))
            self._caches[context] = [
                (self._random(shape), self._random(shape)) for _ in range(self.work.layers)
            ]
        return [(keys[:batch], values[:batch]) for keys, values in self._caches[context]]

    def _random(self, shape: Sequence[int]) -> Tensor:
        return bits(random_bf16(torch.Size(shape).numel()).reshape(shape)).to(self.dtype)

    def _layer(self, number: int) -> list[Tensor]:
        hidden, dim = self.work.size("HIDDEN"), self.work.size("HEAD_DIM")
        matrices = [bits(self.work.transposed(each, number)).to(self.dtype) for each in _MATRICES]
        return [*matrices, *(torch.ones(width) for width in (hidden, dim, dim, hidden))]


def bits(values: Any) -> Tensor:
    """Return a tensor of bf16 over the memory of uint16 values."""
    return torch.from_numpy(values).view(torch.bfloat16)


def better_dtype(work: Work) -> torch.dtype:
    """Return bf16 or fp32: in which a product is faster, a token of decode and of prefill added."""
    torch.set_num_threads(work.threads)
    weight = bits(work.transposed("w_gate", 0))
    return min((torch.bfloat16, torch.float32), key=lambda dtype: _seconds(weight.to(dtype)))


def _seconds(weight: Tensor) -> float:
    total = 0.0
    for rows in (1, 128):
        inputs = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
        functional.linear(inputs, weight)
        begin = time.perf_counter()
        functional.linear(inputs, weight)
        total += (time.perf_counter() - begin) / rows
    return total
