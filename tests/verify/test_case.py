"""How results are compared: each limit holds just at its edge, and nothing hides in a NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aotc.verify.case import close, equal, logits, sampled

torch = pytest.importorskip("torch")


def messages(found: Any) -> list[str]:
    return [each.message for each in found]


@pytest.mark.parametrize(
    ("apart", "passes"), [(0.0, True), (2.9e-3, True), (5.9e-3, True), (6.1e-3, False)]
)
def test_the_tolerance_is_absolute_and_relative(apart: float, passes: bool) -> None:
    expected = torch.ones(100, 4, dtype=torch.float32)
    assert (messages(close(expected + apart, expected)) == []) == passes


def test_a_greater_tolerance_is_the_case_s_choice() -> None:
    expected = torch.ones(100, 4)
    assert messages(close(expected + 8e-3, expected))
    assert not messages(close(expected + 8e-3, expected, 5e-3))


@pytest.mark.parametrize(("count", "passes"), [(2, True), (3, False)])
def test_two_percent_may_be_further_apart(count: int, passes: bool) -> None:
    expected = torch.ones(100, 1)
    actual = expected.clone()
    actual[:count] += 0.01
    found = list(close(actual, expected))
    assert (not found) == passes
    if not passes:
        assert found[0].message.startswith("3.0% of the elements")
        assert (found[0].expected, found[0].found) == ("1", "1.01")


@pytest.mark.parametrize(("steps", "passes"), [(2.0, True), (2.1, False)])
def test_none_may_be_far_apart(steps: float, passes: bool) -> None:
    expected = torch.zeros(1, 1000)
    expected[0, 7] = 3.0  # a bf16 step there is 2**-6
    actual = expected.clone()
    actual[0, 500] = steps * 2**-6
    found = messages(close(actual, expected))
    assert found == [] if passes else "bf16 steps" in found[0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found(value: float) -> None:
    expected = torch.ones(1, 1000)
    actual = expected.clone()
    actual[0, 3] = value
    assert messages(close(actual, expected))
    assert messages(close(expected, actual))
    assert not messages(close(actual, actual.clone()))


def test_nothing_to_compare() -> None:
    assert not messages(close(torch.empty(0, 4), torch.empty(0, 4)))
    assert not messages(close(torch.zeros(2, 4), torch.zeros(2, 4)))


def test_exact_comparison_names_the_place() -> None:
    expected = torch.arange(6).view(2, 3)
    actual = expected.clone()
    assert not messages(equal(actual, expected))
    actual[1, 2] = 9
    (found,) = equal(actual, expected)
    assert (found.message, found.expected, found.found) == ("not equal, first at [1, 2]", "5", "9")


def test_the_greedy_choice_counts_where_the_best_leads() -> None:
    compare = logits("out", 3, tolerance=1.0)
    expected = {"out": torch.tensor([[1.0, 1.02, 0.0, 9.0]])}
    actual = {"out": torch.tensor([[1.02, 1.0, 0.0, 9.0]])}
    (found, *_) = compare(actual, expected)
    assert "greedy choice" in found.message
    expected["out"][0, 1] = 1.005  # too close to call
    assert not messages(compare(actual, expected))


def test_sampled_ids_are_those_of_the_program_s_own_logits() -> None:
    compare = sampled("ids", "out", 3)
    out = torch.tensor([[0.0, 5.0, 1.0, 9.0]])
    golden = {"out": out, "ids": torch.tensor([[2, 0]], dtype=torch.int32)}
    assert not messages(compare({"out": out, "ids": torch.tensor([[1, 0]])}, golden))
    for wrong in ([3, 0], [2, 0], [1, 7]):
        assert messages(compare({"out": out, "ids": torch.tensor([wrong])}, golden))
