"""What is measured: the cases by name, and the weights that every engine is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Names = Mapping[str, int | float]

# Runs once. What returns a float reports the seconds itself; else the call is timed.
Action = Callable[[], object]

_PERIOD = (1 << 20) + 7  # elements until the random values repeat
_SCALE = 0.017  # uniform up to here: a standard deviation of 0.01


@dataclass(frozen=True)
class Plan:
    """What to run: batches, contexts, prompts, and for how long."""

    batches: Sequence[int] = (1, 4, 16)
    contexts: Sequence[int] = (128, 4096)
    prompts: Sequence[int] = (128, 512)
    rounds: int = 7
    seconds: float = 40.0  # of each group of runs that are compared

    def decodes(self) -> dict[str, tuple[int, int]]:
        """Return batch and context of each decode step, by its name."""
        return {
            decode_case(batch, context): (batch, context)
            for context in self.contexts
            for batch in self.batches
        }

    def prefills(self) -> dict[str, int]:
        """Return the tokens of each prefill, by its name."""
        return {prefill_case(tokens): tokens for tokens in self.prompts}


def decode_case(batch: int, context: int) -> str:
    """Return the name of a decode step."""
    return f"decode, batch {batch}, context {context}"


def prefill_case(tokens: int) -> str:
    """Return the name of a prefill."""
    return f"prefill, {tokens} tokens"


@dataclass(frozen=True)
class Work:
    """What an engine is to run: a model, its layers, threads and the cases."""

    names: Names
    layers: int
    threads: int
    plan: Plan

    def size(self, name: str) -> int:
        """Return a dimension of the model by its name in the config."""
        return int(self.names[name])

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return (K, N) of the matrices of a layer, by their names in the programs."""
        hidden, q, kv = self.size("HIDDEN"), self.size("Q_HIDDEN"), self.size("KV_HIDDEN")
        inner = self.size("INTERMEDIATE")
        return {
            **{"wq": (hidden, q), "wk": (hidden, kv), "wv": (hidden, kv), "wo": (q, hidden)},
            **{"w_gate": (hidden, inner), "w_up": (hidden, inner), "w_down": (inner, hidden)},
        }

    def matrix(self, name: str, layer: int) -> Any:
        """Return the bits of a bf16 matrix of a layer, [K, N]: what the programs are given."""
        rows, columns = self.matrices()[name]
        return random_bf16(rows * columns, layer * rows * columns).reshape(rows, columns)

    def transposed(self, name: str, layer: int) -> Any:
        """Return the bits of the same matrix as [N, K]."""
        matrix = self.matrix(name, layer)
        result = np.empty(matrix.shape[::-1], np.uint16)
        for begin in range(0, len(result), 64):  # by bands that fit a cache
            result[begin : begin + 64] = matrix[:, begin : begin + 64].T
        return result

    def head(self) -> Any:
        """Return the bits of the output matrix, bf16 [VOCAB, HIDDEN], which embeds as well."""
        shape = (self.size("VOCAB"), self.size("HIDDEN"))
        return random_bf16(shape[0] * shape[1]).reshape(shape)

    def angles(self, positions: Any) -> tuple[Any, Any]:
        """Return cos and sin of the rotary embedding, fp32 [positions, HEAD_DIM]."""
        return rotary(self.names, positions)


def rotary(names: Names, positions: Any) -> tuple[Any, Any]:
    """Return cos and sin of the rotary embedding at some positions, fp32 [positions, HEAD_DIM]."""
    half = int(names["HEAD_DIM"]) // 2
    steps = float(names["ROPE_THETA"]) ** (-np.arange(half) / half)
    angles = np.tile(np.asarray(positions)[:, None] * steps, 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def random_bf16(count: int, start: int = 0) -> Any:
    """Return the bits of random bf16 values around zero: `count` of a sequence from `start` on."""
    values = np.random.default_rng(0).uniform(-_SCALE, _SCALE, _PERIOD)
    pattern = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    pattern = np.roll(pattern, -(start % _PERIOD))[:count]
    result = np.empty(count, np.uint16)
    filled = len(pattern)
    result[:filled] = pattern
    while filled < count:
        # What is there is copied to its end, so that every pass is one large copy.
        step = min(filled, count - filled)
        result[filled : filled + step] = result[:step]
        filled += step
    return result
