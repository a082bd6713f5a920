"""Levels on a small model: sources, goldens and artifacts that are broken in every other way."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from aotc import config, driver
from aotc.elsewhere import copy_model
from aotc.errors import AotcError, ExitCode
from aotc.program.model import OBJECT_TYPE, DistributedCompiledProgram
from aotc.store.artifact import publish, write_program
from aotc.store.layout import Layout
from aotc.verify import LEVELS, Check, exit_code, verify

pytest.importorskip("torch")

YAML = """\
schema: 1
model: small
source: sources
extents: {WIDTH: 8}
dynamic:
  ROWS_DYN: {min: 1, max: 64}
programs:
  twice: {wrapper: "wrappers:twice", golden: "golden:twice"}
  count: {wrapper: "wrappers:count", golden: "golden:count"}
"""
WRAPPER = """

@pl.jit.host
def {name}(
    x: pl.Tensor[[ROWS_DYN, WIDTH], pl.{dtype}],
    y: pl.Out[pl.Tensor[[ROWS_DYN, WIDTH], pl.{dtype}]],
) -> pl.Tensor[[ROWS_DYN, WIDTH], pl.{dtype}]:
    with pl.at(level=pl.Level.CORE_GROUP):
        y = pl.assemble(y, pl.add(x, x), [0, 0])
    return y
"""
WRAPPERS = (
    "import pypto.language as pl\n"
    + WRAPPER.format(name="twice", dtype="FP32")
    + WRAPPER.format(name="count", dtype="INT32")
)
GOLDEN = """\
import os, torch

def twice(x, y):
    y.copy_(x + x)

count = twice
"""
CASES = """\
import torch
from aotc.verify.case import Case

def count_cases(seed):
    x = torch.arange(3 * WIDTH, dtype=torch.int32).view(3, WIDTH)
    yield Case("three rows", {"x": x, "y": torch.empty_like(x)})
