"""Every operator is whole, and its parts agree."""

import random

import numpy as np
import operator_cases as cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.contract import Direction
from aotc.dtypes import DTYPES, DType
from aotc.ir.nodes import (
    Block,
    Operation,
    Program,
    ProgramParameter,
    TensorType,
    TensorVar,
)
from aotc.ir.scalar import Constant, ScalarVar, Symbol, constant_value, mul, substitute
from aotc.ops import registry, unsupported
from aotc.ops.registry import (
    REQUIRED,
    Kind,
    OpDef,
    OpError,
    Pointwise,
    Reduce,
    Update,
    View,
    lookup,
    table,
)
from aotc.ops.values import storage
from aotc.reference import run

ROWS = list(table().values())


def _operation(row: OpDef, arguments: dict[str, object]) -> Operation:
    inferred = row.infer(arguments)
    if isinstance(inferred, DType):
        result: TensorVar | ScalarVar = ScalarVar("result", inferred)
    else:
        result = TensorVar("result", inferred)
    return Operation(result, row.name, *row.pack(arguments))


def _evaluate(row: OpDef, arguments: dict[str, object], arrays: dict[str, np.ndarray]):
    """Run `row` by the interpreter, the valid regions of its operands given as `arrays`."""
    operation = _operation(row, arguments)
    parameters = []
    for each in operation.operands:
        if isinstance(each, TensorVar):
            parameters.append(ProgramParameter(TensorVar(each.name, _region(each.type))))
    program = Program("p", tuple(parameters), Block((operation,), (operation.result,)))
    copies = {name: array.copy() for name, array in arrays.items()}
    if isinstance(row.lowering, Update):
        parameters = [ProgramParameter(p.variable, Direction.INOUT) for p in parameters]
        program = Program("p", tuple(parameters), program.body)
    return operation.result, run(program, copies)[0]


def _region(kind: TensorType) -> TensorType:
    return TensorType(kind.dtype, kind.valid_shape, None, kind.space)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_whole(row: OpDef) -> None:
    assert row.spellings
    names = [each.name for each in row.parameters]
    assert len(set(names)) == len(names)
    optional = [each.default is not REQUIRED for each in row.parameters]
    for each in row.parameters:
        if each.kind.is_operand:
            assert each.default in (REQUIRED, ()), each.name
        if each.kind is Kind.SCRATCH:
            assert each.default is None
        for alias in (each.name, *each.aliases):
            assert row.parameter(alias) is each
    assert not set(row.refused) & set(names)
    assert optional.count(True) == 0 or row.parameters
    for field in ("operand", "target", "source", "offsets", "left", "right", "indices"):
        name = getattr(row.lowering, field, None)
        assert name is None or name in names
    for field in ("accumulator", "bias", "overwrite", "transpose_left", "transpose_right"):
        name = getattr(row.lowering, field, None)
        assert name is None or name in names
    if isinstance(row.lowering, Pointwise):
        assert set(row.lowering.memory) <= set(names)


