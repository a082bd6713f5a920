"""Values for the symbols of a contract, within its constraints."""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Mapping

from aotc.contract import Argument, Contract
from aotc.errors import AotcError
from aotc.expression import ExpressionError

# (least value, greatest value or None where it is unbounded, step) -> a value between, in steps
Choose = Callable[[int, int | None, int], int]

_UNBOUNDED_STEPS = 7


def least(low: int, high: int | None, step: int) -> int:
    """Choose the least value."""
    return low


def greatest(low: int, high: int | None, step: int) -> int:
    """Choose the greatest value; a few steps up where there is none."""
    return low + (_UNBOUNDED_STEPS if high is None else (high - low) // step) * step


def inner(low: int, high: int | None, step: int) -> int:
    """Choose a value that is neither, where there is one."""
    return min(low + 2 * step, greatest(low, high, step))


def bind(
    contract: Contract, choose: Choose, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return a value of every symbol, which `choose` picks where the constraints leave a choice.

    Symbols of `given` have the value there. Raises AotcError where symbols constrain each other in
    a cycle, or have no value, and ContractError where a given one breaks a constraint.
    """
    given = given or {}
    symbols = {each.name: each for each in contract.symbols}
    uses = {
        name: {used for each in symbol.constraints().values() for used in each.names}
        for name, symbol in symbols.items()
    }
    values: dict[str, int] = {}
    try:
        for name in graphlib.TopologicalSorter(uses).static_order():
            if name in given:
                values[name] = given[name]
                continue
            limits = {
                field: each.evaluate(values) for field, each in symbols[name].constraints().items()
            }
            if "equals" in limits:
                values[name] = limits["equals"]
                continue
            step = max(1, limits.get("multiple_of", 1))
            low = -(-max(1, limits.get("minimum", 1)) // step) * step
            values[name] = choose(low, limits.get("maximum"), step)
    except graphlib.CycleError as error:
        cycle = " -> ".join(error.args[1])
        raise AotcError(f"symbols constrain each other in a cycle: {cycle}") from None
    except ExpressionError as error:
        raise AotcError(f"no value for `{name}`: {error}") from None
    ordered = {name: values[name] for name in symbols}
    contract.bind(
        [Argument(each.dtype, shape_of(each.dims, ordered)) for each in contract.parameters]
    )
    return ordered


def shape_of(dims: tuple[int | str, ...], values: dict[str, int]) -> tuple[int, ...]:
    """Return `dims` with the values of the symbols."""
    return tuple(dim if isinstance(dim, int) else values[dim] for dim in dims)
