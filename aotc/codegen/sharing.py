"""How the threads of a team share the work of a region, and what each has to itself then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aotc.codegen.storage import Access, Buffer
from aotc.ir.scalar import Scalar, ScalarVar, constant_value, walk

Index = tuple[str, ...]

# Columns go to threads in pieces of so many, each a vector of the contractions and a cache line.
UNIT = 16


@dataclass(frozen=True)
class Rows:
    """Each thread does a range of the outermost loop over rows of these extents."""

    extents: tuple[Scalar, ...]


@dataclass(frozen=True)
class Columns:
    """Each thread does a range of the last dimension, of this extent, in whole units."""

    extent: Scalar


@dataclass(frozen=True)
class First:
    """Thread 0 does everything."""


@dataclass(frozen=True)
class Everyone:
    """Every thread does everything, and writes to memory of its own."""


Partition = Rows | Columns | First | Everyone


@dataclass(frozen=True)
class Touch:
    """One read or write of memory: the window, and the place in it as C text.

    The place is made of `i0`, `i1`, ... for rows, and for columns `j`, or `j / UNIT`, which is
    what one unit of columns has to itself.
    """

    access: Access
    index: Index


ROW_UNIT = f"j / {UNIT}"


@dataclass(frozen=True)
class Claim:
    """What each thread touches in a buffer: its part of a partition, through one window.

    Two regions with equal claims on a buffer need no barrier between them: different elements of
    a window stand at different places, so no thread touches what another one does.
    """

    partition: Partition
    access: Access | None  # None where one thread touches all of it
    column: str = ""

    @property
    def varies(self) -> bool:
        """Whether scalars that a loop may change decide which elements these are."""
        scalars: list[Scalar] = []
        match self.partition:
            case Rows(extents=extents):
                scalars += extents
            case Columns(extent=extent):
                scalars.append(extent)
        if self.access is not None:
            scalars += [self.access.offset, *self.access.strides]
        return any(isinstance(part, ScalarVar) for each in scalars for part in walk(each))


def row_index(rows: Iterable[Scalar]) -> Index:
    """Return how rows of these extents are indexed: a loop variable each, 0 where there is one."""
    return tuple("0" if constant_value(n) == 1 else f"i{axis}" for axis, n in enumerate(rows))


def claim_of(partition: Partition, touch: Touch) -> Claim | None:
    """Return what a touch inside a region claims, or None where it goes anywhere."""
    match partition:
        case First():
            return Claim(partition, None)
        case Rows(extents=rows) if touch.index[:-1] == row_index(rows):
            return Claim(partition, touch.access)
        case Columns() if touch.index[-1:] in (("j",), (ROW_UNIT,)):
            return Claim(partition, touch.access, touch.index[-1])
    return None


def claims(partition: Partition, touches: Iterable[Touch]) -> dict[Buffer, Claim | None]:
    """Return for each buffer what all its touches claim together."""
    found: dict[Buffer, Claim | None] = {}
    for touch in touches:
        buffer, claim = touch.access.buffer, claim_of(partition, touch)
        found[buffer] = claim if found.get(buffer, claim) == claim else None
    return found
