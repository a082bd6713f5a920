"""The C text of every element-wise operator computes what its reference does, bit for bit."""

import ctypes
import random
from importlib import resources

import numpy as np
import operator_cases as cases
import pytest
from test_registry import _evaluate

from aotc.codegen import ctext
from aotc.dtypes import BF16, BOOL, FP16, DType
from aotc.ir.nodes import TensorVar
from aotc.ir.scalar import constant_value
from aotc.ops.registry import OpDef, Pointwise, table
from aotc.toolchain.zig import TARGETS, compile_shared_object

ROWS = [row for row in table().values() if isinstance(row.lowering, Pointwise)]
SEEDS = range(12)
# These are correct to 2 units in the last place, not exact.
APPROXIMATE = ("exp", "log", "row_expand_expdif", "col_expand_expdif")


def _library() -> str:
    folder = resources.files("aotc")
    names = ("runtime/include/aotc_abi.h", "codegen/library/core.h", "codegen/library/math.h")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _load(dtype: DType, place: str) -> str:
    if dtype == BF16:
        return f"aotc_float_from_bf16({place})"
    return f"((float){place})" if dtype == FP16 else place


class _Elements:
    def __init__(self, arguments: dict, order: list[str]):
        self.arguments = arguments
        self.order = order

    def load(self, name: str, index: tuple[str, ...]) -> str:
        variable: TensorVar = self.arguments[name]
        flat = "0"
        assert len(index) == variable.type.rank
        for position, extent in zip(index, variable.type.valid_shape, strict=True):
            flat = f"({flat}) * {constant_value(extent)} + ({position})"
        c_type = variable.dtype.c_type
        return _load(variable.dtype, f"((const {c_type} *)in[{self.order.index(name)}])[{flat}]")

    def scalar(self, scalar) -> str:
        return ctext.scalar(scalar)


def _function(number: int, row: OpDef, arguments: dict, order: list[str]) -> str:
    kind = row.infer(arguments)
    index = tuple(f"i{axis}" for axis in range(kind.rank))
    value = row.lowering.element(_Elements(arguments, order), index)
    extents = [constant_value(each) for each in kind.valid_shape]
    loops = "".join(
        f"for (int64_t {i} = 0; {i} < {extent}; ++{i}) "
        for i, extent in zip(index, extents, strict=True)
    )
    if kind.dtype == BF16:
        value = f"aotc_bf16_from_float({value})"
    c_type = kind.dtype.c_type
    return (
        f"AOTC_EXPORT void case_{number}(void *const *in, {c_type} *out) "
        f"{{ (void)in; {loops} *out++ = ({c_type})({value}); }}\n"
    )


def _stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == BF16:
        return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(array.astype(np.uint8) if dtype == BOOL else array)


def _numbers(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype == BF16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    number, texts, found = 0, [], {}
    for row in ROWS:
        for seed in SEEDS:
            rng = random.Random(f"{row.name} {seed}")
            arguments = cases.arguments(row, rng)
            arrays = cases.arrays(row, arguments, rng)
            order = list(arrays)
            texts.append(_function(number, row, arguments, order))
            found.setdefault(row.name, []).append((number, arguments, arrays))
            number += 1
    path = tmp_path_factory.mktemp("pointwise") / "cases.so"
    source = _library() + "".join(texts)
    path.write_bytes(compile_shared_object(source, TARGETS["x86_64_v3"]))
    return ctypes.CDLL(str(path)), found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_text_and_reference_agree(row: OpDef, library) -> None:
    loaded, found = library
    for number, arguments, arrays in found[row.name]:
        result, expected = _evaluate(row, arguments, arrays)
        dtype = result.dtype
        stored = [_stored(array, arguments[name].dtype) for name, array in arrays.items()]
        pointers = (ctypes.c_void_p * max(1, len(stored)))(*(each.ctypes.data for each in stored))
        out = _stored(np.zeros(expected.shape, expected.dtype), dtype)
        getattr(loaded, f"case_{number}")(pointers, ctypes.c_void_p(out.ctypes.data))
        got = _numbers(out, dtype).astype(expected.dtype)
        if row.name in APPROXIMATE:
            epsilon = {"bf16": 2**-7, "fp16": 2**-9}.get(dtype.name, 2**-22)
            np.testing.assert_allclose(got, expected, rtol=epsilon, atol=1e-37)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=str(arguments))
            if dtype.is_float:
                known = ~np.isnan(expected)
                assert np.array_equal(np.signbit(got)[known], np.signbit(expected)[known])
