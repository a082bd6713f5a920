"""The benchmark measures what it says: on the tiny model, with no word about speed."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from aotc import config
from bench import builds, inference, machine, overhead, peers, report
from bench.measure import Row, Run, faster, interleave, median, table
from bench.native import Copy, Limits, nothing, phases
from bench.peers import Kind, Peer, PeerError
from bench.qwen import Model, Sizes
from bench.work import Plan, Work, random_bf16

ROOT = Path(__file__).parents[1]
CONFIG = config.load("qwen3-tiny", ROOT / "models")
NAMES = CONFIG.environment("cpu")
NUMBERS = {key: value for key, value in NAMES.items() if isinstance(value, int | float)}
PLAN = Plan(batches=(1, 3), contexts=(8, 24), prompts=(21,), rounds=1)
WORK = Work(NUMBERS, layers=2, threads=2, plan=PLAN)


class Steady:
    """Limits that are known."""

    def read(self) -> float:
        return 100.0

    def fma(self) -> float:
        return 1000.0


def assert_ends(pid):
    wait_until(lambda: state(pid) in ("", "Z"))  # Z: nobody has asked how it ended


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid):
    """Return the letter of a process's state, nothing where it is gone."""
    return next(iter(status(pid)), "")


def status(pid):
    """Return what /proc/PID/stat has after the name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


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


def test_a_round_that_would_not_be_over_in_time_is_not_begun():
    actions = {"a": lambda: time.sleep(0.3)}
    until = time.perf_counter() + 0.9  # a second round would be over at 0.96
    runs = interleave(actions, Steady(), rounds=9, seconds=60, until=until)
    assert len(runs["a"]) == 1


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
    rows = [
        Row("one", 1234.5, "GB/s", 0.5, "read", 0.031),
        Row("  two words", 0.0123, "s"),
        Row("one", 1.0, "GB/s", peer="other"),
    ]
    assert table(rows).splitlines() == [
        "              value unit  ratio  others  against",
        "one            1234 GB/s   0.50      3%  read",
        "  two words  0.0123 s",
        "one: other        1 GB/s",
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


def test_random_values_go_on_where_others_end():
    whole = random_bf16((1 << 21) + 11)
    for start, count in ((5, 100), ((1 << 20) - 3, 50), (1 << 20, 1 << 20)):
        assert (random_bf16(count, start) == whole[start : start + count]).all()


def test_the_weights_of_peers_are_those_of_the_programs(setting):
    _, model = setting
    for name, (rows, columns) in WORK.matrices().items():
        stacked = host(model.tensors[name]).reshape(2, rows, columns)
        for layer in range(2):
            assert (WORK.matrix(name, layer) == stacked[layer]).all()
            assert (WORK.transposed(name, layer) == stacked[layer].T).all()
    assert (WORK.head() == host(model.tensors["lm_head_weight"])).all()
    cos, sin = WORK.angles([3, 39])
    assert (cos == model.tensors["rope_cos"].numpy()[[3, 39]]).all()
    assert (sin == model.tensors["rope_sin"].numpy()[[3, 39]]).all()


@pytest.mark.parametrize("nbytes", [1, 64 * 1001])
def test_a_copy_copies_everything(nbytes):
    with nothing(0).prepare(2) as worker:
        copy = Copy(worker, nbytes)
        source, target = copy._tensors
        source.numpy()[:] = np.arange(source.shape[0])
        assert copy.rate() > 0
        assert (target.numpy() == source.numpy()).all()
        assert source.nbytes == max(nbytes, 64)
        copy.free()


def test_the_work_of_phases_is_shared_by_the_threads():
    program, seconds = phases(), []
    for threads in (1, 5):
        with program.prepare(threads) as worker:
            call = worker.load(program).bind(3, 100_000_000)
            begin = time.process_time()
            call()
            seconds.append(time.process_time() - begin)
    assert seconds[0] > 0.03  # a step is a cycle, at 10 GHz
    assert 0.4 < seconds[1] / seconds[0] < 2.5


def test_oversubscription_is_measured_beside_busy_processes_and_without(monkeypatch):
    monkeypatch.setattr(overhead, "_PHASES", 10)
    processors = len(os.sched_getaffinity(0))
    others, states = {*builds._descendants(os.getpid())}, []
    seconds = overhead._seconds

    def observed(call):
        busy = {*builds._descendants(os.getpid())} - others
        assert len(busy) == processors
        stopped = len(states) % 3 < 2
        # A stop takes effect when the process runs next.
        wait_until(lambda: all((state(pid) == "T") == stopped for pid in busy))
        states.append(stopped)
        return seconds(call)

    monkeypatch.setattr(overhead, "_seconds", observed)
    rows = overhead.oversubscription(quick=True)
    assert [row.name for row in rows] == [
        f"phase between barriers, {processors} threads",
        f"  beside {processors} busy processes",
        f"  on {2 * processors} threads",
    ]
    assert all(row.value > 0 for row in rows)
    assert [row.ratio is None for row in rows] == [True, False, False]
    assert len(states) == 18
    assert {*builds._descendants(os.getpid())} == others


def test_busy_processes_never_rest_and_end_with_their_parent():
    script = """
