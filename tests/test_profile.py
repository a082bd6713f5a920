"""A profile counts exactly, and its times are those of the call."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from aotc import config, driver, inputs, profile
from aotc.config import Config
from aotc.profile import Profile, chrome_trace, measure

MODEL = """\
schema: 1
model: counted
source: sources
extents: {K: 48, N: 32}
dynamic:
  ROWS_DYN: {min: 1, max: 64}
programs:
  project: {wrapper: "wrappers:project_host"}
  lengths: {wrapper: "wrappers:lengths_host"}
"""
WRAPPERS = """\
import pypto.language as pl


@pl.jit
def project(
    x: pl.Tensor[[ROWS_DYN, K], pl.BF16],
    w: pl.Tensor[[K, N], pl.BF16],
    bias: pl.Tensor[[1, N], pl.FP32],
    y: pl.Out[pl.Tensor[[ROWS_DYN, N], pl.FP32]],
):
    with pl.at(level=pl.Level.CORE_GROUP):
        positive = pl.cast(pl.exp(x), target_type=pl.BF16)
        product = pl.matmul(positive, w, out_dtype=pl.FP32)
        y = pl.assemble(y, pl.exp(pl.col_expand_add(product, bias)), [0, 0])
    return y


@pl.jit.host
def project_host(
    x: pl.Tensor[[ROWS_DYN, K], pl.BF16],
    w: pl.Tensor[[K, N], pl.BF16],
    bias: pl.Tensor[[1, N], pl.FP32],
    y: pl.Out[pl.Tensor[[ROWS_DYN, N], pl.FP32]],
) -> pl.Tensor[[ROWS_DYN, N], pl.FP32]:
    out = project(x, w, bias, y)
    return out


@pl.jit
def lengths(
    counts: pl.Tensor[[ROWS_DYN], pl.INT32],
    x: pl.Tensor[[64, N], pl.FP32],
    y: pl.Out[pl.Tensor[[ROWS_DYN, N], pl.FP32]],
):
    for row in pl.parallel(ROWS_DYN):
        with pl.at(level=pl.Level.CORE_GROUP):
            count = pl.read(counts, [row])
            total = pl.full([1, N], dtype=pl.FP32, value=0.0)
            for each in pl.range(count):
                total = pl.add(total, pl.slice(x, [1, N], [each, 0]))
            y = pl.assemble(y, total, [row, 0])
    return y


@pl.jit.host
def lengths_host(
    counts: pl.Tensor[[ROWS_DYN], pl.INT32],
    x: pl.Tensor[[64, N], pl.FP32],
    y: pl.Out[pl.Tensor[[ROWS_DYN, N], pl.FP32]],
) -> pl.Tensor[[ROWS_DYN, N], pl.FP32]:
    out = lengths(counts, x, y)
    return out
