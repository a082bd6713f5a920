"""Expressions agree with Python's own arithmetic, and refuse everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc import expression

NAMES = {"A": 7, "B": -3, "C": 0}

texts = st.recursive(
    st.sampled_from(list(NAMES)) | st.integers(0, 1000).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=8,
)


@given(texts)
def test_arithmetic_is_pythons(text: str) -> None:
    try:
        expected = eval(text, {}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(expression.ExpressionError, match="division by zero"):
            expression.parse(text).evaluate(NAMES)
        return
    if abs(expected) < 2**60:
        assert expression.parse(text).evaluate(NAMES) == expected


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**6))
def test_round_up_is_the_least_multiple(value: int, multiple: int) -> None:
    result = expression.parse(f"round_up(V, {multiple})").evaluate({"V": value})
    assert result % multiple == 0
    assert value <= result < value + multiple


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "1.5", "'a'", "True", "__import__('os')", "A.b", "A[0]", "min(1)", "2 ** 9", "min"],
)
def test_other_syntax_is_refused(text: str) -> None:
    with pytest.raises(expression.ExpressionError):
        expression.parse(text)


def test_names_in_order_of_appearance() -> None:
    assert expression.parse("B * A + min(B, C)").names == ("B", "A", "C")


def test_overflow_is_refused() -> None:
    with pytest.raises(expression.ExpressionError, match="int64"):
        expression.parse("A * A").evaluate({"A": 2**40})


@given(texts, st.sets(st.sampled_from(list(NAMES))))
def test_substitution_keeps_the_value(text: str, fixed: set[str]) -> None:
    parsed = expression.parse(text)
    try:
        expected = parsed.evaluate(NAMES)
    except expression.ExpressionError:
        with pytest.raises(expression.ExpressionError):
            parsed.substitute({name: NAMES[name] for name in fixed}).evaluate(NAMES)
        return
    partly = parsed.substitute({name: NAMES[name] for name in fixed})
    assert not fixed & set(partly.names)
    assert partly.evaluate(NAMES) == expected


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("A * B * C", "7 * B * 0"),
        ("A + 1", "8"),
        ("-A", "-7"),
        ("B - (-A)", "B - -7"),
        ("(-A) * B", "-7 * B"),
        ("min(A, B) + max(A, 2 * A)", "min(7, B) + 14"),
        ("B", "B"),
    ],
)
def test_constants_are_folded(text: str, folded: str) -> None:
    result = expression.parse(text).substitute({"A": 7, "C": 0})
    assert result.text == folded
    assert result == expression.parse(folded)


def test_a_constant_without_a_value() -> None:
    with pytest.raises(expression.ExpressionError, match="division by zero"):
        expression.parse("B + 1 // A").substitute({"A": 0})
