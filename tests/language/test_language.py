"""The module that stands as `pypto.language` while a model is loaded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from aotc.contract import Direction
from aotc.dtypes import BF16, FP32
from aotc.errors import AotcError
from aotc.language import objects, vocabulary
from aotc.language.install import language_installed
from aotc.language.objects import Plane
from aotc.ops import registry


def test_it_is_there_only_while_installed() -> None:
    with language_installed() as language:
        assert importlib.import_module("pypto.language") is language
        from pypto import language as again

        assert again is language
    assert "pypto" not in sys.modules
    with pytest.raises(ImportError):
        importlib.import_module("pypto.language")


def test_a_real_pypto_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pypto").mkdir()
    (tmp_path / "pypto" / "__init__.py").write_text("REAL = True\n")
    (tmp_path / "pypto" / "language.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    real = importlib.import_module("pypto.language")
    try:
        with language_installed() as language:
            assert importlib.import_module("pypto.language") is language
        assert importlib.import_module("pypto.language") is real
        assert importlib.import_module("pypto").REAL
    finally:
        for name in ("pypto", "pypto.language"):
            sys.modules.pop(name, None)


def test_every_operator_resolves_to_a_word() -> None:
    for row in registry.table().values():
        for spelling in row.spellings:
            assert vocabulary.resolve(spelling) == objects.Word(spelling)


def test_namespaces_read_dotted_names() -> None:
    with language_installed() as pl:
        assert pl.tensor.dim == objects.Word("tensor.dim")
        assert pl.tile.get_block_idx == objects.Word("tile.get_block_idx")
        assert pl.MemorySpace is pl.Mem
        assert pl.PadValue.min.name == "min"
        assert pl.FP32 is FP32
        assert pl.FP32.get_byte() * 2 == 8
        assert not hasattr(pl, "nothing")
        with pytest.raises(AotcError, match=r"has no `tile\.dims`"):
            _ = pl.tile.dims


def test_annotations() -> None:
    with language_installed() as pl:
        rows = pl.dynamic("ROWS")
        tensor = pl.Tensor[[rows, 4], pl.BF16]
        assert tensor == objects.TensorAnnotation((objects.Symbol("ROWS"), 4), BF16)
        assert pl.Tile[[2], pl.FP32].container == "Tile"
        assert pl.Out[tensor] == objects.DirectedAnnotation(Direction.OUT, tensor)
        assert pl.InOut[pl.Tensor].direction is Direction.INOUT
        assert pl.Scalar[pl.FP32] == objects.ScalarAnnotation(FP32)
        assert pl.Scalar[pl.TASK_ID] == pl.TaskId
        assert pl.Tuple[pl.Tensor, pl.Tensor].items == (objects.TENSOR, objects.TENSOR)
        with pytest.raises(AotcError, match="is not a dtype"):
            _ = pl.Tensor[[1], "fp32"]


def test_decorators_record_and_run_nothing() -> None:
    with language_installed() as pl:

        def body(x):  # type: ignore[no-untyped-def]
            raise AssertionError

        planes = {
            Plane.HOST: pl.jit.host(body),
            Plane.ORCHESTRATION: pl.jit(body),
            Plane.INCORE: pl.jit.incore(level=pl.Level.CORE_GROUP)(body),
            Plane.INLINE: pl.jit.inline(auto_scope=False)(body),
            Plane.OPAQUE: pl.jit.opaque(body),
            Plane.FUNCTION: pl.function(body),
        }
        for plane, function in planes.items():
            assert function.plane is plane
            assert function.python is body
        assert pl.inline(body).plane is Plane.INLINE
        types = pl.FunctionType
        assert pl.function(type=types.InCore)(body).plane is Plane.INCORE
        assert pl.function(type=types.Orchestration)(body).plane is Plane.ORCHESTRATION
        assert pl.function(level=pl.Level.HOST, role=pl.Role.Orchestrator)(body).plane is Plane.HOST
        with pytest.raises(AotcError, match="decorates a function"):
            pl.jit(3)

        @pl.program
        class Pair:
            one = pl.function(body)

        assert Pair.name == "Pair"
        assert list(Pair.functions) == ["one"]


@pytest.mark.parametrize("path", sorted(vocabulary.UNSUPPORTED))
def test_what_is_unsupported_says_what_to_do(path: str) -> None:
    with pytest.raises(AotcError, match="is not supported yet") as caught:
        vocabulary.resolve(path)
    assert caught.value.hint