import os, time
from bench import builds, overhead
with overhead._busy(2):
    print(*builds._descendants(os.getpid())[1:], flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        # Hundredths of a second of processor time.
        wait_until(lambda: all(int(status(pid)[11]) + int(status(pid)[12]) > 20 for pid in pids))
        process.kill()
    for pid in pids:
        assert_ends(pid)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    return inference.build(CONFIG, ["decode", "prefill"], tmp_path_factory.mktemp("store"))


@pytest.fixture
def setting(programs):
    with nothing(0).prepare(2) as worker:
        model = Model(worker, NAMES, [*programs.values()], layers=2, sequences=4, max_context=40)
        model.tensors["embed_weight"].copy_from(WORK.head())
        yield worker, model


def host(tensor):
    """Return a row-major copy of a device tensor."""
    result = np.empty(tensor.shape, {"bf16": np.uint16, "fp32": np.float32}[tensor.dtype])
    tensor.copy_to(result)
    return result


def test_a_prefill_and_a_decode_step_agree_on_the_last_token(programs, setting):
    """The calls are the model: the same tokens by either way give the same logits."""
    _, model = setting
    prefill = model.prefill(programs["prefill"], 21)
    prefill()
    hidden = WORK.head()
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


class Slower:
    """A peer that takes a second for what it can."""

    label = "other"
    cases = ("decode, batch 3, context 8",)
    deadline = math.inf

    def run(self, case: str) -> float:
        assert case in self.cases
        return 1.0


def test_rows_of_decode_and_prefill(programs, setting):
    worker, model = setting
    sizes, limits = Sizes(NAMES, 2), Limits(worker, 1 << 20)
    calls = inference.Calls(model, programs, sizes, PLAN)
    rows = inference.decode(calls, limits, PLAN) + inference.prefill(calls, limits, PLAN)
    model.check()
    assert [row.name for row in rows if not row.name.startswith("  ")] == [
        "decode, batch 1, context 8",
        "decode, batch 3, context 8",
        "decode, batch 1, context 24",
        "decode, batch 3, context 24",
        "prefill, 21 tokens",
    ]
    assert all(row.value > 0 for row in rows)
    (row,) = inference.against(Slower(), calls, limits, PLAN)
    assert (row.name, row.peer) == ("decode, batch 3, context 8", "other")
    assert row.value == pytest.approx(sizes.decode_bytes(3, 8) / 1e9)
    assert row.ratio > 10


@pytest.mark.parametrize(
    ("module", "packages"),
    [
        ("torch_eager", ["torch"]),
        ("openvino_graph", ["openvino"]),
        ("onnx_graph", ["onnxruntime", "onnx"]),
    ],
)
def test_a_peer_computes_the_same_as_the_program(module, packages, programs, setting):
    for package in packages:
        pytest.importorskip(package)
    _, model = setting
    call = model.prefill(programs["prefill"], 21)
    call._keep[0][0].numpy()[:] = WORK.head()[5:26]
    call()
    expected = model._logits[0].numpy()
    engine = importlib.import_module(f"bench.peers.{module}").start(WORK)
    engine.cases["prefill, 21 tokens"]()
    found = engine.logits().reshape(expected.shape)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    engine.cases["decode, batch 3, context 24"]()
    assert np.isfinite(engine.logits()).all()


def test_a_peer_runs_in_a_process_of_its_own():
    with Peer("torch eager", WORK, 600) as peer:
        assert peer.label in ("torch eager (bfloat16)", "torch eager (float32)")
        assert set(peer.cases) == {*PLAN.decodes(), *PLAN.prefills()}
        assert 0 < peer.run("decode, batch 3, context 24") < 10
        with pytest.raises(PeerError, match="KeyError: 'nonsense'"):
            peer.run("nonsense")
        assert peer.run("prefill, 21 tokens") > 0  # it goes on
        os.kill(peer._process.pid, signal.SIGKILL)
        with pytest.raises(PeerError, match="signal 9"):
            peer.run("prefill, 21 tokens")


def test_a_peer_that_is_missing_or_broken(monkeypatch):
    monkeypatch.setitem(peers.ENGINES, "absent", Kind("absent", ("no_such_package",)))
    with pytest.raises(PeerError, match="not installed: no_such_package"):
        Peer("absent", WORK, 600)
    monkeypatch.setitem(peers.ENGINES, "broken", Kind("no_such_module", ()))
    with pytest.raises(PeerError, match="ModuleNotFoundError: No module named"):
        Peer("broken", WORK, 600)


# Answers the lightest case of each phase; the others take for ever, in a process of their own too.
STUCK = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
from bench.peers.engine import Engine

def start(work):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(tempfile.mkdtemp(), "weights").write_text("large")
    place = Path(__file__).parent
    for pid in (child.pid, os.getpid()):
        (place / f"{pid}.pid").write_text(tempfile.gettempdir())
    cases = dict.fromkeys([*work.plan.decodes(), *work.plan.prefills()], lambda: time.sleep(600))
    for phase in (work.plan.decodes(), work.plan.prefills()):
        cases[next(iter(phase))] = lambda: 0.001
    return Engine("", cases)
"""


# For a process: `ENGINES` with that engine, twice, from the folder that is its first argument.
WITH_STUCK = """
import json, sys
from bench import peers
for name in ("stuck", "again"):
    peers.ENGINES[name] = peers.Kind("stuck", (), {"PYTHONPATH": sys.argv[1]})
"""


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """Return the folder of an engine that gets stuck."""
    (tmp_path / "stuck.py").write_text(STUCK, encoding="utf-8")
    kind = Kind("stuck", (), {"PYTHONPATH": str(tmp_path)})
    monkeypatch.setitem(peers.ENGINES, "stuck", kind)
    yield tmp_path
    for path in tmp_path.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.stem), signal.SIGKILL)


def assert_nothing_is_left(folder, processes):
    """Of so many processes of the engine, and of its files."""
    paths = list(folder.glob("*.pid"))
    assert len(paths) == processes
    for path in paths:
        assert not Path(path.read_text(encoding="utf-8")).exists()
        assert_ends(int(path.stem))


def test_a_peer_is_ended_when_its_time_is_up(stuck):
    with Peer("stuck", WORK, 600) as peer:
        assert peer.run("decode, batch 1, context 8") == 0.001
        peer.deadline = time.perf_counter() + 0.2
        for case in ("decode, batch 3, context 8", "decode, batch 1, context 8"):
            with pytest.raises(PeerError, match="no result in 600 s"):
                peer.run(case)
        assert peer._process.returncode == -signal.SIGKILL
    peer.close()
    assert_nothing_is_left(stuck, 2)


def test_a_peer_that_does_not_start_in_time(stuck):
    with pytest.raises(PeerError, match=r"no result in 0\.01 s"):
        Peer("stuck", WORK, 0.01)


def test_what_a_peer_did_in_its_time_is_kept(stuck, programs, setting):
    _, model = setting
    calls = inference.Calls(model, programs, Sizes(NAMES, 2), PLAN)
    with Peer("stuck", WORK, 600) as peer:
        peer.deadline = time.perf_counter() + 3
        rows = list(inference.against(peer, calls, Steady(), PLAN))
    assert [row.name for row in rows] == ["decode, batch 1, context 8", "prefill, 21 tokens"]
    assert peer.refused == dict.fromkeys(
        [
            "decode, batch 1, context 24",
            "decode, batch 3, context 8",
            "decode, batch 3, context 24",
        ],
        "no result in 600 s",
    )


def test_what_a_peer_fails_at_does_not_end_the_rest(programs, setting):
    class Failing(Slower):
        cases = (*PLAN.decodes(), *PLAN.prefills())

        def __init__(self):
            self.refused = {}

        def run(self, case: str) -> float:
            if case.startswith("prefill"):
                raise PeerError("MemoryError: none")
            return 1.0

    _, model = setting
    calls = inference.Calls(model, programs, Sizes(NAMES, 2), PLAN)
    peer = Failing()
    rows = list(inference.against(peer, calls, Steady(), PLAN))
    assert {row.name for row in rows} == {*PLAN.decodes()}
    assert peer.refused == {"prefill, 21 tokens": "MemoryError: none"}


def test_a_peer_does_not_outlive_the_benchmark(stuck):
    script = (
        WITH_STUCK
        + """
from bench.peers.serve import work_of
with peers.Peer("stuck", work_of(json.loads(sys.argv[2])), 600) as peer:
    print(peer._process.pid, flush=True)
    peer.run("decode, batch 3, context 8")
"""
    )
    command = [sys.executable, "-c", script, str(stuck), json.dumps(asdict(WORK))]
    place = {**os.environ, "TMPDIR": str(stuck)}  # nothing removes its files
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=place, stdout=pipe, text=True) as process:
        pid = int(process.stdout.readline())
        process.kill()
    assert_ends(pid)


def test_an_interrupted_run_keeps_what_it_measured(stuck):
    path = stuck / "result.json"
    script = WITH_STUCK + "from bench import __main__; sys.exit(__main__.main(sys.argv[2:]))"
    options = ["--model", "qwen3-tiny", "--quick", "--layers", "1", "--read-bytes", "1000000"]
    options += ["--only", "decode", "--peers", "stuck,again", "--peer-seconds", "6"]
    command = [sys.executable, "-c", script, str(stuck), *options, "--json", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        seen = []
        # The first engine runs out of time; the second is interrupted when a row of it is there.
        while not seen or seen[-1]["rows"][-1]["group"] != "against again":
            assert process.poll() is None
            time.sleep(0.02)
            if path.exists():
                document = json.loads(path.read_text(encoding="utf-8"))  # whole at any time
                seen += [document] if document["rows"] else []
        process.send_signal(signal.SIGINT)
        lines = process.communicate()[1].splitlines()
    assert process.returncode == 130
    assert lines[-2:] == ["against again ...", f"interrupted: {path} has what was measured"]
    document = json.loads(path.read_text(encoding="utf-8"))
    assert not any(each["complete"] for each in [*seen, document])
    rows = [(row["name"], row["peer"]) for row in document["rows"]]
    light = "decode, batch 1, context 32"
    assert {(light, ""), (light, "stuck"), (light, "again")} <= {*rows}
    assert ("decode, batch 4, context 32", "stuck") not in rows
    (note,) = document["notes"]
    assert note.startswith("stuck: decode, batch ")
    assert note.endswith("decode, batch 4, context 128: no result in 6 s")
    assert_nothing_is_left(stuck, 4)
    assert {each.suffix for each in stuck.iterdir() if each.is_file()} == {".json", ".pid", ".py"}


def test_llama_runs_sequences_together():
    for package in ("xllamacpp", "gguf"):
        pytest.importorskip(package)
    with Peer("llama.cpp", WORK, 600) as peer:
        assert set(peer.cases) == {*PLAN.prefills(), *list(PLAN.decodes())[:2]}
        assert set(peer.refused) == set(list(PLAN.decodes())[2:])
        assert all(0 < peer.run(case) < 10 for case in peer.cases)


def test_memory_and_time_of_a_command():
    script = "import time; block = b'x' * 300_000_000; time.sleep(0.2); print('a'); print(2.5)"
    cost = builds.measured([sys.executable, "-c", script])
    assert cost.seconds > 0.2
    assert cost.memory > 300_000_000
    assert cost.printed == 2.5
    with pytest.raises(RuntimeError, match=r"exit status 1: ValueError: wrong$"):
        builds.measured([sys.executable, "-c", "raise ValueError('wrong')"])


@pytest.mark.parametrize("measure", [builds.measured, builds.peak_memory])
def test_a_command_that_takes_too_long(measure, tmp_path):
    script = "import subprocess, sys, time; "
    script += "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    script += "print(child.pid, file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
    pid = tmp_path / "pid"
    with pytest.raises(RuntimeError, match="no result in 2 s"):
        measure([sys.executable, "-c", script, str(pid)], seconds=2)
    assert_ends(int(pid.read_text(encoding="utf-8")))


def test_memory_of_all_processes_of_a_command():
    child = "import time; block = b'x' * 200_000_000; time.sleep(0.5)"
    script = "import subprocess, sys; block = b'x' * 100_000_000\n"
    script += f"subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    assert 300_000_000 < builds.peak_memory([sys.executable, "-c", script]) < 360_000_000
    with pytest.raises(RuntimeError, match="exit status 3"):
        builds.peak_memory([sys.executable, "-c", "raise SystemExit(3)"])


def test_commands_run_in_turn_and_ratios_are_of_one_round():
    cost = builds.Cost
    ours, theirs = [cost(1, 10), cost(4, 10)], [cost(3, 40), cost(8, 20)]
    row = builds._row("x", "s", theirs, lambda each: each.seconds, ours, "over", True)
    assert (row.value, row.ratio) == (5.5, 2.5)
    row = builds._row("x", "MB", ours, lambda each: each.memory, theirs, "of")
    assert (row.value, row.ratio) == (10, 3)


def test_own_work_is_not_that_of_others():
    meanwhile = machine.Meanwhile()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    shares = meanwhile.shares()
    assert 0 <= shares["others"] <= 1.1
    assert 0 <= shares["steal"] <= 1


def test_the_command_prints_a_table_and_writes_what_the_page_is_made_of(tmp_path):
    path = tmp_path / "result.json"
    options = ["--model", "qwen3-tiny", "--quick", "--layers", "1", "--read-bytes", "1000000"]
    options += ["--only", "overhead,decode", "--peers", "torch eager"]
    command = [sys.executable, "-m", "bench", *options, "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(path.read_text(encoding="utf-8"))
    names = [row["name"].strip() for row in document["rows"]]
    assert "load to a ready handle" in names
    assert "plain copy by all threads" in names
    assert f"beside {len(os.sched_getaffinity(0))} busy processes" in names
    assert "decode, batch 4, context 128" in names
    assert all(name in done.stdout for name in names)
    assert document["complete"]
    assert document["machine"]["threads"] >= 1
    assert {row["peer"].partition(" (")[0] for row in document["rows"]} == {"", "torch eager"}
    assert "--json" not in document["command"]
    ElementTree.fromstring(report.plot(document))
    assert "| decode, batch 4, context 128 | GB/s |" in report.markdown(document)


def test_builds_of_a_model():
    notes = []
    rows = builds.builds("qwen3-tiny", ROOT / "models", True, notes.append)
    assert [row.name.strip() for row in rows if row.unit == "s"] == [
        "build of qwen3-tiny, cold",
        "build of qwen3-tiny, warm",
        "start of a process",
        "decode alone, from its signature",
        "from torch.empty tensors of 4 layers",
        "without imports",
    ]
    assert all(row.value > 0 for row in rows)
    assert notes == []


def record(name, value, ratio=None, group="", peer="", unit="GB/s"):
    return asdict(Row(name, value, unit, ratio, "read", 0.01, group, peer))


DOCUMENT = {
    "command": "python -m bench",
    "model": "m",
    "layers": 4,
    "machine": {"cpu": "a|b", "steal": 0.012345},
    "rows": [
        record("decode, batch 1, context 128", 30, 0.95, "decode"),
        record("decode, batch 1, context 4096", 25, 0.85, "decode"),
        record("decode, batch 1, context 128", 15, 2.0, "against a", "a <1>"),
        record("bound call, 25 parameters, 2 threads", 1.5, group="overhead", unit="us"),
        record("build of m, cold", 2, group="build", unit="s"),
        record("    largest process", 150, group="build", unit="MB"),
        record("    all processes together", 250, group="build", unit="MB"),
        record("  one layer of decode by AOTInductor", 9, 30, "inductor", unit="s"),
        record("    largest process", 700, 6, "inductor", unit="MB"),
        record("    all processes together", 800, 4, "inductor", unit="MB"),
    ],
    "notes": ["b: not installed"],
}


def test_the_tables_of_a_run():
    lines = report.markdown(DOCUMENT).splitlines()
    for line in (
        "| decode, batch 1, over the read | at least 0.9 | 0.85 | no |",  # the worst counts
        "| decode over the best peer | at least 1.3 | 2 | yes |",
        "| dispatch of a bound call | under 5 us | 1.5 us | yes |",
        "| build of the programs, cold | under 3 s | 2 s | yes |",
        "| the same, largest process | under 200 MB | 150 MB | yes |",
        "| the same, all processes together | under 200 MB | 250 MB | no |",
        "| the same, all processes together | at least 5 | 4 | no |",
        "| load to a ready handle | under 50 ms | not measured |  |",
        "| cpu | a/b |",
        "| decode, batch 1, context 128 | 30 GB/s | 0.95 | read | 1% |",
        "| &emsp;&emsp;largest process | 150 MB |  | read | 1% |",
        "| decode, batch 1, context 128 | GB/s | 30 | 15 (2.00) |",
        "* b: not installed",
    ):
        assert line in lines


def test_a_run_that_ended_early_says_so():
    first = report.markdown(DOCUMENT | {"complete": True})
    assert "Not complete" not in first
    parts = report.markdown(DOCUMENT | {"complete": False}).split("\n\n")
    assert parts[1].startswith("**Not complete**")
    assert parts[:1] + parts[2:] == first.split("\n\n")
    nothing = {"machine": {}, "rows": [], "notes": [], "complete": False}
    assert "not measured" in report.markdown(DOCUMENT | nothing)
    ElementTree.fromstring(report.plot(DOCUMENT | nothing))


def test_the_plot_of_a_run():
    tree = ElementTree.fromstring(report.plot(DOCUMENT))
    texts = [each.text for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    # The peer took twice as long for what aotc did at 0.95 of the roof.
    assert texts[:6] == ["aotc", "a <1>", "decode, batch 1, context 128", "0.95", "0.47", texts[5]]
    assert texts[-1] == "roof"


def test_the_page_keeps_what_is_around_the_tables(tmp_path):
    page, result = tmp_path / "performance.md", tmp_path / "result.json"
    result.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", encoding="utf-8")
    for _ in range(2):  # as often as one likes
        assert report.main([str(result), "--docs", str(tmp_path)]) == 0
        text = page.read_text(encoding="utf-8")
        assert text.startswith(f"before\n{report.BEGIN}\n")
        assert text.endswith(f"{report.END}\nafter\n")
        assert text.count("### Goals") == 1
        assert "\nold\n" not in text
    assert (tmp_path / "performance.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_page_without_the_markers_is_left_alone(tmp_path, capsys):
    page, result = tmp_path / "performance.md", tmp_path / "result.json"
    result.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    page.write_text("words\n", encoding="utf-8")
    assert report.main([str(result), "--docs", str(tmp_path)]) == 1
    assert "no markers" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "words\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--only", "nonsense"], ["--layers", "0"], ["--peers", "nonsense"]),
        *(["--peer-seconds", "0"], ["--peer-seconds", "nan"], ["--json", "no/such/folder"]),
    ],
)
def test_a_wrong_option(arguments):
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert arguments[0] in done.stderr
