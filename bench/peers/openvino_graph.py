"""OpenVINO: one graph for decode and prefill, with K and V as its state; bf16 where it has that.

K and V are kept in bf16 or fp32 like the rest: by default they would be 8 bits.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op.util import Variable, VariableInfo

from bench.peers.engine import Engine
from bench.work import Action, Work, random_bf16


def start(work: Work) -> Engine:
    """Return the engine."""
    core = ov.Core()
    has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision = "bf16" if has_bf16 else "f32"
    settings = {
        "INFERENCE_NUM_THREADS": work.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    request = core.compile_model(_Graph(work).model(), "CPU", settings).create_infer_request()
    embedding = work.head()

    def step(batch: int, context: int, tokens: int, past: Any) -> Action:
        ids = np.arange(1, batch + 1)[:, None] if tokens == 1 else 5 + np.arange(tokens)[None]
        positions = np.arange(context - tokens, context)
        cos, sin = work.angles(positions)
        hidden = np.arange(context)[None] > positions[:, None]
        inputs = {
            "x": _floats(embedding[ids]),
            "cos": cos,
            "sin": sin,
            "mask": np.where(hidden, np.float32(-1e30), np.float32(0))[None, None],
            "beams": np.arange(batch, dtype=np.int32),
        }

        def run() -> float:
            request.reset_state()
            if past is not None:
                for state in request.query_state():
                    state.state = ov.Tensor(past)
            begin = time.perf_counter()
            request.infer(inputs, share_inputs=True)
            return time.perf_counter() - begin

        return run

    cases: dict[str, Action] = {}
    for name, (batch, context) in work.plan.decodes().items():
        shape = (batch, work.size("NUM_KV_HEADS"), context - 1, work.size("HEAD_DIM"))
        values = _floats(random_bf16(int(np.prod(shape)))).reshape(shape)
        cases[name] = step(batch, context, 1, values)
    for name, tokens in work.plan.prefills().items():
        cases[name] = step(1, tokens, tokens, None)
    return Engine(precision, cases, logits=lambda: request.get_output_tensor().data)


def _floats(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class _Graph:
    """Parameters x fp32 [batch, tokens, HIDDEN], cos and sin fp32 [tokens, HEAD_DIM], mask fp32
    [1, 1, tokens, context], beams int32 [batch]; result fp32 [batch, 1, VOCAB]."""

    def __init__(self, work: Work):
        self.work, self.dim = work, work.size("HEAD_DIM")
        self.heads, self.kv_heads = work.size("NUM_HEADS"), work.size("NUM_KV_HEADS")
        hidden = work.size("HIDDEN")
        self.x = self._parameter("x", [-1, -1, hidden])
        self.cos, self.sin = (self._parameter(name, [-1, self.dim]) for name in ("cos", "sin"))
        self.mask = self._parameter("mask", [1, 1, -1, -1])
        self.beams = self._parameter("beams", [-1], np.int32)
        self.sinks: list[Any] = []
        self.variables: list[Any] = []
        shape = ops.shape_of(self.x, "i64")
        self.batch = ops.gather(shape, np.array([0]), np.int64(0))

    def model(self) -> Any:
        """Return the model."""
        x = self.x
        for layer in range(self.work.layers):
            x = self._layer(x, layer)
        last = ops.slice(x, np.array([-1]), np.array([2**31 - 1]), np.array([1]), np.array([1]))
        logits = self._product(self._norm(last), self.work.head())
        parameters = [self.x, self.cos, self.sin, self.mask, self.beams]
        return ov.Model([ops.result(logits)], self.sinks, parameters, self.variables)

    def _layer(self, x: Any, layer: int) -> Any:
        normed = self._norm(x)
        q = self._heads(normed, "wq", layer, self.heads)
        k = self._heads(normed, "wk", layer, self.kv_heads)
        v = self._heads(normed, "wv", layer, self.kv_heads)
        q, k = (self._rotate(self._turn(self._norm(each))) for each in (q, k))
        k = self._cached(k, f"k{layer}")
        v = self._cached(self._turn(v), f"v{layer}")
        attention = ops.scaled_dot_product_attention(
            q, self._repeat(k), self._repeat(v), self.mask, causal=False
        )
        joined = ops.reshape(
            self._turn(attention), np.array([0, 0, self.heads * self.dim]), special_zero=True
        )
        x = ops.add(x, self._product(joined, self.work.transposed("wo", layer)))
        normed = self._norm(x)
        gate = self._product(normed, self.work.transposed("w_gate", layer))
        up = self._product(normed, self.work.transposed("w_up", layer))
        activated = ops.multiply(ops.swish(gate), up)
        return ops.add(x, self._product(activated, self.work.transposed("w_down", layer)))

    def _product(self, x: Any, bits: Any) -> Any:
        owned = ov.Tensor(ov.Type.bf16, bits.shape)  # a constant only refers to memory
        owned.data.view(np.uint16)[:] = bits
        weight = ops.convert(ops.constant(owned), "f32")
        weight.get_rt_info()["decompression_0"] = ""  # so that it is not stored as fp32
        return ops.matmul(x, weight, False, True)

    def _norm(self, x: Any) -> Any:
        epsilon = np.float32(self.work.names["EPS"])
        squares = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), keep_dims=True)
        scale = ops.divide(np.float32(1), ops.sqrt(ops.add(squares, epsilon)))
        return ops.multiply(ops.multiply(x, scale), np.ones(1, np.float32))

    def _heads(self, x: Any, name: str, layer: int, heads: int) -> Any:
        projected = self._product(x, self.work.transposed(name, layer))
        return ops.reshape(projected, np.array([0, 0, heads, self.dim]), special_zero=True)

    def _turn(self, x: Any) -> Any:
        return ops.transpose(x, np.array([0, 2, 1, 3]))

    def _rotate(self, x: Any) -> Any:
        low, high = ops.split(x, np.int64(3), 2).outputs()
        turned = ops.concat([ops.multiply(high, np.float32(-1)), low], 3)
        return ops.add(ops.multiply(x, self.cos), ops.multiply(turned, self.sin))

    def _cached(self, new: Any, name: str) -> Any:
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, self.kv_heads, -1, self.dim])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        sizes = [np.array([self.kv_heads]), np.array([0]), np.array([self.dim])]
        empty = ops.broadcast(np.float32(0), ops.concat([self.batch, *sizes], 0))
        past = ops.gather(ops.read_value(empty, variable), self.beams, np.int64(0))
        both = ops.concat([past, new], 2)
        self.sinks.append(ops.assign(both, variable))
        self.variables.append(variable)
        return both

    def _repeat(self, x: Any) -> Any:
        group = self.heads // self.kv_heads
        if group == 1:
            return x
        wide = ops.unsqueeze(x, np.array(2))
        ones = np.array([1, 1, group, 1, 1])
        target = np.array([0, self.heads, -1, self.dim])
        return ops.reshape(
            ops.broadcast(wide, ones, broadcast_spec="BIDIRECTIONAL"), target, special_zero=True
        )

    @staticmethod
    def _parameter(name: str, shape: list[int], dtype: Any = np.float32) -> Any:
        parameter = ops.parameter(shape, dtype, name)
        parameter.output(0).set_names({name})
        return parameter
