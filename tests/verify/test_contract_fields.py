"""Every field of a contract is compared, and a difference says which it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.expression import parse
from aotc.verify.contract import compare

X = Parameter("x", "bf16", ("ROWS", 8))
OUT = Parameter("out", "fp32", ("ROWS", 4), Direction.OUT)
ROWS = DynamicSymbol("ROWS", minimum=parse("1"), maximum=parse("16"))
DECLARED = Contract((X, OUT), (ROWS,), ("out",))


def changed(parameter: Parameter, **fields: Any) -> Parameter:
    return msgspec.structs.replace(parameter, **fields)


def test_equal_contracts_have_no_difference() -> None:
    assert list(compare(DECLARED, DECLARED)) == []


@pytest.mark.parametrize(
    ("built", "difference"),
    [
        (Contract((changed(X, name="y"), OUT), (ROWS,), ("out",)),
         ("name of parameter 0", "x", "y")),
        (Contract((changed(X, dtype="fp16"), OUT), (ROWS,), ("out",)),
         ("dtype of `x`", "bf16", "fp16")),
        (Contract((changed(X, dims=("ROWS", 9)), OUT), (ROWS,), ("out",)),
         ("`x` dimension 1", "8", "9")),
        (Contract((changed(X, dims=(3, 8)), OUT), (ROWS,), ("out",)),
         ("`x` dimension 0", "ROWS", "3")),
        (Contract((changed(X, dims=("ROWS",)), OUT), (ROWS,), ("out",)),
         ("rank of `x`", "2", "1")),
        (Contract((X, changed(OUT, direction=Direction.INOUT)), (ROWS,), ("out",)),
         ("direction of `out`", "out", "inout")),
        (Contract((X, OUT), (ROWS,), ()), ("return value 0", "out", None)),
        (Contract((X, OUT), (ROWS,), ("out", "x")), ("return value 1", None, "x")),
        (Contract((X, OUT), (dataclasses.replace(ROWS, maximum=parse("8")),), ("out",)),
         ("maximum of `ROWS`", "16", "8")),
        (Contract((X, OUT), (dataclasses.replace(ROWS, minimum=None),), ("out",)),
         ("minimum of `ROWS`", "1", None)),
        (Contract((X, OUT), (dataclasses.replace(ROWS, multiple_of=parse("2")),), ("out",)),
         ("multiple_of of `ROWS`", None, "2")),
    ],
)  # fmt: skip
def test_one_difference(built: Contract, difference: tuple[str, str | None, str | None]) -> None:
    assert list(compare(DECLARED, built)) == [difference]


def test_a_parameter_more_or_less() -> None:
    more = Contract((X, OUT, Parameter("z", "fp32", (1,))), (ROWS,), ("out",))
    expected = [("parameter count", "2", "3"), ("parameter 2", None, "z")]
    assert list(compare(DECLARED, more)) == expected
    assert list(compare(more, DECLARED))[1] == ("parameter 2", "z", None)


def test_a_symbol_that_became_a_constant() -> None:
    fixed = Contract((changed(X, dims=(4, 8)), changed(OUT, dims=(4, 4))), (), ("out",))
    assert ("symbol `ROWS`", "ROWS", None) in list(compare(DECLARED, fixed))
