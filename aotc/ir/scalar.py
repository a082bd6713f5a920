"""Scalar expressions: constants, dynamic-dim symbols, scalar variables and operations on them.

Constructors fold constants and keep sums of INDEX terms in a normal form, so that two extents
which are equal as polynomials are equal as values. Integer division and modulo round towards
minus infinity, as in Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from aotc.dtypes import BOOL, FP32, INDEX, DType, Kind

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("and", "or")
ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "truediv", "min", "max")
BITWISE = ("bit_and", "bit_or", "bit_xor", "shl", "shr")
BINARY = (*ARITHMETIC, *COMPARISONS, *LOGICAL, *BITWISE)
UNARY = ("neg", "not", "abs", "exp", "log", "sqrt", "rsqrt", "recip")


@dataclass(frozen=True)
class Constant:
    """A number; `value` is an int for integer types, a float for float types, a bool for BOOL."""

    value: int | float | bool
    dtype: DType = INDEX


@dataclass(frozen=True)
class Symbol:
    """A dynamic dimension, bound once per call from the arguments."""

    name: str

    @property
    def dtype(self) -> DType:
        return INDEX


@dataclass(frozen=True)
class ScalarVar:
    """A scalar that a statement defines: a loop variable, an element read, a carried value."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Unary:
    """`op` of one operand, see `UNARY`."""

    op: str
    operand: Scalar
    dtype: DType


@dataclass(frozen=True)
class Binary:
    """`op` of two operands of one dtype, see `BINARY`; comparisons and logic give BOOL."""

    op: str
    left: Scalar
    right: Scalar
    dtype: DType


@dataclass(frozen=True)
class Convert:
    """`operand` converted to `dtype`: float to integer truncates."""

    operand: Scalar
    dtype: DType


Scalar = Constant | Symbol | ScalarVar | Unary | Binary | Convert

