"""Modules are loaded from the model's folder alone, afresh each time, and leave nothing behind."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from aotc.errors import AotcError
from aotc.frontend import source

WRAPPER = """
    import pypto.language as pl
    from .deep.constants import WIDTH
    from helpers import twice
    import shared
    import shared as again
    assert again is shared

    @pl.jit.incore
    def kernel(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
        out[:] = x * twice(WIDTH)
        return out

    @pl.jit.host
    def host(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
        return kernel(x, out)
    """


def folder(model: Any) -> Path:
    (model.source / "deep").mkdir()
    (model.source / "deep" / "constants.py").write_text("WIDTH = H // 2\n")
    model.write(wrappers=WRAPPER, helpers="def twice(x):\n    return 2 * x\n", shared="N = N + 1\n")
    return model.source


def test_files_are_those_that_were_read(model: Any) -> None:
    folder(model)
    model.write(unused="raise SystemExit\n")
    files = model.lower().files
    read = {"wrappers.py", "deep/constants.py", "helpers.py", "shared.py"}
    assert {name for name, digest in files.items() if digest is not None} == read
    for name in read:
        assert files[name] == hashlib.sha256((model.source / name).read_bytes()).hexdigest()


def test_a_file_that_would_have_been_read_first_is_recorded_as_absent(model: Any) -> None:
    folder(model)
    absent = {name for name, digest in model.lower().files.items() if digest is None}
    assert "helpers/__init__.py" in absent
    (model.source / "helpers").mkdir()
    (model.source / "helpers" / "__init__.py").write_text("def twice(x):\n    return 2 * x\n")
    assert model.lower().files["helpers/__init__.py"] is not None


def test_the_kernels_may_lie_in_a_folder_of_their_own(model: Any) -> None:
    """A bare name means the one there; what the model itself has is read all the same."""
    package = folder(model)
    kernels = package.parent / "elsewhere"
    kernels.mkdir()
    (kernels / "helpers.py").write_text("import shared\nN = shared.N\ndef twice(x): return x\n")
    environment = {"H": 8, "N": 1, "B": 2}
    loaded, sources = source.load(package, "wrappers", environment, kernels)
    assert loaded.twice(3) == 3
    digests = sources.digests()
    assert digests["../elsewhere/helpers.py"] is not None
    # Were they there, they would be read instead.
    assert digests["../elsewhere/shared.py"] is None
    assert digests["../elsewhere/shared/__init__.py"] is None
    assert "helpers.py" not in digests
    (kernels / "shared.py").write_text("N = 7\n")
    loaded, sources = source.load(package, "wrappers", environment, kernels)
    assert (loaded.shared.N, "shared.py" in sources.digests()) == (7, False)
    with pytest.raises(AotcError, match=r"the folder of the kernels, .* does not exist"):
        source.load(package, "wrappers", environment, kernels / "none")


def test_nothing_stays_behind(model: Any) -> None:
    path = folder(model)
    marker = type(sys)("helpers")
    sys.modules["helpers"] = marker
    before, finders = set(sys.modules), list(sys.meta_path)
    try:
        model.lower()
        assert sys.modules["helpers"] is marker
    finally:
        del sys.modules["helpers"]
    assert {name for name in set(sys.modules) - before if not name.startswith("aotc")} == set()
    assert sys.meta_path == finders
    assert not list(path.rglob("__pycache__"))


def test_each_load_is_fresh(model: Any) -> None:
    path = folder(model)
    first, _ = source.load(path, "wrappers", {"H": 8, "N": 1, "B": 2})
    second, _ = source.load(path, "wrappers", {"H": 6, "N": 5, "B": 2})
    assert (first.WIDTH, second.WIDTH) == (4, 3)
    assert (first.shared.N, second.shared.N) == (2, 6)


def test_a_module_sees_only_what_it_imports_and_the_config(model: Any) -> None:
    folder(model)
    model.write(helpers="def twice(x):\n    return x * HEIGHT\n")
    error = model.error()
    assert error.message == "NameError: name 'HEIGHT' is not defined"
    assert model.where(error) == "wrappers:11:18"


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        ("x = (", "1:5", "not Python: '(' was never closed", None),
        ("é = 1; WIDTH = HH", "1:16", "unknown name `HH`", "did you mean `H`?"),
        ("def f():\n    return 1 / 0\nf()", "2:12", "ZeroDivisionError: division by zero", None),
        ("raise SystemExit(3)", "1:1", "SystemExit: 3", None),
        ("import numpyy", "1:1", "ModuleNotFoundError: No module named 'numpyy'", None),
        ("from helpers import thrice", "1:1", "helpers.py has no `thrice`", "`twice`"),
        ("from pypto.language import ad", "1:1", "`pypto.language` has no `ad`",
         "did you mean `pl.add"),
        ("import pypto.language as pl\npl.foo", "2:1", "`pypto.language` has no `foo`", ""),
        ("import pypto.language as pl\npl.parse('')", "2:1", "`pl.parse` is not supported yet", ""),
        ("import pypto.language as pl\npl.add(1, 2)", "2:1",
         "`pl.add` can be used in the body", "@pl.jit"),
        ("import pypto.language as pl\n@pl.jit\ndef f(x): ...\nf(1)", "4:1",
         "`f` is a PyPTO function", ""),
        ("import pypto.language as pl\n@pl.jit.hosts\ndef f(x): ...", "2:2",
         "`pl.jit.hosts` is not supported", "the variants are"),
        ("import pypto.language.distributed as pld", "1:1",
         "`pypto.language.distributed` is not supported yet", "one rank"),
        ("from pypto.language import distributed", "1:1",
         "`pypto.language.distributed` is not supported yet", "one rank"),
        ("from pypto.runtime import RunConfig\nRunConfig()", "2:1",
         "`pypto.runtime.RunConfig` runs programs", "__main__"),
        ("ROWS = B * 2", "1:8", "`B` is a dynamic dimension", "`equals`"),
    ],
)  # fmt: skip
def test_a_module_that_fails(
    model: Any, text: str, where: str, message: str, hint: str | None
) -> None:
    folder(model)
    (model.source / "deep" / "constants.py").write_text(text)
    error = model.error()
    assert message in error.message
    assert (hint or "") in (error.hint or "")
    assert model.where(error) == f"constants:{where}"
    assert not [name for name in sys.modules if name.startswith("_aotc_model")]
    assert "pypto" not in sys.modules


def test_hyperparameters_and_tiling_stand_in_every_module(model: Any) -> None:
    yaml = model.folder / "small.yaml"
    yaml.write_text(
        yaml.read_text()
        + "hyperparameters: {EPS: 0.5}\ntiling: {cpu: {TILE: 2}, a2a3: {TILE: 4}}\n"
    )
    model.incore("out[:] = x + EPS * TILE")
    (constant,) = [e.operands[1] for e in model.lower().program.body.statements if e.op == "add"]
    assert constant.value == 1.0


def test_a_missing_module_or_function(model: Any) -> None:
    folder(model)
    assert model.error("wrapper:host").message.endswith("has no module `wrapper`")
    error = model.error("wrappers:hots")
    assert (error.message, error.hint) == (
        "`wrappers` has no function `hots`",
        "did you mean `host`?",
    )
    assert "is not a PyPTO function" in model.error("wrappers:WIDTH").message
    assert "not of the form" in model.error("wrappers").message


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="does not exist"):
        source.load(tmp_path / "none", "wrappers", {})


def test_text_that_is_not_utf8(model: Any) -> None:
    (model.source / "wrappers.py").write_bytes(b"x = '\xff'\n")
    assert "is not UTF-8 text" in model.error().message


def test_a_function_outside_the_folder_is_refused(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text(
        "import pypto.language as pl\n@pl.jit.inline\ndef f(x: pl.Tensor):\n    return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model.write(
        wrappers="""
            import pypto.language as pl
            from elsewhere import f
            @pl.jit.host
            def host(x: pl.Tensor[[B], pl.FP32]):
                f(x)
            """
    )
    try:
        assert "outside the model's folder" in model.error().message
    finally:
        sys.modules.pop("elsewhere", None)
