"""A Qwen3 of true widths on a worker: random weights, a paged cache, and calls ready to run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotc.contract import Contract, Parameter
from aotc.runtime import BoundCall, DeviceTensor, Program, Worker
from bench.work import Names, random_bf16, rotary


class Sizes:
    """What a call has to move and to compute, by the names of the model config."""

    def __init__(self, names: Names, layers: int):
        self.layers = layers
        self.all_layers = int(names["NUM_LAYERS"])
        self._hidden, inner = int(names["HIDDEN"]), int(names["INTERMEDIATE"])
        self._q, self._kv = int(names["Q_HIDDEN"]), int(names["KV_HIDDEN"])
        self._layer = self._hidden * (2 * self._q + 2 * self._kv + 3 * inner)
        self._head = self._hidden * int(names["VOCAB"])

    @property
    def head_bytes(self) -> int:
        """The bytes of the output matrix."""
        return 2 * self._head

    def cache_bytes(self, batch: int, context: int) -> int:
        """Return the bytes of K and V that a decode step reads."""
        return self.layers * batch * context * 2 * self._kv * 2

    def decode_bytes(self, batch: int, context: int, layers: int | None = None) -> int:
        """Return the bytes of weights, K, V and embeddings that a decode step reads."""
        layers = layers or self.layers
        cache = self.cache_bytes(batch, context) * layers // self.layers
        return 2 * (layers * self._layer + self._head + batch * self._hidden) + cache

    def decode_flops(self, batch: int, context: int) -> int:
        """Return the operations of the products of a decode step."""
        attention = self.layers * 2 * context * self._q
        return 2 * batch * (self.layers * self._layer + self._head + attention)

    def prefill_flops(self, tokens: int) -> int:
        """Return the operations in the layers for one prompt; the output matrix is apart."""
        attention = tokens * (tokens + 1) * self._q
        return 2 * self.layers * (tokens * self._layer + attention)


def weight_sizes(names: Names, layers: int, pages: int) -> dict[str, int]:
    """Return the dynamic dimensions of the weights, and of a cache of so many pages a layer."""
    return {
        "LAYER_DYN": layers,
        "LAYER_HIDDEN_ROWS_DYN": layers * int(names["HIDDEN"]),
        "LAYER_Q_ROWS_DYN": layers * int(names["Q_HIDDEN"]),
        "LAYER_INTER_ROWS_DYN": layers * int(names["INTERMEDIATE"]),
        "KV_CACHE_ROWS_DYN": layers * pages * int(names["PAGE_SIZE"]) * int(names["NUM_KV_HEADS"]),
    }


def shape_of(parameter: Parameter, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a parameter whose dynamic dimensions have these sizes."""
    return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in parameter.dims)