def test_no_two_rows_share_a_spelling() -> None:
    spelled = [each for row in ROWS for each in row.spellings]
    assert len(set(spelled)) == len(spelled)
    assert not [each for each in spelled if unsupported.is_known(each)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_inferred_type_is_what_the_reference_gives(row: OpDef, seed: int) -> None:
    rng = random.Random(seed)
    arguments = cases.arguments(row, rng)
    arrays = cases.arrays(row, arguments, rng)
    result, value = _evaluate(row, arguments, arrays)
    if isinstance(result, ScalarVar):
        assert not isinstance(value, np.ndarray)
        return
    assert value.dtype == storage(result.dtype)
    assert value.shape == tuple(constant_value(each) for each in result.type.valid_shape)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_packed_arguments_come_back(row: OpDef, seed: int) -> None:
    arguments = cases.arguments(row, random.Random(seed))
    assert row.arguments(_operation(row, arguments)) == arguments


VIEWS = [row for row in ROWS if isinstance(row.lowering, View)]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("row", VIEWS, ids=lambda row: row.name)
def test_a_view_places_what_the_reference_copies(row: OpDef, seed: int) -> None:
    """Offset and strides reach the same elements, on a contiguous and on a spread-out operand."""
    rng = random.Random(seed)
    arguments = cases.arguments(row, rng)
    operand = arguments[row.lowering.operand]
    kind = operand.type
    full = TensorVar(operand.name, TensorType(kind.dtype, kind.shape, None, kind.space))
    arguments[row.lowering.operand] = full
    shape = [constant_value(each) for each in full.shape]
    spread = [each + rng.randint(0, 2) for each in shape]
    order = rng.sample(range(len(shape)), len(shape))
    for base in (np.arange(np.prod(shape)).reshape(shape), _spread(shape, spread, order)):
        strides = tuple(Constant(each // base.itemsize) for each in base.strides)
        placed = row.lowering.place(arguments, strides)
        if base.flags.c_contiguous:
            assert placed is not None
        if placed is None:
            continue
        array = base.astype(np.int64).astype(np.float32)
        array = array if kind.dtype.is_float else array.astype(storage(kind.dtype))
        array = array.astype(storage(kind.dtype))
        _, value = _evaluate(row, arguments, {full.name: array})
        offset = constant_value(placed[0])
        steps = [constant_value(each) for each in placed[1]]
        assert len(steps) == value.ndim
        for position in np.ndindex(*value.shape):
            at = offset + sum(i * s for i, s in zip(position, steps, strict=True))
            assert value[position] == _flat(base)[at]


def _spread(shape: list[int], spread: list[int], order: list[int]) -> np.ndarray:
    permuted = [spread[axis] for axis in order]
    whole = np.arange(int(np.prod(permuted)), dtype=np.int64).reshape(permuted)
    turned = whole.transpose([order.index(axis) for axis in range(len(order))])
    return turned[tuple(slice(each) for each in shape)]


def _flat(array: np.ndarray) -> np.ndarray:
    base = array if array.base is None else array.base
    while base.base is not None:
        base = base.base
    return base.reshape(-1)


def test_a_reshape_of_symbolic_extents_splits_and_merges() -> None:
    row = lookup("reshape")
    n = Symbol("N")
    source = TensorVar(
        "x",
        table()["create_tensor"].infer(
            {
                "shape": (n, Constant(8), Constant(16)),
                "dtype": cases.FP32,
                "layout": "ND",
                "manual_dep": False,
            }
        ),
    )
    merged = (mul(n, Constant(8)), Constant(16))
    strides = (Constant(256), Constant(32), Constant(1))
    # Rows of 16 are 32 apart: the first two dimensions merge, and split again.
    assert row.lowering.place({"input": source, "shape": merged}, strides) == (
        Constant(0),
        (Constant(32), Constant(1)),
    )
    flat = (mul(n, Constant(128)),)
    assert row.infer({"input": source, "shape": flat}).shape == flat
    assert row.lowering.place({"input": source, "shape": flat}, strides) is None
    split = (n, Constant(2), Constant(4), Constant(16))
    assert row.lowering.place({"input": source, "shape": split}, strides)[1] == (
        *(Constant(256), Constant(128), Constant(32), Constant(1)),
    )


@pytest.mark.parametrize(
    ("spelling", "arguments", "message"),
    [
        ("add", {"lhs": ("fp32", [2, 3]), "rhs": ("bf16", [2, 3])}, "fp32 and `rhs` is bf16"),
        ("add", {"lhs": ("fp32", [2, 3]), "rhs": ("fp32", [2, 4])}, "3 is not 4"),
        ("exp", {"input": ("int32", [2, 3])}, "`input` is int32, expected one of fp32"),
        ("row_expand_mul", {"lhs": ("fp32", [2, 3]), "rhs": ("fp32", [1, 3])}, "expected [2, 1]"),
        ("row_sum", {"input": ("bool", [2, 3])}, "`input` is bool"),
        ("matmul", {"lhs": ("bf16", [2, 3]), "rhs": ("bf16", [2, 3])}, "inner dimensions differ"),
        ("matmul", {"lhs": ("bf16", [2, 3, 4]), "rhs": ("bf16", [4, 3])}, "must have 3"),
        ("matmul", {"lhs": ("bf16", [2, 3]), "rhs": ("bf16", [2, 3, 4])}, "has 3 dimensions"),
        ("matmul", {"lhs": ("bf16", [2, 3, 4]), "rhs": ("bf16", [3, 4, 3])}, "batches differ"),
        ("matmul", {"lhs": ("int8", [2, 3, 4]), "rhs": ("int8", [2, 4, 3])}, "`lhs` is int8"),
        ("gemv", {"lhs": ("bf16", [2, 1, 4]), "rhs": ("bf16", [2, 4, 3])}, "has 3 dimensions"),
        (
            "slice",
            {"input": ("fp32", [4, 4]), "shape": [4, 4], "offset": [1, 0]},
            "4 elements from 1 on, and the tensor has 4",
        ),
        (
            "slice",
            {"input": ("fp32", [4, 4]), "shape": [4], "offset": [0, 0]},
            "`shape` lists 1 numbers, expected 2",
        ),
        ("reshape", {"input": ("fp32", [4, 4]), "shape": [5, 3]}, "[5, 3] has 15 elements"),
        ("transpose", {"input": ("fp32", [4, 4]), "axis1": 0, "axis2": -2}, "are both 0"),
        ("transpose", {"input": ("fp32", [4, 4]), "axis1": 0, "axis2": 2}, "`axis2` is 2"),
        (
            "assemble",
            {"target": ("fp32", [4, 4]), "source": ("fp32", [2, 2]), "offset": [3, 0]},
            "2 elements from 3 on, and the target has 4",
        ),
        ("read", {"src": ("fp32", [4, 4]), "offset": [1]}, "lists 1 indices"),
        ("read", {"src": ("fp32", [4, 4]), "offset": [1, 4]}, "index 4 is outside of 4"),
        (
            "load",
            {"tensor": ("fp32", [4]), "offsets": [0], "shapes": [4], "target_memory": "Left"},
            "`target_memory` is Left, expected one of Vec, Mat",
        ),
        ("fillpad", {"value": ("fp32", [4]), "pad_value": 3}, "`pad_value` is 3"),
        ("full", {"shape": [4], "dtype": cases.INT8, "value": 300}, "which int8 does not hold"),
        ("full", {"shape": [4], "dtype": cases.INT8, "value": 0.5}, "`value` is 0.5"),
        ("arange", {"start": Constant(0), "shape": [2, 4]}, "every extent but the last must be 1"),
        ("cast", {"input": ("fp32", [4]), "target_type": cases.INT8, "mode": "odd"}, "mode odd"),
        ("cast", {"input": ("fp32", [4]), "target_type": cases.INT8, "mode": "up"}, "'up'"),
        ("cmp", {"lhs": ("fp32", [4]), "rhs": ("fp32", [4]), "cmp_type": 6}, "`cmp_type` is 6"),
        (
            "set_validshape",
            {"input": ("fp32", [4, 4]), "valid_rows": Constant(5), "valid_cols": Constant(4)},
            "`valid_rows` is 5",
        ),
    ],
)
def test_a_wrong_operand_is_named(spelling: str, arguments: dict, message: str) -> None:
    row = lookup(spelling)
    given = {p.name: p.default for p in row.parameters}
    for name, value in arguments.items():
        if isinstance(value, tuple):
            value = cases.tensor(random.Random(0), name, DTYPES[value[0]], value[1])
        elif isinstance(value, list):
            value = tuple(Constant(each) for each in value)
        given[name] = value
    with pytest.raises(OpError) as caught:
        row.infer(given)
    assert message in str(caught.value)


def test_symbolic_windows() -> None:
    n, i = Symbol("N"), ScalarVar("i", Constant(0).dtype)
    source = TensorVar("x", TensorType(cases.FP32, (n, Constant(8))))
    row = lookup("slice")
    given = {p.name: p.default for p in row.parameters} | {
        "input": source,
        "shape": (Constant(16), Constant(8)),
        "offset": (i, Constant(0)),
    }
    assert row.infer(given).valid is None
    narrowed = row.infer(given | {"valid_shape": (n, Constant(8))})
    assert narrowed.valid == (n, Constant(8))
    clamped = row.infer(given | {"clamp": True})
    assert clamped.valid is not None
    values = {n: Constant(20), i: Constant(16)}
    assert [substitute(each, values) for each in clamped.valid] == [Constant(4), Constant(8)]


def test_unsupported_operators_have_no_row() -> None:
    assert unsupported.is_known("tensor.sort32")
    assert "pl.row_argmax" in unsupported.hint("sort32")
    assert not unsupported.is_known("add")
    assert unsupported.hint("add") is None


def test_closest_spelling() -> None:
    assert registry.closest("row_sun") == "row_sum"
    assert registry.closest("zzzzzz") is None


REDUCTIONS = [row for row in ROWS if isinstance(row.lowering, Reduce)]


@pytest.mark.parametrize("row", REDUCTIONS, ids=lambda row: row.name)
def test_only_valid_elements_are_reduced(row: OpDef) -> None:
    variable = cases.tensor(random.Random(0), "input", cases.FP32, [4, 4], [2, 3])
    array = np.array([[3, -1, 2], [5, -7, 4]], np.float32)
    _, value = _evaluate(row, {"input": variable, "tmp_tile": None}, {"input": array})
    axis = row.lowering.axis
    name = row.name.split("_")[1]
    expected = getattr(np, name)(array, axis=axis, keepdims=True)
    assert np.array_equal(value, expected)
