"""C that counts, in a profile build, what a region computes and moves.

Bytes are those of parameters and of workspace that the threads share, each element of a window
once for reading and once for writing; a thread's own workspace stays in its cache, and is not
counted. Flops are those of contractions, a multiplication and an addition for each product.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aotc.codegen import ctext
from aotc.codegen.nests import Contraction, Nest
from aotc.codegen.sharing import ROW_UNIT, UNIT, Touch
from aotc.ir.scalar import Scalar, constant_value

_VARIABLE = re.compile(r"\b(?:i\d+|[jr])\b")


def count_nests(nests: Sequence[Nest], team: bool) -> list[str]:
    """Return the count for nests that run row by row, or column by column, together.

    What one of them stores, the others find in a register or the nearest cache.
    """
    moved: dict[tuple[Touch, bool], str] = {}
    counts: list[str] = []
    stored = {touch for nest in nests for touch in nest.stores}
    for nest in nests:
        if isinstance(nest, Contraction):
            counts += _count_contraction(nest, team)
            continue
        for touches, written in ((nest.loads, False), (nest.stores, True)):
            for touch in touches:
                if not touch.access.buffer.private and (written or touch not in stored):
                    moved[touch, written] = _touched(nest, touch)
    if moved or not counts:
        counts += _count("0", list(moved.values()), team)
    return counts


def _count_contraction(nest: Contraction, team: bool) -> list[str]:
    m, n, k = map(_extent, nest.size)
    operands = (
        (nest.left, f"{m} * {k}"),
        (nest.right, f"{k} * {n}"),
        (nest.result, f"{m} * {n} * (1 + {nest.accumulate})"),
    )
    moved = [
        f"{elements} * {access.buffer.dtype.size}"
        for access, elements in operands
        if not access.buffer.private
    ]
    each = [f"for (int64_t s = 0; s < {ctext.scalar(size)}; ++s)" for size in nest.batch]
    return [*each, *_count(f"2 * {m} * {n} * {k}", moved, team)]


def _touched(nest: Nest, touch: Touch) -> str:
    """Return the bytes of the elements that the nest reaches by `touch`."""
    variables = {
        name
        for text, stride in zip(touch.index, touch.access.strides, strict=True)
        if constant_value(stride) != 0
        for name in ([text] if text == ROW_UNIT else _VARIABLE.findall(text))
    }
    factors = [_places(nest, name) for name in sorted(variables)]
    return " * ".join([*factors, str(touch.access.buffer.dtype.size)])


def _places(nest: Nest, variable: str) -> str:
    """Return how many places a loop variable leads to."""
    if variable == ROW_UNIT:
        return f"(({_extent(nest.extents['j'])} + {UNIT - 1}) / {UNIT})"
    if variable.startswith("i"):
        return _extent(nest.rows[int(variable[1:])])
    return _extent(nest.extents[variable])


def _extent(extent: Scalar) -> str:
    return f"aotc_scalar_max_index(0, {ctext.scalar(extent)})"


def _count(flops: str, moved: Sequence[str], team: bool) -> list[str]:
    line = f"aotc_profile_count(&profile, {flops}, {' + '.join(moved) or '0'});"
    return [f"if (thread == 0) {line}" if team else line]
