"""The random programs of the IR tests, run as machine code."""

from __future__ import annotations

import pytest
import random_programs
from compare import check

from aotc.ir.text import print_program


@pytest.mark.parametrize("seed", range(40))
def test_random_ir_agrees_with_the_reference(seed: int) -> None:
    text = print_program(random_programs.program(seed))
    check(text, random_programs.arguments(seed), rtol=2e-2, atol=2e-2, threads=(1, 2))
