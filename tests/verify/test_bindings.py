"""Values for symbols lie within their constraints, at the corner asked for."""

from __future__ import annotations

import pytest

from aotc.contract import Contract, DynamicSymbol, Parameter
from aotc.errors import AotcError
from aotc.expression import parse
from aotc.verify.bindings import bind, greatest, inner, least


def contract(**symbols: dict[str, str]) -> Contract:
    found = tuple(
        DynamicSymbol(name, **{field: parse(text) for field, text in given.items()})
        for name, given in symbols.items()
    )
    return Contract((Parameter("x", "fp32", tuple(symbols)),), found)


def test_corners() -> None:
    given = contract(
        ROWS={"equals": "LAYERS * 10"},
        LAYERS={"minimum": "1", "maximum": "40"},
        CACHE={"minimum": "1", "multiple_of": "LAYERS * 8", "maximum": "LAYERS * 8 * 3 + 5"},
        FREE={},
        ONE={"minimum": "3", "maximum": "3"},
    )
    assert bind(given, least) == {"ROWS": 10, "LAYERS": 1, "CACHE": 8, "FREE": 1, "ONE": 3}
    most = bind(given, greatest)
    assert (most["LAYERS"], most["ROWS"], most["CACHE"], most["ONE"]) == (40, 400, 960, 3)
    between = bind(given, inner)
    assert (between["LAYERS"], between["CACHE"], between["ONE"]) == (3, 72, 3)
    assert list(most) == ["ROWS", "LAYERS", "CACHE", "FREE", "ONE"]


def test_symbols_that_have_no_value() -> None:
    with pytest.raises(AotcError, match="cycle: "):
        bind(contract(A={"equals": "B"}, B={"equals": "A"}), least)
    with pytest.raises(AotcError, match="`B` must be at least 5"):
        bind(contract(A={"maximum": "3"}, B={"equals": "A", "minimum": "5"}), greatest)
