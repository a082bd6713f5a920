"""What of the NPU loader needs no PyPTO: its memory, and what it asks of a host."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from aotc.contract import Argument
from aotc.runtime import npu
from aotc.runtime.library import LoadError
from aotc.runtime.npu_host import check_folder
from aotc.runtime.worker import WorkerError

torch = pytest.importorskip("torch")


def put(staging: npu._Staging, shape: tuple[int, ...], dtype: str = "fp32") -> torch.Tensor:
    return staging.tensor(staging.take(shape, dtype), shape, dtype)


def argument(tensor: torch.Tensor) -> Argument:
    return Argument("fp32", tuple(tensor.shape), address=tensor.data_ptr(), nbytes=tensor.nbytes)


def test_tensors_lie_apart_and_aligned() -> None:
    staging = npu._Staging(4096)
    tensors = [put(staging, (3, 5), dtype) for dtype in ("fp32", "bf16", "int8", "bool")]
    for number, each in enumerate(tensors):
        assert each.data_ptr() % npu.ALIGNMENT == 0
        each.fill_(number % 2)
    for number, each in enumerate(tensors):
        assert bool((each == number % 2).all())
        assert staging.holds(argument(each))
    assert tensors[0].is_shared()
    assert not staging.holds(argument(torch.zeros(3)))


def test_full_memory_and_what_is_given_back() -> None:
    staging = npu._Staging(256)
    first, second = staging.take((32,), "fp32"), staging.take((32,), "fp32")
    with pytest.raises(WorkerError, match=r"takes 4 bytes of staging memory, 0 are left"):
        staging.take((1,), "fp32")
    staging.release([first])
    with pytest.raises(WorkerError, match=r"takes 132 bytes of staging memory, 128 are left"):
        staging.take((33,), "fp32")
    assert staging.take((32,), "fp32") == first
    staging.release([second])
    assert staging.take((16,), "fp32") == second


def test_an_empty_tensor_has_a_place_of_its_own() -> None:
    staging = npu._Staging(128)
    none, one = staging.take((0, 4), "fp32"), staging.take((1,), "fp32")
    assert tuple(staging.tensor(none, (0, 4), "fp32").shape) == (0, 4)
    staging.release([none])
    assert staging.taken == {one: 4}


def test_more_than_the_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu, "_shared_memory_left", lambda: 100)
    with pytest.raises(WorkerError, match="101 bytes of staging memory, and /dev/shm has 100 left"):
        npu._Staging(101)
    npu._Staging(100)
    gc.collect()


@pytest.mark.parametrize("stage", ["MLIR", r"C\+\+"])
def test_no_binaries(tmp_path: Path, stage: str) -> None:
    chip = tmp_path / "next_levels" / "chip"
    chip.mkdir(parents=True)
    if stage != "MLIR":
        (chip / "kernel_config.py").touch()
    with pytest.raises(LoadError, match=f"it has {stage} for `chip`, no binaries") as caught:
        check_folder(tmp_path, "a2a3sim")
    assert "--require-binaries" in (caught.value.hint or "")


def test_the_binaries_of_another_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "next_levels" / "chip" / "cache"
    cache.mkdir(parents=True)
    (cache / "binary_context.json").write_text(json.dumps({"platform": "a5sim", "r": "1"}))
    monkeypatch.setattr("aotc.runtime.npu_host._runtime_here", lambda: {"r": "1"})
    check_folder(tmp_path, "a5sim")
    with pytest.raises(LoadError, match="`chip` was built for platform a5sim, this host has a2a3"):
        check_folder(tmp_path, "a2a3")