"""
K, N = 48, 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Config:
    models = tmp_path_factory.mktemp("models")
    (models / "sources").mkdir()
    (models / "counted.yaml").write_text(MODEL, encoding="utf-8")
    (models / "sources" / "wrappers.py").write_text(WRAPPERS, encoding="utf-8")
    return config.load("counted", models)


def profile_of(
    model: Config, name: str, rows: int, threads: int, known: inputs.Integers | None = None
) -> Profile:
    built = profile.build(model, name, driver.default_target())
    contract = built.program.contract
    plain = type(contract)(contract.parameters[:-1], contract.symbols[:-2], contract.returns)
    symbols = inputs.symbol_values(plain, {"ROWS_DYN": rows})
    with built.program.prepare(threads) as worker:
        tensors = inputs.device_tensors(worker, plain, symbols, known or {})
        return measure(built, worker, tensors, 5, read_bytes=1 << 20)


@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (7, 2), (64, 3)])
def test_flops_and_bytes_of_a_contraction_and_a_nest(
    model: Config, rows: int, threads: int
) -> None:
    regions = profile_of(model, "project", rows, threads).regions
    rows_first, columns_first = regions
    assert rows_first.name == "positive = pl.cast(pl.exp(x), target_type=pl.BF16)  [x]"
    assert rows_first.flops == 0
    assert rows_first.bytes == 2 * rows * K * 2
    # Into the region of the contraction the rest is fused; the product itself is stored once.
    assert columns_first.name == "product = pl.matmul(positive, w, out_dtype=pl.FP32)  [bias, w, y]"
    assert columns_first.flops == 2 * rows * K * N
    assert columns_first.bytes == (rows * K + K * N) * 2 + (rows * N + N + rows * N) * 4
    assert [each.runs for each in regions] == [1, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_bytes_of_loops_over_what_is_read_at_run_time(model: Config, threads: int) -> None:
    counts = [0, 5, 1, 64]
    found = profile_of(model, "lengths", 4, threads, {"counts": counts})
    assert sum(each.bytes for each in found.regions) == sum(counts) * N * 4 + 4 * N * 4
    assert all(each.flops == 0 for each in found.regions)


@pytest.mark.parametrize("threads", [1, 2])
def test_times_make_up_the_call(model: Config, threads: int) -> None:
    found = profile_of(model, "project", 64, threads)
    assert found.call > 0
    assert all(each.seconds > 0 for each in found.regions)
    assert found.waiting >= 0
    # Time stamps take tens of nanoseconds each; what else the machine does is in some region.
    assert -1e-9 < found.rest < 0.5 * found.call
    assert found.read > 0
    for each in found.regions:
        allowed = max(each.bytes / found.read, each.flops / found.fma)
        assert each.share == pytest.approx(allowed / each.seconds)


def test_the_trace_is_json_of_ordered_events(model: Config) -> None:
    found = profile_of(model, "project", 8, 2)
    trace = json.loads(json.dumps(chrome_trace(found)))["traceEvents"]
    assert {each["args"]["name"] for each in trace if each["ph"] == "M"} == {
        "thread 0",
        "thread 1",
    }
    for thread in (0, 1):
        events = [each for each in trace if each["ph"] == "X" and each["tid"] == thread]
        names = [each["name"].partition(" ")[0] for each in events]
        assert names == ["call", "positive", "barrier", "product"]
        assert all(each["dur"] >= 0 for each in events)
        call, *inner = events
        assert call["ts"] >= 0
        for before, after in itertools.pairwise(inner):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
        assert inner[0]["ts"] >= call["ts"]
        assert inner[-1]["ts"] + inner[-1]["dur"] <= call["ts"] + call["dur"] + 1e-6


def test_more_events_than_there_was_room_for(
    model: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "_FIRST_EVENTS", 2)
    assert len(profile_of(model, "project", 8, 1).regions) == 2


def test_a_profile_build_computes_the_same(model: Config) -> None:
    built = profile.build(model, "project", driver.default_target())
    x = np.zeros((3, K), np.uint16)
    with built.program.prepare(2) as worker:
        y = worker.alloc_tensor((3, N), "fp32")
        worker(
            worker.alloc_tensor((3, K), "bf16", init=x),
            worker.alloc_tensor((K, N), "bf16", init=np.full((K, N), 0x3C00, np.uint16)),
            worker.alloc_tensor((1, N), "fp32"),
            y,
            worker.alloc_tensor((2, 100), "int64"),
        )
        np.testing.assert_allclose(y.numpy(), np.exp(K * 2.0**-7), rtol=1e-6)


def test_nothing_of_it_is_in_what_is_stored(model: Config) -> None:
    target = driver.default_target()
    for name in model.programs:
        lowered = driver.lower(model, name, target).lowered
        assert "profile" not in lowered.source()


@pytest.mark.parametrize("program", ["prefill", "decode", "greedy_sample"])
def test_every_region_of_a_model_has_a_name_and_work(program: str) -> None:
    tiny = config.load("qwen3-tiny", Path(__file__).parents[1] / "models")
    built = profile.build(tiny, program, driver.default_target())
    contract = built.program.contract
    plain = type(contract)(contract.parameters[:-1], contract.symbols[:-2], contract.returns)
    given = {"BATCH_DYN": 2}
    symbols = inputs.symbol_values(plain, given)
    known = inputs.integers(tiny, program, "cpu", symbols)
    with built.program.prepare(2) as worker:
        tensors = inputs.device_tensors(worker, plain, symbols, known)
        found = measure(built, worker, tensors, 1, read_bytes=1 << 20)
    assert found.regions
    assert all(each.name for each in found.regions)
    assert sum(each.bytes for each in found.regions) > 0
