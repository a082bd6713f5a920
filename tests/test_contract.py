"""The contract accepts what it allows and refuses the rest in words."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc import config
from aotc.contract import (
    Argument,
    Contract,
    ContractError,
    Direction,
    DynamicSymbol,
    Parameter,
    from_json,
    to_json,
)
from aotc.expression import parse

CONFIG = config.load("qwen3-14b", Path(__file__).parent.parent / "models")
CONTRACT = Contract.of(
    parameters=(
        Parameter("norm", "fp32", ("LAYER_DYN", 5120)),
        Parameter("wq", "bf16", ("LAYER_HIDDEN_ROWS_DYN", 5120)),
        Parameter("rope", "fp32", ("ROPE_SEQ_DYN", 128)),
        Parameter("cache", "bf16", ("KV_CACHE_ROWS_DYN", 128)),
        Parameter("other_cache", "bf16", ("KV_CACHE_ROWS_DYN", 128)),
    ),
    symbols=CONFIG.symbols,
    extents=CONFIG.extents,
)


def arguments(layers: int = 2, rope: int = 512, pages: int = 3) -> list[Argument]:
    rows = layers * pages * 8 * 128
    return [
        Argument("fp32", (layers, 5120)),
        Argument("bf16", (layers * 5120, 5120)),
        Argument("fp32", (rope, 128)),
        Argument("bf16", (rows, 128)),
        Argument("bf16", (rows, 128)),
    ]


@given(st.integers(1, 40), st.integers(1, 4096), st.integers(1, 1000))
def test_every_allowed_binding_is_accepted(layers: int, rope: int, pages: int) -> None:
    assert CONTRACT.bind(arguments(layers, rope, pages)) == {
        "LAYER_DYN": layers,
        "LAYER_HIDDEN_ROWS_DYN": layers * 5120,
        "ROPE_SEQ_DYN": rope,
        "KV_CACHE_ROWS_DYN": layers * pages * 1024,
    }


@pytest.mark.parametrize(
    ("index", "argument", "message"),
    [
        (0, Argument("bf16", (2, 5120)), "`norm`: expected dtype fp32, got bf16"),
        (0, Argument("fp32", (2,)), "`norm`: expected 2 dimensions, got 1"),
        (0, Argument("fp32", (2, 5121)), "`norm` dimension 1: expected 5120, got 5121"),
        (0, Argument("fp32", (2, 5120), contiguous=False), "`norm`: not contiguous"),
        (
            0,
            Argument("fp32", (0, 5120)),
            "`norm` dimension 0: `LAYER_DYN` must be at least 1, got 0",
        ),
        (
            0,
            Argument("fp32", (41, 5120)),
            "`norm` dimension 0: `LAYER_DYN` must be at most 40, got 41",
        ),
        (
            1,
            Argument("bf16", (5120, 5120)),
            "`wq` dimension 0: `LAYER_HIDDEN_ROWS_DYN` must be equal to "
            "LAYER_DYN * 5120 = 10240, got 5120",
        ),
        (
            4,
            Argument("bf16", (2048, 128)),
            "`other_cache` dimension 0: `KV_CACHE_ROWS_DYN` is 2048 here, "
            "and 6144 in `cache` dimension 0",
        ),
    ],
)
def test_what_is_refused(index: int, argument: Argument, message: str) -> None:
    given_arguments = arguments()
    given_arguments[index] = argument
    with pytest.raises(ContractError) as caught:
        CONTRACT.bind(given_arguments)
    assert caught.value.message == message


def test_cache_rows_not_a_multiple() -> None:
    given_arguments = arguments()
    given_arguments[3] = given_arguments[4] = Argument("bf16", (2049, 128))
    with pytest.raises(ContractError, match=r"must be a multiple of .* = 2048, got 2049"):
        CONTRACT.bind(given_arguments)


def test_missing_and_extra_arguments() -> None:
    with pytest.raises(ContractError, match=r"expected 5 arguments, got 4: missing `other_cache`"):
        CONTRACT.bind(arguments()[:-1])
    with pytest.raises(ContractError, match="expected 5 arguments, got 6"):
        CONTRACT.bind([*arguments(), Argument("fp32", ())])


def test_symbols_in_order_of_appearance_without_extents() -> None:
    assert [each.name for each in CONTRACT.symbols] == [
        *("LAYER_DYN", "LAYER_HIDDEN_ROWS_DYN", "ROPE_SEQ_DYN", "KV_CACHE_ROWS_DYN")
    ]
    assert CONTRACT.symbols[0].constraints() == {"minimum": parse("1"), "maximum": parse("40")}
    for symbol in CONTRACT.symbols:
        for constraint in symbol.constraints().values():
            assert set(constraint.names) <= {"LAYER_DYN"}
    assert list(CONTRACT.bind(arguments())) == [each.name for each in CONTRACT.symbols]


X = Parameter("x", "fp32", ("N",))
N = DynamicSymbol("N")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contract((X, X), (N,)), "two parameters of one name"),
        (lambda: Contract((X,)), "the symbols are not those of the dims, in order of appearance"),
        (lambda: Contract((), (N,)), "the symbols are not those of the dims, in order of"),
        (lambda: Contract((X,), (N,), ("y",)), "returns `y`, which is not a parameter"),
        (
            lambda: Contract((X,), (DynamicSymbol("N", equals=parse("2 * M")),)),
            "`N` is constrained by `2 * M`, and no dimension gives `M`",
        ),
        (lambda: Contract.of([X], {}, {}), "unknown symbol `N`"),
        (
            lambda: Contract.of([X], {"N": DynamicSymbol("N", maximum=parse("4 // E"))}, {"E": 0}),
            "`N`: division by zero",
        ),
    ],
)
def test_parts_that_do_not_fit(make: Callable[[], Contract], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        make()
    assert caught.value.message.startswith(message)


def test_json_and_back() -> None:
    contract = Contract(
        (
            Parameter("x", "bf16", ("M", 4, "N"), panels=256),
            Parameter("scale", "fp32", ()),
            Parameter("y", "int32", ("N",), Direction.INOUT),
        ),
        (DynamicSymbol("M", parse("1"), parse("N"), parse("2"), parse("N - 2")), N),
        ("y", "x"),
    )
    text = to_json(contract)
    assert text == (
        b'{"parameters":[{"name":"x","dtype":"bf16","dims":["M",4,"N"],"direction":"in",'
        b'"panels":256},'
        b'{"name":"scale","dtype":"fp32","dims":[],"direction":"in","panels":null},'
        b'{"name":"y","dtype":"int32","dims":["N"],"direction":"inout","panels":null}],'
        b'"symbols":[{"name":"M","minimum":"1","maximum":"N","multiple_of":"2",'
        b'"equals":"N - 2"},{"name":"N"}],"returns":["y","x"]}'
    )
    for each in (contract, CONTRACT, Contract(())):
        assert from_json(to_json(each)) == each
        assert to_json(from_json(to_json(each))) == to_json(each)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"parameters":[],"symbols":[]}',
        b'{"parameters":[],"symbols":[],"returns":[],"more":1}',
        b'{"parameters":[{"name":"x","dtype":"fp32","dims":[1.5]}],"symbols":[],"returns":[]}',
        b'{"parameters":[{"name":"x","dtype":"fp32","dims":["N"]}],"symbols":[],"returns":[]}',
        b'{"parameters":[{"name":"x","dtype":"fp32","dims":["N"]}],'
        b'"symbols":[{"name":"N","maximum":"1 +"}],"returns":[]}',
    ],
)
def test_text_that_is_no_contract(text: bytes) -> None:
    with pytest.raises(ContractError):
        from_json(text)


@pytest.mark.parametrize(
    ("directions", "first", "second", "refused"),
    [
        ((Direction.IN, Direction.OUT), (0, 16), (15, 16), "`b` is written, and shares memory"),
        ((Direction.INOUT, Direction.IN), (0, 16), (15, 16), "`a` is written, and shares memory"),
        ((Direction.INOUT, Direction.IN), (8, 1), (0, 16), "`a` is written, and shares memory"),
        ((Direction.OUT, Direction.OUT), (0, 16), (16, 16), None),
        ((Direction.IN, Direction.IN), (0, 16), (0, 16), None),
        ((Direction.OUT, Direction.OUT), (0, 0), (0, 16), None),
        ((Direction.OUT, Direction.OUT), (None, 16), (None, 16), None),
    ],
)
def test_overlap(
    directions: tuple[Direction, Direction],
    first: tuple[int | None, int],
    second: tuple[int | None, int],
    refused: str | None,
) -> None:
    names = ("a", "b")
    contract = Contract(
        tuple(
            Parameter(*each)
            for each in zip(names, ("int8", "int8"), ((), ()), directions, strict=True)
        )
    )
    given_arguments = [
        Argument("int8", (), address=address, nbytes=nbytes) for address, nbytes in (first, second)
    ]
    if refused is None:
        assert contract.bind(given_arguments) == {}
    else:
        with pytest.raises(ContractError) as caught:
            contract.bind(given_arguments)
        assert caught.value.message.startswith(refused)


def test_a_read_only_output() -> None:
    argument = Argument("int8", (), writable=False)
    Contract((Parameter("x", "int8", ()),)).bind([argument])
    for direction in (Direction.OUT, Direction.INOUT):
        with pytest.raises(ContractError, match="`x`: it is written, and read-only memory"):
            Contract((Parameter("x", "int8", (), direction),)).bind([argument])
