"""The call contract: what a program's arguments must be, checked before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from aotc.config import DynamicSymbol
from aotc.errors import AotcError
from aotc.expression import ExpressionError

Dim = int | str


class Direction(Enum):
    """How a program uses a parameter: reads it, writes it, or both."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


class ContractError(AotcError):
    """An argument is not what the contract says; nothing has been executed."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: `dims` are static extents, or names of dynamic symbols."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    direction: Direction = Direction.IN


@dataclass(frozen=True)
class Argument:
    """What the check needs to know of an argument."""

    dtype: str
    shape: tuple[int, ...]
    contiguous: bool = True


@dataclass(frozen=True)
class Contract:
    """Parameters in order, and the constraints of every symbol that their dims use.

    `extents` gives the static names that the constraints use.
    """

    parameters: tuple[Parameter, ...]
    symbols: Mapping[str, DynamicSymbol]
    extents: Mapping[str, int]

    def bind(self, arguments: Sequence[Argument]) -> dict[str, int]:
        """Check `arguments` and return the value of every symbol that they bind.

        Raises ContractError, which names the parameter, the symbol, what was expected and what
        came: for count, dtype, rank, contiguity, a static extent, two values of one symbol, and
        a constraint that does not hold.
        """
        self._check_count(arguments)
        bound: dict[str, int] = {}
        binder: dict[str, str] = {}
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            _check_form(parameter, argument)
            for axis, (dim, extent) in enumerate(zip(parameter.dims, argument.shape, strict=True)):
                where = f"`{parameter.name}` dimension {axis}"
                if isinstance(dim, int):
                    if extent != dim:
                        raise ContractError(f"{where}: expected {dim}, got {extent}")
                elif bound.setdefault(dim, extent) != extent:
                    raise ContractError(
                        f"{where}: `{dim}` is {extent} here, and {bound[dim]} in {binder[dim]}"
                    )
                else:
                    binder.setdefault(dim, where)
        for name in bound:
            self._check_symbol(name, bound, binder[name])
        return bound

    def _check_count(self, arguments: Sequence[Argument]) -> None:
        expected, got = len(self.parameters), len(arguments)
        if got < expected:
            missing = ", ".join(f"`{each.name}`" for each in self.parameters[got:])
            raise ContractError(f"expected {expected} arguments, got {got}: missing {missing}")
        if got > expected:
            raise ContractError(f"expected {expected} arguments, got {got}")

    def _check_symbol(self, name: str, bound: Mapping[str, int], where: str) -> None:
        symbol = self.symbols.get(name)
        if symbol is None:
            return
        value = bound[name]
        values = {**self.extents, **bound}
        for constraint, words, holds in (
            (symbol.minimum, "at least", operator.ge),
            (symbol.maximum, "at most", operator.le),
            (symbol.multiple_of, "a multiple of", _is_multiple),
            (symbol.equals, "equal to", operator.eq),
        ):
            if constraint is None:
                continue
            try:
                limit = constraint.evaluate(values)
            except ExpressionError as error:
                raise ContractError(f"{where}: `{name}`: `{constraint}`: {error}") from None
            if not holds(value, limit):
                shown = str(limit) if constraint.text == str(limit) else f"{constraint} = {limit}"
                raise ContractError(f"{where}: `{name}` must be {words} {shown}, got {value}")


def _is_multiple(value: int, divisor: int) -> bool:
    return divisor > 0 and value % divisor == 0


def _check_form(parameter: Parameter, argument: Argument) -> None:
    if argument.dtype != parameter.dtype:
        raise ContractError(
            f"`{parameter.name}`: expected dtype {parameter.dtype}, got {argument.dtype}"
        )
    if len(argument.shape) != len(parameter.dims):
        raise ContractError(
            f"`{parameter.name}`: expected {len(parameter.dims)} dimensions, "
            f"got {len(argument.shape)}"
        )
    if not argument.contiguous:
        raise ContractError(
            f"`{parameter.name}`: not contiguous", hint="pass a contiguous copy of it"
        )
