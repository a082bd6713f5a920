"""Greedy generation: prompts in chunks through prefill, then decode, with a paged K/V cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aotc.errors import AotcError
from aotc.weights import Allocate, Names, host_memory, rope_tables, view

if TYPE_CHECKING:
    from torch import Tensor

_PROJECTIONS = ("input_rms_weight", "wq", "wk", "wv", "q_norm_weight", "k_norm_weight")
_REST = (
    *("k_cache", "v_cache", "wo", "w_gate", "w_up", "w_down"),
    *("post_rms_weight", "final_norm_weight", "lm_head_weight", "out"),
)
# The tensors that the wrappers take, in order.
PREFILL = (
    *("hidden_states", "seq_lens", "chunk_lens", "chunk_offsets"),
    *_PROJECTIONS,
    *("rope_cos", "rope_sin", "block_table", "slot_mapping"),
    *_REST,
)
DECODE = (
    *_PROJECTIONS,
    *("seq_lens", "block_table", "slot_mapping", "rope_cos", "rope_sin"),
    *_REST,
    *("embed_weight", "sampled_ids_in", "sampled_ids", "next_hidden"),
)
GREEDY_SAMPLE = ("out", "sampled_ids")


@dataclass(frozen=True)
class Programs:
    """What runs the model: loaded programs on one worker, or the golden functions.

    Each takes the tensors of its wrapper by position and writes its outputs in place.
    """

    prefill: Callable[..., object]
    decode: Callable[..., object]
    greedy_sample: Callable[..., object]


class Generator:
    """Generates greedily with a model of `weights` and the names of its config.

    `max_seq_len` sizes the RoPE tables and the cache: prompt and new tokens of a sequence have to
    fit. `chunk_tokens` bounds the prompt tokens of one prefill, MAX_PREFILL_TOKENS if not given.
    `allocate` provides tables and caches, on the device of the programs. Raises AotcError for a
    bound that the model config does not allow.
    """

    def __init__(
        self,
        programs: Programs,
        names: Names,
        weights: Mapping[str, Any],
        *,
        max_seq_len: int,
        chunk_tokens: int | None = None,
        allocate: Allocate = host_memory,
    ):
        _check_range("max_seq_len", max_seq_len, names["MAX_SEQ"])
        if chunk_tokens is None:
            chunk_tokens = int(names["MAX_PREFILL_TOKENS"])
        _check_range("chunk_tokens", chunk_tokens, names["MAX_PREFILL_TOKENS"])
        self._programs = programs
        self._names = names
        self._max_seq_len = max_seq_len
        self._chunk_tokens = chunk_tokens
        self._allocate = allocate
        cos, sin = rope_tables(names, max_seq_len, allocate)
        self._tensors = {**weights, "rope_cos": cos, "rope_sin": sin}

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: Collection[int] = ()
    ) -> list[list[int]]:
        """Return the new tokens of each prompt; see `stream`."""
        result: list[list[int]] = [[] for _ in prompts]
        for tokens in self.stream(prompts, max_new_tokens, stop):
            for row, token in enumerate(tokens):
                if token is not None:
                    result[row].append(token)
        return result

    def stream(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: Collection[int] = ()
    ) -> Iterator[list[int | None]]:
        """Yield the next token of every prompt, up to `max_new_tokens` times.

        A prompt ends after a token of `stop`, and yields None from then on. Raises AotcError,
        before anything runs, for too many prompts, and for one that is empty, does not fit, or
        has an id outside the vocabulary.
        """
        self._check(prompts, max_new_tokens)
        return self._run(prompts, max_new_tokens, stop)

    def _run(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, stop: Collection[int]
    ) -> Iterator[list[int | None]]:
        sequences = _Sequences(
            self._names, self._tensors, len(prompts), self._max_seq_len, self._allocate
        )
        ended = [False] * len(prompts)
        for step in range(max_new_tokens):
            if step == 0:
                ids = self._prefill(sequences, prompts)
            else:
                ids = self._decode(sequences, ids)
            yield [None if end else token for end, token in zip(ended, ids, strict=True)]
            ended = [end or token in stop for end, token in zip(ended, ids, strict=True)]
            if all(ended):
                return

    def _prefill(self, sequences: _Sequences, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Run the prompts in chunks; return the first new token of each."""
        tensors = sequences.tensors
        embed = view(tensors["embed_weight"])
        first = [0] * len(prompts)
        while any(n < len(p) for n, p in zip(sequences.lens, prompts, strict=True)):
            budget = self._chunk_tokens
            chunks: list[Sequence[int]] = []
            for length, ids in zip(sequences.lens, prompts, strict=True):
                chunks.append(ids[length : length + budget])
                budget -= len(chunks[-1])
            sizes = [len(chunk) for chunk in chunks]
            sequences.extend(sizes)
            tensors["hidden_states"] = embed[_int32([token for ids in chunks for token in ids])]
            tensors["chunk_lens"] = _int32(sizes)
            tensors["chunk_offsets"] = _int32([sum(sizes[:row]) for row in range(len(sizes))])
            self._programs.prefill(*(tensors[name] for name in PREFILL))
            # Only where a prompt ends are the logits those of its last token.
            ends = [
                row
                for row, size in enumerate(sizes)
                if size and sequences.lens[row] == len(prompts[row])
            ]
            if ends:
                self._programs.greedy_sample(*(tensors[name] for name in GREEDY_SAMPLE))
                for row in ends:
                    first[row] = int(tensors["sampled_ids"][row, 0])
        return first

    def _decode(self, sequences: _Sequences, ids: Sequence[int]) -> list[int]:
        tensors = sequences.tensors
        sequences.extend([1] * len(ids))
        tensors["sampled_ids_in"][:, 0] = _int32(ids)
        self._programs.decode(*(tensors[name] for name in DECODE))
        sampled: list[int] = tensors["sampled_ids"][:, 0].tolist()
        return sampled

    def _check(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        if not prompts:
            raise AotcError("no prompt given")
        _check_range("the number of prompts", len(prompts), self._names["MAX_BATCH"])
        if max_new_tokens < 1:
            raise AotcError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        vocabulary = int(self._names["REAL_VOCAB"])
        for number, ids in enumerate(prompts, start=1):
            if not ids:
                raise AotcError(f"prompt {number} is empty")
            for token in ids:
                if not 0 <= token < vocabulary:
                    raise AotcError(
                        f"prompt {number}: id {token} is outside the vocabulary of {vocabulary}"
                    )
            total = len(ids) + max_new_tokens
            if total > self._max_seq_len:
                raise AotcError(
                    f"prompt {number}: {len(ids)} tokens and {max_new_tokens} new ones are "
                    f"{total}, more than max_seq_len = {self._max_seq_len}",
                    hint=f"raise max_seq_len, up to {self._names['MAX_SEQ']}",
                )


class _Sequences:
    """The sequences of one batch: their lengths, their pages, and the tensors of a call."""

    def __init__(
        self,
        names: Names,
        tensors: Mapping[str, Any],
        batch: int,
        max_seq_len: int,
        allocate: Allocate,
    ):
        import torch

        self._page_size = int(names["PAGE_SIZE"])
        pages = -(-max_seq_len // self._page_size)
        self._free = list(reversed(range(batch * pages)))
        self._pages: list[list[int]] = [[] for _ in range(batch)]
        self._table = torch.zeros((batch, pages), dtype=torch.int32)
        self.lens = [0] * batch
        ids = (batch, int(names["SAMPLED_IDS_PAD"]))
        layers = tensors["input_rms_weight"].shape[0]
        rows = layers * batch * pages * self._page_size * int(names["NUM_KV_HEADS"])
        cache = (rows, int(names["HEAD_DIM"]))
        self.tensors = {
            **tensors,
            "k_cache": allocate("k_cache", cache, "bf16"),
            "v_cache": allocate("v_cache", cache, "bf16"),
            "block_table": self._table.view(-1),
            "out": torch.empty((batch, int(names["VOCAB"])), dtype=torch.float32),
            "sampled_ids_in": torch.zeros(ids, dtype=torch.int32),
            "sampled_ids": torch.zeros(ids, dtype=torch.int32),
            "next_hidden": torch.empty((batch, int(names["HIDDEN"])), dtype=torch.bfloat16),
        }

    def extend(self, sizes: Sequence[int]) -> None:
        """Append `sizes[row]` tokens to each row; pages are taken as they are needed."""
        slots: list[int] = []
        for row, size in enumerate(sizes):
            pages = self._pages[row]
            for position in range(self.lens[row], self.lens[row] + size):
                page, offset = divmod(position, self._page_size)
                if page == len(pages):
                    pages.append(self._free.pop())
                    self._table[row, page] = pages[page]
                slots.append(pages[page] * self._page_size + offset)
            self.lens[row] += size
        self.tensors["slot_mapping"] = _int32(slots)
        self.tensors["seq_lens"] = _int32(self.lens)


def _int32(values: Sequence[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)


def _check_range(what: str, value: int, most: int | float) -> None:
    if not 1 <= value <= most:
        raise AotcError(f"{what} must be from 1 to {most}, got {value}")
