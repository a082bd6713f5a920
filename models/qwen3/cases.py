"""What `aotc verify` runs the programs of Qwen3 on: full widths, few layers, every corner.

The names in capitals are those of the model config. Weights are made once for all programs. Pages
of the cache are scattered; what no sequence has written is NaN, and entries of the block table
past a sequence's end lead to a page that is NaN altogether, so that a stray read shows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from aotc.verify.case import Alone, Case, logits, sampled
from aotc.weights import random_weights, rope_tables

# What one case may cost: a multiplication and an addition for each weight and row.
WEIGHTS_PER_LAYER = (
    HIDDEN * (2 * NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM + 3 * HIDDEN * INTERMEDIATE
)
LAYERS = min(NUM_LAYERS, max(2, min(4, 10**7 // WEIGHTS_PER_LAYER)))
MAX_TOKENS = min(MAX_PREFILL_TOKENS, max(2, 5 * 10**10 // WEIGHTS_PER_LAYER))
# The tolerance for one layer; for several so many times that. Measured on two layers of Qwen3-14B:
# a golden whose dots sum in another order has up to 2 % of its prefill logits outside of one such
# tolerance from itself, and none that differs by more than half a bf16 step of its row.
PREFILL_TOLERANCE = 5e-3
DECODE_TOLERANCE = 3e-3
TABLE_PAGES = -(-MAX_SEQ // PAGE_SIZE)

NAMES = {
    "HIDDEN": HIDDEN,
    "INTERMEDIATE": INTERMEDIATE,
    "NUM_LAYERS": NUM_LAYERS,
    "NUM_HEADS": NUM_HEADS,
    "NUM_KV_HEADS": NUM_KV_HEADS,
    "HEAD_DIM": HEAD_DIM,
    "REAL_VOCAB": REAL_VOCAB,
    "VOCAB": VOCAB,
    "ROPE_THETA": ROPE_THETA,
}
PER_LAYER = {
    *("input_rms_weight", "wq", "wk", "wv", "q_norm_weight", "k_norm_weight", "wo"),
    *("w_gate", "w_up", "w_down", "post_rms_weight"),
}


def prefill_cases(seed: int):
    """Yield chunks, as (tokens in the cache already, tokens of the chunk)."""
    random = torch.Generator().manual_seed(seed)
    page = PAGE_SIZE
    make = functools.partial(_prefill, random)
    yield make("one token, the first", [(0, 1)], layers=1, positions=1, pages=1, spare=0)
    yield make(
        "batch 3, ragged, over pages",
        [(2 * page, 1), (page - 2, 7), (page - 5, 5)],
        layers=LAYERS,
        positions=3 * page,
        pages=3,
        gap=1,
        alone=True,
    )
    length = min(MAX_TOKENS, MAX_SEQ)
    yield make("a chunk of pages", [(0, length)], layers=1, positions=length, pages=TABLE_PAGES)
    # The golden takes the sequences one by one, each with all the weights.
    lens = [0] * MAX_BATCH
    lens[0], lens[-1], lens[MAX_BATCH // 2] = 3, 1, 2
    starts = _draw(random, MAX_BATCH, 1, 2 * page)
    starts[0] = MAX_SEQ - 3
    yield make(
        f"batch {MAX_BATCH}, up to MAX_SEQ, rows without a chunk",
        list(zip(starts, lens, strict=True)),
        layers=1,
        positions=MAX_SEQ,
        pages=TABLE_PAGES,
    )
    batch = _draw(random, 1, 2, min(6, MAX_BATCH))[0]
    lens = _draw(random, batch, 1, 1 + min(20, (MAX_TOKENS - batch) // batch))
    chunks = list(zip(_draw(random, batch, 0, 2 * page), lens, strict=True))
    yield make(
        f"random, seed {seed}: {_shown(chunks)}",
        chunks,
        layers=LAYERS,
        positions=min(MAX_SEQ, 4 * page),
        pages=5,
    )


def decode_cases(seed: int):
    """Yield sequences, as their lengths with the token that runs."""
    random = torch.Generator().manual_seed(seed)
    page = PAGE_SIZE
    make = functools.partial(_decode, random)
    yield make("one sequence, its first token", [1], layers=1, positions=1, pages=1, spare=0)
    yield make(
        "batch 3, at the end of a page and past it",
        [page, page + 1, 3 * page - 7],
        layers=LAYERS,
        positions=3 * page,
        pages=3,
        alone=(0, 1, 2),
    )
    lens = _draw(random, MAX_BATCH, 1, 3 * page)
    lens[-1], lens[-2] = MAX_SEQ, 1
    yield make(
        f"batch {MAX_BATCH}, up to MAX_SEQ",
        lens,
        layers=LAYERS,
        positions=MAX_SEQ,
        pages=TABLE_PAGES,
        alone=(0,),
    )
    lens = _draw(random, _draw(random, 1, 2, MAX_BATCH)[0], 1, 4 * page)
    yield make(
        f"random, seed {seed}: lengths {', '.join(map(str, lens))}",
        lens,
        layers=1,
        positions=min(MAX_SEQ, 4 * page),
        pages=5,
    )


def greedy_sample_cases(seed: int):
    """Yield logits: random, with equal ones, and with greater ones past REAL_VOCAB."""
    random = torch.Generator().manual_seed(seed)
    for batch in (1, MAX_BATCH):
        scores = torch.randn(batch, VOCAB, generator=random)
        yield _greedy_sample(f"batch {batch}, random, seed {seed}", scores)
    scores = torch.randn(min(4, MAX_BATCH), VOCAB, generator=random)
    scores[:, REAL_VOCAB:] = 100.0
    places = [[0], [REAL_VOCAB - 1], [REAL_VOCAB // 2, REAL_VOCAB // 3, REAL_VOCAB - 1]]
    for row, columns in zip(scores, places, strict=False):
        row[columns] = 50.0
    scores[-1, :REAL_VOCAB] = -7.0
    yield _greedy_sample("the first, the last, equal ones, and padding greater", scores)


@functools.cache
def _weights(layers: int) -> dict[str, Tensor]:
    """Return the weights of the first `layers`, in the memory of those of all of them."""
    if layers < LAYERS:
        return {
            name: weight[: weight.shape[0] // LAYERS * layers] if name in PER_LAYER else weight
            for name, weight in _weights(LAYERS).items()
        }
    return random_weights(NAMES, 0, layers=layers)


@dataclass(frozen=True)
class _Cache:
    """Sequences in a paged cache, of which the first `starts` tokens are there already."""

    table: Tensor  # int32 [batch, pages of a sequence]
    slots: list[Tensor]  # int32 [end - start], of the tokens to come
    rows: list[Tensor]  # rows of the caches that the tokens to come are written to
    caches: dict[str, Tensor]


def _cache(
    random: torch.Generator,
    starts: list[int],
    ends: list[int],
    layers: int,
    pages: int,
    spare: int,
) -> _Cache:
    used = [-(-end // PAGE_SIZE) for end in ends]
    total = sum(used) + spare
    order = torch.randperm(total, generator=random).int()
    table = torch.full((len(ends), pages), int(order[-1]), dtype=torch.int32)
    shape = (layers, total * PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM)
    k, v = (torch.full(shape, torch.nan, dtype=torch.bfloat16) for _ in range(2))
    slots, rows = [], []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        table[row, : used[row]], order = order[: used[row]], order[used[row] :]
        positions = torch.arange(end)
        all_slots = table[row, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        for cache in (k, v):
            old = torch.randn((layers, start, NUM_KV_HEADS, HEAD_DIM), generator=random)
            cache[:, all_slots[:start].long()] = old.bfloat16()
        slots.append(all_slots[start:].int())
        layer = torch.arange(layers)[:, None, None] * shape[1]
        place = (layer + all_slots[start:, None]) * NUM_KV_HEADS + torch.arange(NUM_KV_HEADS)
        rows.append(place.flatten())
    caches = {"k_cache": k.view(-1, HEAD_DIM), "v_cache": v.view(-1, HEAD_DIM)}
    return _Cache(table, slots, rows, caches)


def _prefill(
    random: torch.Generator,
    name: str,
    chunks: list[tuple[int, int]],
    *,
    layers: int,
    positions: int,
    pages: int,
    spare: int = 1,
    gap: int = 0,
    alone: bool = False,
) -> Case:
    """Make a case; `gap` rows after each chunk belong to none."""
    starts = [start for start, _ in chunks]
    ends = [start + length for start, length in chunks]
    cache = _cache(random, starts, ends, layers, pages, spare)
    offsets, hidden, slots = [], [], []
    for row, (_, length) in enumerate(chunks):
        offsets.append(sum(len(each) for each in hidden))
        hidden.append(torch.randn((length, HIDDEN), generator=random).bfloat16())
        hidden.append(torch.full((gap, HIDDEN), torch.nan, dtype=torch.bfloat16))
        slots += [cache.slots[row], torch.zeros(gap, dtype=torch.int32)]
    arguments = {
        **_shared(layers, positions),
        **cache.caches,
        **_call(ends, cache.table),
        "hidden_states": torch.cat(hidden),
        "chunk_lens": _int32([length for _, length in chunks]),
        "chunk_offsets": _int32(offsets),
        "slot_mapping": torch.cat(slots),
    }
    parts = [
        Alone(
            f"sequence {row}",
            {
                **_call(ends[row : row + 1], cache.table[row : row + 1]),
                "hidden_states": hidden[2 * row],
                "chunk_lens": _int32([chunks[row][1]]),
                "chunk_offsets": _int32([0]),
                "slot_mapping": cache.slots[row],
            },
            {"out": (0, row), **{each: (cache.rows[row],) * 2 for each in cache.caches}},
        )
        for row in range(len(chunks) if alone else 0)
    ]
    tolerance = PREFILL_TOLERANCE * layers
    compare = {"out": logits("out", REAL_VOCAB, tolerance)}
    return Case(f"{name}; layers: {layers}", arguments, compare, tuple(parts), tolerance)


def _decode(
    random: torch.Generator,
    name: str,
    lens: list[int],
    *,
    layers: int,
    positions: int,
    pages: int,
    spare: int = 1,
    alone: tuple[int, ...] = (),
) -> Case:
    cache = _cache(random, [n - 1 for n in lens], lens, layers, pages, spare)
    ids = torch.full((len(lens), SAMPLED_IDS_PAD), -1, dtype=torch.int32)
    ids[:, 0] = torch.randint(REAL_VOCAB, (len(lens),), generator=random)

    def call(row: int, end: int) -> dict[str, Tensor]:
        return {
            **_call(lens[row:end], cache.table[row:end]),
            "slot_mapping": torch.cat(cache.slots[row:end]),
            "sampled_ids_in": ids[row:end],
            "sampled_ids": torch.empty((end - row, SAMPLED_IDS_PAD), dtype=torch.int32),
            "next_hidden": torch.empty((end - row, HIDDEN), dtype=torch.bfloat16),
        }

    arguments = {**_shared(layers, positions), **cache.caches, **call(0, len(lens))}
    parts = [
        Alone(
            f"sequence {row}",
            call(row, row + 1),
            {
                **{each: (0, row) for each in ("out", "sampled_ids", "next_hidden")},
                **{each: (cache.rows[row],) * 2 for each in cache.caches},
            },
        )
        for row in alone
    ]
    tolerance = DECODE_TOLERANCE * layers
    compare = {
        "out": logits("out", REAL_VOCAB, tolerance),
        "sampled_ids": sampled("sampled_ids", "out", REAL_VOCAB),
    }
    return Case(f"{name}; layers: {layers}", arguments, compare, tuple(parts), tolerance)


def _greedy_sample(name: str, scores: Tensor) -> Case:
    ids = torch.empty((scores.shape[0], SAMPLED_IDS_PAD), dtype=torch.int32)
    parts = [
        Alone(
            f"row {row}",
            {"logits": scores[row : row + 1], "sampled_ids": ids[row : row + 1]},
            {"sampled_ids": (0, row)},
        )
        for row in range(scores.shape[0])
    ]
    return Case(name, {"logits": scores, "sampled_ids": ids}, alone=tuple(parts))


def _shared(layers: int, positions: int) -> dict[str, Tensor]:
    cos, sin = rope_tables(NAMES, positions)
    return {**_weights(layers), "rope_cos": cos, "rope_sin": sin}


def _call(lens: list[int], table: Tensor) -> dict[str, Tensor]:
    out = torch.empty((len(lens), VOCAB))
    return {"seq_lens": _int32(lens), "block_table": table.flatten(), "out": out}


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _draw(random: torch.Generator, count: int, low: int, high: int) -> list[int]:
    """Draw `count` integers from `low` to `high`, inclusive."""
    return torch.randint(low, high + 1, (count,), generator=random).tolist()


def _shown(chunks: list[tuple[int, int]]) -> str:
    return ", ".join(f"{length} after {start}" for start, length in chunks)
