"""Operators of PyPTO that aotc does not compile yet, each with what to write instead."""

from __future__ import annotations

_BATCHED = "loop over the batch and use pl.matmul on each matrix"
_CROSS_CORE = "a CPU has no cube and vector cores to pass tiles between; use the value directly"
_SCATTER = "write the rows or elements in a loop, with pl.assemble or pl.write"
_SORT = "use pl.row_argmax in a loop"
_MX = "cast the operands to bf16 and use pl.matmul"
_PART = "use the operator of the same name without `part_` on fully valid operands"

_HINTS: dict[str, str | None] = {
    **dict.fromkeys(("random", "reinterpret_view", "view", "tri", "sin", "cos"), None),
    **dict.fromkeys(("create_l1",), "use pl.create_tensor"),
    **dict.fromkeys(("batch_matmul", "batch_matmul_acc"), _BATCHED),
    **dict.fromkeys(("matmul_mx", "matmul_mx_acc", "matmul_mx_bias"), _MX),
    **dict.fromkeys(("part_add", "part_mul", "part_max", "part_min"), _PART),
    **dict.fromkeys(("scatter", "scatter_update", "scatter_mask", "mscatter"), _SCATTER),
    **dict.fromkeys(("paged_gather", "gather_row", "mgather"), "slice the rows in a loop"),
    **dict.fromkeys(("gatherb", "gather_mask", "gather_compare"), "use pl.gather by index"),
    **dict.fromkeys(("sort32", "mrgsort"), _SORT),
    **dict.fromkeys(("aiv_shard", "aic_gather", "reserve_buffer"), _CROSS_CORE),
    **dict.fromkeys(("import_peer_buffer", "AUTO"), _CROSS_CORE),
    **dict.fromkeys(("tpush_to_aiv", "tpush_to_aic", "tpop_from_aic"), _CROSS_CORE),
    **dict.fromkeys(("tpop_from_aiv", "tfree_to_aic", "tfree_to_aiv"), _CROSS_CORE),
    **dict.fromkeys(("aic_initialize_pipe", "aiv_initialize_pipe"), _CROSS_CORE),
    **dict.fromkeys(("alloc",), "use pl.create_tensor or pl.create_tile"),
}
_NAMESPACES = ("tensor.", "tile.", "system.")


def is_known(spelling: str) -> bool:
    """Return whether `pl.SPELLING` is an operator of PyPTO that is not supported yet."""
    return _bare(spelling) in _HINTS


def hint(spelling: str) -> str | None:
    """Return what to write instead of `pl.SPELLING`, or None where there is nothing to say."""
    return _HINTS.get(_bare(spelling))


def _bare(spelling: str) -> str:
    for namespace in _NAMESPACES:
        if spelling.startswith(namespace):
            return spelling.removeprefix(namespace)
    return spelling
