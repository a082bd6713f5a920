"""Reductions of rows (the last axis) and of columns (the one before it); the axis stays, as 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotc.dtypes import INT32, DType
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import index
from aotc.ops.elementwise import spellings
from aotc.ops.registry import Arguments, Kind, OpDef, OpError, Parameter, Reduce
from aotc.ops.rules import NUMBERS, make_type, require_dtype
from aotc.ops.values import Array

_PARAMETERS = (
    Parameter("input", Kind.TENSOR, aliases=("tensor", "tile")),
    Parameter("tmp_tile", Kind.SCRATCH, None),
)


def _infer(axis: int, position: bool) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        tensor: TensorVar = a["input"]
        require_dtype("input", tensor.dtype, NUMBERS)
        if tensor.type.rank < -axis:
            raise OpError(
                f"`input` has {tensor.type.rank} dimensions, expected at least {-axis}",
                "give it that rank with pl.reshape",
            )
        shape, valid = list(tensor.shape), list(tensor.type.valid_shape)
        shape[axis] = valid[axis] = index(1)
        dtype: DType = INT32 if position else tensor.dtype
        return make_type(dtype, tuple(shape), tuple(valid), tensor.type.space)

    return infer


# numpy's reduction, and the names of the function and its neutral value in the C library.
_Reduction = tuple[str, Any, str, str]
_ENDS = {"max": -np.inf, "min": np.inf}
_REDUCTIONS: tuple[_Reduction, ...] = (
    ("sum", np.sum, "aotc_sum", "aotc_zero"),
    ("prod", np.prod, "aotc_prod", "aotc_one"),
    ("max", np.max, "aotc_max", "aotc_lowest"),
    ("min", np.min, "aotc_min", "aotc_highest"),
)


def _reference(axis: int, name: str, function: Any) -> Callable[[Arguments], Array]:
    def reference(a: Arguments) -> Array:
        array: Array = a["input"]
        is_float = array.dtype.kind == "f"
        if name in _ENDS:
            initial = _ENDS[name]
            if not is_float:
                limits = np.iinfo(array.dtype)
                initial = limits.min if name == "max" else limits.max
            return np.asarray(function(array, axis=axis, keepdims=True, initial=initial))
        # Exact up to the last rounding: the order of the sum is not part of the oracle.
        wide = array.astype(np.float64) if is_float else array
        return np.asarray(function(wide, axis=axis, keepdims=True, dtype=wide.dtype))

    return reference


def _position_reference(axis: int, function: Any) -> Callable[[Arguments], Array]:
    def reference(a: Arguments) -> Array:
        array: Array = a["input"]
        if array.shape[axis] == 0:
            shape = list(array.shape)
            shape[axis] = 1
            return np.zeros(shape, np.int32)
        return np.asarray(function(array, axis=axis, keepdims=True))

    return reference


def _rows(prefix: str, axis: int) -> list[OpDef]:
    rows = [
        OpDef(
            f"{prefix}_{name}",
            spellings(f"{prefix}_{name}"),
            _PARAMETERS,
            _infer(axis, False),
            _reference(axis, name, function),
            Reduce(axis, combine, initial),
        )
        for name, function, combine, initial in _REDUCTIONS
    ]
    positions = (("max", np.argmax, "aotc_lowest"), ("min", np.argmin, "aotc_highest"))
    return rows + [
        OpDef(
            f"{prefix}_arg{name}",
            spellings(f"{prefix}_arg{name}"),
            _PARAMETERS,
            _infer(axis, True),
            _position_reference(axis, function),
            Reduce(axis, f"aotc_{name}", initial, position=True),
        )
        for name, function, initial in positions
    ]


ROWS = [*_rows("row", -1), *_rows("col", -2)]