class Model:
    """Weights and cache on `worker`, for the programs that are given.

    `sequences` of `max_context` tokens fit into the cache; their pages lie in random order.
    `nbytes` are those of the tensors; `upload_rate` is what `alloc_tensor` reached, in bytes a
    second, and `copy_rate` what copying the same again into memory that is there takes.
    """

    def __init__(
        self,
        worker: Worker,
        names: Names,
        programs: Sequence[Program],
        *,
        layers: int,
        sequences: int,
        max_context: int,
    ):
        self._worker, self._names = worker, names
        self._page = int(names["PAGE_SIZE"])
        self._pages_each = -(-max_context // self._page)
        pages = sequences * self._pages_each
        order = np.random.default_rng(0).permutation(pages).astype(np.int32)
        self._pages = order.reshape(sequences, self._pages_each)
        self._sizes = {**weight_sizes(names, layers, pages), "ROPE_SEQ_DYN": max_context}
        self.tensors: dict[str, DeviceTensor] = {}
        self._logits: list[DeviceTensor] = []
        for program in programs:
            worker.load(program)  # so that it knows which weights to pack
        self._upload([program.contract for program in programs])

    def decode(self, program: Program, batch: int, context: int, first: int = 0) -> BoundCall:
        """Return a step whose new token is the last of `context`, for `batch` sequences."""
        rows = np.arange(first, first + batch)
        ids = np.zeros((batch, int(self._names["SAMPLED_IDS_PAD"])), np.int32)
        ids[:, 0] = np.random.default_rng(batch).integers(
            int(self._names["REAL_VOCAB"]), size=batch
        )
        self.tensors["embed_weight"].numpy()[ids[:, 0]] = random_bf16(int(self._names["HIDDEN"]))
        given = {
            "seq_lens": np.full(batch, context, np.int32),
            "slot_mapping": self._slots(rows, np.array([context - 1])),
            "sampled_ids_in": ids,
        }
        return self._bind(program, rows, given)

    def prefill(self, program: Program, tokens: int) -> BoundCall:
        """Return a prefill of one prompt of so many tokens."""
        rows = np.zeros(1, np.int64)
        given = {
            "seq_lens": np.array([tokens], np.int32),
            "chunk_lens": np.array([tokens], np.int32),
            "chunk_offsets": np.zeros(1, np.int32),
            "slot_mapping": self._slots(rows, np.arange(tokens)),
        }
        return self._bind(program, rows, given, tokens)

    def check(self) -> None:
        """Raise RuntimeError where a call, all having run, left no sensible logits."""
        for logits in self._logits:
            if not np.isfinite(logits.numpy()).all() or not logits.numpy().any():
                raise RuntimeError("a program computed no finite logits")

    def free(self) -> None:
        """Give the memory back."""
        for tensor in self.tensors.values():
            tensor.free()

    def _upload(self, contracts: Sequence[Contract]) -> None:
        weights = {
            each.name: shape_of(each, self._sizes)
            for contract in contracts
            for each in contract.parameters
            if all(isinstance(dim, int) or dim in self._sizes for dim in each.dims)
        }
        dtypes = {each.name: each.dtype for each in contracts[0].parameters}
        host = random_bf16(max(math.prod(shape) for shape in weights.values()))
        moved, seconds = 0, 0.0
        for name, shape in weights.items():
            if name == "embed_weight":
                continue
            count = math.prod(shape)
            values = host[:count] if dtypes[name] == "bf16" else self._fp32(name, shape)
            begin = time.perf_counter()
            tensor = self._worker.alloc_tensor(
                shape, dtypes[name], init=values.reshape(shape), parameter=name
            )
            seconds += time.perf_counter() - begin
            moved += tensor.nbytes
            self.tensors[name] = tensor
        self.nbytes = moved
        self.upload_rate = moved / seconds
        self.copy_rate = self._copy_again(host)
        # Only a row of it is read for a token: the others stay zero, and take no memory.
        self.tensors["embed_weight"] = self._worker.alloc_tensor(
            self.tensors["lm_head_weight"].shape, "bf16"
        )

    def _copy_again(self, host: Any) -> float:
        tensor = self.tensors["lm_head_weight"]
        values = host[: math.prod(tensor.shape)].reshape(tensor.shape)
        begin = time.perf_counter()
        tensor.copy_from(values)
        return tensor.nbytes / (time.perf_counter() - begin)

    def _fp32(self, name: str, shape: tuple[int, ...]) -> Any:
        if name not in ("rope_cos", "rope_sin"):
            return np.ones(shape, np.float32)
        cos, sin = rotary(self._names, np.arange(shape[0]))
        return cos if name == "rope_cos" else sin

    def _slots(self, rows: Any, positions: Any) -> Any:
        pages = self._pages[np.ix_(rows, positions // self._page)]
        return (pages * self._page + positions % self._page).reshape(-1).astype(np.int32)

    def _bind(
        self, program: Program, rows: Any, given: dict[str, Any], tokens: int = 0
    ) -> BoundCall:
        given["block_table"] = self._pages[rows].reshape(-1)
        sizes = {**self._sizes, "BATCH_DYN": len(rows), "PREFILL_TOKENS_DYN": tokens}
        arguments = []
        for each in program.contract.parameters:
            if each.name in given:
                arguments.append(given[each.name])
            elif each.name in self.tensors:
                arguments.append(self.tensors[each.name])
            else:
                shape = shape_of(each, sizes)
                values = random_bf16(math.prod(shape)) if each.dtype == "bf16" else None
                init = None if values is None else values.reshape(shape)
                arguments.append(self._worker.alloc_tensor(shape, each.dtype, init=init))
                if each.name == "out":
                    self._logits.append(arguments[-1])
        return self._worker.load(program).bind(*arguments)
