"""The contract accepts what it allows and refuses the rest in words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc import config
from aotc.contract import Argument, Contract, ContractError, Parameter

CONFIG = config.load("qwen3-14b", Path(__file__).parent.parent / "models")
CONTRACT = Contract(
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
            "`norm` dimension 0: `LAYER_DYN` must be at most NUM_LAYERS = 40, got 41",
        ),
        (
            1,
            Argument("bf16", (5120, 5120)),
            "`wq` dimension 0: `LAYER_HIDDEN_ROWS_DYN` must be equal to "
            "LAYER_DYN * HIDDEN = 10240, got 5120",
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
