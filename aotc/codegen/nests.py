"""Loop nests: the C text of element-wise work and reductions, fused over rows.

A nest covers the leading dimensions of a tensor with loops over rows and handles the last
dimension inside. Nests over the same rows that touch each other's data only within a row join in
one group, so that a row is finished while it is in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aotc.codegen import ctext
from aotc.codegen.storage import Access, Buffer
from aotc.dtypes import BF16, FP16, FP32, DType
from aotc.ir.scalar import Scalar, constant_value

Index = tuple[str, ...]


@dataclass(frozen=True)
class Touch:
    """One read or write of memory: the window, and the place in it as C text."""

    access: Access
    index: Index


@dataclass
class Nest:
    """Work on each row: `rows` are the extents of the loops around `lines`."""

    rows: tuple[Scalar, ...]
    lines: list[str]
    loads: list[Touch]
    stores: list[Touch]
    comment: str = ""


def row_index(rows: Sequence[Scalar]) -> Index:
    """Return how rows of these extents are indexed: a loop variable each, 0 where there is one."""
    return tuple("0" if constant_value(n) == 1 else f"i{axis}" for axis, n in enumerate(rows))


def load(access: Access, index: Index) -> str:
    """Return the element as a C value: a float for every float type."""
    text = access.element(index)
    if access.buffer.dtype == BF16:
        return f"aotc_float_from_bf16({text})"
    return f"(float){text}" if access.buffer.dtype == FP16 else text


def store(access: Access, index: Index, value: str) -> str:
    """Return the statement that stores a C value."""
    dtype = access.buffer.dtype
    if dtype == BF16:
        value = f"aotc_bf16_from_float({value})"
    elif dtype != FP32:
        value = f"({dtype.c_type})({value})"
    return f"{access.element(index)} = {value};"


def column_loop(extent: Scalar, body: str) -> list[str]:
    """Return the loop over the last dimension, `j`, for iterations that are independent."""
    if constant_value(extent) == 1:
        return [body]
    return [
        "#pragma clang loop vectorize(assume_safety)",
        f"for (int64_t j = 0; j < {ctext.scalar(extent)}; ++j)",
        f"    {body}",
    ]


def column_index(extent: Scalar) -> str:
    """Return how the last dimension is indexed inside `column_loop`."""
    return "0" if constant_value(extent) == 1 else "j"


def row_reduction(
    combine: str, initial: str, dtype: DType, extent: Scalar, element: str, result: str
) -> list[str]:
    """Return the reduction of `element`, over `j` below `extent`, into the statement `result`.

    `result` uses the name `total`. Sixteen interleaved partial results are combined as a tree, so
    the order does not depend on the target's vector width.
    """
    c_type = ctext.value_type(dtype)
    return [
        "{",
        f"    {c_type} lane[AOTC_LANES];",
        f"    for (int l = 0; l < AOTC_LANES; ++l) lane[l] = {initial};",
        f"    const int64_t n = {ctext.scalar(extent)};",
        "    int64_t first = 0;",
        "    for (; first + AOTC_LANES <= n; first += AOTC_LANES)",
        "        for (int l = 0; l < AOTC_LANES; ++l) {",
        "            const int64_t j = first + l;",
        f"            lane[l] = {combine}(lane[l], {element});",
        "        }",
        "    for (int l = 0; first + l < n; ++l) {",
        "        const int64_t j = first + l;",
        f"        lane[l] = {combine}(lane[l], {element});",
        "    }",
        "    for (int half = AOTC_LANES / 2; half > 0; half /= 2)",
        "        for (int l = 0; l < half; ++l)",
        f"            lane[l] = {combine}(lane[l], lane[l + half]);",
        f"    const {c_type} total = lane[0];",
        f"    {result}",
        "}",
    ]


def row_position(better: str, dtype: DType, extent: Scalar, element: str, result: str) -> list[str]:
    """Return the search for the lowest `j` whose element no other is `better` than.

    `better` is a C comparison operator; `result` uses the name `total`, the position.
    """
    c_type = ctext.value_type(dtype)
    return [
        "{",
        f"    {c_type} lane[AOTC_LANES];",
        "    int32_t at[AOTC_LANES];",
        f"    const int64_t n = {ctext.scalar(extent)};",
        "    for (int l = 0; l < AOTC_LANES; ++l) {",
        "        const int64_t j = l < n ? l : 0;",
        f"        lane[l] = {element};",
        "        at[l] = (int32_t)j;",
        "    }",
        "    int64_t first = AOTC_LANES;",
        "    for (; first + AOTC_LANES <= n; first += AOTC_LANES)",
        "        for (int l = 0; l < AOTC_LANES; ++l) {",
        "            const int64_t j = first + l;",
        f"            const {c_type} x = {element};",
        f"            const int take = x {better} lane[l];",
        "            lane[l] = take ? x : lane[l];",
        "            at[l] = take ? (int32_t)j : at[l];",
        "        }",
        "    for (int l = 0; first + l < n; ++l) {",
        "        const int64_t j = first + l;",
        f"        const {c_type} x = {element};",
        f"        if (x {better} lane[l]) {{ lane[l] = x; at[l] = (int32_t)j; }}",
        "    }",
        "    for (int l = 1; l < AOTC_LANES; ++l)",
        f"        if (lane[l] {better} lane[0] || (lane[l] == lane[0] && at[l] < at[0])) {{",
        "            lane[0] = lane[l];",
        "            at[0] = at[l];",
        "        }",
        "    const int32_t total = at[0];",
        f"    {result}",
        "}",
    ]


@dataclass
class Group:
    """Nests over the same rows, in order."""

    nests: list[Nest] = field(default_factory=list)

    def accepts(self, nest: Nest) -> bool:
        """Whether `nest` may run row by row with the nests already here."""
        if not self.nests:
            return True
        if self.nests[0].rows != nest.rows:
            return False
        rows = row_index(nest.rows)
        return all(
            _within_row(rows, ours, theirs)
            for mine in self.nests
            for ours, theirs in (
                (mine.stores, nest.loads),
                (mine.stores, nest.stores),
                (mine.loads, nest.stores),
            )
        )

    def lines(self, team: bool) -> list[str]:
        """Return the loops. In team code the outermost is shared by the threads."""
        rows = self.nests[0].rows
        body = [
            line
            for nest in self.nests
            for line in ([f"// {nest.comment}"] if nest.comment else []) + nest.lines
        ]
        outermost = next((axis for axis, n in enumerate(rows) if constant_value(n) != 1), None)
        if outermost is None:
            return ["if (thread == 0) {", *indent(body), "}"] if team else ["{", *indent(body), "}"]
        for axis in reversed(range(len(rows))):
            if constant_value(rows[axis]) == 1:
                continue
            extent = ctext.scalar(rows[axis])
            loop = f"for (int64_t i{axis} = 0; i{axis} < {extent}; ++i{axis}) {{"
            if team and axis == outermost:
                loop = (
                    f"for (int64_t i{axis} = aotc_share({extent}, 1, thread, threads), "
                    f"last = aotc_share({extent}, 1, thread + 1, threads); "
                    f"i{axis} < last; ++i{axis}) {{"
                )
            body = [loop, *indent(body), "}"]
        return body

    @property
    def reads(self) -> set[Buffer]:
        return {touch.access.buffer for nest in self.nests for touch in nest.loads}

    @property
    def writes(self) -> set[Buffer]:
        return {touch.access.buffer for nest in self.nests for touch in nest.stores}


def _within_row(rows: Index, ours: Sequence[Touch], theirs: Sequence[Touch]) -> bool:
    """Whether touches of the same buffer stay in the row at hand, through the same window."""
    for one in ours:
        for other in theirs:
            if one.access.buffer is not other.access.buffer:
                continue
            if one.access != other.access:
                return False
            if one.index[:-1] != rows or other.index[:-1] != rows:
                return False
    return True


def indent(lines: Sequence[str]) -> list[str]:
    """Return `lines` one level deeper; preprocessor lines too, which C allows."""
    return [f"    {line}" if line else line for line in lines]
