"""The benchmark measures what it says: on the tiny model, with no word about speed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aotc import config
from bench import builds, inference, machine
from bench.inference import Plan
from bench.measure import Row, Run, faster, interleave, median, table
from bench.native import Limits, nothing
from bench.qwen import Model, Sizes, random_bf16

ROOT = Path(__file__).parents[1]
CONFIG = config.load("qwen3-tiny", ROOT / "models")
NAMES = CONFIG.environment("cpu")


class Steady:
    """Limits that are known."""

    def read(self) -> float:
        return 100.0

    def fma(self) -> float:
        return 1000.0


@pytest.mark.parametrize("threads", [1, 2])
def test_the_limits_touch_all_of_the_buffer_on_every_thread(threads):
    with nothing(0).prepare(threads) as worker:
        limits = Limits(worker, 1 << 20)
        (data, result), _ = limits._read._keep[:2]
        data.numpy()[:] = 0
        bits = data.numpy().view(np.uint32)
        for row in range(8 * threads):  # each stream, and the last element of the last line
            bits[:] = 0
            bits[row, 0], bits[row, -1] = 3, 5
            limits.read()
            assert result.numpy().view(np.uint32)[32 * (row // 8)] == 6
        assert data.nbytes >= 1 << 20
        assert limits.fma() > 0
        # The fixed point of x * 0.5 + 0.5, twelve times.
        assert result.numpy()[::32][:threads] == pytest.approx([12.0] * threads)
        assert len(limits.reads) == 8 * threads
        assert limits.lanes in (4, 8, 16)


def test_bytes_and_operations_of_a_step():
    layers, context, batch = 2, 10, 3
    sizes = Sizes(NAMES, layers)
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128
    cache = layers * batch * context * 2 * 32 * 2
    assert sizes.cache_bytes(batch, context) == cache
    assert sizes.decode_bytes(batch, context) == 2 * (layers * layer + 256 * 64 + 3 * 64) + cache
    assert sizes.decode_bytes(batch, context, 4) == 2 * (4 * layer + 256 * 64 + 3 * 64) + 2 * cache
    # Two products of 4 heads x 16 with each token of the context.
    attention = layers * 2 * 2 * context * 64
    assert sizes.decode_flops(batch, context) == batch * (
        2 * (layers * layer + 256 * 64) + attention
    )
    assert sizes.prefill_flops(1) == layers * (2 * layer + 2 * 2 * 64)
    assert sizes.prefill_flops(3) == layers * (3 * 2 * layer + (1 + 2 + 3) * 2 * 2 * 64)


def test_runs_are_interleaved_after_one_to_warm_up():
    order = []
    actions = {"a": lambda: order.append("a"), "b": lambda: order.append("b") or 0.5}
    runs = interleave(actions, Steady(), rounds=2, seconds=60)
    assert order == list("ababab")
    assert [run.seconds for run in runs["b"]] == [0.5, 0.5]  # as it reported
    assert all(0 < run.seconds < 0.5 and run.read == 100.0 for run in runs["a"])


def test_a_round_is_whole_even_where_time_is_up():
    runs = interleave(
        {"a": lambda: time.sleep(0.01), "b": lambda: None}, Steady(), rounds=9, seconds=0
    )
    assert [len(each) for each in runs.values()] == [1, 1]


def test_ratios_are_of_the_runs_of_one_round():
    ours = [Run(seconds, 1, 1) for seconds in (1.0, 10.0, 2.0)]
    theirs = [Run(seconds, 1, 1) for seconds in (2.0, 20.0, 6.0)]
    assert faster(ours, theirs) == 2.0
    assert median(ours, lambda run: run.seconds) == 2.0


def test_the_roof_is_the_slower_of_reading_and_computing():
    run = Run(seconds=4.0, read=100.0, fma=1000.0)
    assert inference._roof(200, 0)(run) == 0.5
    assert inference._roof(200, 3000)(run) == 0.75


def test_a_table_is_aligned():
    rows = [Row("one", 1234.5, "GB/s", 0.5, "read", 0.031), Row("  two words", 0.0123, "s")]
    assert table(rows).splitlines() == [
        "              value unit  ratio  others  against",
        "one            1234 GB/s   0.50      3%  read",
        "  two words  0.0123 s",
    ]


@pytest.mark.parametrize("count", [1, 1 << 20, (1 << 22) + 5])
def test_random_values_are_ordinary_numbers(count):
    bits = random_bf16(count)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert values.shape == (count,)
    assert np.abs(values).max() <= 0.017
    if count > 1:
        assert 0.009 < values.std() < 0.011
        # Hardly a denormal, which some machines are slow at.
        assert (np.abs(values) < 1e-30).mean() < 1e-5


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return inference.build(CONFIG, ["decode", "prefill"], tmp_path_factory.mktemp("store"))


@pytest.fixture
def setting(programs):
    contracts = [program.contract for program in programs.values()]
    with nothing(0).prepare(2) as worker:
        yield worker, Model(worker, NAMES, contracts, layers=2, sequences=4, max_context=40)


def test_a_prefill_and_a_decode_step_agree_on_the_last_token(programs, setting):
    """The calls are the model: the same tokens by either way give the same logits."""
    _, model = setting
    prefill = model.prefill(programs["prefill"], 21)
    prefill()
    hidden = model.tensors["embed_weight"].numpy()
    arguments = prefill._keep[0]
    arguments[0].numpy()[:] = hidden[5:26]
    prefill()
    expected = model._logits[0].numpy()[0].copy()
    step = model.decode(programs["decode"], 1, 21)
    names = [each.name for each in programs["decode"].contract.parameters]
    step._keep[0][names.index("sampled_ids_in")][0, 0] = 25
    step()
    found = model._logits[1].numpy()[0]
    model.check()
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_wrong_logits_are_noticed(programs, setting):
    _, model = setting
    call = model.decode(programs["decode"], 4, 40)
    with pytest.raises(RuntimeError, match="no finite logits"):
        model.check()  # it has not run
    call()
    model.check()
    model._logits[0].numpy()[2, 3] = math.nan
    with pytest.raises(RuntimeError, match="no finite logits"):
        model.check()


def test_rows_of_decode_and_prefill(programs, setting):
    worker, model = setting
    sizes, limits = Sizes(NAMES, 2), Limits(worker, 1 << 20)
    plan = Plan(batches=(1, 4), contexts=(8, 40), prompts=(16,), rounds=1)
    peer = {"other": {inference.decode_case(4, 8): lambda: 1.0}}
    rows = inference.decode(model, programs["decode"], sizes, limits, plan, peer)
    rows += inference.prefill(model, programs["prefill"], sizes, limits, plan, peer)
    assert [row.name for row in rows if not row.name.startswith("  ")] == [
        "decode, batch 1, context 8",
        "decode, batch 4, context 8",
        "decode, batch 1, context 40",
        "decode, batch 4, context 40",
        "prefill, 16 tokens",
    ]
    (other,) = (row for row in rows if row.name == "  other")
    assert other.value == pytest.approx(sizes.decode_bytes(4, 8) / 1e9)
    assert all(row.value > 0 for row in rows)


def test_memory_and_time_of_a_command():
    script = "import time; block = b'x' * 300_000_000; time.sleep(0.2)"
    seconds, nbytes = builds.measured([sys.executable, "-c", script])
    assert seconds > 0.2
    assert nbytes > 300_000_000
    with pytest.raises(RuntimeError, match="exit status"):
        builds.measured([sys.executable, "-c", "raise SystemExit(3)"])


def test_own_work_is_not_that_of_others():
    meanwhile = machine.Meanwhile()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    shares = meanwhile.shares()
    assert 0 <= shares["others"] <= 1.1
    assert 0 <= shares["steal"] <= 1


def test_the_command_prints_a_table_and_writes_json(tmp_path):
    path = tmp_path / "result.json"
    options = ["--model", "qwen3-tiny", "--quick", "--layers", "1", "--read-bytes", "1000000"]
    command = [sys.executable, "-m", "bench", *options, "--only", "overhead", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(path.read_text(encoding="utf-8"))
    names = [row["name"].strip() for row in document["rows"]]
    assert "load to a ready handle" in names
    assert all(name in done.stdout for name in names)
    assert document["machine"]["threads"] >= 1


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--layers", "0"]])
def test_a_wrong_option(arguments):
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
