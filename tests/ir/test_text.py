"""Printing, then parsing, gives the same program."""

import pytest
import random_programs
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.contract import Direction
from aotc.dtypes import BF16, BOOL, FP32, INDEX, INT8, INT64, UINT8
from aotc.errors import Place
from aotc.ir.nodes import (
    Block,
    Location,
    Operation,
    Program,
    ProgramParameter,
    TensorType,
    TensorVar,
)
from aotc.ir.scalar import (
    BINARY,
    COMPARISONS,
    LOGICAL,
    UNARY,
    Binary,
    Constant,
    Convert,
    ScalarVar,
    Symbol,
    Unary,
)
from aotc.ir.text import IrTextError, parse_program, print_program, print_scalar, readable

_LEAVES = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda v: Constant(v, INDEX)),
    st.integers(-128, 127).map(lambda v: Constant(v, INT8)),
    st.floats(width=32, allow_nan=False).map(lambda v: Constant(v, FP32)),
    st.booleans().map(lambda v: Constant(v, BOOL)),
    st.sampled_from((Symbol("N"), ScalarVar("k", INDEX), ScalarVar("k.1", INT64))),
)


def _compound(inner):
    return st.one_of(
        st.builds(
            lambda op, x: Unary(op, x, BOOL if op == "not" else x.dtype),
            st.sampled_from(UNARY),
            inner,
        ),
        st.builds(
            lambda op, x, y: Binary(op, x, y, BOOL if op in COMPARISONS + LOGICAL else x.dtype),
            st.sampled_from(BINARY),
            inner,
            inner,
        ),
        st.builds(Convert, inner, st.sampled_from((FP32, UINT8, INDEX))),
    )


@given(scalar=st.recursive(_LEAVES, _compound, max_leaves=12))
def test_scalars(scalar) -> None:
    x = TensorVar("x", TensorType(FP32, (Constant(4),)))
    parameters = (
        ProgramParameter(x, Direction.INOUT),
        ProgramParameter(ScalarVar("k", INDEX)),
        ProgramParameter(ScalarVar("k.1", INT64)),
    )
    write = Operation(x, "write", ((scalar,), scalar))
    write = Operation(TensorVar("y", x.type), "write", (x, (scalar,), scalar))
    program = Program("p", parameters, Block((write,), (write.result,)))
    assert parse_program(print_program(program)) == program


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_programs(seed: int) -> None:
    program = random_programs.program(seed)
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize(
    "kind",
    [
        TensorType(FP32, ()),
        TensorType(BF16, (Constant(3),)),
        TensorType(BF16, (Constant(3), Symbol("N"))),
        TensorType(BF16, (Constant(3), Symbol("N")), (Constant(2), Symbol("N")), "vec"),
        TensorType(INT8, (Constant(3),), (Constant(0),)),
        TensorType(INT8, (Binary("floordiv", Symbol("N"), Constant(2), INDEX),), None, "acc"),
    ],
)
def test_types(kind: TensorType) -> None:
    parameters = (ProgramParameter(TensorVar("x", kind), Direction.OUT),)
    program = Program("p", parameters, Block((), ()))
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize(
    "value",
    [
        0,
        -3,
        0.5,
        -0.0,
        1e30,
        float("inf"),
        float("-inf"),
        True,
        None,
        "text 'x'",
        BF16,
        (),
        (1,),
        (1, (2.5, BF16), "a"),
    ],
)
def test_attributes(value: object) -> None:
    operation = Operation(ScalarVar("x", FP32), "op", (), (("a", value),))
    program = Program("p", (), Block((operation,)))
    parsed = parse_program(print_program(program))
    assert parsed == program
    assert repr(parsed.body.statements[0].attribute("a")) == repr(value)


def test_names_that_are_no_identifiers() -> None:
    variables = [ScalarVar(name, INDEX) for name in ("for", "x.1", "var", "dim", "fp32", "carry")]
    body = [Operation(each, "op", ()) for each in variables]
    body.append(Operation(ScalarVar("z", INDEX), "op", tuple(variables)))
    program = Program("with 'quotes'", (), Block(tuple(body)))
    assert parse_program(print_program(program)) == program


def test_locations_do_not_show(tmp_path) -> None:
    operation = Operation(ScalarVar("x", INDEX), "op", ())
    place = Location(Place(tmp_path / "model.py", 3, 1), "x = pl.op()")
    placed = Operation(ScalarVar("x", INDEX), "op", (), (), place)
    texts = {print_program(Program("p", (), Block((each,)))) for each in (operation, placed)}
    assert texts == {"program('p')\nx: index = op()\n"}


def test_readable_text() -> None:
    extent = Binary("mul", Symbol("N"), Constant(2), INDEX)
    assert print_scalar(extent) == "dim.N * 2"
    assert readable(extent) == "N * 2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty text"),
        ("x = (", "not in the syntax"),
        ("x: In[fp32[3]]", "expected program(name)"),
        ("program('p')\nx: In[fp99[3]]", "line 2: expected a type: `fp99[3]`"),
        ("program('p')\nx: fp32 = op(y)", "line 2: `y` is not defined: `y`"),
        ("program('p')\nx: fp32 = op()\nx: fp32 = op()", "`x` is defined twice"),
        ("program('p')\nimport os", "line 2: expected a statement"),
        ("program('p')\nwhile loop:\n    pass", "without condition"),
        ("program('p')\nx: index = op(1 @ 2)", "unknown operator"),
    ],
)
def test_text_that_is_no_program(text: str, message: str) -> None:
    with pytest.raises(IrTextError) as caught:
        parse_program(text)
    assert message in str(caught.value)
