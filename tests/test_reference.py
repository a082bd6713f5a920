"""The interpreter does what the language says, and refuses what it does not allow."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.dtypes import BF16
from aotc.errors import Place
from aotc.ir.nodes import Block, Location, Operation, Program
from aotc.ir.text import parse_program
from aotc.ops.values import rounded
from aotc.reference import ReferenceRunError, run

sys.path.insert(0, str(Path(__file__).parent / "ir"))
import random_programs


def _run(text: str, **arguments):
    options = {k: arguments.pop(k) for k in ("symbols", "reverse_parallel") if k in arguments}
    return run(parse_program('program("p")\n' + text), arguments, **options)


def _floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


_LOOP = """x: In[fp32[dim.N, 4]]
o: InOut[fp32[dim.N, 4]]
for i in {kind}(0, dim.N, 1):
    a: fp32[dim.N, 4] = carry(o, r)
    t: fp32[1, 4] = slice(x, [1, 4], [i, 0], [], [], clamp=False)
    u: fp32[1, 4] = add(t, fp32(1.0))
    b: fp32[dim.N, 4] = assemble(a, u, [{row}, 0])
    yields(b)
yields(r)
"""


def test_a_loop_updates_the_argument_in_place() -> None:
    x, o = _floats(3, 4), np.zeros((3, 4), np.float32)
    (result,) = _run(_LOOP.format(kind="range", row="i"), x=x, o=o)
    assert result is o
    np.testing.assert_array_equal(o, x + 1)


def test_an_empty_loop_leaves_the_argument_alone() -> None:
    x = _floats(0, 4)
    (result,) = _run(_LOOP.format(kind="range", row="i"), x=x, o=x.copy())
    assert result.shape == (0, 4)


@pytest.mark.parametrize(("row", "same"), [("i", True), ("0", False)])
def test_the_order_of_independent_iterations_does_not_matter(row: str, same: bool) -> None:
    text = _LOOP.format(kind="parallel", row=row)
    results = [
        _run(text, x=_floats(3, 4), o=np.zeros((3, 4), np.float32), reverse_parallel=backwards)[0]
        for backwards in (False, True)
    ]
    assert np.array_equal(*results) == same


def test_reversal_leaves_other_loops_alone() -> None:
    text = _LOOP.format(kind="range", row="0")
    x, o = _floats(3, 4), np.zeros((3, 4), np.float32)
    _run(text, x=x, o=o, reverse_parallel=True)
    np.testing.assert_array_equal(o[0], x[2] + 1)


def test_a_slice_is_a_value_of_its_own() -> None:
    text = """o: InOut[fp32[4]]
s: fp32[2] = slice(o, [2], [0], [], [], clamp=False)
z: fp32[2] = full([2], dtype=fp32, value=9.0)
a: fp32[4] = assemble(o, z, [0])
b: fp32[4] = assemble(a, s, [2])
yields(b)
"""
    o = _floats(4)
    _run(text, o=o)
    np.testing.assert_array_equal(o, [9, 9, 0, 1])


def test_a_valid_region_is_all_that_is_seen() -> None:
    text = """x: In[fp32[4, 4]]
n: In[index]
o: InOut[fp32[4, 1]]
t: fp32[4, 4].valid[n, 2] = slice(x, [4, 4], [1, 0], [n, 2], [], clamp=False)
s: fp32[4, 1].valid[n, 1] = row_sum(t, tmp_tile=None)
f: fp32[4, 1] = fillpad(s, pad_value="min")
a: fp32[4, 1] = assemble(o, f, [0, 0])
yields(a)
"""
    o = np.zeros((4, 1), np.float32)
    _run(text, x=_floats(4, 4), n=2, o=o)
    np.testing.assert_array_equal(o[:, 0], [9, 17, -np.inf, -np.inf])


def test_a_window_beyond_the_tensor_is_refused_with_its_place(tmp_path) -> None:
    text = """x: In[fp32[dim.N, 4]]
