"""Creation, movement, views and updates of tensors and tiles, and valid regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.dtypes import BOOL, FP32, INDEX, DType
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import Constant, Scalar, add, constant_value, convert, index, mul, sub
from aotc.ir.text import readable
from aotc.ops.elementwise import spellings
from aotc.ops.registry import (
    Allocate,
    Arguments,
    Elements,
    Kind,
    OpDef,
    OpError,
    Parameter,
    Pointwise,
    Read,
    Update,
    View,
)
from aotc.ops.rules import (
    NUMBERS,
    Shape,
    axis_of,
    flag,
    make_type,
    require_dtype,
    require_index,
    require_inside,
    require_one_level,
    require_rank,
    require_same_dtype,
    require_scalar,
    require_static,
    shown,
    window,
)
from aotc.ops.values import Array, highest, lowest, storage

_ANY = (*NUMBERS, BOOL)
_SPACES = ("vec", "mat", "left", "right", "acc", "bias")
_SHAPE = Parameter("shape", Kind.EXTENTS)
_DTYPE = Parameter("dtype", Kind.DTYPE)
_MEMORY = Parameter("target_memory", Kind.TEXT, "Vec")


def _space(a: Arguments, reachable: Sequence[str] = _SPACES) -> str:
    space = str(a["target_memory"]).lower()
    if space not in reachable:
        names = ", ".join(each.capitalize() for each in reachable)
        raise OpError(
            f"`target_memory` is {a['target_memory']}, expected one of {names}",
            "load to Mat, then pl.move" if space in _SPACES else None,
        )
    return space


def _made(a: Arguments, space: str) -> TensorType:
    require_dtype("dtype", a["dtype"], _ANY)
    require_static("shape", a["shape"], len(a["shape"]))
    return TensorType(a["dtype"], a["shape"], None, space)


def _undefined(a: Arguments) -> Array:
    # A value that is never meant, so that a read before the first write is seen.
    dtype: DType = a["dtype"]
    poison = np.nan if dtype.is_float else lowest(dtype)
    return np.full(a["shape"], poison, storage(dtype))


def _tensor_type(a: Arguments) -> TensorType:
    if a["layout"] != "ND":
        raise OpError(f"`layout` is {a['layout']}, a tensor is row-major", "leave it out")
    return _made(a, "ddr")


def _full_type(space: str) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        dtype: DType = a["dtype"]
        if isinstance(a["value"], float) and not dtype.is_float:
            raise OpError(f"`value` is {a['value']}, and the tensor is {dtype}")
        if dtype.is_integer and not lowest(dtype) <= a["value"] <= highest(dtype):
            raise OpError(f"`value` is {a['value']}, which {dtype} does not hold")
        return _made(a, space)

    return infer


def _constant(value: float, dtype: DType) -> Constant:
    return Constant(float(value), FP32) if dtype.is_float else Constant(value, dtype)


def _full(name: str, spelled: tuple[str, ...], space: str) -> OpDef:
    return OpDef(
        name,
        spelled,
        (_SHAPE, _DTYPE, Parameter("value", Kind.NUMBER)),
        _full_type(space),
        lambda a: np.full(a["shape"], a["value"], storage(a["dtype"])),
        Pointwise(lambda e, _: e.scalar(_constant(e.arguments["value"], e.arguments["dtype"]))),
        orchestration=True,
    )


_CREATION = [
    OpDef(
        "create_tensor",
        ("create_tensor", "tensor.create"),
        (
            _SHAPE,
            _DTYPE,
            Parameter("layout", Kind.TEXT, "ND"),
            Parameter("manual_dep", Kind.BOOLEAN, False),
        ),
        _tensor_type,
        _undefined,
        Allocate(),
        orchestration=True,
        refused=("init_value",),
    ),
    OpDef(
        "create_tile",
        ("create_tile", "tile.create"),
        (_SHAPE, _DTYPE, _MEMORY),
        lambda a: _made(a, _space(a)),
        _undefined,
        Allocate(),
        refused=("transpose", "flat_layout"),
    ),
    _full("full", ("full", "tensor.full"), "ddr"),
    _full("tile_full", ("tile.full",), "vec"),
]


# Windows: slice, load.


def _window_parameters(*names: str) -> tuple[Parameter, ...]:
    operand, *rest = names
    aliases = ("tensor", "tile") if operand == "input" else ()
    return (
        Parameter(operand, Kind.TENSOR, aliases=aliases),
        *(Parameter(each, Kind.EXTENTS) for each in rest),
        Parameter("valid_shape", Kind.EXTENTS, ()),
    )


def _windowed(
    a: Arguments, operand: str, shape: Shape, offset: Shape, names: tuple[str, str]
) -> tuple[Shape, Shape]:
    source: TensorVar = a[operand]
    require_static(names[0], shape, source.type.rank)
    if len(offset) != source.type.rank:
        raise OpError(f"`{names[1]}` lists {len(offset)} numbers, expected {source.type.rank}")
    for each in offset:
        require_index(names[1], each)
    given: Shape = a["valid_shape"]
    if given:
        require_static("valid_shape", given, source.type.rank)
    return shape, window(source.type, shape, offset, given, a["clamp"])


def _dropped(a: Arguments) -> tuple[int, ...]:
    rank = len(a["shape"])
    axes = []
    for each in a["drop_dims"]:
        value = each if isinstance(each, int) else constant_value(each)
        if value is None:
            raise OpError(f"`drop_dims` holds {readable(each)}, expected constants")
        axes.append(axis_of("drop_dims", value, rank))
    return tuple(sorted(set(axes)))


def _slice_type(a: Arguments) -> TensorType:
    shape, valid = _windowed(a, "input", a["shape"], a["offset"], ("shape", "offset"))
    source: TensorType = a["input"].type
    if a["clamp"] and source.space != "ddr":
        raise OpError("`clamp` is for tensors, and `input` is a tile", "give valid_shape=")
    dropped = _dropped(a)
    for axis in dropped:
        if constant_value(shape[axis]) != 1 or constant_value(valid[axis]) != 1:
            raise OpError(
                f"dimension {axis} has {readable(valid[axis])} of {readable(shape[axis])} "
                "elements, and only an extent of 1 can be dropped"
            )
    kept = [axis for axis in range(len(shape)) if axis not in dropped]
    return make_type(
        source.dtype,
        tuple(shape[axis] for axis in kept),
        tuple(valid[axis] for axis in kept),
        source.space,
    )


def _offset(strides: Shape, position: Shape) -> Scalar:
    total: Scalar = index(0)
    for stride, each in zip(strides, position, strict=True):
        total = add(total, mul(convert(each, INDEX), stride))
    return total


def _slice_place(a: Arguments, strides: Shape) -> tuple[Scalar, Shape]:
    dropped = _dropped(a)
    kept = tuple(stride for axis, stride in enumerate(strides) if axis not in dropped)
    return _offset(strides, a["offset"]), kept


def cut(array: Array, offset: Sequence[int], shape: Sequence[int]) -> Array:
    """Return the window of `shape` at `offset`, less what is beyond the array.

    Raises IndexError for an offset below 0.
    """
    if any(each < 0 for each in offset):
        raise IndexError(f"offset {list(offset)} is below 0")
    return array[tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))]


def _slice_reference(a: Arguments) -> Array:
    taken = cut(a["input"], a["offset"], a["valid_shape"] or a["shape"])
    return taken.squeeze(_dropped(a))


def _load_type(a: Arguments) -> TensorType:
    source: TensorType = a["tensor"].type
    if source.space != "ddr":
        raise OpError("`tensor` is a tile already", "use pl.slice or pl.move")
    space = _space(a, ("vec", "mat"))
    shape, valid = _windowed(a, "tensor", a["shapes"], a["offsets"], ("shapes", "offsets"))
    return make_type(source.dtype, shape, valid, space)


_CLAMP = Parameter("clamp", Kind.BOOLEAN, False)

_WINDOWS = [
    OpDef(
        "slice",
        spellings("slice"),
        (
            *_window_parameters("input", "shape", "offset"),
            Parameter("drop_dims", Kind.EXTENTS, ()),
            _CLAMP,
        ),
        _slice_type,
        _slice_reference,
        View(_slice_place),
        orchestration=True,
        refused=("pad_value",),
    ),
    OpDef(
        "load",
        ("load", "tile.load"),
        (*_window_parameters("tensor", "offsets", "shapes"), _MEMORY, _CLAMP),
        _load_type,
        lambda a: cut(a["tensor"], a["offsets"], a["valid_shape"] or a["shapes"]),
        View(lambda a, strides: (_offset(strides, a["offsets"]), strides), "tensor"),
    ),
]


# Views of the whole: move, reshape, transpose, set_validshape.


def _same_place(a: Arguments, strides: Shape) -> tuple[Scalar, Shape]:
    return index(0), strides


def _move_type(a: Arguments) -> TensorType:
    source: TensorType = a["tile"].type
    if source.space == "ddr":
        raise OpError("`tile` is a tensor", "load it with pl.load")
    return TensorType(source.dtype, source.shape, source.valid, _space(a))


def product(extents: Sequence[Scalar]) -> Scalar:
    """Return the number of elements of a tensor with `extents`."""
    total: Scalar = index(1)
    for each in extents:
        total = mul(total, each)
    return total


def _reshape_type(a: Arguments) -> TensorType:
    source: TensorVar = a["input"]
    require_static("shape", a["shape"], len(a["shape"]))
    if product(source.shape) != product(a["shape"]):
        raise OpError(
            f"`shape` {shown(a['shape'])} has {readable(product(a['shape']))} elements, and the "
            f"tensor {shown(source.shape)} has {readable(product(source.shape))}"
        )
    if source.type.valid is not None:
        raise OpError(
            "a reshape of a partly valid tensor is not supported yet",
            "fill the rest first, with pl.fillpad",
        )
    return TensorType(source.dtype, a["shape"], None, source.type.space)


def row_major(shape: Sequence[Scalar], step: Scalar) -> Shape:
    """Return the strides of a tensor of `shape` whose innermost stride is `step`."""
    strides = []
    for extent in reversed(shape):
        strides.append(step)
        step = mul(step, extent)
    return tuple(reversed(strides))


def _reshape_place(a: Arguments, strides: Shape) -> tuple[Scalar, Shape] | None:
    # Runs of dimensions that are contiguous to each other, as (extent, innermost stride).
    runs: list[tuple[Scalar, Scalar]] = []
    for extent, stride in zip(a["input"].shape, strides, strict=True):
        if constant_value(extent) == 1:
            continue
        if runs and runs[-1][1] == mul(extent, stride):
            runs[-1] = (mul(runs[-1][0], extent), stride)
        else:
            runs.append((extent, stride))
    if len(runs) <= 1:
        return index(0), row_major(a["shape"], runs[0][1] if runs else index(1))
    placed: list[Scalar] = []
    group: list[Scalar] = []
    for extent in a["shape"]:
        group.append(extent)
        if runs and product(group) == runs[0][0]:
            placed += row_major(group, runs.pop(0)[1])
            group = []
    if runs or any(constant_value(extent) != 1 for extent in group):
        return None
    return index(0), (*placed, *(index(1) for _ in group))


def _axes(a: Arguments) -> tuple[int, int]:
    rank = a["input"].type.rank if isinstance(a["input"], TensorVar) else a["input"].ndim
    if "axis1" not in a:
        if rank < 2:
            raise OpError(f"`input` has {rank} dimensions, expected at least 2")
        return rank - 2, rank - 1
    first, second = (axis_of(name, a[name], rank) for name in ("axis1", "axis2"))
    if first == second:
        raise OpError(f"`axis1` and `axis2` are both {first}", "name two axes")
    return first, second


def _swapped(extents: Sequence[Any], axes: tuple[int, int]) -> tuple[Any, ...]:
    swapped = list(extents)
    swapped[axes[0]], swapped[axes[1]] = swapped[axes[1]], swapped[axes[0]]
    return tuple(swapped)


def _transposed_type(a: Arguments) -> TensorType:
    source, axes = a["input"].type, _axes(a)
    shape, valid = _swapped(source.shape, axes), _swapped(source.valid_shape, axes)
    return make_type(source.dtype, shape, valid, source.space)


def _valid_type(a: Arguments) -> TensorType:
    source: TensorVar = a["input"]
    require_rank("input", source, 2)
    valid = []
    for axis, name in enumerate(("valid_rows", "valid_cols")):
        require_index(name, a[name])
        extent = convert(a[name], INDEX)
        beyond = constant_value(sub(extent, source.shape[axis]))
        if (beyond is not None and beyond > 0) or (constant_value(extent) or 0) < 0:
            raise OpError(
                f"`{name}` is {readable(extent)}, and the extent is {readable(source.shape[axis])}"
            )
        valid.append(extent)
    return make_type(source.dtype, source.shape, tuple(valid), source.type.space)


_INPUT = Parameter("input", Kind.TENSOR, aliases=("tensor", "tile"))

_VIEWS = [
    OpDef(
        "move",
        ("move", "tile.move"),
        (
            Parameter("tile", Kind.TENSOR),
            Parameter("target_memory", Kind.TEXT),
            Parameter("blayout", Kind.TEXT, None),
            Parameter("slayout", Kind.TEXT, None),
        ),
        _move_type,
        lambda a: a["tile"],
        View(_same_place, "tile"),
    ),
    OpDef(
        "reshape",
        spellings("reshape"),
        (_INPUT, _SHAPE),
        _reshape_type,
        lambda a: a["input"].reshape(a["shape"]),
        View(_reshape_place),
        orchestration=True,
    ),
    OpDef(
        "transpose",
        spellings("transpose"),
        (
            _INPUT,
            Parameter("axis1", Kind.INTEGER),
            Parameter("axis2", Kind.INTEGER),
            Parameter("tmp_tile", Kind.SCRATCH, None),
        ),
        _transposed_type,
        lambda a: np.swapaxes(a["input"], *_axes(a)),
        View(lambda a, strides: (index(0), _swapped(strides, _axes(a)))),
    ),
    OpDef(
        "transpose_view",
        ("tile.transpose_view",),
        (_INPUT,),
        _transposed_type,
        lambda a: np.swapaxes(a["input"], *_axes(a)),
        View(lambda a, strides: (index(0), _swapped(strides, _axes(a)))),
    ),
    OpDef(
        "set_validshape",
        spellings("set_validshape"),
        (_INPUT, Parameter("valid_rows", Kind.SCALAR), Parameter("valid_cols", Kind.SCALAR)),
        _valid_type,
        lambda a: cut(a["input"], (0, 0), (a["valid_rows"], a["valid_cols"])),
        View(_same_place),
    ),
]


# Updates: assemble, store, write; and read.


def put(target: Array, source: Array, offset: Sequence[int]) -> Array:
    """Write `source` into `target` at `offset`, in place; raise IndexError where it runs off.

    A source of fewer dimensions fills the last ones.
    """
    source = source.reshape((1,) * (target.ndim - source.ndim) + source.shape)
    taken = cut(target, offset, source.shape)
    if taken.shape != source.shape:
        raise IndexError(
            f"{list(source.shape)} elements at {list(offset)} run off the target "
            f"{list(target.shape)}"
        )
    taken[...] = source
    return target


def _update_type(target: str, source: str, offset: str) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        into, what = a[target], a[source]
        require_same_dtype(target, into.dtype, source, what.dtype)
        rank = into.type.rank
        if what.type.rank > rank:
            raise OpError(
                f"`{source}` has {what.type.rank} dimensions, more than `{target}`, {rank}",
                "give it that rank with pl.reshape",
            )
        if len(a[offset]) != rank:
            raise OpError(f"`{offset}` lists {len(a[offset])} numbers, expected {rank}")
        for each in a[offset]:
            require_index(offset, each)
        require_inside(into.type, what.type, a[offset])
        return TensorType(into.dtype, into.shape, into.type.valid, into.type.space)

    return infer


def _store_type(a: Arguments) -> TensorType:
    if a["tile"].type.space == "ddr":
        raise OpError("`tile` is a tensor", "use pl.assemble")
    if a["output_tensor"].type.space != "ddr":
        raise OpError("`output_tensor` is a tile", "use pl.assemble")
    return _update_type("output_tensor", "tile", "offsets")(a)


def _require_indices(a: Arguments, tensor: str, name: str) -> None:
    rank = a[tensor].type.rank
    if len(a[name]) != rank:
        raise OpError(
            f"`{name}` lists {len(a[name])} indices, and `{tensor}` has {rank} dimensions",
            "give one index a dimension",
        )
    for each, extent in zip(a[name], a[tensor].shape, strict=True):
        require_index(name, each)
        room = constant_value(sub(extent, each))
        if (room is not None and room <= 0) or (constant_value(each) or 0) < 0:
            raise OpError(f"index {readable(each)} is outside of {readable(extent)} elements")


def _write_type(a: Arguments) -> TensorType:
    _require_indices(a, "dst", "offset")
    require_scalar("value", a["value"], a["dst"].dtype)
    kind: TensorType = a["dst"].type
    return kind


def _write_reference(a: Arguments) -> Array:
    target: Array = a["dst"].copy()
    value = np.asarray(a["value"]).astype(target.dtype)
    return put(target, value.reshape((1,) * target.ndim), a["offset"])


def _read_type(a: Arguments) -> DType:
    _require_indices(a, "src", "offset")
    dtype: DType = a["src"].dtype
    return dtype


def _read_reference(a: Arguments) -> int | float:
    position, array = a["offset"], a["src"]
    if any(not 0 <= i < extent for i, extent in zip(position, array.shape, strict=True)):
        raise IndexError(f"index {list(position)} is outside of {list(array.shape)}")
    element: int | float = array[tuple(position)].item()
    return element


_UPDATES = [
    OpDef(
        "assemble",
        spellings("assemble"),
        (
            Parameter("target", Kind.TENSOR),
            Parameter("source", Kind.TENSOR),
            Parameter("offset", Kind.EXTENTS),
        ),
        _update_type("target", "source", "offset"),
        lambda a: put(a["target"].copy(), a["source"], a["offset"]),
        Update("target", "source", "offset"),
        orchestration=True,
        refused=("atomic",),
    ),
    OpDef(
        "store",
        ("store", "tile.store"),
        (
            Parameter("tile", Kind.TENSOR),
            Parameter("offsets", Kind.EXTENTS),
            Parameter("output_tensor", Kind.TENSOR),
        ),
        _store_type,
        lambda a: put(a["output_tensor"].copy(), a["tile"], a["offsets"]),
        Update("output_tensor", "tile", "offsets"),
        refused=("shapes", "atomic"),
    ),
    OpDef(
        "write",
        spellings("write"),
        (
            Parameter("dst", Kind.TENSOR, aliases=("tensor", "tile")),
            Parameter("offset", Kind.EXTENTS, aliases=("indices",)),
            Parameter("value", Kind.SCALAR),
        ),
        _write_type,
        _write_reference,
        Update("dst", "value", "offset"),
        orchestration=True,
    ),
    OpDef(
        "read",
        spellings("read"),
        (
            Parameter("src", Kind.TENSOR, aliases=("tensor", "tile")),
            Parameter("offset", Kind.EXTENTS, aliases=("indices",)),
        ),
        _read_type,
        _read_reference,
        Read("src", "offset"),
        orchestration=True,
    ),
]


# Padding and concatenation.

_VALUE = Parameter("value", Kind.TENSOR, aliases=("tensor", "tile"))
_PAD = Parameter("pad_value", Kind.TEXT, "zero")
_PADS = {0: "zero", np.inf: "max", -np.inf: "min"}


def _padding(pad: object, dtype: DType) -> float | int:
    name = pad if isinstance(pad, str) else _PADS.get(pad)  # type: ignore[call-overload]
    values = {"zero": 0, "max": highest(dtype), "min": lowest(dtype)}
    if name not in values:
        raise OpError(f"`pad_value` is {pad}", "use pl.PadValue.zero, .min or .max")
    return values[name]


def _padded_type(a: Arguments) -> TensorType:
    source: TensorType = a["value"].type
    require_dtype("value", source.dtype, NUMBERS)
    _padding(a["pad_value"], source.dtype)
    shape = source.shape if flag(a, "shape") is None else a["shape"]
    require_static("shape", shape, source.rank)
    for axis, (extent, old) in enumerate(zip(shape, source.shape, strict=True)):
        room = constant_value(sub(extent, old))
        if room is not None and room < 0:
            raise OpError(f"`shape` is {shown(shape)}, smaller than dimension {axis} of `value`")
    return TensorType(source.dtype, shape, None, source.space)


def _padded_element(e: Elements, at: tuple[str, ...]) -> str:
    source: TensorType = e.arguments["value"].type
    shape = source.shape if flag(e.arguments, "shape") is None else e.arguments["shape"]
    pad = e.scalar(_constant(_padding(e.arguments["pad_value"], source.dtype), source.dtype))
    inside = [
        f"{position} < {e.scalar(extent)}"
        for position, extent, whole in zip(at, source.valid_shape, shape, strict=True)
        if extent != whole
    ]
    value = e.load("value", at)
    return f"({' && '.join(inside)} ? {value} : {pad})" if inside else value


def _padded_reference(a: Arguments) -> Array:
    source: Array = a["value"]
    padded = np.full(a["result_shape"], _pad_number(a["pad_value"], source.dtype), source.dtype)
    return put(padded, source, (0,) * source.ndim)


def _pad_number(pad: object, dtype: np.dtype[Any]) -> float | int:
    name = pad if isinstance(pad, str) else _PADS[pad]  # type: ignore[index]
    if name == "zero":
        return 0
    if dtype.kind == "f":
        return np.inf if name == "max" else -np.inf
    limits = np.iinfo(dtype)
    return int(limits.max if name == "max" else limits.min)


def _concat_type(a: Arguments) -> TensorType:
    first, second = a["src0"], a["src1"]
    require_same_dtype("src0", first.dtype, "src1", second.dtype)
    if first.type.rank == 0 or first.shape[:-1] != second.shape[:-1]:
        raise OpError(
            f"`src0` is {shown(first.shape)} and `src1` {shown(second.shape)}; "
            "all but the last extent must be equal"
        )
    if first.type.valid is not None or second.type.valid is not None:
        raise OpError("a part is only partly valid", "fill the rest first, with pl.fillpad")
    shape = (*first.shape[:-1], add(first.shape[-1], second.shape[-1]))
    return TensorType(first.dtype, shape, None, require_one_level(a, ("src0", "src1")))


def _concat_element(e: Elements, at: tuple[str, ...]) -> str:
    width = e.scalar(e.arguments["src0"].shape[-1])
    first = e.load("src0", at)
    second = e.load("src1", (*at[:-1], f"({at[-1]} - {width})"))
    return f"({at[-1]} < {width} ? {first} : {second})"


_PADDING = [
    OpDef(
        "fillpad",
        (*spellings("fillpad"), "fillpad_inplace", "tile.fillpad_inplace"),
        (_VALUE, _PAD),
        _padded_type,
        _padded_reference,
        Pointwise(_padded_element),
    ),
    OpDef(
        "fillpad_expand",
        spellings("fillpad_expand"),
        (_VALUE, _SHAPE, _PAD),
        _padded_type,
        _padded_reference,
        Pointwise(_padded_element),
    ),
    OpDef(
        "concat",
        spellings("concat"),
        (Parameter("src0", Kind.TENSOR), Parameter("src1", Kind.TENSOR)),
        _concat_type,
        lambda a: np.concatenate((a["src0"], a["src1"]), axis=-1),
        Pointwise(_concat_element, memory=("src0", "src1")),
    ),
]

ROWS = [*_CREATION, *_WINDOWS, *_VIEWS, *_UPDATES, *_PADDING]
