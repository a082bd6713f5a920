"""Programs run right on any team, again and again, and a worker is never misused silently."""

import gc
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings

import numpy
import pytest
from abi_programs import HOST_TARGET, PASSES, compile_program, count, nothing, rotate

from aotc.contract import Contract, Direction, Parameter
from aotc.errors import AotcError
from aotc.runtime import ContractError, TensorError, WorkerError, load_program
from aotc.runtime.host import choose_pinning, choose_threads, team_processors


def floats(n: int) -> numpy.ndarray:
    return numpy.arange(n, dtype=numpy.float32)


def rotated(x: numpy.ndarray, scale: float) -> numpy.ndarray:
    return numpy.roll(x * numpy.float32(scale), PASSES * (len(x) // 2)) + numpy.float32(PASSES)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [0, 2, 6, 4096])
def test_result_is_that_of_one_thread(threads: int, n: int) -> None:
    x, y = floats(n), numpy.full(n, -1, numpy.float32)
    with rotate().prepare(threads=threads) as worker:
        assert worker(x, 0.5, y) is y
    numpy.testing.assert_array_equal(y, rotated(x, 0.5))


@pytest.mark.parametrize(("threads", "calls"), [(1, 20000), (2, 5000), (3, 500), (8, 200)])
def test_many_dispatches(threads: int, calls: int) -> None:
    counts = numpy.zeros(16, numpy.int32)
    with count().prepare(threads=threads) as worker:
        call = worker.bind(counts)
        for _ in range(calls):
            call()
    assert counts.tolist() == [calls] * threads + [0] * (16 - threads)


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_that_sleep_wake_up(threads: int) -> None:
    counts = numpy.zeros(16, numpy.int32)
    with count().prepare(threads=threads) as worker:
        call = worker.bind(counts)
        for _ in range(20):
            time.sleep(0.002)  # many times what a thread spins
            call()
    assert counts[:threads].tolist() == [20] * threads


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_start_and_stop(threads: int) -> None:
    before = threading.active_count()
    for pause in (0, 0, 0.002) * 10:
        with count().prepare(threads=threads):
            time.sleep(pause)
    assert threading.active_count() == before


def test_a_forgotten_worker_stops_its_threads() -> None:
    before = threading.active_count()
    worker = count().prepare(threads=3)
    assert threading.active_count() == before + 2
    del worker
    gc.collect()
    assert threading.active_count() == before


def test_a_bound_call_sees_new_contents_and_grown_workspace() -> None:
    x, y, counts = floats(6), numpy.zeros(6, numpy.float32), numpy.zeros(16, numpy.int32)
    with rotate().prepare(threads=2) as worker:
        call = worker.bind(x, 2, y)
        call()
        first = worker.workspace.address
        worker.load(count())(counts)
        assert worker.workspace.address != first
        assert worker.workspace.address % (2 << 20) == 0
        x += 1
        assert call() is y
    numpy.testing.assert_array_equal(y, rotated(x, 2))
    assert counts.tolist() == [1, 1] + [0] * 14


def test_programs_share_a_device_tensor() -> None:
    counts = numpy.zeros(16, numpy.int32)
    with rotate().prepare(threads=2) as worker:
        tensor = worker.alloc_tensor((16,), "int32", init=numpy.arange(16, dtype=numpy.int32))
        loaded = worker.load(count())
        loaded(tensor)
        loaded(tensor)
        tensor.copy_to(counts)
    assert counts.tolist() == [2, 3, *range(2, 16)]


@pytest.mark.parametrize("returns", [(), ("b",), ("b", "a"), ("a", "a")])
def test_returns_follow_the_contract(returns: tuple[str, ...]) -> None:
    tensors = {"a": numpy.zeros(1, numpy.int8), "b": numpy.zeros(1, numpy.int8)}
    parameters = [Parameter(name, "int8", (1,), Direction.OUT) for name in tensors]
    with nothing(*parameters, returns=returns).prepare(threads=1) as worker:
        result = worker(*tensors.values())
    expected = [tensors[name] for name in returns]
    got = list(result) if isinstance(result, tuple) else [result] * len(returns)
    assert [id(each) for each in got] == [id(each) for each in expected]
    assert isinstance(result, tuple) == (len(returns) > 1)


def test_a_closed_worker_refuses() -> None:
    counts = numpy.zeros(16, numpy.int32)
    with count().prepare(threads=2) as worker:
        call = worker.bind(counts)
        tensor = worker.alloc_tensor((1,), "int8")
    worker.close()
    for use in (
        call,
        lambda: worker(counts),
        lambda: worker.bind(counts),
        lambda: worker.alloc_tensor((1,), "int8"),
        lambda: worker.load(count())(counts),
        tensor.free,
    ):
        with pytest.raises(WorkerError, match="the worker is closed"):
            use()
    with pytest.raises(TensorError, match="has been freed"):
        tensor.numpy()
    assert counts.sum() == 0


SLOW = """
int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}

void aotc_run(const aotc_call *call, int32_t thread) {
    volatile int32_t *flag = (volatile int32_t *)call->arguments[0];
    if (thread == 0) flag[0] = 1;
    while (flag[1] == 0) {}
}
"""


def test_use_from_two_python_threads_is_refused() -> None:
    flag = numpy.zeros(2, numpy.int32)
    contract = Contract((Parameter("flag", "int32", (2,), Direction.INOUT),))
    program = load_program(contract, compile_program(SLOW), HOST_TARGET)
    with program.prepare(threads=1) as worker:
        call = worker.bind(flag)
        tensor = worker.alloc_tensor((1,), "int8")
        runner = threading.Thread(target=call)
        runner.start()
        # That this thread goes on while the other runs shows that the GIL is free.
        while flag[0] == 0:
            time.sleep(0.001)
        for use in (call, lambda: worker.bind(flag), worker.close, tensor.free):
            with pytest.raises(WorkerError, match="running a call in another thread"):
                use()
        flag[1] = 1
        runner.join()
        call()


def test_a_forked_child_is_refused() -> None:
    with count().prepare(threads=2) as worker:
        call = worker.bind(numpy.zeros(16, numpy.int32))
        read, write = os.pipe()
        with warnings.catch_warnings():
            # Later Pythons warn of any fork beside threads: this one is about that.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                call()
            except WorkerError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"the worker belongs to the parent process"
        os.close(read)
        call()


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_thread_count_is_checked(threads: int) -> None:
    with pytest.raises(AotcError, match=rf"threads must be in 1\.\.1024, got `{threads}`"):
        count().prepare(threads=threads)


def test_thread_count_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_NUM_THREADS", "3")
    assert choose_threads(None) == 3
    assert choose_threads(2) == 2
    for text in ("0", "two", "-1", "9999999999"):
        monkeypatch.setenv("AOTC_NUM_THREADS", text)
        with pytest.raises(AotcError, match=f"AOTC_NUM_THREADS must be in 1..1024, got `{text}`"):
            choose_threads(None)
    monkeypatch.setenv("AOTC_NUM_THREADS", "")
    assert 1 <= choose_threads(None) <= len(os.sched_getaffinity(0))


def test_exit_with_an_open_worker() -> None:
    """A process that ends without closing its worker ends at once, and cleanly."""
    code = (
        "import numpy, abi_programs\n"
        "worker = abi_programs.count().prepare(threads=4)\n"
        "worker(numpy.zeros(16, numpy.int32))\n"
    )
    folder = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_contract_errors_run_nothing() -> None:
    counts = numpy.zeros(16, numpy.int32)
    with count().prepare(threads=1) as worker:
        for wrong in ((), (counts, counts), (counts[:8],), (counts.astype(numpy.int64),)):
            with pytest.raises(ContractError):
                worker(*wrong)
    assert counts.sum() == 0


def _affinities(worker) -> list[set[int]]:
    return [os.sched_getaffinity(each.native_id) for each in worker.team._threads]


def test_threads_are_pinned_where_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this process may run on one processor only")
    counts = numpy.zeros(16, numpy.int32)
    with count().prepare(threads=2) as worker:
        assert _affinities(worker) == [allowed]
    with count().prepare(threads=2, pin=True) as worker:
        assert _affinities(worker) == [{team_processors(2)[1]}]
        worker(counts)
    assert os.sched_getaffinity(0) == allowed  # the caller stays as it was
    assert counts.tolist() == [1, 1] + [0] * 14
    monkeypatch.setenv("AOTC_PIN", "1")
    with count().prepare(threads=2) as worker:
        assert _affinities(worker) == [{team_processors(2)[1]}]
    with count().prepare(threads=2, pin=False) as worker:
        assert _affinities(worker) == [allowed]


def test_a_team_gets_processors_of_its_own() -> None:
    allowed = os.sched_getaffinity(0)
    chosen = team_processors(len(allowed))
    assert set(chosen) == allowed
    assert len(chosen) == len(allowed)
    more = len(allowed) + 1
    with pytest.raises(AotcError, match=f"{more} threads cannot be pinned to the {len(allowed)} "):
        count().prepare(threads=more, pin=True)


def test_processors_are_those_of_the_mask() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this process may run on one processor only")
    code = (
        "import os, sys\n"
        "from aotc.runtime.host import choose_threads, team_processors\n"
        "os.sched_setaffinity(0, {int(sys.argv[1])})\n"
        "print(choose_threads(None), team_processors(1))\n"
    )
    last = max(allowed)
    done = subprocess.run(
        [sys.executable, "-c", code, str(last)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"1 [{last}]\n"


def test_a_wrong_variable_for_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_PIN", "yes")
    with pytest.raises(AotcError, match="AOTC_PIN must be 0 or 1, got `yes`"):
        choose_pinning(None)
    assert choose_pinning(True)
    for text, expected in (("0", False), ("1", True), ("", False)):
        monkeypatch.setenv("AOTC_PIN", text)
        assert choose_pinning(None) is expected


def test_many_times_as_many_threads_as_processors() -> None:
    """They take turns: no barrier waits for as long as the system lets a thread spin."""
    x, y = floats(4096), numpy.zeros(4096, numpy.float32)
    few = len(os.sched_getaffinity(0))
    times: dict[int, list[float]] = {few: [], 4 * few: []}
    with rotate().prepare(threads=few) as one, rotate().prepare(threads=4 * few) as other:
        for _ in range(15):
            for worker in (one, other):
                call = worker.bind(x, 2, y)
                begin = time.perf_counter()
                for _ in range(20):
                    call()
                times[worker.threads].append(time.perf_counter() - begin)
                numpy.testing.assert_array_equal(y, rotated(x, 2))
    ratio = statistics.median(b / a for a, b in zip(*times.values(), strict=True))
    # Seen: 5 to 10, nearly all of it barriers. A time slice of the system each would be 1000.
    assert ratio < 100


def test_signals_interrupt_no_dispatch() -> None:
    seen = 0

    def handler(*_: object) -> None:
        nonlocal seen
        seen += 1

    x, y = floats(64), numpy.zeros(64, numpy.float32)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with rotate().prepare(threads=3) as worker:
            call = worker.bind(x, 2, y)
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                y[:] = 0
                call()
                numpy.testing.assert_array_equal(y, rotated(x, 2))
                time.sleep(0.0002)  # some wait in the kernel meanwhile
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen > 10


def test_a_child_makes_a_worker_of_its_own() -> None:
    with count().prepare(threads=2) as worker:
        worker(numpy.zeros(16, numpy.int32))
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            counts = numpy.zeros(16, numpy.int32)
            with count().prepare(threads=2) as own:
                own(counts)
            os.write(write, counts.tobytes())
            os._exit(0)
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
        assert numpy.frombuffer(os.read(read, 100), numpy.int32).tolist() == [1, 1] + [0] * 14
        os.close(read)
