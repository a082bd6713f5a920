"""Where tensors stand: parameters, workspace buffers, and strided windows on both.

Workspace is planned by liveness: buffers that are never alive together share a slot, whose size is
the largest of theirs. Sizes are expressions over the symbols, evaluated once per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aotc.codegen import ctext
from aotc.dtypes import DType
from aotc.ir.scalar import (
    Constant,
    Scalar,
    add,
    binary,
    constant_value,
    index,
    mul,
)

ALIGNMENT = 64  # bytes; one cache line


@dataclass(eq=False)
class Buffer:
    """Memory of one element type: a parameter, or workspace of `elements` elements.

    A private buffer exists once per thread. `first` and `last` are the positions, in the order of
    the generated code, between which its content matters.
    """

    name: str
    dtype: DType
    elements: Scalar | None  # None for a parameter
    private: bool = False
    first: int | None = None
    last: int = 0
    slot: int | None = None

    def touch(self, position: int) -> None:
        """Record that the code at `position` reads or writes the buffer."""
        self.first = position if self.first is None else min(self.first, position)
        self.last = max(self.last, position)


@dataclass(frozen=True)
class Access:
    """A strided window: element (i, j, ...) stands at `offset + i*strides[0] + ...`."""

    buffer: Buffer
    offset: Scalar
    strides: tuple[Scalar, ...]

    def element(self, position: tuple[str, ...]) -> str:
        """Return the C lvalue of the element at `position`."""
        terms = [] if constant_value(self.offset) == 0 else [ctext.scalar(self.offset)]
        for text, stride in zip(position, self.strides, strict=True):
            if text == "0" or constant_value(stride) == 0:
                continue
            terms.append(
                text if constant_value(stride) == 1 else f"{text} * {ctext.scalar(stride)}"
            )
        return f"{ctext.identifier(self.buffer.name)}[{' + '.join(terms) or '0'}]"

    def pointer(self) -> str:
        """Return the C pointer to the first element."""
        base = ctext.identifier(self.buffer.name)
        return base if constant_value(self.offset) == 0 else f"{base} + {ctext.scalar(self.offset)}"


def row_major(shape: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return the strides of a contiguous tensor of `shape`."""
    strides: list[Scalar] = []
    step: Scalar = index(1)
    for extent in reversed(shape):
        strides.append(step)
        step = mul(step, extent)
    return tuple(reversed(strides))


def element_count(shape: Sequence[Scalar]) -> Scalar:
    """Return the number of elements of a tensor of `shape`."""
    total: Scalar = index(1)
    for extent in shape:
        total = mul(total, extent)
    return total


@dataclass
class Arena:
    """Slots of one workspace region, and how large each must be."""

    slots: list[Scalar] = field(default_factory=list)

    def place(self, buffers: Sequence[Buffer]) -> None:
        """Give every buffer a slot; two that are alive together get different ones."""
        last: list[int] = []
        for buffer in sorted(buffers, key=lambda each: (each.first or 0, each.last, each.name)):
            assert buffer.first is not None
            assert buffer.elements is not None
            size = _aligned(mul(buffer.elements, index(buffer.dtype.size)))
            free = [s for s, end in enumerate(last) if end < buffer.first]
            same = [s for s in free if self.slots[s] == size]
            chosen = (same or free or [len(last)])[0]
            if chosen == len(last):
                last.append(0)
                self.slots.append(size)
            self.slots[chosen] = binary("max", self.slots[chosen], size)
            last[chosen] = buffer.last
            buffer.slot = chosen

    def offset(self, slot: int) -> Scalar:
        """Return where `slot` starts, in bytes."""
        return self._sum(self.slots[:slot])

    def total(self) -> Scalar:
        """Return the size of the region in bytes."""
        return self._sum(self.slots)

    @staticmethod
    def _sum(sizes: Sequence[Scalar]) -> Scalar:
        total: Scalar = Constant(0)
        for size in sizes:
            total = add(total, size)
        return total


def _aligned(size: Scalar) -> Scalar:
    up = binary("floordiv", add(size, index(ALIGNMENT - 1)), index(ALIGNMENT))
    return mul(up, index(ALIGNMENT))
