"""ONNX Runtime on its CPU provider in fp32: it has no arithmetic in bf16.

So it reads twice the bytes; the speed is stated in the bytes that bf16 has, as for the others.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from bench.peers.engine import Engine
from bench.work import Action, Work, random_bf16


def start(work: Work) -> Engine:
    """Return the engine, its weights in a temporary file while it starts."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = work.threads, 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        _Graph(work, Path(folder)).save(path)
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    embedding = work.head()
    heads, dim = work.size("NUM_KV_HEADS"), work.size("HEAD_DIM")

    last: list[Any] = [None]

    def step(ids: Any, context: int) -> Action:
        batch = ids.shape[0]
        binding = session.io_binding()
        inputs = {
            "x": _floats(embedding[ids]),
            "lengths": np.full(batch, context - 1, np.int32),
            "total": np.array(context, np.int32),
        }
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        shape = (batch, heads, context, dim)
        for layer in range(work.layers):
            for kind in "kv":
                values = _floats(random_bf16(int(np.prod(shape)))).reshape(shape)
                # One buffer is what is read and what is written.
                cache = onnxruntime.OrtValue.ortvalue_from_numpy(values)
                binding.bind_ortvalue_input(f"past_{kind}{layer}", cache)
                binding.bind_ortvalue_output(f"present_{kind}{layer}", cache)
        logits = np.empty((batch, 1, work.size("VOCAB")), np.float32)
        bound = onnxruntime.OrtValue.ortvalue_from_numpy(logits)
        binding.bind_ortvalue_output("logits", bound)

        def run() -> None:
            session.run_with_iobinding(binding)
            last[0] = bound

        return run

    cases: dict[str, Action] = {
        name: step(np.arange(1, batch + 1)[:, None], context)
        for name, (batch, context) in work.plan.decodes().items()
    }
    for name, tokens in work.plan.prefills().items():
        cases[name] = step(5 + np.arange(tokens)[None], tokens)
    return Engine("fp32", cases, logits=lambda: last[0].numpy())


def _floats(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class _Graph:
    """Inputs x fp32 [batch, tokens, HIDDEN], lengths int32 [batch], total int32 and the caches."""

    def __init__(self, work: Work, folder: Path):
        self.work, self.folder = work, folder
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.size = 0

    def save(self, path: Path) -> None:
        """Write the model, and its weights beside it."""
        work, dim = self.work, self.work.size("HEAD_DIM")
        cache = ["batch", work.size("NUM_KV_HEADS"), "context", dim]
        inputs = [
            _value("x", ["batch", "tokens", work.size("HIDDEN")]),
            _value("lengths", ["batch"], TensorProto.INT32),
            _value("total", [], TensorProto.INT32),
        ]
        outputs = [_value("logits", ["batch", 1, work.size("VOCAB")])]
        for layer in range(work.layers):
            inputs += [_value(f"past_{kind}{layer}", cache) for kind in "kv"]
            outputs += [_value(f"present_{kind}{layer}", cache) for kind in "kv"]
        longest = max(*work.plan.contexts, *work.plan.prompts)
        cos, sin = work.angles(range(longest))
        self._small("cos", cos[:, : dim // 2])
        self._small("sin", sin[:, : dim // 2])
        for name, numbers in (("last", [-1]), ("end", [2**31 - 1]), ("one", [1])):
            self._small(name, np.array(numbers, np.int64))
        with open(self.folder / "weights", "wb") as self.file:
            x = "x"
            for layer in range(work.layers):
                x = self._layer(x, layer)
            last = self._node("Slice", [x, "last", "end", "one"])
            normed = self._norm(last, work.size("HIDDEN"))
            self._product(normed, "head", work.head().T, "logits")
        graph = helper.make_graph(self.nodes, "qwen", inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)

    def _layer(self, x: str, layer: int) -> str:
        work, dim = self.work, self.work.size("HEAD_DIM")
        heads, kv_heads = work.size("NUM_HEADS"), work.size("NUM_KV_HEADS")

        def product(value: str, name: str) -> str:
            return self._product(value, f"{name}{layer}", work.matrix(name, layer))

        normed = self._norm(x, work.size("HIDDEN"))
        q = self._head_norm(product(normed, "wq"), heads)
        k = self._head_norm(product(normed, "wk"), kv_heads)
        attention = self._node(
            "GroupQueryAttention",
            [
                *(q, k, product(normed, "wv"), f"past_k{layer}", f"past_v{layer}"),
                *("lengths", "total", "cos", "sin"),
            ],
            [f"attention{layer}", f"present_k{layer}", f"present_v{layer}"],
            domain="com.microsoft",
            num_heads=heads,
            kv_num_heads=kv_heads,
            do_rotary=1,
            scale=dim**-0.5,
        )
        x = self._node("Add", [x, product(attention, "wo")])
        normed = self._norm(x, work.size("HIDDEN"))
        gate, up = product(normed, "w_gate"), product(normed, "w_up")
        silu = self._node("Mul", [gate, self._node("Sigmoid", [gate])])
        return self._node("Add", [x, product(self._node("Mul", [silu, up]), "w_down")])

    def _head_norm(self, x: str, heads: int) -> str:
        dim = self.work.size("HEAD_DIM")
        apart = self._small(f"apart{heads}", np.array([0, 0, heads, dim], np.int64))
        joined = self._small(f"joined{heads}", np.array([0, 0, heads * dim], np.int64))
        normed = self._norm(self._node("Reshape", [x, apart]), dim)
        return self._node("Reshape", [normed, joined])

    def _norm(self, x: str, width: int) -> str:
        ones = self._small(f"ones{width}", np.ones(width, np.float32))
        epsilon = float(self.work.names["EPS"])
        return self._node("SimplifiedLayerNormalization", [x, ones], epsilon=epsilon, axis=-1)

    def _product(self, x: str, name: str, bits: Any, result: str = "") -> str:
        values = _floats(bits)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights"),
            ("offset", self.size),
            ("length", values.nbytes),
        ):
            tensor.external_data.add(key=key, value=str(value))
        np.ascontiguousarray(values).tofile(self.file)
        # A mapping of it begins at a whole page.
        padding = -values.nbytes % (1 << 16)
        self.file.write(bytes(padding))
        self.file.flush()
        self.size += values.nbytes + padding
        self.initializers.append(tensor)
        return self._node("MatMul", [x, name], [result] if result else ())

    def _node(
        self, kind: str, inputs: Any, outputs: Any = (), domain: str = "", **more: Any
    ) -> str:
        names = list(outputs) or [f"n{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **more))
        return str(names[0])

    def _small(self, name: str, values: Any) -> str:
        if all(each.name != name for each in self.initializers):
            self.initializers.append(onnx.numpy_helper.from_array(values, name))
        return name


def _value(name: str, shape: list[Any], dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)
