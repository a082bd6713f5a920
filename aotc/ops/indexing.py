"""Sequences of indices, and gathering by them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aotc.dtypes import INT16, INT32, INT64, UINT16, UINT32
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import constant_value, convert
from aotc.ops.registry import Arguments, Elements, Kind, OpDef, OpError, Parameter, Pointwise
from aotc.ops.rules import (
    NUMBERS,
    axis_of,
    make_type,
    require_dtype,
    require_one_level,
    require_rank,
    require_scalar,
    require_static,
    shown,
)
from aotc.ops.values import Array, storage

_SEQUENCES = (INT32, INT16, UINT32, UINT16, INT64)
_INDICES = (INT32, INT16)


def _sequence_type(space: str) -> Callable[[Arguments], TensorType]:
    def infer(a: Arguments) -> TensorType:
        require_dtype("dtype", a["dtype"], _SEQUENCES)
        require_scalar("start", a["start"], a["dtype"])
        require_static("shape", a["shape"], len(a["shape"]))
        if not a["shape"] or any(constant_value(each) != 1 for each in a["shape"][:-1]):
            raise OpError(
                f"`shape` is {shown(a['shape'])}, and every extent but the last must be 1",
                "use [1, N]",
            )
        return TensorType(a["dtype"], a["shape"], None, space)

    return infer


def _sequence_element(e: Elements, at: tuple[str, ...]) -> str:
    start = e.scalar(convert(e.arguments["start"], e.arguments["dtype"]))
    sign = "-" if e.arguments["descending"] else "+"
    return f"((int64_t){start} {sign} (int64_t){at[-1]})"


def _sequence(a: Arguments) -> Array:
    steps = np.arange(a["shape"][-1], dtype=np.int64)
    values = a["start"] - steps if a["descending"] else a["start"] + steps
    return np.asarray(values.astype(storage(a["dtype"])).reshape(a["shape"]))


def _arange(name: str, spellings: tuple[str, ...], space: str) -> OpDef:
    return OpDef(
        name,
        spellings,
        (
            Parameter("start", Kind.SCALAR),
            Parameter("shape", Kind.EXTENTS),
            Parameter("dtype", Kind.DTYPE, INT32),
            Parameter("descending", Kind.BOOLEAN, False),
        ),
        _sequence_type(space),
        _sequence,
        Pointwise(_sequence_element),
    )


def _gather_type(a: Arguments) -> TensorType:
    source: TensorVar = a["input"]
    picked: TensorVar = a["index"]
    require_rank("input", source, 2)
    require_rank("index", picked, 2)
    require_dtype("input", source.dtype, NUMBERS)
    require_dtype("index", picked.dtype, _INDICES)
    if axis_of("dim", a["dim"], 2) != 1:
        raise OpError(f"`dim` is {a['dim']}, and only -1 is supported", "transpose the tensor")
    if source.shape[0] != picked.shape[0]:
        raise OpError(
            f"`input` is {shown(source.shape)} and `index` {shown(picked.shape)}; "
            "they must have as many rows"
        )
    space = require_one_level(a, ("input", "index"))
    return make_type(source.dtype, picked.shape, picked.type.valid_shape, space)


def _gather_element(e: Elements, at: tuple[str, ...]) -> str:
    return e.load("input", (at[0], f"(int64_t){e.load('index', at)}"))


def _checked(index: Array, extent: int) -> Array:
    if index.size and not (0 <= index.min() and index.max() < extent):
        raise IndexError(f"indices {index.min()} to {index.max()}, and there are {extent} elements")
    return index.astype(np.int64)


def _gather(a: Arguments) -> Array:
    rows = min(len(a["input"]), len(a["index"]))
    index = _checked(a["index"][:rows], a["input"].shape[1])
    return np.take_along_axis(a["input"][:rows], index, axis=1)


def _flat_gather_type(a: Arguments) -> TensorType:
    source: TensorVar = a["src"]
    picked: TensorVar = a["indices"]
    require_rank("src", source, 2)
    require_dtype("src", source.dtype, NUMBERS)
    require_dtype("indices", picked.dtype, _INDICES)
    if source.type.valid is not None:
        raise OpError("`src` is only partly valid", "fill the rest first, with pl.fillpad")
    space = require_one_level(a, ("src", "indices"))
    return make_type(source.dtype, picked.shape, picked.type.valid_shape, space)


def _flat_gather_element(e: Elements, at: tuple[str, ...]) -> str:
    flat = f"(int64_t){e.load('indices', at)}"
    columns = e.scalar(e.arguments["src"].shape[1])
    return e.load("src", (f"({flat} / {columns})", f"({flat} % {columns})"))


ROWS = [
    _arange("arange", ("arange", "tensor.ci", "tensor.arange"), "ddr"),
    _arange("tile_arange", ("tile.ci", "tile.arange"), "vec"),
    OpDef(
        "gather",
        ("gather", "tensor.gather"),
        (
            Parameter("input", Kind.TENSOR),
            Parameter("dim", Kind.INTEGER),
            Parameter("index", Kind.TENSOR),
        ),
        _gather_type,
        _gather,
        Pointwise(_gather_element, memory=("input",)),
        refused=(
            *("mask_pattern", "output_dtype", "kvalue", "cmp_mode", "out_cols"),
            *("offset", "count_dtype"),
        ),
    ),
    OpDef(
        "tile_gather",
        ("tile.gather",),
        (
            Parameter("src", Kind.TENSOR),
            Parameter("indices", Kind.TENSOR),
            Parameter("tmp", Kind.SCRATCH, None),
        ),
        _flat_gather_type,
        lambda a: a["src"].reshape(-1)[_checked(a["indices"], a["src"].size)],
        Pointwise(_flat_gather_element, memory=("src",)),
    ),
]
