"""What a program is run on, and how its results are compared with those of its golden.

A model may say so itself, in a module `cases` beside its golden: the names of the config stand in
it, and a function `PROGRAM_cases(seed)` yields a `Case` for each corner of the dynamic dimensions
and for some random ones, drawn from `seed`. Without one, a program whose inputs are all
floating-point numbers gets random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# A dot product of bf16 sums in a free order, whose last bits turn the rounding of a few elements
# to bf16, by 2**-8 of their value; each further rounding on the way spreads it. So most elements
# are close, and the others not far. A case through several layers states a greater tolerance.
TOLERANCE = 3e-3
OUTLIERS = 0.02  # the fraction of elements x that may differ by more than t + t * |x|
MAX_STEPS = 2  # bf16 steps at the greatest value of the row: no element may differ by more
CLEAR = 1e-2  # by which the best logit must lead for the greedy choice to be compared

Tensors = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Mismatch:
    """A difference in words; `expected` and `found` are the values at one place of it."""

    message: str
    expected: str
    found: str


Compare = Callable[[Tensors, Tensors], Iterator[Mismatch]]


@dataclass(frozen=True)
class Alone:
    """A part of a case on its own: its results are bit for bit those within the case.

    `arguments` replace those of the case. `rows` pairs, for a parameter that is written, an index
    into its result here with one into its result there.
    """

    name: str
    arguments: Tensors
    rows: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    """Arguments of one call, by parameter. What is written is copied before a run.

    Out parameters need no content. `compare` compares written parameters by name, given the
    results of program and golden; for the others floating-point numbers are compared by `close`
    within `tolerance`, and everything else exactly. Elements of an InOut parameter that the golden
    leaves as they were must stay so.
    """

    name: str
    arguments: Tensors
    compare: Mapping[str, Compare] = field(default_factory=dict)
    alone: tuple[Alone, ...] = ()
    tolerance: float = TOLERANCE


def close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> Iterator[Mismatch]:
    """Compare rows of floating-point numbers within `tolerance` and the limits above."""
    import torch

    actual, expected = actual.float(), expected.float()
    finite = expected.isfinite()
    special = ~finite & (actual != expected) & ~(actual.isnan() & expected.isnan())
    if bool(special.any()):
        yield at("not the same where it is not finite", special, actual, expected)
        return
    expected_finite = torch.where(finite, expected, 0)
    distance = torch.where(finite, (actual - expected).abs(), 0)
    # NaN is within no bound, so the question is which elements are, not which are not.
    apart = ~(distance <= tolerance + tolerance * expected_finite.abs())
    fraction = apart.float().mean().item() if apart.numel() else 0.0
    if fraction > OUTLIERS:
        message = (
            f"{fraction:.1%} of the elements differ by more than {tolerance:g} * (1 + |x|), "
            f"allowed are {OUTLIERS:.0%}"
        )
        yield at(message, apart, actual, expected)
    greatest = expected_finite.abs().amax(-1, keepdim=True) if apart.numel() else expected_finite
    step = torch.exp2(greatest.clamp(min=1e-6).log2().floor() - 7)
    far = ~(distance <= MAX_STEPS * step)
    if bool(far.any()):
        message = f"differs by more than {MAX_STEPS} bf16 steps of the greatest value in its row"
        yield at(message, far, actual, expected)


def equal(actual: Tensor, expected: Tensor) -> Iterator[Mismatch]:
    """Compare exactly."""
    differs = actual != expected
    if bool(differs.any()):
        yield at("not equal", differs, actual, expected)


def logits(name: str, vocabulary: int, tolerance: float = TOLERANCE) -> Compare:
    """Compare logits by `close`, and the greedy choice where the best leads clearly."""

    def compare(actual: Tensors, expected: Tensors) -> Iterator[Mismatch]:
        yield from close(actual[name], expected[name], tolerance)
        best = expected[name][:, :vocabulary].topk(2).values
        clear = best[:, 0] - best[:, 1] > CLEAR
        choices = (each[name][:, :vocabulary].argmax(-1) for each in (actual, expected))
        mine, theirs = (each.where(clear, -1) for each in choices)
        for mismatch in equal(mine, theirs):
            yield Mismatch(f"another greedy choice: {mismatch.message}", *_values(mismatch))

    return compare


def sampled(name: str, scores: str, vocabulary: int) -> Compare:
    """Compare sampled ids with the greedy choice of the program's own logits; the rest is 0."""

    def compare(actual: Tensors, expected: Tensors) -> Iterator[Mismatch]:
        own = expected[name].clone().zero_()
        own[:, 0] = actual[scores][:, :vocabulary].argmax(-1)
        yield from equal(actual[name], own)

    return compare


def at(message: str, differs: Tensor, actual: Tensor, expected: Tensor) -> Mismatch:
    """Return the mismatch with the first place of `differs`."""
    place = tuple(differs.nonzero()[0].tolist())
    return Mismatch(
        f"{message}, first at {list(place)}",
        f"{expected[place].item():g}",
        f"{actual[place].item():g}",
    )


def _values(mismatch: Mismatch) -> tuple[str, str]:
    return mismatch.expected, mismatch.found
