"""What the real PyPTO makes of examples/npu."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from npu_project import TARGET, Project, copy_examples

from aotc import config
from aotc.contract import Argument
from aotc.store.artifact import find
from aotc.toolchain.pypto import PyPTO, installed


@pytest.mark.parametrize(
    ("model", "program", "shape"),
    [("small", "affine", (48, 128)), ("ranks", "add_rank", (2, 32, 64))],
)
def test_signature_and_samples_give_one_program(
    project: Project, tmp_path: Path, model: str, program: str, shape: tuple[int, ...]
) -> None:
    resolved = config.load(model, project.models)
    signature = PyPTO().lower(resolved, program, TARGET)
    elsewhere = copy_examples(tmp_path / "deep" / "er")
    moved = config.load(model, elsewhere.models)
    samples = PyPTO().lower(moved, program, TARGET, [Argument("fp32", shape)] * 2)
    assert samples.ir == signature.ir
    assert samples.contract == signature.contract
    assert samples.files == signature.files
    assert str(project.root) not in signature.ir


def test_another_checkout_gives_equal_bytes(built: Project, tmp_path: Path) -> None:
    other = copy_examples(tmp_path / "a" / "checkout")
    other.build("small", "affine", "twice")
    for name in ("affine", "twice"):
        mine, theirs = (find(each.store, "small", name, TARGET) for each in (built, other))
        assert mine.manifest_digest == theirs.manifest_digest
        for path, content in theirs.files().items():
            assert str(tmp_path).encode() not in content, path


def test_stages(project: Project, tmp_path: Path) -> None:
    """Without ptoas MLIR, with it C++, with all of it binaries; each is recorded."""
    path = {"PATH": "/usr/bin:/bin", "PTOAS_ROOT": ""}
    project.build("small", "affine", environment=path)
    shown = project.aotc("show", "small", "affine", "--target", TARGET)
    assert "stage" in shown.stdout
    stored = find(project.store, "small", "affine", TARGET)
    assert any(each.endswith(".pto") for each in stored.files())
    assert not any(each.endswith("kernel_config.py") for each in stored.files())

    refused = project.aotc(
        "build", "small", "affine", "--target", TARGET, "--require-binaries", environment=path
    )
    assert refused.returncode == 4
    assert "was compiled as far as MLIR: it has no binaries" in refused.stderr
    verified = project.aotc("verify", "small", "affine", "--target", TARGET, environment=path)
    assert verified.returncode == 0, verified.stdout
    assert "bytes: compiled again" in verified.stdout
    assert "canonical form: compiled from torch tensors" in verified.stdout
    assert "behaviour: not run: the artifact has no binaries" in verified.stdout

    assembler = installed.ptoas()
    if assembler is None:
        pytest.skip("there is no ptoas")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ptoas").symlink_to(assembler.path)
    cpp = {"PATH": f"{folder}:/usr/bin:/bin", "PTOAS_ROOT": ""}
    if shutil.which("g++-15", path=cpp["PATH"]):
        pytest.skip("the simulator's compiler cannot be hidden")
    project.build("small", "affine", "twice", environment=cpp)
    files = find(project.store, "small", "affine", TARGET).files()
    assert "next_levels/affine/kernel_config.py" in files
    assert not any(each.endswith(".so") for each in files)
    loaded = project.script(LOAD, cpp)
    assert "it has C++ for `affine`, no binaries" in loaded.stderr


LOAD = """
import sys
from aotc.errors import AotcError
from aotc.runtime import load
try:
    load("small", "affine", sys.argv[1], target="a2a3sim")
except AotcError as error:
    sys.exit(error.render())
