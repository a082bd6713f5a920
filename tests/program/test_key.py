"""The key covers what can change the output, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc import config
from aotc.program import key as keys
from aotc.program.key import BuildKey, Difference, canonical_key, compiler_digest, inputs_key

PACKAGE = Path(keys.__file__).parents[1]

YAML = """\
schema: 1
model: small
source: small
extents:
  HIDDEN: 64
  VOCAB: round_up(HIDDEN, 50)
hyperparameters: {EPS: 1e-6}
dynamic:
  ROWS: {min: 1, max: HIDDEN}
tiling: {cpu: {BLOCK: 8}, a5: {BLOCK: 8}}
programs:
  decode: {wrapper: "wrappers:decode", golden: "golden:decode"}
  prefill: {wrapper: "wrappers:prefill"}
targets: [cpu]
distributed: {device_ids: [0]}
"""


def read(folder: Path, text: str = YAML) -> config.Config:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small").mkdir(exist_ok=True)
    (folder / "small.yaml").write_text(text, encoding="utf-8")
    return config.load("small", folder)


def level_one(resolved: config.Config, **changes: Any) -> BuildKey:
    parts: dict[str, Any] = {
        "program": "decode",
        "target": "x86_64_v3",
        "toolchain": "clang 1 sha256:00",
        "flags": ("-O3", "-fPIC"),
        "abi_version": 1,
        "environment": {},
        "compiler": "0" * 64,
    }
    return inputs_key(config=resolved, **{**parts, **changes})


def level_two(**changes: Any) -> BuildKey:
    parts: dict[str, Any] = {
        "model": "small",
        "program": "decode",
        "contract": b"{}",
        "ir": "ir",
        "target": "x86_64_v3",
        "toolchain": "clang 1 sha256:00",
        "flags": ("-O3", "-fPIC"),
        "abi_version": 1,
        "device_ids": (0,),
        "compiler": "0" * 64,
        "environment": {},
    }
    return canonical_key(**{**parts, **changes})


CHANGES = [
    ("program", "prefill"),
    ("target", "x86_64_v4"),
    ("toolchain", "clang 2 sha256:11"),
    ("flags", ("-fPIC", "-O3")),
    ("flags", ("-O3 -fPIC",)),
    ("abi_version", 2),
    ("compiler", "1" * 64),
    ("environment", {"AOTC_OF_THE_FUTURE": "1"}),
]


@pytest.mark.parametrize(("part", "value"), CHANGES)
def test_each_component_changes_the_input_key(tmp_path: Path, part: str, value: Any) -> None:
    resolved = read(tmp_path)
    assert level_one(resolved, **{part: value}).digest != level_one(resolved).digest


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *CHANGES,
        ("model", "other"),
        ("contract", b'{"a":1}'),
        ("ir", "ir "),
        ("device_ids", (1,)),
        ("device_ids", (0, 1)),
    ],
)
def test_each_component_changes_the_canonical_key(part: str, value: Any) -> None:
    assert level_two(**{part: value}).digest != level_two().digest


@pytest.mark.parametrize(
    ("old", "new", "component"),
    [
        ("HIDDEN: 64", "HIDDEN: 128", "config.extents"),
        ("min: 1, max: HIDDEN", "min: 2, max: HIDDEN", "config.symbols"),
        ("max: HIDDEN", "equals: HIDDEN", "config.symbols"),
        ("EPS: 1e-6", "EPS: 1e-5", "config.hyperparameters"),
        ("BLOCK: 8", "BLOCK: 16", "config.tiling"),
        ("wrappers:decode", "wrappers:other", "wrapper"),
        ("device_ids: [0]", "device_ids: [1]", "config.device_ids"),
    ],
)
def test_each_value_of_the_config_changes_the_key(
    tmp_path: Path, old: str, new: str, component: str
) -> None:
    assert old in YAML
    before, after = read(tmp_path / "a"), read(tmp_path / "b", YAML.replace(old, new))
    assert [each.component for each in level_one(after).explain(level_one(before))] == [component]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("schema: 1", "# a comment\n\nschema: 1"),
        ("HIDDEN: 64\n", "HIDDEN: 32 * 2\n"),
        ("golden:decode", "golden:other"),
        ("wrappers:prefill", "wrappers:other"),
        ("targets: [cpu]", "targets: [cpu, a5]"),
        ("tiling: {cpu: {BLOCK: 8}", 'tiling: {"cpu": {BLOCK: 0x8}'),
    ],
)
def test_what_cannot_change_the_output_does_not_change_the_key(
    tmp_path: Path, old: str, new: str
) -> None:
    assert old in YAML
    before = read(tmp_path / "a")
    after = read(tmp_path / "elsewhere" / "b", YAML.replace(old, new))
    assert level_one(after).explain(level_one(before)) == []
    assert level_one(after).digest == level_one(before).digest


def test_neutral_variables_do_not_change_the_key(tmp_path: Path) -> None:
    resolved = read(tmp_path)
    neutral = {name: "x" for name, reason in keys.ENVIRONMENT.items() if reason is not keys.KEY}
    assert level_one(resolved, environment=neutral).digest == level_one(resolved).digest
    assert level_one(resolved, environment={"EDITOR": "vi"}).digest == level_one(resolved).digest


def test_no_path_of_the_checkout_is_in_a_key(tmp_path: Path) -> None:
    resolved = read(tmp_path)
    key = level_one(resolved, environment=os.environ, compiler=None)
    assert str(tmp_path) not in repr(key)
    assert str(PACKAGE.parent) not in repr(key)


def test_every_field_of_the_config_is_classified() -> None:
    fields = {each.name for each in dataclasses.fields(config.Config)}
    assert set(keys.CONFIG_FIELDS) == fields


def test_an_unclassified_field_is_refused() -> None:
    @dataclasses.dataclass
    class Config:
        model: str
        surprise: int

    with pytest.raises(ValueError, match="`surprise` is not classified"):
        keys.config_components(Config("tiny", 1))  # type: ignore[arg-type]


def test_a_path_is_refused_in_a_key() -> None:
    @dataclasses.dataclass
    class Config:
        model: Path

    with pytest.raises(ValueError, match="no place in a build key"):
        keys.config_components(Config(Path("/somewhere")))  # type: ignore[arg-type]


def test_every_variable_that_aotc_reads_is_classified() -> None:
    """Find them as string constants: however they are read, their name is written somewhere."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] == "codegen":  # its names are those of C macros
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"AOTC_[A-Z0-9_]+", node.value):
                    found.add(node.value)
    assert "AOTC_STORE" in found
    assert found <= set(keys.ENVIRONMENT)


