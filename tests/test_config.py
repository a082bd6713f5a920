"""Every mistake in a model config gets its message, line and exit code."""

import json
from pathlib import Path

import pytest

from aotc import config
from aotc.cli.main import main
from aotc.errors import AotcError

MODELS = Path(__file__).parent.parent / "models"
HEAD = "schema: 1\nmodel: m\nsource: s\n"


def load(tmp_path: Path, body: str) -> config.Config:
    (tmp_path / "m.yaml").write_text(HEAD + body, encoding="utf-8")
    return config.load("m", tmp_path)


def test_qwen3_14b_extents() -> None:
    resolved = config.load("qwen3-14b", MODELS)
    assert resolved.extents["KV_HIDDEN"] == 1024
    assert resolved.extents["VOCAB"] == 152064
    rows = resolved.symbols["LAYER_HIDDEN_ROWS_DYN"].equals
    assert rows is not None
    assert rows.evaluate({**resolved.extents, "LAYER_DYN": 2}) == 10240


@pytest.mark.parametrize("model", config.available_models(MODELS))
def test_every_shipped_model_resolves(model: str) -> None:
    extents = config.load(model, MODELS).extents
    assert extents["NUM_HEADS"] % extents["NUM_KV_HEADS"] == 0
    assert extents["REAL_VOCAB"] <= extents["VOCAB"]


def test_extents_may_stand_in_any_order(tmp_path: Path) -> None:
    assert load(tmp_path, "extents: {A: B + 1, B: 2}").extents == {"A": 3, "B": 2}


@pytest.mark.parametrize(
    ("body", "line", "message", "hint"),
    [
        ("extent: {}\n", 4, "unknown key `extent`", "did you mean `extents`?"),
        ("extents:\n  A: 1\n  A: 2\n", 6, "duplicate key `A`", None),
        ("extents:\n  A: 1\n  B: 1.5\n", 6, "`B`: Expected `int | str`, got `float`", None),
        ("extents: [1]\n", 4, "Expected `object`, got `array`", None),
        (
            "extents:\n  A: HIDEN\n  HIDDEN: 2\n",
            5,
            "unknown name `HIDEN`",
            "did you mean `HIDDEN`?",
        ),
        ("extents:\n  A: B\n  B: A\n", 5, "extents form a cycle: A -> B -> A", None),
        ("extents:\n  A: 4 // 0\n", 5, "extent `A`: division by zero", None),
        ("extents:\n  A: 0 - 1\n", 5, "extent `A` is negative: -1", None),
        ("dynamic:\n  D: {mim: 1}\n", 5, "unknown key `mim`", "did you mean `min`?"),
        ("dynamic:\n  D: {max: TOP}\n", 5, "unknown name `TOP`", "define it under `extents`"),
        ("dynamic:\n  D: {max: [1]}\n", 5, "`D`: Expected `int | str | null`, got `array`", None),
        (
            "extents: {D: 1}\ndynamic:\n  D: {}\n",
            6,
            "`D` is both a static extent and a dynamic symbol",
            None,
        ),
        ("extents:\n  2A: 1\n", 5, "`2A` is not a name", None),
        ("extents: &a {A: *a}\n", 4, "YAML aliases are not supported", "repeat the value"),
        ("extents:\n  A: &a 1\n  B: *a\n", 5, "YAML aliases are not supported", "repeat the value"),
    ],
)
def test_mistakes(tmp_path: Path, body: str, line: int, message: str, hint: str | None) -> None:
    with pytest.raises(AotcError) as caught:
        load(tmp_path, body)
    assert caught.value.message == message
    assert caught.value.place is not None
    assert caught.value.place.line == line
    assert caught.value.hint == hint


def test_command_prints_what_it_resolved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "qwen3-14b", "--models-dir", str(MODELS), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["extents"]["VOCAB"] == 152064


def test_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "qwen3-14", "--models-dir", str(MODELS)]) == 1
    error = "error: unknown model `qwen3-14`\nhint: did you mean `qwen3-14b`?\n"
    assert capsys.readouterr().err == error


def test_caret_under_the_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(HEAD + "extents:\n  A: X\n", encoding="utf-8")
    assert main(["config", "m", "--models-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"error: unknown name `X`\n  --> {path}:5:6\n  5 |   A: X\n           ^\n"
        "hint: define it under `extents`\n"
    )


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="nested too deeply"):
        load(tmp_path, "extents: " + "[" * 5000)


def test_a_fault_of_aotc_exits_with_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(config, "json_schema", fail)
    assert main(["schema"]) == 70
    assert "error: a fault in aotc" in capsys.readouterr().err


def test_wrong_usage_exits_with_2() -> None:
    assert main(["config", "--nonsense"]) == 2


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert "ModelFile" in json.loads(capsys.readouterr().out)["$defs"]