_FOLD: dict[str, Callable[[int, int], int | bool]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def index(value: int) -> Constant:
    """Return an INDEX constant."""
    return Constant(value, INDEX)


def constant_value(scalar: Scalar) -> int | None:
    """Return the value of an integer constant, or None for anything else."""
    if isinstance(scalar, Constant) and isinstance(scalar.value, int):
        return int(scalar.value)
    return None


def binary(op: str, left: Scalar, right: Scalar) -> Scalar:
    """Return `left op right`, both of one dtype, simplified.

    Raises ZeroDivisionError for a division of constants by zero.
    """
    assert left.dtype == right.dtype, (op, left, right)
    dtype = BOOL if op in COMPARISONS or op in LOGICAL else left.dtype
    if left.dtype.kind is Kind.SIGNED:
        simplified = _simplify_integer(op, left, right)
        if simplified is not None:
            return simplified
    if op in ("min", "max", "and", "or") and left == right:
        return left
    if op in ("min", "max"):
        for one, other in ((left, right), (right, left)):
            # min(x, max(x, y)) is x, and so is max(x, min(x, y)).
            opposite = isinstance(other, Binary) and other.op == ("max" if op == "min" else "min")
            if opposite and one in children(other):
                return one
    if op in LOGICAL and isinstance(left, Constant):
        return right if bool(left.value) == (op == "and") else left
    if op in LOGICAL and isinstance(right, Constant):
        return left if bool(right.value) == (op == "and") else right
    return Binary(op, left, right, dtype)


def unary(op: str, operand: Scalar) -> Scalar:
    """Return `op operand`, simplified."""
    if op == "not":
        if isinstance(operand, Constant):
            return Constant(not operand.value, BOOL)
        return Unary(op, operand, BOOL)
    if op == "neg" and isinstance(operand, Constant):
        return Constant(-operand.value, operand.dtype)
    if op == "neg" and operand.dtype.kind is Kind.SIGNED:
        return binary("mul", Constant(-1, operand.dtype), operand)
    return Unary(op, operand, operand.dtype)


def convert(operand: Scalar, dtype: DType) -> Scalar:
    """Return `operand` as `dtype`, simplified."""
    if operand.dtype == dtype:
        return operand
    if isinstance(operand, Constant) and dtype == BOOL:
        return Constant(bool(operand.value), BOOL)
    if isinstance(operand, Constant) and dtype == FP32:
        return Constant(float(operand.value), dtype)
    if isinstance(operand, Constant) and dtype.is_integer and _fits(int(operand.value), dtype):
        return Constant(int(operand.value), dtype)
    return Convert(operand, dtype)


def _fits(value: int, dtype: DType) -> bool:
    bits = 8 * dtype.size
    if dtype.kind is Kind.UNSIGNED:
        return 0 <= value < 1 << bits
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def add(left: Scalar, right: Scalar) -> Scalar:
    return binary("add", left, right)


def sub(left: Scalar, right: Scalar) -> Scalar:
    return binary("sub", left, right)


def mul(left: Scalar, right: Scalar) -> Scalar:
    return binary("mul", left, right)


def _simplify_integer(op: str, left: Scalar, right: Scalar) -> Scalar | None:
    a, b = constant_value(left), constant_value(right)
    if a is not None and b is not None and op in _FOLD:
        folded = _FOLD[op](a, b)
        if op in COMPARISONS:
            return Constant(bool(folded), BOOL)
        return Constant(folded, left.dtype) if _fits(folded, left.dtype) else None
    if op in ("add", "sub", "mul"):
        return _from_terms(_combine(op, _terms(left), _terms(right)), left.dtype)
    if op in COMPARISONS:
        difference = _combine("sub", _terms(left), _terms(right))
        if set(difference) <= {()}:
            return Constant(bool(_FOLD[op](difference.get((), 0), 0)), BOOL)
    if op in ("floordiv", "mod") and b is not None and b > 0:
        return _divide(op, left, right, b)
    return None


def _divide(op: str, left: Scalar, right: Scalar, divisor: int) -> Scalar | None:
    terms = _terms(left)
    exact = {atoms: factor for atoms, factor in terms.items() if factor % divisor == 0}
    rest = {atoms: factor for atoms, factor in terms.items() if factor % divisor != 0}
    if not rest:
        if op == "mod":
            return Constant(0, left.dtype)
        return _from_terms({a: f // divisor for a, f in exact.items()}, left.dtype)
    if not exact:
        return None
    remainder = binary(op, _from_terms(rest, left.dtype), right)
    if op == "mod":
        return remainder
    return add(_from_terms({a: f // divisor for a, f in exact.items()}, left.dtype), remainder)


# A polynomial: products of atoms, each product sorted, with its integer factor.
_Terms = dict[tuple[Scalar, ...], int]


def _terms(scalar: Scalar) -> _Terms:
    match scalar:
        case Constant(value=int() as value):
            return {(): value} if value else {}
        case Binary(op="add" | "sub" | "mul" as op, left=left, right=right):
            return _combine(op, _terms(left), _terms(right))
    return {(scalar,): 1}


def _combine(op: str, left: _Terms, right: _Terms) -> _Terms:
    result: _Terms = {}
    if op == "mul":
        for a, x in left.items():
            for b, y in right.items():
                key = tuple(sorted((*a, *b), key=repr))
                result[key] = result.get(key, 0) + x * y
    else:
        sign = 1 if op == "add" else -1
        result = dict(left)
        for b, y in right.items():
            result[b] = result.get(b, 0) + sign * y
    return {key: factor for key, factor in result.items() if factor}


def _from_terms(terms: _Terms, dtype: DType) -> Scalar:
    """Build the canonical tree: terms in a fixed order, the constant last."""
    ordered = sorted(terms.items(), key=lambda term: (not term[0], len(term[0]), repr(term[0])))
    total: Scalar | None = None
    for atoms, factor in ordered:
        if not atoms:
            total = _chain("add", total, Constant(factor, dtype), dtype)
            continue
        product: Scalar | None = None
        for atom in atoms:
            product = _chain("mul", product, atom, dtype)
        assert product is not None
        if factor == -1 and total is not None:
            total = Binary("sub", total, product, dtype)
            continue
        if factor != 1:
            product = Binary("mul", product, Constant(factor, dtype), dtype)
        total = _chain("add", total, product, dtype)
    return Constant(0, dtype) if total is None else total


def _chain(op: str, left: Scalar | None, right: Scalar, dtype: DType) -> Scalar:
    return right if left is None else Binary(op, left, right, dtype)


def children(scalar: Scalar) -> tuple[Scalar, ...]:
    """Return the operands of `scalar`."""
    match scalar:
        case Unary(operand=operand) | Convert(operand=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return (left, right)
    return ()


def walk(scalar: Scalar) -> Iterator[Scalar]:
    """Yield `scalar` and everything below it."""
    yield scalar
    for child in children(scalar):
        yield from walk(child)


def substitute(scalar: Scalar, values: Mapping[Scalar, Scalar]) -> Scalar:
    """Return `scalar` with symbols and variables replaced, simplified again."""
    if scalar in values:
        return values[scalar]
    match scalar:
        case Unary(op=op, operand=operand):
            return unary(op, substitute(operand, values))
        case Binary(op=op, left=left, right=right):
            return binary(op, substitute(left, values), substitute(right, values))
        case Convert(operand=operand, dtype=dtype):
            return convert(substitute(operand, values), dtype)
    return scalar
