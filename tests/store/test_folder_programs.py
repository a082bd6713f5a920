"""A program that is a folder, in a store: each file a blob, equal ones once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_programs import build_program, folder_program

from aotc.cli.main import main
from aotc.errors import ExitCode
from aotc.program.model import FILE_TYPE, Layer, folder_stage
from aotc.runtime.library import LoadError
from aotc.runtime.loader import load_stored
from aotc.store import artifact
from aotc.store.artifact import NotFoundError, find, publish, write_program
from aotc.store.layout import Layout
from aotc.store.oci import FILE_PATH
from aotc.store.validate import validate

CHIP = "next_levels/add_rank"


def store(root: Path, *more: Layer) -> artifact.StoredProgram:
    program = folder_program()
    layers = tuple(sorted([*program.layers, *more], key=lambda each: each.path))
    layout = Layout.create(root)
    stored = write_program(layout, dataclasses.replace(program, layers=layers))
    publish(layout, "ranks", [stored])
    return stored


def test_there_and_back(tmp_path: Path) -> None:
    store(tmp_path)
    found = find(tmp_path, "ranks", "add_rank", "a2a3sim")
    program = folder_program()
    assert found.files() == {each.path: each.content for each in program.layers}
    assert found.record.device_ids == (0, 1)
    assert [each.annotations[FILE_PATH] for each in found.manifest.layers] == sorted(found.files())
    assert validate(tmp_path) == []
    with pytest.raises(NotFoundError, match="is a folder of files"):
        found.object_bytes()


def test_equal_programs_have_one_digest(tmp_path: Path) -> None:
    assert store(tmp_path / "a").manifest_digest == store(tmp_path / "b").manifest_digest


def test_equal_files_of_ranks_are_one_blob(tmp_path: Path) -> None:
    other = [
        Layer(FILE_TYPE, each.content, each.path.replace("add_rank/", "other/", 1))
        for each in folder_program().layers
        if each.path.startswith(CHIP)
    ]
    assert other
    stored = store(tmp_path, *other)
    digests = [each.digest for each in stored.manifest.layers]
    assert len(digests) == len(folder_program().layers) + len(other)
    assert len(set(digests)) == len(folder_program().layers)
    # With its record, its manifest and the model's index.
    assert len([*(tmp_path / "blobs" / "sha256").iterdir()]) == len(set(digests)) + 3


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    stored = store(tmp_path)
    blob = stored.layout.blob_path(stored.manifest.layers[0].blob)
    blob.chmod(0o644)
    blob.write_bytes(b"#" + blob.read_bytes()[1:])
    assert validate(tmp_path) != []
    assert main(["verify", "ranks", "--target", "a2a3sim", "--store", str(tmp_path)]) != 0


def chip(*paths: str) -> list[Layer]:
    return [Layer(FILE_TYPE, path.encode(), f"{CHIP}/{path}") for path in paths]


@pytest.mark.parametrize(
    ("more", "stage"),
    [
        ([], "pto"),
        (chip("kernel_config.py"), "cpp"),
        (chip("kernel_config.py", "cache/binary_context.json"), "binaries"),
    ],
)
def test_binaries_are_required(tmp_path: Path, more: list[Layer], stage: str) -> None:
    stored = store(tmp_path, *more)
    assert folder_stage(stored.files()) == stage
    if stage == "binaries":
        artifact.require_binaries(stored)
        return
    with pytest.raises(artifact.NoBinariesError, match="has no binaries") as caught:
        artifact.require_binaries(stored)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert {"pto": "MLIR", "cpp": r"C++"}[stage] in caught.value.message


def test_machine_code_is_binaries(tmp_path: Path) -> None:
    artifact.require_binaries(write_program(Layout.create(tmp_path), build_program()))


def test_nothing_is_run_of_what_cannot_run(tmp_path: Path) -> None:
    """Without PyPTO, or else without binaries: one message, nothing executed."""
    marker = tmp_path / "executed"
    text = f"open({str(marker)!r}, 'w')\n".encode()
    stored = store(tmp_path / "store", Layer(FILE_TYPE, text, f"{CHIP}/kernel_config.py"))
    with pytest.raises(LoadError, match=r"an NPU program needs PyPTO|no binaries"):
        load_stored(stored)
    assert not marker.exists()


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path)
    words = ["show", "ranks", "add_rank", "--platform", "a2a3sim", "--store", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "0, 1" in next(each for each in shown.splitlines() if each.startswith("devices"))
    assert "pto" in next(each for each in shown.splitlines() if each.startswith("stage"))
    assert main([*words, "--file", "orchestration/host_orch.py"]) == 0
    printed = capsys.readouterr().out
    assert printed.encode() == store(tmp_path).files()["orchestration/host_orch.py"]
    assert main([*words, "--file", "orchestration/host_orc.py"]) == 1
    assert "did you mean `orchestration/host_orch.py`?" in capsys.readouterr().err
    assert main([*words, "--ir"]) == 1
    assert "`aotc show --file PATH` prints one" in capsys.readouterr().err


def test_machine_code_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, Layer(FILE_TYPE, b"\x7fELF\xff", f"{CHIP}/kernels/aiv/k.so"))
    words = ["show", "ranks", "add_rank", "--target", "a2a3sim", "--store", str(tmp_path)]
    assert main([*words, "--file", f"{CHIP}/kernels/aiv/k.so"]) == 1
    assert "it is machine code" in capsys.readouterr().err
