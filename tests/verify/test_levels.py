"""Each level passes on what was just built, and fails on the one thing that it is there to see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc.cli.main import main
from aotc.errors import ExitCode

pytest.importorskip("torch")
MODELS = Path(__file__).parents[2] / "models"
PROGRAM = "greedy_sample"

Verify = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with qwen3-tiny and all its programs built."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "models").mkdir()
    shutil.copy(MODELS / "qwen3-tiny.yaml", folder / "models")
    shutil.copytree(MODELS / "qwen3", folder / "models" / "qwen3")
    options = ["--models-dir", str(folder / "models"), "--store", str(folder / "store")]
    assert main(["build", "qwen3-tiny", *options, "--quiet"]) == 0
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Path:
    """A copy of that project, to be spoiled."""
    return Path(shutil.copytree(built, tmp_path / "project"))


@pytest.fixture
def verify(capsys: Any) -> Verify:
    def run(project: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        options = ["--models-dir", str(project / "models"), "--store", str(project / "store")]
        capsys.readouterr()
        code = main(["verify", "qwen3-tiny", *arguments, *options, "--json"])
        return code, json.loads(capsys.readouterr().out)["checks"]

    return run


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def failures(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in checks if not each["passed"]]


def test_what_was_built_passes_every_level(built: Path, verify: Verify) -> None:
    code, checks = verify(built)
    assert (code, failures(checks)) == (ExitCode.OK, [])
    found = {(each["level"], each["program"]) for each in checks}
    for program in ("prefill", "decode", "greedy_sample"):
        assert {level for level, name in found if name == program} >= {
            "contract",
            "equivalence",
            "numerics",
        }
    assert ("integrity", None) in found


@pytest.mark.parametrize("part", range(3))
def test_a_flipped_bit_fails_integrity(project: Path, verify: Verify, part: int) -> None:
    blobs = sorted((project / "store" / "blobs" / "sha256").iterdir())
    blob = blobs[part * (len(blobs) - 1) // 2]
    content = bytearray(blob.read_bytes())
    content[part * (len(content) - 1) // 2] ^= 1
    blob.write_bytes(bytes(content))
    code, checks = verify(project)
    assert code == ExitCode.INTEGRITY
    assert {each["level"] for each in failures(checks)} == {"integrity"}
    assert blob.name in failures(checks)[0]["message"]


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("qwen3-tiny.yaml", "MAX_BATCH: 8", "MAX_BATCH: 6", "BATCH_DYN"),
        ("qwen3-tiny.yaml", "SAMPLED_IDS_PAD: 8", "SAMPLED_IDS_PAD: 16", "sampled_ids"),
        ("qwen3/wrappers.py", "logits: pl.Tensor[[BATCH_DYN", "scores: pl.Tensor[[BATCH_DYN", ""),
    ],
)
def test_sources_that_declare_something_else_fail_contract(
    project: Path, verify: Verify, file: str, old: str, new: str, named: str
) -> None:
    edit(project / "models" / file, old, new)
    if "scores" in new:
        edit(project / "models" / file, "greedy_sample_fwd(logits", "greedy_sample_fwd(scores")
    code, checks = verify(project, PROGRAM, "--level", "contract")
    assert code == ExitCode.INPUT
    (failed, *_) = failures(checks)
    assert (failed["level"], failed["program"]) == ("contract", PROGRAM)
    assert failed["expected"] != failed["found"]
    assert named in f"{failed['field']} {failed['message']}"


def test_a_kernel_changed_since_the_build_fails_equivalence(project: Path, verify: Verify) -> None:
    source = project / "models" / "qwen3" / "sampling.py"
    edit(source, "value=0", "value=1")
    code, checks = verify(project, PROGRAM, "--level", "equivalence")
    assert code == ExitCode.INPUT
    assert failures(checks)
    assert {each["level"] for each in failures(checks)} == {"equivalence"}


def test_a_changed_comment_keeps_equivalence(project: Path, verify: Verify) -> None:
    source = project / "models" / "qwen3" / "sampling.py"
    source.write_text("# A new comment.\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    code, checks = verify(project, PROGRAM, "--level", "equivalence")
    assert (code, failures(checks)) == (ExitCode.OK, [])


def test_a_golden_that_says_something_else_fails_numerics(project: Path, verify: Verify) -> None:
    golden = project / "models" / "qwen3" / "golden.py"
    text = golden.read_text(encoding="utf-8")
    golden.write_text(
        text + "\n_right = greedy_sample\n\n\ndef greedy_sample(logits, sampled_ids):\n"
        "    _right(logits, sampled_ids)\n    sampled_ids[:, 0] += 1\n",
        encoding="utf-8",
    )
    code, checks = verify(project, PROGRAM, "--level", "numerics")
    assert code == ExitCode.INPUT
    assert {each["level"] for each in failures(checks)} == {"numerics"}


def test_a_program_that_was_never_built(project: Path, capsys: Any) -> None:
    shutil.rmtree(project / "store")
    options = ["--models-dir", str(project / "models"), "--store", str(project / "store")]
    assert main(["verify", "qwen3-tiny", *options]) == ExitCode.ENVIRONMENT
    assert "aotc build qwen3-tiny" in capsys.readouterr().err
