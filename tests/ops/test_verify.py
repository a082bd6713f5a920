"""Malformed programs are refused, by the rule that they break."""

import pytest
import random_programs
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc.ir.text import parse_program
from aotc.ops.verify import VerifyError, returned_parameters, verify

_HEAD = """program("p")
x: In[fp32[4, 8]]
o: InOut[fp32[4, 8]]
n: In[index]
"""


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_programs_are_well_formed(seed: int) -> None:
    program = random_programs.program(seed)
    verify(program)
    assert returned_parameters(program) == ("state",)


def test_a_parameter_is_followed_through_loops_and_branches() -> None:
    program = parse_program(
        _HEAD
        + """
for i in range(0, 4, 1):
    a: fp32[4, 8] = carry(o, r)
    c: fp32[4, 8]
    if i < n:
        b: fp32[4, 8] = assemble(a, x, [0, 0])
        yields(b)
    else:
        yields(a)
    yields(c)
yields(r)
"""
    )
    assert returned_parameters(program) == ("o",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y: fp32[4, 8] = exp(x)\nyields(y)", "not the state of an Out or InOut parameter"),
        ("yields(x)", "not the state of an Out or InOut parameter"),
        ("y: fp32[4, 7] = exp(x)", "and `exp` gives"),
        ("y: bf16[4, 8] = exp(x)", "and `exp` gives"),
        ("y: fp32[4, 8] = expp(x)", "`expp` is no operator"),
        ("y: fp32[4, 8] = exp(x, x)", "`exp` takes 1 operands"),
        ("y: fp32[4, 8] = exp(x, mode=1)", "takes the attributes"),
        ("y: fp32[4, 8] = add(x, n < 1)", "`add`"),
        ("exp(x)", "`exp` has no result"),
        ("y: fp32[4, 8] = assemble(x, o, [0, 0])", "In parameter `x` is updated"),
        (
            "y: fp32[4, 8] = assemble(o, x, [0, 0])\nz: fp32[4, 8] = exp(o)",
            "`o` is used after `y` updated it",
        ),
        (
            "for i in range(0, 4, 1):\n    y: fp32[4, 8] = assemble(o, x, [0, 0])",
            "`o` is updated in a loop that does not carry it",
        ),
        (
            "for i in range(0, 4, 1):\n"
            "    a: fp32[4, 8] = carry(o, r)\n"
            "    b: fp32[4, 8] = assemble(a, x, [0, 0])\n"
            "    yields(b)\n"
            "z: fp32[4, 8] = exp(o)",
            "`o` is used after `r` updated it",
        ),
        (
            "for i in range(0, 4, 1):\n"
            "    a: fp32[4, 8] = carry(x, r)\n"
            "    b: fp32[4, 8] = assemble(a, x, [0, 0])\n"
            "    yields(b)\n",
            "In parameter `x` is updated",
        ),
        (
            "for i in range(0, 4, 1):\n    y: fp32[4, 8] = exp(x)\nz: fp32[4, 8] = exp(y)",
            "`y` is not defined here",
        ),
        (
            "for i in range(0, 4, 1):\n    a: fp32[4, 8] = carry(o, r)\n    pass",
            "carries 1 values and yields 0",
        ),
        (
            "for i in range(0, 4, 1):\n"
            "    a: fp32[4, 8] = carry(o, r)\n"
            "    b: fp32[4, 1] = row_sum(a, tmp_tile=None)\n"
            "    yields(b)",
            "a yield: `a`",
        ),
        ("for i in range(0, n < 1, 1):\n    a: index = carry(0, r)\n    yields(n < 1)", "a yield"),
        ("a: index\nif n < 1:\n    yields(1)\nelse:\n    pass", "does not yield the results"),
        ("if n:\n    pass", "the condition of a branch is no BOOL"),
        ("while loop:\n    condition(n)\n    pass", "yields its condition"),
        (
            "if n < 1:\n    y: fp32[4, 8] = exp(x)\nelse:\n    z: fp32[4, 8] = exp(y)",
            "`y` is not defined here",
        ),
        (
            "if n < 1:\n    y: fp32[4, 8] = assemble(o, x, [0, 0])\nz: fp32[4, 8] = exp(o)",
            "`o` is used after `y` updated it",
        ),
    ],
)
def test_a_malformed_program_is_refused(body: str, message: str) -> None:
    program = parse_program(_HEAD + body + "\n")
    with pytest.raises(VerifyError) as caught:
        verify(program)
    assert message in str(caught.value)
