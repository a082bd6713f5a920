"""What an operator is, and the table of all of them.

An operator's row gives its parameters, its shape rule, its numpy reference and its lowering to
loops. Front end, reference interpreter and code generator read rows; none of them knows an
operator by name.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from aotc.dtypes import DType
from aotc.dtypes import Kind as Signedness
from aotc.ir.nodes import Attribute, Operand, Operation, TensorType
from aotc.ir.scalar import Scalar

if TYPE_CHECKING:
    import numpy as np


class OpError(Exception):
    """An operand breaks the operator's rule; `hint` says what to write instead."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.hint = hint


class Kind(Enum):
    """What a parameter of an operator takes. The first four become operands, the rest attributes.

    An omitted optional operand is the empty tuple. SCRATCH is a tile that a CPU has no use for:
    it is accepted and dropped, its attribute is None.
    """

    TENSOR = "tensor"
    SCALAR = "scalar"
    TENSOR_OR_SCALAR = "tensor or scalar"
    EXTENTS = "extents"  # a list of INDEX scalars: a shape, offsets, indices
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXT = "text"  # a string, or an enum member by its name
    DTYPE = "dtype"
    SCRATCH = "scratch tile"

    @property
    def is_operand(self) -> bool:
        return self in (Kind.TENSOR, Kind.SCALAR, Kind.TENSOR_OR_SCALAR, Kind.EXTENTS)


class _Required(Enum):
    REQUIRED = "required"


