"""What `aotc run` puts into the integers of a call: every sequence as long as the extents allow.

The names in capitals are those of the model config.
"""


def decode(symbols: dict[str, int]) -> dict[str, list[int]]:
    """Each sequence runs the last token that its pages and the RoPE tables have room for."""
    batch = symbols["BATCH_DYN"]
    table, length = _pages(symbols)
    slots = [_slot(table, row, batch, length - 1) for row in range(batch)]
    ids = [token % REAL_VOCAB for row in range(batch) for token in [row] * SAMPLED_IDS_PAD]
    return {
        "seq_lens": [length] * batch,
        "block_table": table,
        "slot_mapping": slots,
        "sampled_ids_in": ids,
    }


def prefill(symbols: dict[str, int]) -> dict[str, list[int]]:
    """Each sequence runs its share of the tokens, at its end."""
    batch, tokens = symbols["BATCH_DYN"], symbols["PREFILL_TOKENS_DYN"]
    table, length = _pages(symbols)
    share = [
        min(tokens * (row + 1) // batch - tokens * row // batch, length) for row in range(batch)
    ]
    slots = [
        _slot(table, row, batch, position)
        for row in range(batch)
        for position in range(length - share[row], length)
    ]
    return {
        "seq_lens": [length] * batch,
        "chunk_lens": share,
        "chunk_offsets": [sum(share[:row]) for row in range(batch)],
        "block_table": table,
        "slot_mapping": slots + [0] * (tokens - len(slots)),
    }


def _pages(symbols: dict[str, int]) -> tuple[list[int], int]:
    """Return the block table, and the length of each sequence; a small cache is shared by them."""
    batch, entries = symbols["BATCH_DYN"], symbols["BLOCK_TABLE_FLAT_DYN"]
    page_rows = symbols["LAYER_DYN"] * NUM_KV_HEADS * PAGE_SIZE
    pages = symbols["KV_CACHE_ROWS_DYN"] // page_rows
    length = min(symbols["ROPE_SEQ_DYN"], entries // batch * PAGE_SIZE, pages * PAGE_SIZE)
    return [entry % pages for entry in range(entries)], length


def _slot(table: list[int], row: int, batch: int, position: int) -> int:
    page = table[row * (len(table) // batch) + position // PAGE_SIZE]
    return page * PAGE_SIZE + position % PAGE_SIZE
