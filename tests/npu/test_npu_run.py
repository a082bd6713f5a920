"""Programs of examples/npu on the simulator of the real PyPTO, against torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from npu_project import TARGET, Project

from aotc.runtime.library import LoadError
from aotc.runtime.npu_host import check_folder
from aotc.store.artifact import find

BEGIN = """
import sys

import torch

from aotc.contract import ContractError
from aotc.errors import AotcError
from aotc.runtime import load
from aotc.runtime.tensor import TensorError
from aotc.runtime.worker import WorkerError


def refused(kind, words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


store, target = sys.argv[1], "a2a3sim"
"""

ONE = (
    BEGIN
    + """
def affine_of(x):
    return (0.5 * x + 1) + 0.5 * x  # rounded as the kernel does


affine = load("small", "affine", store, target=target)
gemm = load("small", "gemm", store, target=target)
twice = load("small", "twice", store, target=target)
refused(WorkerError, "the program has 1 ranks", affine.prepare, device_ids=[0, 1])
with affine.prepare(also=[gemm], staging=1 << 20) as worker:
    for rows in (16, 48, 4096 // 8):
        x, y = torch.randn(rows, 128), torch.zeros(rows, 128)
        assert worker(x, y) is y
        assert torch.equal(y, affine_of(x)), rows

    # Allocated after the workers: staged, and the memory is used again.
    call = worker.bind(x, y)
    assert call.staged == ("x", "y")
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        call()
        assert torch.equal(y, affine_of(x))
    wide = torch.zeros(4096, 128)
    refused(WorkerError, "bytes of staging memory", worker, wide, wide.clone())

    other = worker.load(gemm)
    a, b, c = torch.randn(128, 128), torch.randn(128, 128), torch.zeros(128, 128)
    other(a, b, c)
    assert torch.allclose(c, a @ b, atol=1e-3)
    refused(WorkerError, "was not prepared for this program", worker.load, twice)

    del call
    shared = worker.host_tensor((16, 128), "fp32")
    shared.fill_(3)
    device = worker.alloc_tensor((16, 128), "fp32")
    direct = worker.bind(shared, device)
    assert direct.staged == ()
    direct()
    out = torch.empty(16, 128)
    device.copy_to(out)
    assert torch.equal(out, torch.full((16, 128), 4.0))
    device.copy_from(torch.ones(16, 128))
    y = torch.zeros(16, 128)
    worker(device, y)
    assert torch.equal(y, torch.full((16, 128), 2.0))
    device.free()
    refused(TensorError, "has been freed", direct)
    refused(TensorError, "rank 1 of 1", worker.alloc_tensor, (16, 128), "fp32", rank=1)

    # Refused before PyPTO sees them: it would corrupt memory.
    x, y = torch.zeros(16, 128), torch.zeros(16, 128)
    for words, arguments in {
        "`ROWS_DYN` must be a multiple of 16, got 24": (torch.zeros(24, 128), torch.zeros(24, 128)),
        "`ROWS_DYN` is 32 here, and 16": (x, torch.zeros(32, 128)),
        "expected 128, got 64": (torch.zeros(16, 64), y),
        "expected dtype fp32, got fp64": (x.double(), y),
        "not contiguous": (torch.zeros(128, 16).t(), y),
        "expected 2 arguments, got 1": (x,),
        "shares memory": (x, x),
    }.items():
        refused(ContractError, words, worker, *arguments)
    worker(x, y)
    assert torch.equal(y, torch.ones(16, 128))
worker.close()
refused(WorkerError, "closed", worker, x, y)

with twice.prepare() as worker:
    x, y = torch.randn(16, 128), torch.zeros(16, 128)
    worker(x, y)
    assert torch.equal(y, 2 * x)
print("done")
"""
)

TWO = (
    BEGIN
    + """
program = load("ranks", "add_rank", store, target=target)
assert program.device_ids == (0, 1)
for ids in ([0], [0, 1, 2], [3, 3]):
    refused(WorkerError, "the program has 2 ranks", program.prepare, device_ids=ids)
for ids in (None, [4, 7]):
    with program.prepare(device_ids=ids) as worker:
        x, y = torch.randn(2, 48, 64), torch.full((2, 48, 64), -1.0)
        worker(x, y)
        assert torch.equal(y, x + torch.arange(2.0).view(2, 1, 1))
        # A tensor of one rank, for two: PyPTO would compute a part of it and say nothing.
        refused(ContractError, "expected 2, got 1", worker, x[:1], y[:1])
        device = worker.alloc_tensor((16, 64), "fp32", rank=1)
        device.copy_from(torch.ones(16, 64))
        back = torch.zeros(16, 64)
        device.copy_to(back)
        assert torch.equal(back, torch.ones(16, 64))
print("done")
"""
)


@pytest.mark.parametrize("script", [ONE, TWO], ids=["one rank", "two ranks"])
def test_a_copied_store_runs_without_compilers(
    built: Project, tmp_path: Path, without_compilers: dict[str, str], script: str
) -> None:
    shutil.copytree(built.store, tmp_path / "store")
    done = Project(tmp_path).script(script, without_compilers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "done"


def test_verify_runs_the_golden(built: Project) -> None:
    done = built.aotc("verify", "ranks", "--target", TARGET, "--level", "numerics")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "numerics add_rank: behaviour: least: ROWS_DYN 16" in done.stdout
    golden = built.models / "ranks" / "golden.py"
    text = golden.read_text(encoding="utf-8")
    try:
        golden.write_text(text.replace("x + ", "x - "), encoding="utf-8")
        wrong = built.aotc("verify", "ranks", "--target", TARGET, "--level", "numerics")
    finally:
        golden.write_text(text, encoding="utf-8")
    assert wrong.returncode == 1
    assert "FAILED  numerics add_rank: behaviour: least: ROWS_DYN 16: `y`" in wrong.stdout


@pytest.mark.parametrize("name", ["runtime_revision", "pto_isa_revision", "platform"])
def test_binaries_of_another_runtime_are_refused(built: Project, tmp_path: Path, name: str) -> None:
    for path, content in find(built.store, "small", "affine", TARGET).files().items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    check_folder(tmp_path, TARGET)
    stamp = tmp_path / "next_levels" / "affine" / "cache" / "binary_context.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), name: "0" * 40}))
    with pytest.raises(LoadError, match=f"was built for {name.replace('_', ' ')} {'0' * 40}"):
        check_folder(tmp_path, TARGET)
    assert (tmp_path / "next_levels" / "affine" / "orchestration" / "affine.so").is_file()


def test_the_runtime_needs_names_on_the_path(
    built: Project, without_compilers: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "git").symlink_to(shutil.which("git") or "")
    done = built.script(
        BEGIN + 'load("small", "affine", store, target=target)', {"PATH": str(tmp_path)}
    )
    assert "PyPTO's runtime looks for `gcc` on PATH" in done.stderr
