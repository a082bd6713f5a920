"""Element types as numpy holds them in the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotc.dtypes import BF16, DType, Kind

Array = np.ndarray[Any, Any]

_FLOATS = {"fp16": np.float16, "bf16": np.float32, "fp32": np.float32}


def storage(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type of stored elements; bf16 is a float32 with the low 16 bits zero."""
    if dtype.is_float:
        return np.dtype(_FLOATS[dtype.name])
    if dtype.kind is Kind.BOOL:
        return np.dtype(np.bool_)
    letter = "i" if dtype.kind is Kind.SIGNED else "u"
    return np.dtype(f"{letter}{dtype.size}")


def computed(array: Array) -> Array:
    """Return `array` in the type in which its elements are computed: float32 for any float."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def rounded(array: Array, dtype: DType) -> Array:
    """Return a copy of `array` rounded to `dtype`: floats to nearest even, integers wrapped."""
    if dtype == BF16:
        return _to_bf16(array)
    if dtype.is_integer and array.dtype.kind == "f":
        return array.astype(np.int64).astype(storage(dtype))
    return array.astype(storage(dtype))


def _to_bf16(array: Array) -> Array:
    bits = np.ascontiguousarray(array.astype(np.float32)).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    quiet = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x00400000)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.asarray(np.where(is_nan, quiet, nearest).astype(np.uint32)).view(np.float32)


def lowest(dtype: DType) -> float | int:
    """Return the lowest value of `dtype`: minus infinity for a float."""
    if dtype.is_float:
        return -np.inf
    return False if dtype.kind is Kind.BOOL else int(np.iinfo(storage(dtype)).min)


def highest(dtype: DType) -> float | int:
    """Return the highest value of `dtype`: infinity for a float."""
    if dtype.is_float:
        return np.inf
    return True if dtype.kind is Kind.BOOL else int(np.iinfo(storage(dtype)).max)


def saturated(whole: Array, dtype: DType) -> Array:
    """Return whole float32 numbers as integers of `dtype`; out of range the end, NaN 0."""
    low, high = lowest(dtype), highest(dtype)
    inside = (whole >= float(low)) & (whole < float(high) + 1.0)
    result = np.where(inside, whole, 0).astype(storage(dtype))
    result[whole < float(low)] = low
    result[whole >= float(high) + 1.0] = high
    return result
