"""How threads take pieces of a range: each element once, and whoever is held up holds up no one."""

from pathlib import Path

import numpy
import pytest
from abi_programs import HOST_TARGET, compile_program

import aotc
from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.runtime import Program, load_program

_LIBRARY = Path(aotc.__file__).parent / "codegen" / "library"
_SHARES = "\n".join(
    (_LIBRARY / name).read_text(encoding="utf-8") for name in ("core.h", "shares.h")
)
_NO_WORKSPACE = """
int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}
"""

# Ranges one after the other, no barrier between them; adds 1 to each element. `turn` is the first.
RANGES = """
void aotc_run(const aotc_call *call, int32_t thread) {
    const int64_t *plan = call->arguments[0];
    int32_t *done = call->arguments[1];
    const uint32_t turn = *(const uint32_t *)call->arguments[2];
    if (call->threads > 1) {
        aotc_pool_slot *slot = &((aotc_pool *)call->team)->slots[thread];
        slot->turn = turn;
        slot->taken = (uint64_t)turn << 32;
        aotc_barrier(call, thread);
    }
    for (int64_t r = 0; r < call->symbols[0]; ++r, plan += 5) {
        aotc_shares shares = aotc_shares_begin(call, thread, plan[0], plan[1], (int)plan[2]);
        for (int64_t first, last; aotc_shares_take(&shares, plan[3], plan[4], &first, &last);)
            for (int64_t i = first; i < last; ++i)
                __atomic_fetch_add(&done[i], 1, __ATOMIC_RELAXED);
        done += plan[0] > 0 ? plan[0] : 0;
    }
}
"""

# Thread 0 waits after its first piece until the others have done all the rest, or very long.
HELD_UP = """
void aotc_run(const aotc_call *call, int32_t thread) {
    int32_t *by_thread = call->arguments[0];
    const int64_t count = 1000;
    int32_t *all = &by_thread[15];
    aotc_shares shares = aotc_shares_begin(call, thread, count, 1, 1);
    aotc_barrier(call, thread);
    for (int64_t first, last; aotc_shares_take(&shares, 1, 1000, &first, &last);) {
        by_thread[thread] += (int32_t)(last - first);
        __atomic_fetch_add(all, (int32_t)(last - first), __ATOMIC_RELAXED);
        for (int n = 0; thread == 0 && n < 10000000; ++n) {
            if (__atomic_load_n(all, __ATOMIC_RELAXED) == count) break;
            aotc_system_call(AOTC_SYSTEM_SCHED_YIELD, 0, 0, 0, 0);
        }
    }
}
"""

# Thread 0 comes late, with what its share needs, or naps in its first piece, and whoever helps it
# then is slow. Errors are elements that were taken before their thread came, or are missing when it
# leaves; after eight of them it counts who helped.
LATE = """
static void nap(void) {
    for (int n = 0; n < 2000; ++n) aotc_system_call(AOTC_SYSTEM_SCHED_YIELD, 0, 0, 0, 0);
}

void aotc_run(const aotc_call *call, int32_t thread) {
    int32_t *state = call->arguments[0], *errors = call->arguments[1];
    const int late = *(const int32_t *)call->arguments[2];
    const int64_t count = call->symbols[0], threads = call->threads;
    const int64_t begin = aotc_share(count, 1, thread, threads);
    const int64_t end = aotc_share(count, 1, thread + 1, threads);
    if (thread == 0 && late) nap();
    for (int64_t i = begin; i < end; ++i) state[i] = 1;
    aotc_shares shares = aotc_shares_begin(call, thread, count, 1, 1);
    for (int64_t first, last; aotc_shares_take(&shares, 1, count, &first, &last);) {
        for (int64_t i = first; i < last; ++i)
            if (state[i] != 1) ++errors[thread];
        const int helps = first < begin || first >= end;
        if (helps || (thread == 0 && !late && first == begin)) nap();
        errors[8 + thread] += helps;
        for (int64_t i = first; i < last; ++i) state[i] += 1;
    }
    for (int64_t i = begin; i < end; ++i) {
        if (state[i] != 2) ++errors[thread];
        state[i] = 3;
    }
}
"""


def _program(source: str, *parameters: Parameter, symbols: tuple[str, ...] = ()) -> Program:
    contract = Contract(parameters, tuple(map(DynamicSymbol, symbols)))
    content = compile_program(_SHARES + _NO_WORKSPACE + source)
    return load_program(contract, content, HOST_TARGET)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("turn", [0, 2**31 - 50, 2**32 - 50])
def test_each_element_is_taken_once(threads: int, turn: int) -> None:
    """Of many small ranges, which threads leave at different times, also where turns wrap."""
    rng = numpy.random.default_rng(turn + threads)
    count = rng.choice([-3, 0, 1, 15, 16, 17, 33, 100, 1000], 2000)
    unit = rng.choice([1, 16], 2000)
    together = rng.choice([0, 1, 1, 1], 2000)
    least, most = rng.choice([16, 64, 128], 2000), rng.choice([16, 48, 2**63 - 1], 2000)
    plan = numpy.stack([count, unit, together, least, most], 1).astype(numpy.int64)
    done = numpy.zeros(int(count.clip(0).sum()), numpy.int32)
    program = _program(
        RANGES,
        Parameter("plan", "int64", ("R", 5)),
        Parameter("done", "int32", ("N",), Direction.INOUT),
        Parameter("turn", "uint32", ()),
        symbols=("R", "N"),
    )
    with program.prepare(threads) as worker:
        for call in range(1, 4):
            worker(plan, done, turn)
            assert (done == call).all()


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_a_thread_that_is_held_up_holds_up_no_other(threads: int) -> None:
    program = _program(HELD_UP, Parameter("by_thread", "int32", (16,), Direction.INOUT))
    by_thread = numpy.zeros(16, numpy.int32)
    with program.prepare(threads) as worker:
        worker(by_thread)
    share = 1000 // threads
    assert by_thread[0] <= (share + 1) // 2
    assert by_thread[:threads].sum() == by_thread[15] == 1000


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_it_is_as_if_each_did_its_own_share(threads: int) -> None:
    program = _program(
        LATE,
        Parameter("state", "int32", ("N",), Direction.INOUT),
        Parameter("errors", "int32", (16,), Direction.INOUT),
        Parameter("late", "int32", ()),
        symbols=("N",),
    )
    helped = 0
    with program.prepare(threads) as worker:
        for call in range(20):
            state, errors = numpy.zeros(1000, numpy.int32), numpy.zeros(16, numpy.int32)
            worker(state, errors, call % 2)
            assert (state == 3).all()
            assert (errors[:8] == 0).all()
            helped += int(errors[8:].sum())
    assert helped
