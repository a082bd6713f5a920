"""What a run of a case finds, with Python functions in the place of compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.verify.case import Alone, Case
from aotc.verify.numerics import _random_cases, _Runner

torch = pytest.importorskip("torch")

CONTRACT = Contract(
    (
        Parameter("x", "fp32", ("N", 4)),
        Parameter("cache", "fp32", ("M", 4), Direction.INOUT),
        Parameter("out", "fp32", ("N", 4), Direction.OUT),
    ),
    (DynamicSymbol("N"), DynamicSymbol("M")),
)


def golden(x: Any, cache: Any, out: Any) -> None:
    cache[: len(x)] = x
    out.copy_(2 * x)


def case() -> Case:
    x = torch.arange(12.0).view(3, 4)
    first = Alone("row 0", {"x": x[:1], "out": torch.empty(1, 4)}, {"out": (0, 0)})
    arguments = {"x": x, "cache": torch.ones(5, 4), "out": torch.empty(3, 4)}
    return Case("case", arguments, alone=(first,))


def run(one: Callable[..., object], two: Callable[..., object] | None = None) -> list[str]:
    runner = _Runner(CONTRACT, golden, one, two or one)
    return [f"{name}: {each.message}" for name, each in runner.run(case())]


def test_the_golden_passes_its_own_cases() -> None:
    assert run(golden) == []


def test_a_wrong_result() -> None:
    def wrong(x: Any, cache: Any, out: Any) -> None:
        golden(x, cache, out)
        out += 0.5

    assert "out: 100.0% of the elements" in run(wrong)[0]


def test_a_result_that_is_never_written() -> None:
    def lazy(x: Any, cache: Any, out: Any) -> None:
        cache[: len(x)] = x

    assert any(each.startswith("out: ") for each in run(lazy))


def test_a_write_where_the_golden_writes_nothing() -> None:
    def careless(x: Any, cache: Any, out: Any) -> None:
        golden(x, cache, out)
        cache[4, 3] += 1e-6

    (found,) = run(careless)
    assert found.startswith("cache: written where the golden writes nothing: 1 of 8 elements")


def test_other_bits_with_two_threads() -> None:
    def two(x: Any, cache: Any, out: Any) -> None:
        golden(x, cache, out)
        out[2, 3] = torch.nextafter(out[2, 3], torch.tensor(100.0))

    (found,) = run(golden, two)
    assert found.startswith("out: 2 threads and packed weights give other bits: 1 of 12 elements")


def test_other_bits_alone() -> None:
    def by_size(x: Any, cache: Any, out: Any) -> None:
        golden(x, cache, out)
        if len(x) == 1:
            out[0, 1] = torch.nextafter(out[0, 1], torch.tensor(100.0))

    (found,) = run(by_size)
    assert found.startswith("out: row 0 gives other bits alone: 1 of 4 elements")


def test_arguments_of_a_case_stay_as_they_are() -> None:
    given = case()
    before = given.arguments["cache"].clone()
    list(_Runner(CONTRACT, golden, golden, golden).run(given))
    assert torch.equal(given.arguments["cache"], before)


def test_random_cases_are_equal_for_equal_seeds() -> None:
    first, second, other = (list(_random_cases(CONTRACT, seed)) for seed in (1, 1, 2))
    assert [each.name for each in first] == [each.name for each in second]
    assert first[0].name == "least: N 1, M 1"
    assert torch.equal(first[-1].arguments["x"], second[-1].arguments["x"])
    assert not torch.equal(first[0].arguments["x"], other[0].arguments["x"])
