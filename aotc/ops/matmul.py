"""The matmul family: contractions of bf16, fp16 or fp32 in fp32, and of int8 in int32."""

from __future__ import annotations

from collections.abc import Callable

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


def _product(a: Arguments) -> tuple[tuple[Scalar, Scalar], tuple[Scalar, Scalar]]:
    """Return (shape, valid shape) of the product; raise OpError where there is none."""
    left, right = a["lhs"], a["rhs"]
    for name in ("lhs", "rhs"):
        if a[name].type.rank != 2:
            raise OpError(
                f"`{name}` has {a[name].type.rank} dimensions, a matmul takes 2",
                "loop over the batch and use pl.matmul on each matrix",
            )
        require_dtype(name, a[name].dtype, (*FLOATS, INT8))
    require_same_dtype("lhs", left.dtype, "rhs", right.dtype)
    require_one_level(a, ("lhs", "rhs"))
    rows, inner = _oriented(left, a.get("a_trans", False))
    other, columns = _oriented(right, a.get("b_trans", False))
    if inner[0] != other[0]:
        hint = None
        if inner[0] == columns[0]:
            hint = "pass b_trans=True where rhs is stored transposed"
        raise OpError(
            f"inner dimensions differ: lhs is {shown(left.shape)} and rhs {shown(right.shape)}, "
            f"so {readable(inner[0])} meets {readable(other[0])}",
            hint,
        )
    return (rows[0], columns[0]), (rows[1], columns[1])


def _oriented(tensor: TensorVar, transposed: bool) -> list[tuple[Scalar, Scalar]]:
    """Return (extent, valid extent) of the two dimensions, as the contraction sees them."""
    pairs = list(zip(tensor.shape, tensor.type.valid_shape, strict=True))
    return pairs[::-1] if transposed else pairs


def _accumulator_of(operand: TensorVar) -> DType:
    return INT32 if operand.dtype == INT8 else FP32


def _infer(a: Arguments) -> TensorType:
    shape, valid = _product(a)
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
    left = a["lhs"].T if a.get("a_trans") else a["lhs"]
    right = a["rhs"].T if a.get("b_trans") else a["rhs"]
    # Where the valid regions of the inner dimension differ, the common part counts.
    inner = min(left.shape[1], right.shape[0])
    return np.asarray(left[:, :inner].astype(np.float64) @ right[:inner].astype(np.float64))


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
        _infer,
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