"""


class Small:
    """A model and the store that it is built in."""

    def __init__(self, folder: Path):
        self.models, self.store = folder / "models", folder / "store"
        self.sources = self.models / "sources"
        self.sources.mkdir(parents=True)
        (self.models / "small.yaml").write_text(YAML)
        self.target = driver.default_target()
        for name, text in (("wrappers", WRAPPERS), ("golden", GOLDEN), ("cases", CASES)):
            self.write(name, text)

    def write(self, module: str, text: str) -> None:
        (self.sources / f"{module}.py").write_text(text)

    @property
    def config(self) -> config.Config:
        return config.load("small", self.models)

    def build(self) -> None:
        layout, stored = Layout.create(self.store), []
        for name in self.config.programs:
            compiled = driver.lower(self.config, name, self.target)
            program = driver.compile_program(self.config, name, self.target, compiled)
            stored.append(write_program(layout, program))
        publish(layout, "small", stored)

    def verify(self, *levels: str, programs: Sequence[str] = ()) -> list[Check]:
        return verify(self.config, self.store, self.target, programs, levels or LEVELS)

    def failures(self, *levels: str) -> list[Check]:
        return [each for each in self.verify(*levels) if not each.passed]


@pytest.fixture
def small(tmp_path: Path) -> Small:
    model = Small(tmp_path)
    model.build()
    return model


def test_all_levels_pass_and_every_case_is_reported(small: Small) -> None:
    told: list[Check] = []
    checks = verify(small.config, small.store, small.target, report=told.append)
    assert told == checks
    assert exit_code(checks) == ExitCode.OK
    assert [each.message for each in checks if not each.passed] == []
    modes = {each.subject for each in checks if each.level == "equivalence"}
    assert modes == {"signature", "numpy arrays", "torch meta tensors", "torch tensors"}
    cases = [each.subject for each in checks if each.level == "numerics"]
    assert cases[:2] == ["least: ROWS_DYN 1", "greatest: ROWS_DYN 64"]
    assert cases[2].startswith("random, seed 0: ")
    assert cases[3:] == ["three rows"]


def test_chosen_programs_and_levels(small: Small) -> None:
    checks = small.verify("contract", programs=["count"])
    assert [(each.level, each.program) for each in checks] == [("contract", "count")]
    with pytest.raises(AotcError, match="unknown level `numeric`") as caught:
        small.verify("numeric")
    assert caught.value.hint == "did you mean `numerics`?"
    with pytest.raises(AotcError, match="no program `twise`"):
        small.verify("contract", programs=["twise"])


def test_every_flipped_blob_is_found_on_every_level(small: Small) -> None:
    blobs = sorted((small.store / "blobs" / "sha256").iterdir())
    assert len(blobs) > 8
    for blob in blobs:
        content = blob.read_bytes()
        blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for level in ("integrity", "contract"):
            failed = small.failures(level)
            assert [each.level for each in failed][:1] == ["integrity"]
            assert exit_code(failed) == ExitCode.INTEGRITY
        assert blob.name in small.failures("integrity")[0].message
        blob.write_bytes(content)
    assert small.failures("integrity") == []


def test_a_changed_kernel(small: Small) -> None:
    small.write("wrappers", WRAPPERS.replace("pl.add(x, x)", "pl.mul(x, x)", 1))
    assert small.failures("contract") == []
    (failed,) = small.failures("equivalence")
    assert (failed.program, failed.subject, failed.field) == ("twice", "signature", "ir")
    assert failed.expected != failed.found
    assert "sources now give another program" in failed.message
    assert "aotc build small" in failed.message


def test_sources_that_do_not_compile(small: Small) -> None:
    small.write("wrappers", WRAPPERS.replace("pl.add(x, x)", "pl.ad(x, x)", 1))
    (failed,) = small.failures("equivalence")
    assert failed.program == "twice"
    assert "wrappers.py" in failed.message
    assert [each.program for each in small.failures("contract")] == ["twice"]


def with_object(program: DistributedCompiledProgram, content: bytes) -> DistributedCompiledProgram:
    """Return `program` with another object."""
    layers = [
        dataclasses.replace(each, content=content) if each.media_type == OBJECT_TYPE else each
        for each in program.layers
    ]
    return dataclasses.replace(program, layers=tuple(layers))


def test_an_artifact_that_another_compiler_made(small: Small) -> None:
    compiled = driver.lower(small.config, "twice", small.target)
    program = driver.compile_program(small.config, "twice", small.target, compiled)
    layout = Layout.open(small.store)
    identity = {**program.identity, "toolchain": "another"}
    other = dataclasses.replace(program, identity=identity)
    publish(layout, "small", [write_program(layout, other)])
    (failed,) = small.failures("equivalence")
    assert (failed.field, failed.found) == ("toolchain", "another")
    assert "built by another compiler" in failed.message

    # Machine code that its sources do not give, and that claims to be theirs.
    other = with_object(program, program.content(OBJECT_TYPE) + b"\0")
    publish(layout, "small", [write_program(layout, other)])
    assert small.failures("integrity", "contract") == []
    (failed,) = small.failures("equivalence")
    assert failed.message.startswith("equal inputs gave another application/vnd.aotc.object")


def test_machine_code_that_computes_something_else(small: Small) -> None:
    layout = Layout.open(small.store)
    program = driver.compile_program(
        small.config, "twice", small.target, driver.lower(small.config, "twice", small.target)
    )
    small.write("wrappers", WRAPPERS.replace("pl.add(x, x)", "pl.mul(x, x)", 1))
    squares = driver.compile_program(
        small.config, "twice", small.target, driver.lower(small.config, "twice", small.target)
    )
    forged = with_object(program, squares.content(OBJECT_TYPE))
    publish(layout, "small", [write_program(layout, forged)])
    assert small.failures("integrity") == []
    failed = small.failures("numerics")
    assert {each.program for each in failed} == {"twice"}
    assert {each.field for each in failed} == {"y"}
    assert exit_code(failed) == ExitCode.INPUT


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y.copy_(2.1 * x)", "of the elements differ by more than"),
        ("os.abort()", "least: ROWS_DYN 1: the process was ended by SIGABRT"),
        ("raise KeyError('sub')", "least: ROWS_DYN 1: the process ended with exit code 1: KeyErr"),
        ("print('noise'); y.copy_(x)", "of the elements differ by more than"),
    ],
)
def test_goldens_that_go_wrong(small: Small, body: str, message: str) -> None:
    wrong = f"import os\n\ndef twice(x, y):\n    {body}\n\ndef count(x, y):\n    y.copy_(x + x)\n"
    small.write("golden", wrong)
    checks = small.verify("numerics")
    failed = [each for each in checks if not each.passed]
    assert {each.program for each in failed} == {"twice"}
    assert message in failed[0].message
    # The programs after it are checked nevertheless.
    assert [each.passed for each in checks if each.program == "count"] == [True]


def test_a_golden_or_cases_that_are_missing(small: Small) -> None:
    small.write("golden", "def count(x, y):\n    y.copy_(x + x)\n")
    small.write("cases", "")
    found = {each.program: each.message for each in small.failures("numerics")}
    assert "the golden `golden:twice` does not exist" in found["twice"]
    assert "small.yaml" in found["twice"]
    assert "`x` of `count` is int32" in found["count"]
    assert "`count_cases(seed)`" in found["count"]


def test_a_program_without_a_golden_says_so(small: Small) -> None:
    (small.models / "small.yaml").write_text(YAML.replace(', golden: "golden:twice"', ""))
    (check,) = verify(small.config, small.store, small.target, ["twice"], ["numerics"])
    assert (check.passed, check.message) == (True, "not run: the config names no golden")


def test_without_torch_all_but_numerics_passes(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden" / "torch"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')\n")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    monkeypatch.setitem(sys.modules, "torch", None)
    checks = small.verify("integrity", "contract", "equivalence")
    assert [each.message for each in checks if not each.passed] == []
    skipped = [each.subject for each in checks if "cannot be imported" in each.message]
    assert set(skipped) == {"torch meta tensors", "torch tensors"}
    failed = small.failures("numerics")
    assert {each.program for each in failed} == {"twice", "count"}
    assert "torch cannot be imported" in failed[0].message


def test_a_source_folder_beside_the_models(tmp_path: Path) -> None:
    small = Small(tmp_path)
    small.sources.rename(tmp_path / "elsewhere")
    (small.models / "small.yaml").write_text(YAML.replace("sources", "../elsewhere", 1))
    copied = config.load("small", copy_model(small.config, tmp_path / "copy"))
    assert (copied.source / "wrappers.py").read_text() == WRAPPERS
    assert tmp_path / "copy" in copied.source.resolve().parents
