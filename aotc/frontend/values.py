"""Values during lowering: compile-time Python values beside scalars and tensors of the IR."""

from __future__ import annotations

from typing import Any

from aotc.dtypes import BOOL, FP32, INDEX, DType
from aotc.ir import scalar as ir_scalar
from aotc.ir.nodes import TensorVar
from aotc.ir.scalar import Constant, Scalar, ScalarVar
from aotc.language import objects

SCALAR_TYPES = (
    Constant,
    ir_scalar.Symbol,
    ScalarVar,
    ir_scalar.Unary,
    ir_scalar.Binary,
    ir_scalar.Convert,
)


def is_scalar(value: Any) -> bool:
    """Return whether `value` is a scalar of the IR."""
    return isinstance(value, SCALAR_TYPES)


def is_number(value: Any) -> bool:
    """Return whether `value` is a Python number or truth value."""
    return isinstance(value, int | float)


def plain(value: Any) -> Any:
    """Return an INDEX or BOOL constant as the Python value that it is, all else unchanged."""
    if isinstance(value, Constant) and value.dtype in (INDEX, BOOL):
        return value.value
    return value


def typed(value: Any, dtype: DType | None = None) -> Scalar | None:
    """Return a number as a scalar, of `dtype` where it can hold it; None where it cannot.

    A scalar of the IR keeps its type. A Python number without a `dtype` is an INDEX, a BOOL or
    an FP32.
    """
    if is_scalar(value):
        result: Scalar = value
        return result
    if isinstance(value, bool):
        if dtype is not None and dtype.is_integer:
            return Constant(int(value), dtype)
        return Constant(value, BOOL) if dtype in (None, BOOL) else None
    if isinstance(value, int):
        if dtype is not None and dtype.is_float:
            return Constant(float(value), dtype)
        if dtype == BOOL:
            return Constant(bool(value), BOOL) if value in (0, 1) else None
        return Constant(value, dtype or INDEX) if _fits(value, dtype or INDEX) else None
    if isinstance(value, float):
        return Constant(value, dtype or FP32) if dtype is None or dtype.is_float else None
    return None


def _fits(value: int, dtype: DType) -> bool:
    limit = ir_scalar.convert(Constant(value, INDEX), dtype)
    return isinstance(limit, Constant) or dtype == INDEX


def widened(scalar: Scalar) -> Scalar:
    """Return an integer as INDEX; what is below sums and products is widened, so they simplify.

    That is the same wherever the narrow type can hold the offset or extent that is computed.
    """
    match scalar:
        case ir_scalar.Binary(op="add" | "sub" | "mul" as op, left=left, right=right):
            return ir_scalar.binary(op, widened(left), widened(right))
        case ir_scalar.Convert(operand=operand, dtype=dtype) if (
            dtype.is_integer and operand.dtype.is_integer and dtype.size >= operand.dtype.size
        ):
            return widened(operand)
    return ir_scalar.convert(scalar, INDEX)


def as_index(value: Any) -> Scalar:
    """Return a Python integer or an integer scalar as an INDEX scalar."""
    scalar = typed(value)
    assert scalar is not None
    return widened(scalar)


def describe(value: Any) -> str:
    """Return `value` as a message shows it: a tensor by its name and type."""
    if isinstance(value, TensorVar):
        dims = ", ".join(show(extent) for extent in value.shape)
        return f"{value.name}: {value.dtype}[{dims}]"
    return show(value) if is_scalar(value) else str(value)


def named(value: Any) -> str:
    """Return `value` as the object of a sentence: what came instead of what was expected."""
    if isinstance(value, TensorVar):
        return f"the tensor `{value.name}`"
    if is_scalar(value):
        return f"the {value.dtype} scalar `{show(value)}`"
    if isinstance(value, objects.Word):
        return f"`pl.{value.path}`"
    return f"`{value!r}`" if isinstance(value, str) else f"`{value}`"


def article(dtype: DType | None) -> str:
    """Return the dtype's name behind `a` or `an`."""
    name = "index" if dtype is None else str(dtype)
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def show(value: Any) -> str:
    """Return a scalar or Python value as a message shows it."""
    match value:
        case ir_scalar.Constant(value=number):
            return str(number)
        case ir_scalar.Symbol(name=name) | ScalarVar(name=name):
            return name
        case ir_scalar.Unary(op=op, operand=operand):
            return f"{op}({show(operand)})"
        case ir_scalar.Binary(op=op, left=left, right=right):
            return f"({show(left)} {_SIGNS.get(op, op)} {show(right)})"
        case ir_scalar.Convert(operand=operand, dtype=dtype):
            return f"{dtype}({show(operand)})"
    return str(value)


_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "mod": "%",
    "truediv": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