REQUIRED = _Required.REQUIRED


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator's call, in order; all may be given by name.

    `aliases` are the names that it has in other namespaces (`pl.tile`, `pl.tensor`).
    """

    name: str
    kind: Kind
    default: Attribute | _Required = REQUIRED
    aliases: tuple[str, ...] = ()


Arguments = Mapping[str, Any]
"""Arguments by parameter name: operands (TensorVar, Scalar, tuple) and attributes in `infer`;
arrays (bf16 as float32), Python numbers, tuples of int and attributes in `reference`."""


class Elements(Protocol):
    """What a pointwise lowering may ask the code generator for; all text is C."""

    arguments: Arguments

    def load(self, name: str, index: tuple[str, ...]) -> str:
        """The element at `index` of the tensor operand `name`; a float for any float dtype."""

    def scalar(self, scalar: Scalar) -> str:
        """The C expression of a scalar."""


@dataclass(frozen=True)
class Pointwise:
    """`element(elements, index)` is the C value of the result at `index`, one text per dimension.

    `memory` names operands that are read at computed places, so they must stand in memory.
    `exact(arguments)` names the operand, if any, whose elements the result has, as numbers: the
    operation is a conversion that loses nothing.
    """

    element: Callable[[Elements, tuple[str, ...]], str]
    memory: tuple[str, ...] = ()
    exact: Callable[[Arguments], str | None] = lambda _: None


@dataclass(frozen=True)
class Reduce:
    """Combine the elements of operand `operand` along one axis, which stays with extent 1.

    `combine` names a function of the C library over (accumulator, element), `initial` a constant of
    it, the neutral value; both take the suffix of the type (`aotc_max_f32`, see `suffix`). The
    order is fixed: 16 interleaved partial results, combined as a tree. With `position` the result
    is the lowest index at which the combined value stands, 0 where there is no element.
    """

    axis: int  # counted from the end: -1 is a row reduction, -2 a column reduction
    combine: str
    initial: str
    position: bool = False
    operand: str = "input"


@dataclass(frozen=True)
class View:
    """The result shares the storage of operand `operand`, at other offsets and strides.

    `place(arguments, strides)` returns (offset, strides) of the result in elements, given the
    operand's strides, or None where no strides describe it. It never returns None for the strides
    of a contiguous operand, so a contiguous copy of the operand is always viewable.
    """

    place: Callable[[Arguments, tuple[Scalar, ...]], tuple[Scalar, tuple[Scalar, ...]] | None]
    operand: str = "input"


@dataclass(frozen=True)
class Update:
    """Write `source` into operand `target` at `offsets`; the result is the target's new state.

    `source` and `offsets` name a tensor or scalar operand and an EXTENTS operand.
    """

    target: str
    source: str
    offsets: str


@dataclass(frozen=True)
class Allocate:
    """The result is storage whose content is not defined yet."""


@dataclass(frozen=True)
class Read:
    """The result is a scalar: the element of operand `operand` at EXTENTS operand `indices`."""

    operand: str
    indices: str


@dataclass(frozen=True)
class Matmul:
    """`left @ right` in fp32, plus operand `accumulator` where given; transposes by attribute.

    `overwrite` names an optional BOOL operand: where it holds, the accumulator is not read.
    `bias` names an operand of one row that is added to every row of the product.
    """

    left: str = "lhs"
    right: str = "rhs"
    accumulator: str | None = None
    transpose_left: str | None = "a_trans"
    transpose_right: str | None = "b_trans"
    bias: str | None = None
    overwrite: str | None = None


Lowering = Pointwise | Reduce | View | Update | Allocate | Read | Matmul


@dataclass(frozen=True)
class OpDef:
    """One operator.

    `spellings` are its dotted names below `pl`. `infer` returns the type of the result and raises
    OpError. `orchestration` operators may stand outside a core-group scope. `refused` are
    documented parameters that are not supported yet; their documented default means nothing.

    `reference` takes float arrays as float32 and valid regions only, and besides the arguments
    `result_shape`, the full shape of a tensor result. It returns the result before that is rounded
    to its dtype and cut to its valid region, and raises IndexError for a place outside an operand.
    """

    name: str
    spellings: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    infer: Callable[[Arguments], TensorType | DType]
    reference: Callable[[Arguments], np.ndarray[Any, Any] | int | float]
    lowering: Lowering
    orchestration: bool = False
    refused: tuple[str, ...] = ()

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter that a call gives by keyword `name`, or None."""
        return next((p for p in self.parameters if name == p.name or name in p.aliases), None)

    def arguments(self, operation: Operation) -> dict[str, Any]:
        """Return the operands and attributes of `operation` by parameter name."""
        operands = iter(operation.operands)
        attributes = dict(operation.attributes)
        return {
            each.name: next(operands) if each.kind.is_operand else attributes[each.name]
            for each in self.parameters
        }

    def pack(
        self, arguments: Arguments
    ) -> tuple[tuple[Operand, ...], tuple[tuple[str, Attribute], ...]]:
        """Return (operands, attributes) of an operation with these complete arguments."""
        operands = tuple(arguments[p.name] for p in self.parameters if p.kind.is_operand)
        attributes = sorted(
            (p.name, arguments[p.name]) for p in self.parameters if not p.kind.is_operand
        )
        return operands, tuple(attributes)


# One module a family; a row added to its ROWS is all that an operator needs.
_MODULES = ("elementwise", "reduction", "matmul", "memory", "indexing")


@cache
def table() -> dict[str, OpDef]:
    """Return every operator by its name."""
    rows: dict[str, OpDef] = {}
    for module in _MODULES:
        for row in importlib.import_module(f"aotc.ops.{module}").ROWS:
            assert row.name not in rows, row.name
            rows[row.name] = row
    return rows


@cache
def _by_spelling() -> dict[str, OpDef]:
    return {spelling: row for row in table().values() for spelling in row.spellings}


def suffix(dtype: DType) -> str:
    """Return the suffix of C library functions over `dtype`: `f32` for every float type."""
    if dtype.is_float:
        return "f32"
    letter = "i" if dtype.kind is Signedness.SIGNED else "u"
    return f"{letter}{8 * dtype.size}"


def lookup(spelling: str) -> OpDef | None:
    """Return the operator that PyPTO writes as `pl.SPELLING`, or None."""
    return _by_spelling().get(spelling)


def closest(spelling: str) -> str | None:
    """Return the known spelling closest to `spelling`, or None where none is close."""
    return next(iter(difflib.get_close_matches(spelling, _by_spelling(), n=1)), None)
