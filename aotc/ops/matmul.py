"""The matmul family: contractions of bf16, fp16 or fp32 in fp32, and of int8 in int32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from aotc.dtypes import BOOL, FP32, INT8, INT32, DType
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import Scalar, index
from aotc.ir.text import readable
from aotc.ops.registry import Arguments, Kind, Matmul, OpDef, OpError, Parameter
from aotc.ops.rules import (
    FLOATS,
    flag,
    make_type,
    require_dtype,
    require_one_level,
    require_same_dtype,
    shown,
)
from aotc.ops.values import Array

_OPERANDS = (Parameter("lhs", Kind.TENSOR), Parameter("rhs", Kind.TENSOR))
_ACCUMULATOR = Parameter("acc", Kind.TENSOR)
_BIAS = Parameter("bias", Kind.TENSOR)
_OUT_DTYPE = Parameter("out_dtype", Kind.DTYPE, None)
_TRANSPOSES = (
    Parameter("a_trans", Kind.BOOLEAN, False),
    Parameter("b_trans", Kind.BOOLEAN, False),
)
_OVERWRITE = Parameter("init_cond", Kind.SCALAR, ())
_PHASE = Parameter("acc_phase", Kind.TEXT, "unspecified")


def _product(
    a: Arguments, *, batched: bool = False
) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """Return (shape, valid shape) of the product; raise OpError where there is none.

    With `batched` the operands may be batches of matrices, of three dimensions.
    """
    left, right = a["lhs"], a["rhs"]
    rank = 3 if batched and left.type.rank == 3 else 2
    for name in ("lhs", "rhs"):
        if a[name].type.rank != rank:
            raise OpError(
                f"`{name}` has {a[name].type.rank} dimensions, "
                f"{'as `lhs` has 3 it must have' if rank == 3 else 'a matmul takes'} {rank}",
                "loop over the batch and use pl.matmul on each matrix",
            )
        require_dtype(name, a[name].dtype, (*FLOATS, INT8) if rank == 2 else FLOATS)
    require_same_dtype("lhs", left.dtype, "rhs", right.dtype)
    require_one_level(a, ("lhs", "rhs"))
    *batch, rows, inner = _oriented(left, a.get("a_trans", False))
    *others, other, columns = _oriented(right, a.get("b_trans", False))
    if batch != others:
        raise OpError(
            f"the batches differ: lhs is {shown(left.shape)} and rhs {shown(right.shape)}",
            "give both as many matrices",
        )
    if inner[0] != other[0]:
        hint = None
        if inner[0] == columns[0]:
            hint = "pass b_trans=True where rhs is stored transposed"
        raise OpError(
            f"inner dimensions differ: lhs is {shown(left.shape)} and rhs {shown(right.shape)}, "
            f"so {readable(inner[0])} meets {readable(other[0])}",
            hint,
        )
    extents = (*batch, rows, columns)
    return tuple(full for full, _ in extents), tuple(valid for _, valid in extents)


def _oriented(tensor: TensorVar, transposed: bool) -> list[tuple[Scalar, Scalar]]:
    """Return (extent, valid extent) of each dimension, as the contraction sees them."""
    pairs = list(zip(tensor.shape, tensor.type.valid_shape, strict=True))
    return [*pairs[:-2], pairs[-1], pairs[-2]] if transposed else pairs


def _accumulator_of(operand: TensorVar) -> DType:
    return INT32 if operand.dtype == INT8 else FP32


def _infer(a: Arguments, *, batched: bool = False) -> TensorType:
    shape, valid = _product(a, batched=batched)
    left: TensorVar = a["lhs"]
    on_chip = left.type.space != "ddr"
    # A tile product is an accumulator; a tensor product of floats has the type of its operands.
    accumulator = _accumulator_of(left)
    default = accumulator if on_chip or left.dtype == INT8 else left.dtype
    dtype: DType = a.get("out_dtype") or default
    require_dtype("out_dtype", dtype, FLOATS if left.dtype.is_float else (INT32,))
    return make_type(dtype, shape, valid, "acc" if on_chip else "ddr")


def _infer_accumulated(a: Arguments) -> TensorType:
    shape, _ = _product(a)
    total: TensorVar = a["acc"]
    require_dtype("acc", total.dtype, (_accumulator_of(a["lhs"]),))
    if total.shape != shape:
        raise OpError(f"`acc` is {shown(total.shape)}, and the product is {shown(shape)}")
    condition = flag(a, "init_cond")
    if condition is not None and condition.dtype != BOOL:
        raise OpError(f"`init_cond` is {condition.dtype}, expected a comparison")
    return total.type


def _infer_biased(a: Arguments) -> TensorType:
    shape, valid = _product(a)
    bias: TensorVar = a["bias"]
    require_dtype("bias", bias.dtype, (_accumulator_of(a["lhs"]),))
    if bias.shape != (index(1), shape[1]):
        raise OpError(f"`bias` is {shown(bias.shape)}, expected {shown((index(1), shape[1]))}")
    return make_type(bias.dtype, shape, valid, "acc" if a["lhs"].type.space != "ddr" else "ddr")


def _multiply(a: Arguments) -> Array:
    left = a["lhs"].swapaxes(-1, -2) if a.get("a_trans") else a["lhs"]
    right = a["rhs"].swapaxes(-1, -2) if a.get("b_trans") else a["rhs"]
    # Where the valid regions of the inner dimension differ, the common part counts.
    inner = min(left.shape[-1], right.shape[-2])
    return np.asarray(
        left[..., :inner].astype(np.float64) @ right[..., :inner, :].astype(np.float64)
    )


def _accumulate(a: Arguments) -> Array:
    # Rows and columns beyond the valid region of the product keep what they accumulated.
    total: Array = a["acc"].astype(np.float64)
    product = _multiply(a)
    rows, columns = min(len(total), len(product)), min(total.shape[1], product.shape[1])
    if flag(a, "init_cond"):
        total[:rows, :columns] = 0
    total[:rows, :columns] += product[:rows, :columns]
    return total


def _add_bias(a: Arguments) -> Array:
    product = _multiply(a)
    columns = min(product.shape[1], a["bias"].shape[1])
    return np.asarray(product[:, :columns] + a["bias"][:, :columns])


def _row(
    name: str,
    spellings: tuple[str, ...],
    parameters: tuple[Parameter, ...],
    infer: Callable[[Arguments], TensorType],
    reference: Callable[[Arguments], Array],
    lowering: Matmul,
) -> OpDef:
    refused = ("c_matrix_nz",) if name == "matmul" else ()
    return OpDef(name, spellings, parameters, infer, reference, lowering, refused=refused)


def _plain(**fields: str) -> Matmul:
    return Matmul(transpose_left=None, transpose_right=None, **fields)


ROWS = [
    _row(
        "matmul",
        ("matmul", "tensor.matmul", "tile.matmul"),
        (*_OPERANDS, _OUT_DTYPE, *_TRANSPOSES),
        partial(_infer, batched=True),
        _multiply,
        Matmul(),
    ),
    _row(
        "matmul_acc",
        ("matmul_acc", "tensor.matmul_acc", "tile.matmul_acc"),
        (_ACCUMULATOR, *_OPERANDS, *_TRANSPOSES, _OVERWRITE),
        _infer_accumulated,
        _accumulate,
        Matmul(accumulator="acc", overwrite="init_cond"),
    ),
    _row(
        "matmul_bias",
        ("matmul_bias", "tile.matmul_bias"),
        (*_OPERANDS, _BIAS),
        _infer_biased,
        _add_bias,
        _plain(bias="bias"),
    ),
    _row("gemv", ("gemv", "tile.gemv"), (*_OPERANDS, _PHASE), _infer, _multiply, _plain()),
    _row(
        "gemv_acc",
        ("gemv_acc", "tile.gemv_acc"),
        (_ACCUMULATOR, *_OPERANDS, _PHASE),
        _infer_accumulated,
        _accumulate,
        _plain(accumulator="acc"),
    ),
    _row(
        "gemv_bias",
        ("gemv_bias", "tile.gemv_bias"),
        (*_OPERANDS, _BIAS, _PHASE),
        _infer_biased,
        _add_bias,
        _plain(bias="bias"),
    ),
]