def test_every_neutral_one_has_a_reason() -> None:
    for table in (keys.CONFIG_FIELDS, keys.ENVIRONMENT):
        for name, reason in table.items():
            assert reason is keys.KEY or len(reason) > 10, name


def test_the_order_of_components_does_not_matter() -> None:
    assert BuildKey({"a": "1", "b": "2"}).digest == BuildKey({"b": "2", "a": "1"}).digest
    assert BuildKey({"a": "1", "b": "2"}).digest != BuildKey({"a": "2", "b": "1"}).digest
    # The text is what is hashed, not a concatenation of it.
    assert BuildKey({"a": "12"}).digest != BuildKey({"a1": "2"}).digest


def test_explain() -> None:
    mine, other = BuildKey({"a": "1", "b": "2", "c": "3"}), BuildKey({"a": "1", "b": "x", "d": "4"})
    assert mine.explain(other) == [
        Difference("b", "2", "x"),
        Difference("c", "3", None),
        Difference("d", None, "4"),
    ]
    assert mine.explain(mine) == []


def test_the_compiler_digest_follows_every_source(tmp_path: Path) -> None:
    copy = tmp_path / "aotc"
    for name, text in (("a.py", "1"), ("codegen/b.py", "2"), ("codegen/library/c.h", "3")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text)
    seen = {compiler_digest.__wrapped__(copy)}

    def changed() -> bool:
        before = len(seen)
        seen.add(compiler_digest.__wrapped__(copy))
        return len(seen) > before

    for name in ("a.py", "codegen/b.py", "codegen/library/c.h"):
        (copy / name).write_text("changed")
        assert changed()
    (copy / "codegen" / "b.py").rename(copy / "codegen" / "d.py")
    assert changed()
    (copy / "new.py").write_text("")
    assert changed()
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "a.cpython-311.pyc").write_text("")
    (copy / "notes.txt").write_text("")
    assert not changed()
    shutil.move(copy, tmp_path / "moved")
    assert compiler_digest.__wrapped__(tmp_path / "moved") in seen
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no sources"):
        compiler_digest.__wrapped__(tmp_path / "empty")


def test_the_compiler_digest_costs_little_beside_the_sources_themselves() -> None:
    """At most some times a plain walk that reads them; it took 1.1 to 1.5 times as long."""

    def read_all() -> None:
        for path in PACKAGE.rglob("*"):
            if path.suffix in (".py", ".h"):
                path.read_bytes()

    def seconds(body: Callable[[], Any]) -> float:
        start = time.perf_counter()
        body()
        return time.perf_counter() - start

    pairs = [(seconds(read_all), seconds(compiler_digest.__wrapped__)) for _ in range(5)]
    assert min(digest / plain for plain, digest in pairs) < 5


def test_a_key_is_equal_in_another_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from aotc import config\n"
        "from aotc.program.key import inputs_key\n"
        "resolved = config.load('small', Path(sys.argv[1]))\n"
        "print(inputs_key(config=resolved, program='decode', target='x86_64_v3', toolchain='t',"
        " flags=['-O3'], abi_version=1, environment={}).digest)"
    )
    read(tmp_path / "a")
    read(tmp_path / "b" / "c")
    found = {
        subprocess.run(
            [sys.executable, "-c", script, str(folder)],
            env={"PYTHONPATH": str(PACKAGE.parent), "PYTHONHASHSEED": seed, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for folder, seed, zone in (
            (tmp_path / "a", "1", "UTC"),
            (tmp_path / "b" / "c", "2", "Asia/Tokyo"),
        )
    }
    assert len(found) == 1
