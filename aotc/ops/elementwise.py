"""Element-wise operators, casts, and operators that broadcast a row or a column vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from aotc.dtypes import BOOL, FP32, DType
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import Constant, Scalar, constant_value, convert
from aotc.ops.registry import (
    Arguments,
    Elements,
    Kind,
    OpDef,
    OpError,
    Parameter,
    Pointwise,
    suffix,
)
from aotc.ops.rules import (
    FLOATS,
    INTEGERS,
    NUMBERS,
    broadcast,
    make_type,
    require_dtype,
    require_one_level,
    require_same_dtype,
    require_scalar,
    shown,
)
from aotc.ops.values import Array, saturated

# The C text of a result element, from the dtype of the tensors and the texts of the operands.
Text = Callable[..., str]
Function = Callable[..., Any]

_INPUT = ("tensor", "tile")


def broadcast_index(index: tuple[str, ...], shape: tuple[Scalar, ...]) -> tuple[str, ...]:
    """Return where an operand of `shape` is read for a result element at `index`."""
    padded = index[len(index) - len(shape) :]
    return tuple("0" if constant_value(s) == 1 else i for s, i in zip(shape, padded, strict=True))


def spellings(name: str, *more: str) -> tuple[str, ...]:
    """Return `name` at the top level and in both namespaces, and `more` likewise."""
    return tuple(f"{space}{each}" for each in (name, *more) for space in ("", "tensor.", "tile."))


def _dtype(a: Arguments, names: Sequence[str]) -> DType:
    dtype: DType = next(a[name].dtype for name in names if isinstance(a[name], TensorVar))
    return dtype


def _operand(e: Elements, name: str, dtype: DType, index: tuple[str, ...]) -> str:
    value = e.arguments[name]
    if isinstance(value, TensorVar):
        return e.load(name, broadcast_index(index, value.shape))
    return e.scalar(convert(value, FP32 if dtype.is_float else dtype))


def _pointwise(names: Sequence[str], text: Text) -> Pointwise:
    def element(e: Elements, index: tuple[str, ...]) -> str:
        dtype = _dtype(e.arguments, names)
        return text(dtype, *(_operand(e, name, dtype, index) for name in names))

    return Pointwise(element)


def _infer(names: Sequence[str], allowed: Collection[DType]) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        tensors = [(name, a[name]) for name in names if isinstance(a[name], TensorVar)]
        if not tensors:
            raise OpError("every operand is a scalar", "write it with Python's operators")
        first, tensor = tensors[0]
        require_dtype(first, tensor.dtype, allowed)
        for name in names:
            if isinstance(a[name], TensorVar):
                require_same_dtype(first, tensor.dtype, name, a[name].dtype)
            else:
                require_scalar(name, a[name], tensor.dtype)
        shape, valid = broadcast(tensors)
        return make_type(tensor.dtype, shape, valid, require_one_level(a, names))

    return infer


def aligned(*arrays: Any) -> list[Array]:
    """Return arrays and scalars of one numpy type, cut to the region that all have in common."""
    first = next(each for each in arrays if isinstance(each, np.ndarray))
    cast = [each if isinstance(each, np.ndarray) else _scalar(each, first.dtype) for each in arrays]
    rank = max(each.ndim for each in cast)
    padded = [each.reshape((1,) * (rank - each.ndim) + each.shape) for each in cast]
    limits = [
        min((each.shape[axis] for each in padded if each.shape[axis] != 1), default=1)
        for axis in range(rank)
    ]
    return [each[tuple(slice(limit) for limit in limits)] for each in padded]


def _scalar(value: float, dtype: np.dtype[Any]) -> Array:
    return np.asarray(value).astype(dtype)


def _reference(names: Sequence[str], function: Function) -> Callable[[Arguments], Array]:
    return lambda a: np.asarray(function(*aligned(*(a[name] for name in names))))


def _row(
    name: str,
    names: Sequence[Parameter],
    allowed: Collection[DType],
    function: Function,
    text: Text,
    spelled: tuple[str, ...] | None = None,
    more: Sequence[Parameter] = (),
) -> OpDef:
    operands = [each.name for each in names]
    return OpDef(
        name,
        spelled or spellings(name),
        (*names, *more),
        _infer(operands, allowed),
        _reference(operands, function),
        _pointwise(operands, text),
    )


# C arithmetic on signed integers must not overflow, so it is done on unsigned ones.
def _wide(dtype: DType) -> str:
    return "uint64_t" if dtype.size == 8 else "uint32_t"


def _infix(symbol: str) -> Text:
    def text(dtype: DType, *operands: str) -> str:
        if dtype.is_float:
            return f"({f' {symbol} '.join(operands)})"
        return f"({f' {symbol} '.join(f'({_wide(dtype)}){each}' for each in operands)})"

    return text


def _plain(symbol: str) -> Text:
    return lambda dtype, x, y: f"({x} {symbol} {y})"


def _call(function: str) -> Text:
    return lambda dtype, *operands: f"{function}_{suffix(dtype)}({', '.join(operands)})"


def _float_call(function: str) -> Text:
    return lambda dtype, x: f"{function}({x})"


_BOTH = (Parameter("lhs", Kind.TENSOR_OR_SCALAR), Parameter("rhs", Kind.TENSOR_OR_SCALAR))
_SCRATCH = (Parameter("tmp", Kind.SCRATCH, None),)
_PRECISION = (Parameter("high_precision", Kind.BOOLEAN, False),)


def maximum(x: Array, y: Array) -> Array:
    """Return the larger of each pair, and NaN where one is NaN."""
    return np.where((x > y) | (x != x), x, y)


def minimum(x: Array, y: Array) -> Array:
    """Return the smaller of each pair, and NaN where one is NaN."""
    return np.where((x < y) | (x != x), x, y)


def _divide(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    # Towards zero; 0 for a zero divisor. Unlike `//`, exact at the ends of the range.
    quotient = np.floor_divide(x, y)
    toward = (np.remainder(x, y) != 0) & ((x < 0) != (y < 0))
    return np.asarray(np.where(y == 0, 0, quotient + toward.astype(x.dtype)))


def _shift(x: Array, y: Array, left: bool) -> Array:
    bits = 8 * x.dtype.itemsize
    inside = (y >= 0) & (y < bits)
    amount = np.where(inside, y, 0).astype(x.dtype)
    moved = np.left_shift(x, amount) if left else np.right_shift(x, amount)
    beyond = np.zeros_like(x) if left else (x < 0) * x.dtype.type(-1 if x.dtype.kind == "i" else 0)
    return np.where(inside, moved, beyond)


_BINARY = [
    _row("add", _BOTH, NUMBERS, np.add, _infix("+"), spellings("add", "adds")),
    _row("sub", _BOTH, NUMBERS, np.subtract, _infix("-"), spellings("sub", "subs")),
    _row("mul", _BOTH, NUMBERS, np.multiply, _infix("*"), spellings("mul", "muls")),
    _row(
        "div",
        _BOTH,
        NUMBERS,
        _divide,
        lambda d, x, y: f"({x} / {y})" if d.is_float else f"aotc_div_{suffix(d)}({x}, {y})",
        spellings("div", "divs"),
        _PRECISION,
    ),
    _row("rem", _BOTH, NUMBERS, np.mod, _call("aotc_rem"), spellings("rem", "rems"), _SCRATCH),
    _row("fmod", _BOTH, NUMBERS, np.fmod, _call("aotc_fmod"), spellings("fmod", "fmods")),
    _row("maximum", _BOTH, NUMBERS, maximum, _call("aotc_max"), spellings("maximum", "maximums")),
    _row("minimum", _BOTH, NUMBERS, minimum, _call("aotc_min"), spellings("minimum", "minimums")),
    *(
        _row(
            f"{name}_",
            _BOTH,
            (*INTEGERS, BOOL),
            function,
            _plain(symbol),
            spellings(f"{name}_", f"{name}s"),
        )
        for name, function, symbol in (("and", np.bitwise_and, "&"), ("or", np.bitwise_or, "|"))
    ),
    _row(
        "xor",
        _BOTH,
        (*INTEGERS, BOOL),
        np.bitwise_xor,
        _plain("^"),
        spellings("xor", "xors"),
        _SCRATCH,
    ),
    _row(
        "shl",
        _BOTH,
        INTEGERS,
        lambda x, y: _shift(x, y, True),
        _call("aotc_shl"),
        spellings("shl", "shls"),
    ),
    _row(
        "shr",
        _BOTH,
        INTEGERS,
        lambda x, y: _shift(x, y, False),
        _call("aotc_shr"),
        spellings("shr", "shrs"),
    ),
]

_ONE = (Parameter("input", Kind.TENSOR, aliases=_INPUT),)


def _through_double(function: Function) -> Function:
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


def _one_over(x: Array) -> Array:
    return np.float32(1) / x


_UNARY = [
    _row(
        "neg",
        _ONE,
        NUMBERS,
        np.negative,
        lambda d, x: f"(-{x})" if d.is_float else f"(0 - ({_wide(d)}){x})",
    ),
    _row("abs", _ONE, NUMBERS, np.abs, _call("aotc_abs")),
    _row("exp", _ONE, FLOATS, _through_double(np.exp), _float_call("aotc_exp")),
    _row("log", _ONE, FLOATS, _through_double(np.log), _float_call("aotc_log"), more=_PRECISION),
    _row("sqrt", _ONE, FLOATS, np.sqrt, _float_call("aotc_sqrt")),
    _row(
        "rsqrt",
        _ONE,
        FLOATS,
        lambda x: _one_over(np.sqrt(x)),
        _float_call("aotc_rsqrt"),
        more=(*_PRECISION, *_SCRATCH),
    ),
    _row("recip", _ONE, FLOATS, _one_over, _float_call("aotc_recip"), more=_PRECISION),
    _row(
        "relu",
        _ONE,
        NUMBERS,
        lambda x: maximum(x, np.zeros_like(x)),
        lambda d, x: f"aotc_max_{suffix(d)}({x}, 0)",
        ("relu", "tile.relu"),
    ),
    _row(
        "not_",
        _ONE,
        (*INTEGERS, BOOL),
        np.invert,
        lambda d, x: f"(!{x})" if d == BOOL else f"(~{x})",
    ),
]

_SLOPE = Parameter("slope", Kind.TENSOR_OR_SCALAR)


def _leaky(x: Array, slope: Array) -> Array:
    return maximum(x, slope * x)


def _parametric(x: Array, slope: Array) -> Array:
    return np.where(x > 0, x, slope * x)


_THREE = (*_BOTH, Parameter("rhs2", Kind.TENSOR_OR_SCALAR))

_TERNARY = [
    _row(
        "lrelu",
        (*_ONE, _SLOPE),
        FLOATS,
        _leaky,
        lambda d, x, s: f"aotc_max_f32({x}, {s} * {x})",
        ("lrelu", "tile.lrelu"),
    ),
    _row(
        "prelu",
        (*_ONE, _SLOPE),
        FLOATS,
        _parametric,
        lambda d, x, s: f"({x} > 0 ? {x} : {s} * {x})",
        ("prelu", "tile.prelu"),
        _SCRATCH,
    ),
    _row(
        "addc",
        _THREE,
        NUMBERS,
        lambda x, y, z: x + y + z,
        _infix("+"),
        ("addc", "tile.addc", "addsc", "tile.addsc"),
    ),
    _row(
        "subc",
        _THREE,
        NUMBERS,
        lambda x, y, z: x - y - z,
        _infix("-"),
        ("subc", "tile.subc", "subsc", "tile.subsc"),
    ),
]

# Comparisons by the code that PyPTO gives them.
_COMPARE = (
    ("==", np.equal),
    ("!=", np.not_equal),
    ("<", np.less),
    ("<=", np.less_equal),
    (">", np.greater),
    (">=", np.greater_equal),
)
_PAIR = ("lhs", "rhs")


def _comparison_type(a: Arguments) -> TensorType:
    if a["cmp_type"] not in range(len(_COMPARE)):
        raise OpError(
            f"`cmp_type` is {a['cmp_type']}, expected 0 to 5", "0 is ==, 1 !=, 2 <, 3 <=, 4 >, 5 >="
        )
    return _infer(_PAIR, (*NUMBERS, BOOL))(a)


def _comparison_element(e: Elements, index: tuple[str, ...]) -> str:
    dtype = _dtype(e.arguments, _PAIR)
    x, y = (_operand(e, name, dtype, index) for name in _PAIR)
    return f"({x} {_COMPARE[e.arguments['cmp_type']][0]} {y})"


_SELECT = (
    Parameter("mask", Kind.TENSOR),
    Parameter("lhs", Kind.TENSOR_OR_SCALAR, aliases=("src",)),
)


def _select_type(*names: str) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        chosen = _infer(names, (*NUMBERS, BOOL))(a)
        tensors = [(name, a[name]) for name in ("mask", *names) if isinstance(a[name], TensorVar)]
        shape, valid = broadcast(tensors)
        require_one_level(a, ("mask", *names))
        return make_type(chosen.dtype, shape, valid, chosen.space)

    return infer


def _select_element(*names: str) -> Pointwise:
    def element(e: Elements, index: tuple[str, ...]) -> str:
        dtype = _dtype(e.arguments, names)
        mask = e.load("mask", broadcast_index(index, e.arguments["mask"].shape))
        one, other = (_operand(e, name, dtype, index) for name in names)
        return f"({mask} != 0 ? {one} : {other})"

    return Pointwise(element)


def _select_reference(*names: str) -> Callable[[Arguments], Array]:
    def reference(a: Arguments) -> Array:
        values = [a[name] for name in names]
        tensor = next(each for each in values if isinstance(each, np.ndarray))
        mask, one, other = aligned(
            a["mask"] != 0,
            *(v if isinstance(v, np.ndarray) else _scalar(v, tensor.dtype) for v in values),
        )
        return np.where(mask, one, other)

    return reference


_CHOICE = [
    OpDef(
        "cmp",
        spellings("cmp", "cmps"),
        (*_BOTH, Parameter("cmp_type", Kind.INTEGER, 0)),
        _comparison_type,
        lambda a: _COMPARE[a["cmp_type"]][1](*aligned(a["lhs"], a["rhs"])),
        Pointwise(_comparison_element),
    ),
    OpDef(
        "sel",
        ("sel", "tile.sel"),
        (*_SELECT, Parameter("rhs", Kind.TENSOR_OR_SCALAR), *_SCRATCH),
        _select_type("lhs", "rhs"),
        _select_reference("lhs", "rhs"),
        _select_element("lhs", "rhs"),
    ),
    OpDef(
        "sels",
        ("sels", "tile.sels"),
        (
            Parameter("mask", Kind.TENSOR),
            Parameter("src", Kind.TENSOR),
            *_SCRATCH,
            Parameter("scalar", Kind.SCALAR),
        ),
        _select_type("src", "scalar"),
        _select_reference("src", "scalar"),
        _select_element("src", "scalar"),
    ),
]

_MODES = ("none", "rint", "round", "floor", "ceil", "trunc", "odd")
_TO_INTEGER: dict[str, tuple[str, Function]] = {
    "none": ("aotc_rint", np.rint),
    "rint": ("aotc_rint", np.rint),
    "round": ("aotc_round", lambda x: np.trunc(x + np.copysign(np.float32(0.49999997), x))),
    "floor": ("__builtin_floorf", np.floor),
    "ceil": ("__builtin_ceilf", np.ceil),
    "trunc": ("__builtin_truncf", np.trunc),
}


def _mode(a: Arguments) -> str:
    mode = a["mode"]
    if isinstance(mode, int) and mode in range(len(_MODES)):
        return _MODES[mode]
    if mode not in _MODES:
        raise OpError(f"`mode` is {mode!r}, expected one of {', '.join(_MODES)}")
    return str(mode)


def _cast_type(a: Arguments) -> TensorType:
    source, target, mode = a["input"], a["target_type"], _mode(a)
    for name, dtype in (("input", source.dtype), ("target_type", target)):
        require_dtype(name, dtype, (*NUMBERS, BOOL))
    exact = not source.dtype.is_float or target == FP32 or source.dtype == target
    if source.dtype.is_float and target != BOOL and not exact:
        known = tuple(_TO_INTEGER) if target.is_integer else ("none", "rint", "round")
        if mode not in known:
            raise OpError(
                f"a cast of {source.dtype} to {target} with mode {mode} is not supported yet",
                f"use one of {', '.join(known)}",
            )
    return TensorType(target, source.shape, source.type.valid, source.type.space)


def _cast_element(e: Elements, index: tuple[str, ...]) -> str:
    source, target = e.arguments["input"].dtype, e.arguments["target_type"]
    value = e.load("input", index)
    if target == BOOL:
        return f"({value} != 0)"
    if not source.is_float:
        return f"((float){value})" if target.is_float else value
    if target.is_float:
        return value
    return f"aotc_to_{suffix(target)}({_TO_INTEGER[_mode(e.arguments)][0]}({value}))"


def _exact_cast(a: Arguments) -> str | None:
    return "input" if a["input"].dtype.is_float and a["target_type"] == FP32 else None


def _cast_reference(a: Arguments) -> Array:
    array, target = a["input"], a["target_type"]
    if target == BOOL:
        return np.asarray(array != 0)
    if array.dtype.kind != "f" or target.is_float:
        return np.asarray(array.astype(np.float32)) if target.is_float else np.asarray(array)
    return saturated(_TO_INTEGER[_mode(a)][1](array), target)


_CAST = OpDef(
    "cast",
    spellings("cast"),
    (
        *_ONE,
        Parameter("target_type", Kind.DTYPE),
        Parameter("mode", Kind.TEXT, "round"),
    ),
    _cast_type,
    _cast_reference,
    Pointwise(_cast_element, exact=_exact_cast),
)


# A vector [M, 1] applied to every row, or [1, N] to every column.
def _vector(row: bool) -> Parameter:
    return Parameter("rhs", Kind.TENSOR, aliases=("row_vec" if row else "col_vec",))


_MAIN = Parameter("lhs", Kind.TENSOR, aliases=("tensor", "tile", "target"))


def _require_vector(a: Arguments, row: bool) -> None:
    main, vector = a["lhs"], a["rhs"]
    if main.type.rank < 2 or vector.type.rank != main.type.rank:
        raise OpError(
            f"`lhs` has {main.type.rank} dimensions and `rhs` {vector.type.rank}; "
            "both must have the same number, at least 2",
            "give them that rank with pl.reshape",
        )
    axis = -1 if row else -2
    expected = list(main.shape)
    expected[axis] = Constant(1)
    if tuple(expected) != vector.shape:
        raise OpError(f"`rhs` is {shown(vector.shape)}, expected {shown(expected)}")


def _vector_type(row: bool, allowed: Collection[DType]) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        _require_vector(a, row)
        return _infer(_PAIR, allowed)(a)

    return infer


def _expand_type(row: bool) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        # The target gives the extents alone, so its dtype need not be the vector's.
        _require_vector(a, row)
        require_dtype("rhs", a["rhs"].dtype, (*NUMBERS, BOOL))
        shape, valid = broadcast([("lhs", a["lhs"]), ("rhs", a["rhs"])])
        return make_type(a["rhs"].dtype, shape, valid, require_one_level(a, _PAIR))

    return infer


def _vector_row(
    row: bool, name: str, allowed: Collection[DType], function: Function, text: Text
) -> OpDef:
    full = f"{'row' if row else 'col'}_expand_{name}"
    more = _SCRATCH if full == "row_expand_add" else ()
    return OpDef(
        full,
        spellings(full),
        (_MAIN, _vector(row), *more),
        _vector_type(row, allowed),
        _reference(_PAIR, function),
        _pointwise(_PAIR, text),
    )


def _expand_row(row: bool) -> OpDef:
    name = "row_expand" if row else "col_expand"
    return OpDef(
        name,
        spellings(name),
        (_MAIN, _vector(row)),
        _expand_type(row),
        lambda a: _expanded(a["rhs"], a["lhs"]),
        Pointwise(lambda e, index: e.load("rhs", broadcast_index(index, e.arguments["rhs"].shape))),
    )


def _expanded(source: Array, target: Array) -> Array:
    return np.broadcast_arrays(*aligned(source, target))[0]


def _exp_difference(x: Array, y: Array) -> Array:
    return np.asarray(_through_double(np.exp)(x - y))


_VECTOR_OPS: tuple[tuple[str, Collection[DType], Function, Text], ...] = (
    ("add", NUMBERS, np.add, _infix("+")),
    ("sub", NUMBERS, np.subtract, _infix("-")),
    ("mul", NUMBERS, np.multiply, _infix("*")),
    ("div", FLOATS, np.divide, _plain("/")),
    ("max", NUMBERS, maximum, _call("aotc_max")),
    ("min", NUMBERS, minimum, _call("aotc_min")),
    ("expdif", FLOATS, _exp_difference, lambda d, x, y: f"aotc_exp({x} - {y})"),
)


def _expands_type(a: Arguments) -> TensorType:
    target: TensorVar = a["target"]
    require_dtype("target", target.dtype, (*NUMBERS, BOOL))
    require_scalar("scalar", a["scalar"], target.dtype)
    return target.type


def _clone_type(a: Arguments) -> TensorType:
    source, target = a["src"], a["target"]
    shape, valid = broadcast([("target", target), ("src", source)])
    if shape != target.shape:
        raise OpError(f"`src` is {shown(source.shape)}, larger than {shown(target.shape)}")
    return make_type(source.dtype, shape, valid, require_one_level(a, ("src", "target")))


_BROADCAST = [
    *(_vector_row(row, *each) for row in (True, False) for each in _VECTOR_OPS),
    _expand_row(True),
    _expand_row(False),
    OpDef(
        "expands",
        spellings("expands"),
        (Parameter("target", Kind.TENSOR), Parameter("scalar", Kind.SCALAR)),
        _expands_type,
        lambda a: np.full_like(a["target"], _scalar(a["scalar"], a["target"].dtype)),
        Pointwise(
            lambda e, index: _operand(e, "scalar", e.arguments["target"].dtype, index),
        ),
    ),
    OpDef(
        "expand_clone",
        ("expand_clone", "tensor.expand_clone"),
        (Parameter("src", Kind.TENSOR), Parameter("target", Kind.TENSOR)),
        _clone_type,
        lambda a: _expanded(a["src"], a["target"]),
        Pointwise(lambda e, index: e.load("src", broadcast_index(index, e.arguments["src"].shape))),
    ),
]

ROWS = [*_BINARY, *_UNARY, *_TERNARY, *_CHOICE, _CAST, *_BROADCAST]
