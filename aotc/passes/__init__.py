"""Passes over the IR, each `Program -> Program` in a file of its own, in the order they run."""

from __future__ import annotations

from collections.abc import Callable

from aotc.ir.nodes import Program
from aotc.passes.eliminate_dead_code import eliminate_dead_code

Pass = Callable[[Program], Program]

PASSES: tuple[Pass, ...] = (eliminate_dead_code,)


def run_passes(program: Program, between: Callable[[Program], None] = lambda _: None) -> Program:
    """Run every pass in order; call `between` with the program before the first and after each."""
    between(program)
    for each in PASSES:
        program = each(program)
        between(program)
    return program