t: fp32[4, 4] = slice(x, [4, 4], [0, 0], [], [], clamp=False)
"""
    program = parse_program('program("p")\n' + text)
    place = Place(tmp_path / "model.py", 7, 3)
    (operation,) = program.body.statements
    assert isinstance(operation, Operation)
    placed = Operation(
        operation.result, operation.op, operation.operands, operation.attributes, Location(place)
    )
    program = Program("p", program.parameters, Block((placed,)))
    with pytest.raises(ReferenceRunError, match="reads outside") as caught:
        run(program, {"x": _floats(3, 4)})
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("x: In[fp32[4]]\n", {}, "no argument `x`"),
        ("x: In[fp32[4]]\n", {"x": np.zeros(4)}, "expected float32, got float64"),
        ("x: In[fp32[4]]\n", {"x": 1.0}, "expected float32, got float"),
        ("x: In[fp32[4]]\n", {"x": _floats(3)}, "expected extent 4, got 3"),
        ("x: In[fp32[4]]\n", {"x": _floats(4, 1)}, "expected 1 dimensions"),
        ("n: In[index]\n", {"n": _floats(4)}, "is a scalar, got an array"),
        (
            "x: In[fp32[dim.N]]\ny: In[fp32[dim.N]]\n",
            {"x": _floats(4), "y": _floats(3)},
            "expected extent 4, got 3",
        ),
        (
            "o: InOut[fp32[4]]\na: fp32[4] = write(o, [dim.M], fp32(1.0))\n",
            {"o": _floats(4)},
            "the symbol `M` is not bound",
        ),
        (
            "o: InOut[fp32[4]]\nn: In[index]\na: fp32[4] = write(o, [n], fp32(1.0))\n",
            {"o": _floats(4), "n": 4},
            "run off the target",
        ),
        (
            "o: InOut[fp32[4]]\nn: In[index]\na: fp32[4] = write(o, [n], fp32(1.0))\n",
            {"o": _floats(4), "n": -1},
            "is below 0",
        ),
        (
            "x: In[fp32[4]]\nn: In[index]\na: fp32 = read(x, [n])\n",
            {"x": _floats(4), "n": -1},
            "is outside of",
        ),
        (
            "x: In[fp32[4]]\nn: In[index]\na: fp32 = read(x, [3 // n])\n",
            {"x": _floats(4), "n": 0},
            "division by zero",
        ),
        (
            "x: In[fp32[4]]\na: fp32[4] = write(x, [0], fp32(1.0))\n",
            {"x": _floats(4)},
            "`x` was written, and it is an In parameter",
        ),
        (
            "x: In[fp32[2, 4]]\nk: In[int32[2, 3]]\ng: fp32[2, 3] = gather(x, k, dim=-1)\n",
            {"x": _floats(2, 4), "k": np.full((2, 3), 4, np.int32)},
            "indices 4 to 4",
        ),
        (
            "x: In[fp32[4, 4]]\nn: In[index]\n"
            "t: fp32[4, 4].valid[n, 4] = set_validshape(x, n, 4)\n",
            {"x": _floats(4, 4), "n": 5},
            "is not within",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, arguments: dict, message: str) -> None:
    with pytest.raises(ReferenceRunError) as caught:
        _run(text, **arguments)
    assert message in str(caught.value)


def test_undefined_storage_is_poison() -> None:
    text = """o: InOut[fp32[4]]
t: fp32[4] = create_tensor([4], dtype=fp32, layout="ND", manual_dep=False)
s: fp32[4] = add(t, o)
a: fp32[4] = assemble(o, s, [0])
yields(a)
"""
    assert np.isnan(_run(text, o=_floats(4))[0]).all()


def test_every_bf16_result_is_rounded() -> None:
    text = """x: In[bf16[4]]
o: Out[bf16[4]]
t: bf16[4] = mul(x, x)
u: bf16[4] = add(t, x)
a: bf16[4] = assemble(o, u, [0])
yields(a)
"""
    x = rounded(np.array([1.01, 3.3, -7.7, 100.3], np.float32), BF16)
    o = np.zeros(4, np.float32)
    _run(text, x=x, o=o)
    np.testing.assert_array_equal(o, rounded(rounded(x * x, BF16) + x, BF16))


def test_fp16_overflows_to_infinity() -> None:
    text = """o: InOut[fp16[2]]
t: fp16[2] = mul(o, fp32(2.0))
a: fp16[2] = assemble(o, t, [0])
yields(a)
"""
    o = np.array([40000, 3], np.float16)
    _run(text, o=o)
    np.testing.assert_array_equal(o, np.array([np.inf, 6], np.float16))


def test_a_while_loop_and_a_branch() -> None:
    text = """n: In[index]
o: InOut[int32[1]]
while loop:
    i: index = carry(n, last)
    steps: index = carry(0, count)
    condition(i > 1)
    next_i: index
    if i % 2 == 0:
        yields(i // 2)
    else:
        yields((i * 3) + 1)
    yields(next_i, steps + 1)
a: int32[1] = write(o, [0], convert(count, int32))
yields(a)
"""
    text = text.replace("if i % 2 == 0", "if (i % 2) == 0")
    o = np.zeros(1, np.int32)
    _run(text, n=6, o=o)
    assert o[0] == 8


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("convert(int8(127) + int8(1), int32)", -128),
        ("convert(uint8(0) - uint8(1), int32)", 255),
        ("convert(-7 // 2, int32)", -4),
        ("convert(-7 % 2, int32)", 1),
        ("convert(fp32(2.9), int32)", 2),
        ("convert(fp32(-2.9), int32)", -2),
        ("convert(fp32(1e10), index)", 10_000_000_000),
        ("convert(min(3, 4) + max(3, 4), int32)", 7),
        ("convert(exp(fp32(0.0)), int32)", 1),
        ("convert(fp32(1.0) / fp32(4.0) * fp32(8.0), int32)", 2),
        ("convert(rsqrt(fp32(4.0)) + recip(fp32(2.0)), int32)", 1),
        ("convert((1 < 2) and (not (2 < 1)), int32)", 1),
        ("convert((6 & 3) | (1 << 4), int32)", 18),
    ],
)
def test_scalars(expression: str, expected: int) -> None:
    wide = expression.replace(", int32)", ", int64)").replace(", index)", ", int64)")
    o = np.zeros(1, np.int64)
    _run(f"o: InOut[int64[1]]\na: int64[1] = write(o, [0], {wide})\nyields(a)\n", o=o)
    assert o[0] == expected


def test_symbols_may_be_given() -> None:
    text = "o: InOut[int64[1]]\na: int64[1] = write(o, [0], convert(dim.M, int64))\nyields(a)\n"
    o = np.zeros(1, np.int64)
    _run(text, o=o, symbols={"M": 12})
    assert o[0] == 12


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_programs_run(seed: int) -> None:
    arguments = random_programs.arguments(seed)
    state = arguments["state"]
    program = random_programs.program(seed)
    (result,) = run(program, arguments)
    assert result is state
    again = random_programs.arguments(seed)
    run(program, again)
    np.testing.assert_array_equal(again["state"], state)
