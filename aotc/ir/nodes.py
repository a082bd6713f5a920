"""Types, values, statements and programs of the IR.

Tensors are values in SSA form. An operation that updates a tensor (`assemble`, `write`, ...)
consumes the value that it updates and defines a new one on the same storage; the old value is
dead after it. A loop carries every value that its body rebinds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from aotc.contract import Direction
from aotc.dtypes import DType
from aotc.errors import Place
from aotc.ir.scalar import Scalar, ScalarVar


@dataclass(frozen=True)
class Location:
    """Where a statement stands, and its own text, which does not change with comments.

    Locations take no part in the equality of nodes.
    """

    place: Place | None = None
    text: str = ""


NOWHERE = Location()


@dataclass(frozen=True)
class TensorType:
    """A tensor or tile: `shape` in INDEX scalars.

    `valid` is the extent of the region that holds values, where it is smaller than `shape`.
    `space` is `ddr` for a tensor, else the memory space of a tile (`vec`, `mat`, `left`, `right`,
    `acc`, ...).
    """

    dtype: DType
    shape: tuple[Scalar, ...]
    valid: tuple[Scalar, ...] | None = None
    space: str = "ddr"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def valid_shape(self) -> tuple[Scalar, ...]:
        return self.shape if self.valid is None else self.valid


@dataclass(frozen=True)
class TensorVar:
    """A tensor value; `name` is unique in its program."""

    name: str
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Scalar, ...]:
        return self.type.shape


Value = TensorVar | Scalar
Var = TensorVar | ScalarVar
Operand = TensorVar | Scalar | tuple[Scalar, ...]
Attribute = int | float | bool | str | DType | None | tuple["Attribute", ...]


@dataclass(frozen=True)
class Operation:
    """`result = op(operands, attributes)`; `op` names an entry of the operator registry.

    `attributes` are compile-time facts, sorted by name. `result` is None for an operation that
    only has an effect which needs no value (none of the tensor operations).
    """

    result: Var | None
    op: str
    operands: tuple[Operand, ...]
    attributes: tuple[tuple[str, Attribute], ...] = ()
    location: Location = field(default=NOWHERE, compare=False)

    def attribute(self, name: str) -> Attribute:
        """Return the attribute `name`; raise KeyError where it is absent."""
        return dict(self.attributes)[name]


class LoopKind(Enum):
    """What the program says of a loop's iterations."""

    RANGE = "range"
    PARALLEL = "parallel"  # independent of each other
    PIPELINE = "pipeline"  # in order; overlapping them is worthwhile


@dataclass(frozen=True)
class Carried:
    """A value carried through a loop: what it starts from, its name inside, its name after."""

    initial: Value
    argument: Var
    result: Var


@dataclass(frozen=True)
class Block:
    """Statements in order, then the values that the enclosing statement takes from them."""

    statements: tuple[Statement, ...]
    yields: tuple[Value, ...] = ()


@dataclass(frozen=True)
class For:
    """A counted loop: `index` from `start` below `stop` by `step`; `body` yields the carried."""

    index: ScalarVar
    start: Scalar
    stop: Scalar
    step: Scalar
    kind: LoopKind
    carried: tuple[Carried, ...]
    body: Block
    location: Location = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class While:
    """A loop that runs while `condition`, over the carried arguments, holds before an iteration.

    `head` computes what the condition needs and yields the condition.
    """

    carried: tuple[Carried, ...]
    head: Block
    body: Block
    location: Location = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class If:
    """A branch; both blocks yield the `results`."""

    condition: Scalar
    then: Block
    orelse: Block
    results: tuple[Var, ...]
    location: Location = field(default=NOWHERE, compare=False)


Statement = Operation | For | While | If


@dataclass(frozen=True)
class ProgramParameter:
    """A parameter: a tensor, or a scalar (read only)."""

    variable: Var
    direction: Direction = Direction.IN

    @property
    def name(self) -> str:
        return self.variable.name


@dataclass(frozen=True)
class Program:
    """One compiled entry: every function that it calls is inlined.

    `body.yields` are the returned values; each is the final state of an Out or InOut parameter.
    """

    name: str
    parameters: tuple[ProgramParameter, ...]
    body: Block
