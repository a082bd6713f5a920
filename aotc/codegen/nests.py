"""Loop nests: the C text of element-wise work, reductions and contractions, fused.

A nest covers the leading dimensions of a tensor with loops over rows and handles the last
dimension inside. Nests that the threads share in the same way, and that touch each other's data
only within what a thread has to itself, join in one group, which finishes it while it is in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aotc.codegen import ctext
from aotc.codegen.sharing import (
    UNIT,
    Claim,
    Columns,
    Everyone,
    First,
    Index,
    Partition,
    Rows,
    Touch,
    claim_of,
    claims,
    row_index,
)
from aotc.codegen.storage import Access, Buffer
from aotc.dtypes import BF16, FP16, FP32
from aotc.ir.scalar import Scalar, constant_value

Span = tuple[str, str]
"""The first column and the one behind the last, as C text."""


@dataclass
class Nest:
    """Work on rows and columns: `lines` is the text for a span of columns, inside the row loops.

    `rows` are the extents of the row loops, `extents` those of the loops inside, by their variable.
    """

    partition: Partition
    rows: tuple[Scalar, ...]
    extents: Mapping[str, Scalar]
    lines: Callable[[Span], list[str]]
    loads: list[Touch]
    stores: list[Touch]
    comment: str = ""

    @property
    def whole(self) -> Span:
        """All columns."""
        return "0", ctext.scalar(self.extents["j"])


@dataclass(kw_only=True)
class Contraction(Nest):
    """`result` (+)= `left` @ `right`, of `size` rows, columns and products of each element.

    It loops over its rows itself, and over a `batch`. `accumulate` is the C condition under which
    it adds, `packed` the one under which `right` is packed, None where it cannot be.
    """

    batch: tuple[Scalar, ...]
    size: tuple[Scalar, Scalar, Scalar]
    left: Access
    right: Access
    result: Access
    accumulate: str
    packed: str | None


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


def column_loop(extent: Scalar, body: str) -> Callable[[Span], list[str]]:
    """Return the loop over columns, `j`, for iterations that are independent."""
    if constant_value(extent) == 1:
        return lambda _: [body]
    return lambda span: [
        "#pragma clang loop vectorize(assume_safety)",
        f"for (int64_t j = {span[0]}; j < {span[1]}; ++j)",
        f"    {body}",
    ]


def column_index(extent: Scalar) -> str:
    """Return how the last dimension is indexed inside `column_loop`."""
    return "0" if constant_value(extent) == 1 else "j"


@dataclass
class Group:
    """Nests that the threads share in one way, in order."""

    nests: list[Nest] = field(default_factory=list)

    def accepts(self, nest: Nest) -> bool:
        """Whether `nest` may run piece by piece with the nests already here."""
        return not self.nests or (
            self.nests[0].partition == nest.partition
            and all(_apart(nest.partition, mine, nest) for mine in self.nests)
        )

    def lines(self, team: bool) -> list[str]:
        """Return the code; in team code the threads share it."""
        partition = self.nests[0].partition
        if isinstance(partition, Columns):
            return self._columns(partition)
        body = self._runs(partition, team, None)
        if isinstance(partition, First):
            return ["if (thread == 0) {", *indent(body), "}"]
        return body

    def _columns(self, partition: Columns) -> list[str]:
        extent = ctext.scalar(partition.extent)
        body = self._runs(partition, True, ("n_first", "n_last"))
        contractions = [nest for nest in self.nests if isinstance(nest, Contraction)]
        packed = {nest.packed for nest in contractions}
        # Row-major weights are read fastest in wide strips, so only packed ones go in pieces.
        together = " && ".join(sorted(str(each) for each in packed)) if None not in packed else "0"
        if not contractions or (together == "0" and len(contractions) == len(self.nests)):
            first, end = (
                f"aotc_share({extent}, {UNIT}, {t}, threads)" for t in ("thread", "thread + 1")
            )
            start = f"const int64_t n_first = {first}, n_last = {end};"
            return ["{", *indent([start, *body]), "}"]
        # What a contraction leaves is in cache when the others read it.
        m = ctext.scalar(contractions[0].size[0])
        sizes = (f"aotc_least_columns({m})", f"aotc_most_columns({m})")
        return pieces_loop((extent, str(UNIT)), together, sizes, ("n_first", "n_last"), body)

    def _runs(self, partition: Partition, team: bool, span: Span | None) -> list[str]:
        """Return the nests one after the other; those over the same rows share row loops."""
        lines: list[str] = []
        run: list[Nest] = []
        for nest in self.nests:
            if run and not all(_same_rows(mine, nest) for mine in run):
                lines += _rows(run, partition, team, span)
                run = []
            run.append(nest)
        return lines + _rows(run, partition, team, span)

    @property
    def reads(self) -> dict[Buffer, Claim | None]:
        """What the threads read of each buffer."""
        return claims(self.nests[0].partition, (t for nest in self.nests for t in nest.loads))

    @property
    def writes(self) -> dict[Buffer, Claim | None]:
        """What the threads write of each buffer."""
        return claims(self.nests[0].partition, (t for nest in self.nests for t in nest.stores))


def pieces_loop(
    share: tuple[str, str], together: str, sizes: tuple[str, str], span: Span, body: Sequence[str]
) -> list[str]:
    """Return the loop over pieces of a range that a thread takes (`library/shares.h`).

    `share` is the range's extent and unit, `sizes` the least and the most of a piece, and `span`
    the names of the first element of a piece and the one behind its last.
    """
    begin = ", ".join(("call", "thread", *share, together))
    take = ", ".join(("&shares", *sizes, *(f"&{each}" for each in span)))
    return [
        "{",
        f"    aotc_shares shares = aotc_shares_begin({begin});",
        f"    for (int64_t {span[0]}, {span[1]}; aotc_shares_take({take});) {{",
        *indent(indent(body)),
        "    }",
        "}",
    ]


def _meeting(one: Nest, other: Nest) -> list[tuple[Touch, Touch]]:
    """Return touches of one buffer of which at least one writes."""
    return [
        (a, b)
        for ours, theirs in (
            (one.stores, other.loads),
            (one.stores, other.stores),
            (one.loads, other.stores),
        )
        for a in ours
        for b in theirs
        if a.access.buffer is b.access.buffer
    ]


def _apart(partition: Partition, one: Nest, other: Nest) -> bool:
    """Whether no thread needs what another one does in the other nest."""
    if isinstance(partition, First | Everyone):
        return True
    for a, b in _meeting(one, other):
        claim = claim_of(partition, a)
        if claim is None or claim != claim_of(partition, b):
            return False
    return True


def _same_rows(one: Nest, other: Nest) -> bool:
    """Whether a row of `other` may follow the same row of `one`, before the next row."""
    if isinstance(one, Contraction) or isinstance(other, Contraction) or one.rows != other.rows:
        return False
    rows = row_index(one.rows)
    return all(
        a.access == b.access and a.index[:-1] == rows == b.index[:-1]
        for a, b in _meeting(one, other)
    )


def _rows(run: Sequence[Nest], partition: Partition, team: bool, span: Span | None) -> list[str]:
    body = [
        line
        for nest in run
        for line in ([f"// {nest.comment}"] if nest.comment else [])
        + nest.lines(span or nest.whole)
    ]
    rows = run[0].rows
    outermost = next((axis for axis, n in enumerate(rows) if constant_value(n) != 1), None)
    if isinstance(run[0], Contraction) or isinstance(partition, First):
        return body
    if outermost is None and span is None:
        return ["{", *indent(body), "}"]
    for axis in reversed(range(len(rows))):
        if constant_value(rows[axis]) == 1:
            continue
        extent = ctext.scalar(rows[axis])
        i = f"i{axis}"
        loop = f"for (int64_t {i} = 0; {i} < {extent}; ++{i}) {{"
        if team and axis == outermost and isinstance(partition, Rows):
            loop = (
                f"for (int64_t {i} = aotc_share({extent}, 1, thread, threads), "
                f"last = aotc_share({extent}, 1, thread + 1, threads); {i} < last; ++{i}) {{"
            )
        body = [loop, *indent(body), "}"]
    return body


def indent(lines: Sequence[str]) -> list[str]:
    """Return `lines` one level deeper; preprocessor lines too, which C allows."""
    return [f"    {line}" if line else line for line in lines]
