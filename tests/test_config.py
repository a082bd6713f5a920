"""Every mistake in a model config gets its message, line and exit code."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc import config
from aotc.cli.main import main
from aotc.errors import AotcError

MODELS = Path(__file__).parent.parent / "models"
SHIPPED = ["qwen3-0.6b", "qwen3-14b", "qwen3-8b", "qwen3-tiny"]
HEAD = "schema: 1\nmodel: m\nsource: s\n"
NULL_GOLDEN = "programs: {p: {wrapper: 'a.b:c', golden: null}}\n"


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


def test_the_shipped_models() -> None:
    assert config.available_models(MODELS) == SHIPPED


@pytest.mark.parametrize("model", SHIPPED)
def test_every_shipped_model_resolves(model: str) -> None:
    resolved = config.load(model, MODELS)
    extents = resolved.extents
    assert extents["NUM_HEADS"] % extents["NUM_KV_HEADS"] == 0
    assert extents["REAL_VOCAB"] <= extents["VOCAB"]
    assert resolved.hyperparameters == {
        "EPS": 1e-6,
        "ROPE_THETA": 1e6,
        "TIED_EMBEDDINGS": model == "qwen3-0.6b",
    }
    assert {name: str(program.wrapper) for name, program in resolved.programs.items()} == {
        "prefill": "wrappers:qwen3_prefill_host",
        "decode": "wrappers:qwen3_decode_host",
        "greedy_sample": "wrappers:qwen3_greedy_sample_host",
    }
    assert all(
        str(program.golden) == f"golden:{name}" for name, program in resolved.programs.items()
    )


@pytest.mark.parametrize("model", SHIPPED[1:])
def test_models_of_one_source_give_the_same_names(model: str) -> None:
    first, other = config.load(SHIPPED[0], MODELS), config.load(model, MODELS)
    assert other.source == first.source
    assert list(other.environment("cpu")) == list(first.environment("cpu"))
    assert other.symbols == first.symbols


def test_a_minimal_config_has_defaults(tmp_path: Path) -> None:
    resolved = load(tmp_path, "")
    assert resolved.targets == ("cpu",)
    assert resolved.device_ids == (0,)
    assert resolved.programs == {}
    assert resolved.environment("a2a3sim") == {}


def test_extents_may_stand_in_any_order(tmp_path: Path) -> None:
    assert load(tmp_path, "extents: {A: B + 1, B: 2}").extents == {"A": 3, "B": 2}


def test_a_long_chain_of_extents_resolves(tmp_path: Path) -> None:
    links = "".join(f"  A{i}: A{i + 1} + 1\n" for i in range(2000))
    assert load(tmp_path, f"extents:\n{links}  A2000: 0\n").extents["A0"] == 2000


def test_tiling_is_chosen_by_platform(tmp_path: Path) -> None:
    resolved = load(
        tmp_path,
        "extents: {H: 64}\n"
        "tiling:\n  cpu: {TILE: H, HALF: TILE // 2}\n  a2a3: {HALF: 8, TILE: H // 4}\n",
    )
    assert resolved.tiling == {"cpu": {"TILE": 64, "HALF": 32}, "a2a3": {"HALF": 8, "TILE": 16}}
    assert resolved.names("cpu") == {"H": 64, "TILE": 64, "HALF": 32}
    assert resolved.names("a2a3") == {"H": 64, "TILE": 16, "HALF": 8}
    assert resolved.names("a2a3sim") == resolved.names("a2a3")
    assert resolved.extents == {"H": 64}


@pytest.mark.parametrize(
    ("platform", "message", "hint"),
    [
        ("cqu", "unknown platform `cqu`", "did you mean `cpu`?"),
        ("zzz", "unknown platform `zzz`", "platforms: cpu, a2a3, a5, a2a3sim, a5sim"),
        ("a5sim", "`m` has no tiling for `a5sim`", "add `a5` under `tiling`"),
    ],
)
def test_platforms_without_names(tmp_path: Path, platform: str, message: str, hint: str) -> None:
    resolved = load(tmp_path, "tiling: {cpu: {T: 1}}\n")
    with pytest.raises(AotcError) as caught:
        resolved.names(platform)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    with pytest.raises(AotcError, match=re.escape(message)):
        resolved.environment(platform)


def test_environment_is_all_but_the_symbols(tmp_path: Path) -> None:
    resolved = load(
        tmp_path,
        "extents: {H: 2}\ndynamic: {D: {min: 1}}\ntiling: {cpu: {T: H + 1}}\n"
        "hyperparameters: {EPS: 1e-6, SCALE: 3, TIED: true}\n",
    )
    environment = resolved.environment("cpu")
    assert environment == {"H": 2, "T": 3, "EPS": 1e-6, "SCALE": 3.0, "TIED": True}
    kinds = [type(value) for value in environment.values()]
    assert kinds == [int, int, float, float, bool]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_is_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, number: float
) -> None:
    resolved = load(tmp_path_factory.mktemp("m"), f"hyperparameters: {{X: {number!r}}}\n")
    assert resolved.hyperparameters == {"X": number}


def test_references_know_their_parts_and_their_place(tmp_path: Path) -> None:
    program = load(tmp_path, NULL_GOLDEN).programs["p"]
    assert (program.wrapper.module, program.wrapper.function) == ("a.b", "c")
    assert (program.wrapper.place.line, program.wrapper.place.column) == (4, 25)
    assert program.golden is None


@pytest.mark.parametrize(
    ("body", "line", "message", "hint"),
    [
        ("extent: {}\n", 4, "unknown key `extent`", "did you mean `extents`?"),
        (
            "zzz: {}\n",
            4,
            "unknown key `zzz`",
            "known keys: schema, model, source, extents, kernels, dynamic, tiling, "
            "hyperparameters, programs, targets, distributed",
        ),
        ("extents:\n  A: 1\n  A: 2\n", 6, "duplicate key `A`", None),
        ("extents:\n  A: 1\n  B: 1.5\n", 6, "`extents.B`: Expected `int | str`, got `float`", None),
        ("extents:\n  A: true\n", 5, "`extents.A`: Expected `int | str`, got `bool`", None),
        ("extents:\n  A: 1\n  B:\n", 6, "`extents.B`: Expected `int | str`, got `null`", None),
        ("extents: [1]\n", 4, "`extents`: expected a mapping", None),
        ("extents:\n", 4, "`extents`: expected a mapping", None),
        (
            "extents:\n  A: HIDEN\n  HIDDEN: 2\n",
            5,
            "unknown name `HIDEN`",
            "did you mean `HIDDEN`?",
        ),
        ("extents:\n  A: B\n  B: A\n", 5, "extents form a cycle: A -> B -> A", None),
        ("extents:\n  A: A\n", 5, "extents form a cycle: A -> A", None),
        (
            "extents:\n  Z: A\n  A: B\n  B: C\n  C: A\n",
            6,
            "extents form a cycle: A -> B -> C -> A",
            None,
        ),
        ("extents:\n  A: 4 // 0\n", 5, "extent `A`: division by zero", None),
        ("extents:\n  A: 0 - 1\n", 5, "extent `A` is negative: -1", None),
        ("extents:\n  A: 2 ** 3\n", 5, None, None),
        ("extents:\n  A: 0x" + "f" * 5000 + "\n", 5, None, None),
        ("extents:\n  min: 3\n", 5, "`min` is reserved", "choose another name"),
        ("dynamic:\n  class: {}\n", 5, "`class` is reserved", "choose another name"),
        ("dynamic:\n  D: {mim: 1}\n", 5, "unknown key `mim`", "did you mean `min`?"),
        ("dynamic:\n  D: {max: TOP}\n", 5, "unknown name `TOP`", "define it under `extents`"),
        (
            "dynamic:\n  D:\n    max: [1]\n",
            6,
            "`dynamic.D.max`: Expected `int | str`, got `array`",
            None,
        ),
        ("dynamic:\n  D: 1\n", 5, "`dynamic.D`: expected a mapping", None),
        (
            "extents: {D: 1}\ndynamic:\n  D: {}\n",
            6,
            "`D` is both a static extent and a dynamic symbol",
            None,
        ),
        ("extents:\n  2A: 1\n", 5, "`2A` is not a name", None),
        ('extents:\n  "A\\n": 1\n', 5, "`A\n` is not a name", None),
        ("extents: &a {A: *a}\n", 4, "YAML aliases are not supported", "repeat the value"),
        ("extents:\n  A: &a 1\n  B: *a\n", 5, "YAML aliases are not supported", "repeat the value"),
        ("extents:\n  A: !!int x\n", 5, "not a value: `x`", None),
        ("extents:\n  [1]: x\n", 5, "a key must be plain text", None),
        # tiling
        (
            "tiling:\n  cpu: {T: 1}\n  a2a3sim: {T: 1}\n",
            6,
            "`a2a3sim` is not one of cpu, a2a3, a5",
            "did you mean `a2a3`?",
        ),
        (
            "tiling:\n  cpu: {T: 1, U: 2}\n  a2a3: {U: 1}\n",
            6,
            "the tiling of `a2a3` lacks `T`, which `cpu` has",
            "every device has the same names",
        ),
        (
            "tiling:\n  cpu: {}\n  a2a3: {U: 1}\n",
            5,
            "the tiling of `cpu` lacks `U`, which `a2a3` has",
            "every device has the same names",
        ),
        (
            "extents: {T: 1}\ntiling:\n  cpu: {T: 1}\n",
            6,
            "`T` is both a static extent and a tile extent",
            None,
        ),
        (
            "dynamic: {T: {}}\ntiling:\n  cpu: {T: 1}\n",
            6,
            "`T` is both a dynamic symbol and a tile extent",
            None,
        ),
        ("tiling:\n  cpu:\n    T: HH\n", 6, "unknown name `HH`", "define it under `extents`"),
        (
            "extents:\n  A: TT\ntiling:\n  cpu: {TT: 1}\n",
            5,
            "unknown name `TT`",
            "define it under `extents`",
        ),
        ("tiling:\n  cpu:\n    T: 1 // 0\n", 6, "extent `T`: division by zero", None),
        ("tiling:\n  cpu:\n    T: U\n    U: T\n", 6, "extents form a cycle: T -> U -> T", None),
        (
            "tiling:\n  cpu:\n    T: 1.5\n",
            6,
            "`tiling.cpu.T`: Expected `int | str`, got `float`",
            None,
        ),
        (
            "targets:\n  - cpu\n  - a5\ntiling: {cpu: {T: 1}}\n",
            6,
            "target `a5` has no tiling",
            "add `a5` under `tiling`",
        ),
        ("tiling: {a5: {T: 1}}\n", 4, "target `cpu` has no tiling", "add `cpu` under `tiling`"),
        # hyperparameters
        (
            "hyperparameters:\n  EPS: small\n",
            5,
            "`hyperparameters.EPS`: Expected `bool | float`, got `str`",
            None,
        ),
        ("hyperparameters:\n  EPS: .nan\n", 5, "hyperparameter `EPS` is not finite: nan", None),
        ("hyperparameters:\n  EPS: 1e999\n", 5, "hyperparameter `EPS` is not finite: inf", None),
        (
            "extents: {E: 1}\nhyperparameters:\n  E: 1\n",
            6,
            "`E` is both a static extent and a hyperparameter",
            None,
        ),
        (
            "tiling: {cpu: {E: 1}}\nhyperparameters:\n  E: 1\n",
            6,
            "`E` is both a tile extent and a hyperparameter",
            None,
        ),
        # programs
        (
            "programs:\n  p: {wrapper: wrappers.f}\n",
            5,
            "`programs.p.wrapper`: `wrappers.f` is not a `module:function` reference",
            None,
        ),
        (
            "programs:\n  p:\n    wrapper: w:f\n    golden: ../g:f\n",
            7,
            "`programs.p.golden`: `../g:f` is not a `module:function` reference",
            None,
        ),
        ("programs:\n  p: {golden: g:f}\n", 5, "`programs.p`: missing key `wrapper`", None),
        (
            "programs:\n  p: {wraper: w:f}\n",
            5,
            "unknown key `wraper`",
            "did you mean `wrapper`?",
        ),
        ("programs:\n  p-q: {wrapper: w:f}\n", 5, "`p-q` is not a name", None),
        (
            "programs:\n  p: {wrapper: 3}\n",
            5,
            "`programs.p.wrapper`: Expected `str`, got `int`",
            None,
        ),
        # targets, distributed
        (
            "targets:\n  - cpu\n  - gpu\n",
            6,
            "`targets.1`: `gpu` is not one of cpu, a2a3, a5, a2a3sim, a5sim",
            "did you mean `cpu`?",
        ),
        ("targets:\n  - [cpu]\n", 5, None, None),
        ("targets:\n  - cpu\n  - cpu\n", 6, "`targets`: `cpu` is listed twice", None),
        ("targets: []\n", 4, "`targets`: Expected `array` of length >= 1", None),
        ("targets: cpu\n", 4, "`targets`: expected a list", None),
        (
            "distributed:\n  device_ids: []\n",
            5,
            "`distributed.device_ids`: Expected `array` of length >= 1",
            None,
        ),
        (
            "distributed:\n  device_ids:\n    - 0\n    - -1\n",
            7,
            "`distributed.device_ids.1`: Expected `int` >= 0",
            None,
        ),
        (
            "distributed:\n  device_ids:\n    - 1\n    - 0\n    - 1\n",
            8,
            "`distributed.device_ids`: `1` is listed twice",
            None,
        ),
        (
            "distributed:\n  device: [0]\n",
            5,
            "unknown key `device`",
            "did you mean `device_ids`?",
        ),
    ],
)
def test_mistakes(
    tmp_path: Path, body: str, line: int, message: str | None, hint: str | None
) -> None:
    with pytest.raises(AotcError) as caught:
        load(tmp_path, body)
    if message is not None:  # where it is worded elsewhere, the place alone counts
        assert caught.value.message == message
        assert caught.value.hint == hint
    assert caught.value.place is not None
    assert caught.value.place.line == line


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the file is empty"),
        ("# nothing\n", 1, "the file is empty"),
        ("- 1\n", 1, "expected a mapping"),
        ("\nschema: 1\nmodel: m\n", 2, "missing key `source`"),
        ("schema: 2\nmodel: m\nsource: s\n", 1, "`schema`: Expected `int` <= 1"),
        ("schema: 1\nmodel: n\nsource: s\n", 2, "model `n` in a file named `m.yaml`"),
        ("schema: 1\nmodel: {\n", 3, "not valid YAML: expected the node content"),
    ],
)
def test_mistakes_in_the_whole_file(tmp_path: Path, text: str, line: int, message: str) -> None:
    (tmp_path / "m.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(AotcError, match="^" + re.escape(message)) as caught:
        config.load("m", tmp_path)
    assert caught.value.place is not None
    assert caught.value.place.line == line


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_bytes(b"schema: \xff\n")
    with pytest.raises(AotcError, match=r"m\.yaml is not UTF-8 text"):
        config.load("m", tmp_path)


def test_control_characters_are_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(AotcError, match="is not valid YAML"):
        load(tmp_path, "extents: {A: \x00}\n")


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


def test_schema_describes_every_field_and_admits_no_other() -> None:
    for name, definition in config.json_schema()["$defs"].items():
        assert definition["additionalProperties"] is False, name
        for field, description in definition["properties"].items():
            assert description["description"], f"{name}.{field}"
