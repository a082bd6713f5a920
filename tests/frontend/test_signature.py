"""Annotations become contracts; each mistake is shown where it stands."""

from pathlib import Path

import pytest

from aotc import config
from aotc.contract import Direction, Parameter
from aotc.errors import AotcError
from aotc.frontend.signature import read_wrappers

CONFIG = config.load("qwen3-14b", Path(__file__).parents[2] / "models")


def wrapper(annotation: str) -> str:
    return f"import pypto.language as pl\n@pl.jit.host\ndef é(x: {annotation}):\n    return x\n"


@pytest.mark.parametrize(
    ("imports", "alias"),
    [
        ("import pypto.language as pl", "pl"),
        ("from __future__ import annotations\nimport pypto.language", "pypto.language"),
        ("from pypto import language as L", "L"),
    ],
)
def test_parameters_in_order(tmp_path: Path, imports: str, alias: str) -> None:
    path = tmp_path / "w.py"
    path.write_text(
        f"{imports}\n\ndef helper(x): ...\n\n@{alias}.jit.host\n"
        f"def sample(logits: {alias}.Tensor[[BATCH_DYN, VOCAB], {alias}.FP32],\n"
        f"           cache: {alias}.InOut[{alias}.Tensor[[4, HEAD_DIM], {alias}.BF16]],\n"
        f"           ids: {alias}.Out[{alias}.Tensor[[BATCH_DYN, 8], {alias}.INT32]]): ...\n"
    )
    contracts = read_wrappers(path, CONFIG)
    assert list(contracts) == ["sample"]
    assert contracts["sample"].parameters == (
        Parameter("logits", "fp32", ("BATCH_DYN", 152064), Direction.IN),
        Parameter("cache", "bf16", (4, 128), Direction.INOUT),
        Parameter("ids", "int32", ("BATCH_DYN", 8), Direction.OUT),
    )


def test_the_body_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "w.py"
    path.write_text("raise SystemExit(9)\n" + wrapper("pl.Tensor[[1], pl.FP32]"))
    assert list(read_wrappers(path, CONFIG)) == ["é"]


@pytest.mark.parametrize(
    ("source", "line", "column", "message", "hint"),
    [
        (
            wrapper("pl.Tensor[[HIDEN], pl.FP32]"),
            *(3, 21),
            "wrapper `é`, parameter `x`, dimension 0: "
            "the config of `qwen3-14b` does not give `HIDEN`",
            "did you mean `HIDDEN`?",
        ),
        (
            wrapper("pl.Out[pl.Tensor]"),
            *(3, 17),
            "wrapper `é`, parameter `x`: a bare `pl.Tensor` has no shape",
            "write `pl.Tensor",
        ),
        (
            wrapper("pl.Tensor[[1], pl.FP33]"),
            *(3, 25),
            "wrapper `é`, parameter `x`: unknown dtype `pl.FP33`",
            "dtypes: pl.BOOL",
        ),
        (
            wrapper("pl.Tensor[[2 * HIDDEN], pl.FP32]"),
            *(3, 21),
            "wrapper `é`, parameter `x`, dimension 0: `2 * HIDDEN` is not an integer or a name",
            "give the expression a name in the config",
        ),
        (
            wrapper("int"),
            *(3, 10),
            "wrapper `é`, parameter `x`: `int` is not supported in a HOST wrapper",
            "write `pl.Tensor",
        ),
        (
            wrapper("int").replace(": int", ""),
            *(3, 7),
            "wrapper `é`, parameter `x`: no annotation",
            "write `pl.Tensor",
        ),
        ("def f(:\n", 1, 7, "not Python: invalid syntax", ""),
    ],
)
def test_mistakes(
    tmp_path: Path, source: str, line: int, column: int, message: str, hint: str
) -> None:
    path = tmp_path / "w.py"
    path.write_text(source, encoding="utf-8")
    with pytest.raises(AotcError) as caught:
        read_wrappers(path, CONFIG)
    assert caught.value.message == message
    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.column) == (line, column)
    assert (caught.value.hint or "").startswith(hint)


def test_a_symbol_of_a_constraint_that_no_dim_gives(tmp_path: Path) -> None:
    path = tmp_path / "w.py"
    path.write_text(wrapper("pl.Tensor[[LAYER_HIDDEN_ROWS_DYN, 4], pl.BF16]"))
    with pytest.raises(AotcError) as caught:
        read_wrappers(path, CONFIG)
    assert caught.value.message == (
        "wrapper `é`: `LAYER_HIDDEN_ROWS_DYN` is constrained by `LAYER_DYN * 5120`, "
        "and no dimension gives `LAYER_DYN`"
    )
    assert (caught.value.place.line, caught.value.place.column) == (3, 1)