"""


def test_equal_files_are_stored_once(built: Project) -> None:
    digests = []
    for model, name in (("ranks", "add_rank"), ("small", "affine"), ("small", "gemm")):
        digests += [each.digest for each in find(built.store, model, name, TARGET).manifest.layers]
    assert len(set(digests)) < len(digests)
    blobs = {f"sha256:{each.name}" for each in (built.store / "blobs" / "sha256").iterdir()}
    assert set(digests) <= blobs


def test_a_kernel_in_cpp_is_part_of_the_program(built: Project, project: Project) -> None:
    files = find(built.store, "small", "twice", TARGET).files()
    folder = "next_levels/twice"
    source = (project.models / "small" / "cpp" / "twice.cpp").read_bytes()
    assert files[f"{folder}/kernels/aiv/twice_tile.cpp"] == source
    assert f"{folder}/cache/incore_0_aiv_twice_tile_{TARGET}.bin" in files
    assert b"external" not in files[f"{folder}/kernel_config.py"]

    resolved = config.load("small", project.models)
    before = PyPTO().lower(resolved, "twice", TARGET)
    assert {"cpp/twice.cpp", "cpp/factor.hpp"} <= before.files.keys()
    header = project.models / "small" / "cpp" / "factor.hpp"
    header.write_text("constexpr float kFactor = 3.0f;\n", encoding="utf-8")
    assert PyPTO().lower(resolved, "twice", TARGET).ir != before.ir


def change(project: Project, file: str, old: str, new: str) -> None:
    path = project.models / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        pytest.param(
            "small/wrappers.py",
            "x: pl.Tensor[[ROWS_DYN, COLS]",
            "x: pl.Tensor[[ROWS_DYN, COLUMS]",
            [
                "wrapper `affine_host`, parameter `x`, dimension 1: the config of `small` does not "
                "give `COLUMS`",
                "wrappers.py:10:",
            ],
            id="a dimension of a wrapper",
        ),
        pytest.param(
            "small/kernels.py",
            "x: pl.Tensor[[ROWS_DYN, COLS]",
            "x: pl.Tensor[[ROWS_DIN, COLS]",
            ["unknown name `ROWS_DIN`", "did you mean `ROWS_DYN`?", "kernels.py:"],
            id="a dimension of a kernel",
        ),
        pytest.param(
            "small/wrappers.py",
            "import affine, gemm, twice",
            "import afine, gemm, twice",
            ["kernels.py has no `afine`", "did you mean `affine`?", "wrappers.py:5:"],
            id="a kernel",
        ),
        pytest.param(
            "small/wrappers.py",
            "y: pl.Out[pl.Tensor[[ROWS_DYN, COLS]",
            "y: pl.Out[pl.Tensor[[ROWS_DYN, TILE]",
            ["PyPTO refuses it", "kernels.py:"],
            id="another shape than the kernel's",
        ),
    ],
)
def test_what_is_missing_is_named(
    project: Project, file: str, old: str, new: str, expected: list[str]
) -> None:
    change(project, file, old, new)
    done = project.aotc("build", "small", "affine", "--target", TARGET)
    assert done.returncode == 1, done.stdout
    for words in expected:
        assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_folder_of_the_kernels_is_missing(project: Project) -> None:
    change(project, "small.yaml", "source: small\n", "source: small\nkernels: {a2a3: ../gone}\n")
    done = project.aotc("build", "small", "affine", "--target", TARGET)
    assert done.returncode == 1
    assert f"there is no {project.root / 'gone'}" in done.stderr
    assert "check out there what has them" in done.stderr


def test_kernels_of_another_folder(project: Project) -> None:
    shutil.copytree(project.models / "small", project.root / "library")
    (project.models / "small" / "kernels.py").unlink()
    change(project, "small.yaml", "source: small\n", "source: small\nkernels: {a2a3: ../library}\n")
    change(project, "small/wrappers.py", "from .kernels", "from kernels")
    resolved = config.load("small", project.models)
    assert "../../library/kernels.py" in PyPTO().lower(resolved, "affine", TARGET).files
    change(project, "small/wrappers.py", "import affine", "import afine")
    done = project.aotc("build", "small", "affine", "--target", TARGET)
    assert f"{project.root / 'library' / 'kernels.py'} has no `afine`" in done.stderr
