"""Checks and shape rules that several operator families share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from aotc.dtypes import (
    BF16,
    BOOL,
    FP16,
    FP32,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    Kind,
)
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import Scalar, add, binary, constant_value, index, sub
from aotc.ir.text import readable
from aotc.ops.registry import Arguments, OpError

FLOATS = (FP32, BF16, FP16)
INTEGERS = (INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64)
NUMBERS = (*FLOATS, *INTEGERS)

Shape = tuple[Scalar, ...]


def shown(shape: Sequence[Scalar]) -> str:
    """Return `shape` for a message: `[16, N]`."""
    return f"[{', '.join(readable(each) for each in shape)}]"


def require_dtype(name: str, dtype: DType, allowed: Collection[DType]) -> None:
    """Raise OpError unless `dtype`, of operand `name`, is one of `allowed`."""
    if dtype not in allowed:
        names = ", ".join(each.name for each in allowed)
        raise OpError(f"`{name}` is {dtype}, expected one of {names}", "cast it with pl.cast")


def require_rank(name: str, tensor: TensorVar, rank: int) -> None:
    """Raise OpError unless `tensor`, operand `name`, has `rank` dimensions."""
    if tensor.type.rank != rank:
        raise OpError(
            f"`{name}` has {tensor.type.rank} dimensions, expected {rank}",
            "give it that rank with pl.reshape",
        )


def require_same_dtype(first: str, one: DType, second: str, other: DType) -> None:
    """Raise OpError unless both operands have one dtype: nothing is promoted implicitly."""
    if one != other:
        raise OpError(
            f"`{first}` is {one} and `{second}` is {other}", "cast one of them with pl.cast"
        )


def require_scalar(name: str, scalar: Scalar, dtype: DType) -> None:
    """Raise OpError unless `scalar` can be an operand of a `dtype` operation."""
    if (scalar.dtype.is_float and not dtype.is_float) or (scalar.dtype == BOOL) != (dtype == BOOL):
        raise OpError(f"`{name}` is {scalar.dtype}, and the tensor is {dtype}", "cast one of them")


def require_static(name: str, shape: Sequence[Scalar], rank: int) -> None:
    """Raise OpError unless `shape`, argument `name`, lists `rank` integers, none negative."""
    if len(shape) != rank:
        raise OpError(f"`{name}` lists {len(shape)} numbers, expected {rank}")
    for each in shape:
        require_index(name, each)
        value = constant_value(each)
        if value is not None and value < 0:
            raise OpError(f"`{name}` is {shown(shape)}, and an extent is never negative")


def require_index(name: str, scalar: Scalar) -> None:
    """Raise OpError unless `scalar` is an INDEX."""
    if scalar.dtype.kind is not Kind.SIGNED:
        raise OpError(f"`{name}` holds a {scalar.dtype}, expected an index")


def require_one_level(a: Arguments, names: Sequence[str]) -> str:
    """Return the memory space of the tensors among operands `names`; they are of one level."""
    spaces: list[tuple[str, str]] = [
        (name, a[name].type.space) for name in names if isinstance(a[name], TensorVar)
    ]
    for name, space in spaces:
        if (space == "ddr") != (spaces[0][1] == "ddr"):
            tensor, tile = (name, spaces[0][0]) if space == "ddr" else (spaces[0][0], name)
            raise OpError(
                f"`{tensor}` is a tensor and `{tile}` is a tile", "load the tensor with pl.load"
            )
    return spaces[0][1]


def make_type(dtype: DType, shape: Shape, valid: Shape | None, space: str) -> TensorType:
    """Return the type, without a valid region that is the whole."""
    return TensorType(dtype, shape, None if valid == shape else valid, space)


def broadcast(named: Sequence[tuple[str, TensorVar]]) -> tuple[Shape, Shape]:
    """Return (shape, valid shape) of the tensors broadcast to each other, as numpy does.

    An element is valid where it is in every operand. Raises OpError where extents differ.
    """
    first, tensor = named[0]
    shape, valid = tensor.shape, tensor.type.valid_shape
    for name, other in named[1:]:
        rank = max(len(shape), other.type.rank)
        ones = (index(1),) * rank
        mine = zip(_padded(shape, ones), _padded(valid, ones), strict=True)
        its = zip(_padded(other.shape, ones), _padded(other.type.valid_shape, ones), strict=True)
        pairs = []
        for (extent, region), (other_extent, other_region) in zip(mine, its, strict=True):
            if extent == other_extent:
                pairs.append((extent, binary("min", region, other_region)))
            elif constant_value(other_extent) == 1:
                pairs.append((extent, region))
            elif constant_value(extent) == 1:
                pairs.append((other_extent, other_region))
            else:
                raise OpError(
                    f"`{first}` is {shown(tensor.shape)} and `{name}` is {shown(other.shape)}: "
                    f"{readable(extent)} is not {readable(other_extent)}"
                )
        shape, valid = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
    return shape, valid


def _padded(extents: Shape, ones: Shape) -> Shape:
    return ones[len(extents) :] + extents


def axis_of(name: str, axis: int, rank: int) -> int:
    """Return `axis` counted from the front; raise OpError where there is no such axis."""
    if not -rank <= axis < rank:
        raise OpError(f"`{name}` is {axis}, and the tensor has {rank} dimensions")
    return axis % rank


def window(source: TensorType, shape: Shape, offset: Shape, given: Shape, clamp: bool) -> Shape:
    """Return the valid shape of the window of `shape` at `offset` of `source`.

    `given` narrows it, `()` does not. The valid region must lie in the source, unless `clamp` cuts
    it; an OpError says where it provably does not.
    """
    valid = []
    requested = given or shape
    for axis, (start, wanted) in enumerate(zip(offset, requested, strict=True)):
        extent, region = source.shape[axis], source.valid_shape[axis]
        end = constant_value(sub(extent, add(start, wanted)))
        outside = (end is not None and end < 0) or (constant_value(start) or 0) < 0
        if outside and not clamp:
            raise OpError(
                f"dimension {axis}: {readable(wanted)} elements from {readable(start)} on, "
                f"and the tensor has {readable(extent)}",
                "give valid_shape=, or clamp=True",
            )
        larger = constant_value(sub(wanted, shape[axis]))
        if larger is not None and larger > 0:
            raise OpError(f"valid_shape {shown(given)} is larger than the shape {shown(shape)}")
        if clamp or region != extent:
            left = binary("max", sub(region, start), index(0))
            wanted = binary("min", wanted, left)
        valid.append(wanted)
    return tuple(valid)


def require_inside(target: TensorType, source: TensorType, offset: Shape) -> None:
    """Raise OpError where `source`, written at `offset`, provably runs off `target`."""
    sizes = _padded(source.valid_shape, (index(1),) * target.rank)
    for axis, (start, size) in enumerate(zip(offset, sizes, strict=True)):
        end = constant_value(sub(target.shape[axis], add(start, size)))
        if (end is not None and end < 0) or (constant_value(start) or 0) < 0:
            raise OpError(
                f"dimension {axis}: {readable(size)} elements from {readable(start)} on, "
                f"and the target has {readable(target.shape[axis])}"
            )


def flag(arguments: Arguments, name: str) -> Any:
    """Return an optional operand, or None where it was omitted."""
    value = arguments.get(name)
    return None if isinstance(value, tuple) and not value else value
