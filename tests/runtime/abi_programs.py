"""Small programs written by hand against the C ABI, compiled once a run."""

from functools import cache
from pathlib import Path

import aotc
from aotc.contract import Contract, Direction, DynamicSymbol, Parameter
from aotc.expression import parse
from aotc.runtime import Program, load_program
from aotc.runtime.host import Host
from aotc.toolchain.zig import TARGETS, compile_shared_object

_PACKAGE = Path(aotc.__file__).parent
PRELUDE = "\n".join(
    (_PACKAGE / name).read_text(encoding="utf-8")
    for name in ("runtime/include/aotc_abi.h", "codegen/library/pool.h")
)
HOST_TARGET = Host.current().targets()[-1]

# y = x * scale + n * 1000, in passes: each reads what another thread wrote in the one before.
PASSES = 10
ROTATE = f"""
int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {{
    (void)threads;
    return 2 * symbols[0] * 4;
}}

void aotc_run(const aotc_call *call, int32_t thread) {{
    const float *x = (const float *)call->arguments[0];
    float scale = *(const float *)call->arguments[1];
    float *y = (float *)call->arguments[2];
    int64_t n = call->symbols[0];
    int64_t begin = n * thread / call->threads, end = n * (thread + 1) / call->threads;
    float *buffer[2] = {{(float *)call->workspace, (float *)call->workspace + n}};
    for (int64_t i = begin; i < end; i++) buffer[0][i] = x[i] * scale;
    for (int pass = 0; pass < {PASSES}; pass++) {{
        aotc_barrier(call, thread);
        const float *from = buffer[pass & 1];
        float *to = buffer[~pass & 1];
        for (int64_t i = begin; i < end; i++) to[i] = from[(i + n / 2) % n] + 1.0f;
    }}
    for (int64_t i = begin; i < end; i++) y[i] = buffer[{PASSES} & 1][i];
}}
"""

# counts[thread] += 1: says which threads ran.
COUNT = """
int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols;
    return 3000000 * (int64_t)threads;
}

void aotc_run(const aotc_call *call, int32_t thread) {
    ((int32_t *)call->arguments[0])[thread] += 1;
    ((char *)call->workspace)[3000000 * (int64_t)(thread + 1) - 1] = 1;
}
"""


# Does nothing: for the checks, which come before.
NOTHING = """
int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {
    (void)symbols, (void)threads;
    return 0;
}

void aotc_run(const aotc_call *call, int32_t thread) { (void)call, (void)thread; }
"""


@cache
def compile_program(source: str, target: str = HOST_TARGET) -> bytes:
    """Return the object of PRELUDE and `source`."""
    return compile_shared_object(PRELUDE + source, TARGETS[target])


@cache
def rotate() -> Program:
    """`x` and `y` of N floats, 0 <= N <= 4096 and even, and a scalar `scale`; returns `y`."""
    contract = Contract(
        (
            Parameter("x", "fp32", ("N",)),
            Parameter("scale", "fp32", ()),
            Parameter("y", "fp32", ("N",), Direction.OUT),
        ),
        (DynamicSymbol("N", maximum=parse("4096"), multiple_of=parse("2")),),
        ("y",),
    )
    return load_program(contract, compile_program(ROTATE), HOST_TARGET)


@cache
def count() -> Program:
    """`counts` of 16 int32, updated in place; returns nothing."""
    contract = Contract((Parameter("counts", "int32", (16,), Direction.INOUT),))
    return load_program(contract, compile_program(COUNT), HOST_TARGET)


def nothing(*parameters: Parameter, returns: tuple[str, ...] = ()) -> Program:
    """A program with any parameters without symbols."""
    contract = Contract(parameters, returns=returns)
    return load_program(contract, compile_program(NOTHING), HOST_TARGET)
