"""The header is clean C and C++, the loader agrees with it, and the barrier holds everyone."""

import ctypes
import subprocess
from pathlib import Path

import numpy
import pytest
from abi_programs import HOST_TARGET, NOTHING, PRELUDE, compile_program

import aotc
from aotc.contract import Contract, Direction, Parameter
from aotc.runtime import load_program
from aotc.runtime.library import ABI_VERSION, Call
from aotc.toolchain.zig import TARGETS, locate

HEADER = Path(aotc.__file__).parent / "runtime" / "include" / "aotc_abi.h"
STRICT = ("-ffreestanding", "-nostdinc", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic")


@pytest.mark.parametrize("language", [("c", "-std=c99"), ("c", "-std=c17"), ("c++", "-std=c++11")])
def test_the_header_is_clean(language: tuple[str, str]) -> None:
    source = f'#include "{HEADER}"\n#include "{HEADER}"\nint main(void) {{ return 0; }}\n'
    command = [str(locate()), "clang", "-x", language[0], language[1], *STRICT, "-Werror", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_pool_is_clean() -> None:
    for target in TARGETS.values():
        flags = ("-target", target.triple, *target.flags, "-x", "c", "-std=c17", *STRICT)
        done = subprocess.run(
            [str(locate()), "clang", *flags, "-Werror", "-"],
            input=PRELUDE + NOTHING,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_loader_agrees_with_the_header() -> None:
    asserts = [f'_Static_assert(sizeof(aotc_call) == {ctypes.sizeof(Call)}, "size");']
    for name, *_ in Call._fields_:
        offset = getattr(Call, name).offset
        asserts.append(f'_Static_assert(__builtin_offsetof(aotc_call, {name}) == {offset}, "");')
    asserts.append(f'_Static_assert(AOTC_ABI_VERSION == {ABI_VERSION}, "version");')
    compile_program("\n".join(asserts) + NOTHING)


# Each thread is late in turn, by more than the others spin for; the next pass checks that all
# were waited for. errors[thread] counts what was not.
LATE = """
int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}

void aotc_run(const aotc_call *call, int32_t thread) {
    int32_t *errors = (int32_t *)call->arguments[0];
    volatile int32_t *round_of = (volatile int32_t *)call->arguments[1];
    for (int32_t round = 1; round <= 24; round++) {
        uint64_t start = aotc_ticks();
        while (round % call->threads == thread && aotc_ticks() - start < 3 * aotc_patience()) {}
        round_of[thread] = round;
        aotc_barrier(call, thread);
        for (int32_t i = 0; i < call->threads; i++) errors[thread] += round_of[i] != round;
        aotc_barrier(call, thread);
    }
}
"""


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_the_barrier_waits_for_the_late(threads: int) -> None:
    parameters = tuple(
        Parameter(name, "int32", (16,), Direction.INOUT) for name in ("errors", "round_of")
    )
    program = load_program(Contract(parameters), compile_program(LATE), HOST_TARGET)
    errors, rounds = numpy.zeros(16, numpy.int32), numpy.zeros(16, numpy.int32)
    with program.prepare(threads=threads) as worker:
        for _ in range(3):
            worker(errors, rounds)
    assert not errors.any()
    assert rounds.tolist() == [24] * threads + [0] * (16 - threads)
