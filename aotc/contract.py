"""The call contract: what a program's arguments must be, checked before anything runs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum

import msgspec

from aotc import expression
from aotc.errors import AotcError
from aotc.expression import Expression, ExpressionError

Dim = int | str


# What packing asks of a matrix, see `aotc_pack` in aotc_abi.h: the width of a panel, which is also
# the rows of a block without a depth, and what its columns are a multiple of then.
PANEL_WIDTH, PANEL_DOTS = 16, 128


class Direction(Enum):
    """How a program uses a parameter: reads it, writes it, or both."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"


class ContractError(AotcError):
    """An argument is not what the contract says; nothing has been executed."""


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter: `dims` are static extents, or names of dynamic symbols; a scalar has none.

    Where `panels` is given, a tensor of the device is faster packed in panels than row-major, and
    taken either way. It is the `depth` of `aotc_pack` (aotc_abi.h).
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    direction: Direction = Direction.IN
    panels: int | None = None


@dataclass(frozen=True)
class DynamicSymbol:
    """A dynamic dimension and its constraints: `minimum` and `maximum` are inclusive.

    In a config they are expressions over extents and symbols, in a contract over symbols alone.
    """

    name: str
    minimum: Expression | None = None
    maximum: Expression | None = None
    multiple_of: Expression | None = None
    equals: Expression | None = None

    def constraints(self) -> dict[str, Expression]:
        """Return the constraints that are given, by field name."""
        given = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Argument:
    """What the check needs to know of an argument; `address` and `nbytes` where it lies.

    Without an address it is not checked for overlap. `panels` says how it is packed, if it is.
    """

    dtype: str
    shape: tuple[int, ...]
    contiguous: bool = True
    writable: bool = True
    address: int | None = None
    nbytes: int = 0
    panels: int | None = None


@dataclass(frozen=True)
class Contract:
    """Parameters in order, the symbols of their dims, and the parameter each return aliases.

    `symbols` stand in order of first appearance in the dims: the order of the ABI's symbol array.
    Raises ContractError where the parts do not fit together.
    """

    parameters: tuple[Parameter, ...]
    symbols: tuple[DynamicSymbol, ...] = ()
    returns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [each.name for each in self.parameters]
        if len(set(names)) != len(names):
            raise ContractError("two parameters of one name")
        if [each.name for each in self.symbols] != _symbols_of(self.parameters):
            raise ContractError("the symbols are not those of the dims, in order of appearance")
        for name in self.returns:
            if name not in names:
                raise ContractError(f"returns `{name}`, which is not a parameter")
        used = {each.name for each in self.symbols}
        for symbol in self.symbols:
            for constraint in symbol.constraints().values():
                for name in constraint.names:
                    if name not in used:
                        raise ContractError(
                            f"`{symbol.name}` is constrained by `{constraint}`, "
                            f"and no dimension gives `{name}`"
                        )

    @staticmethod
    def of(
        parameters: Sequence[Parameter],
        symbols: Mapping[str, DynamicSymbol],
        extents: Mapping[str, int],
        returns: Sequence[str] = (),
    ) -> Contract:
        """Return the contract of `parameters`, with the symbols they use and no extent left.

        `symbols` and `extents` are those of the model config. Raises ContractError for a dim
        that is none of `symbols`, and a constraint without a value or over an unused symbol.
        """
        used = []
        for name in _symbols_of(parameters):
            if name not in symbols:
                raise ContractError(f"unknown symbol `{name}`")
            try:
                given = {
                    field: constraint.substitute(extents)
                    for field, constraint in symbols[name].constraints().items()
                }
            except ExpressionError as error:
                raise ContractError(f"`{name}`: {error}") from None
            used.append(DynamicSymbol(name, **given))
        return Contract(tuple(parameters), tuple(used), tuple(returns))

    def bind(self, arguments: Sequence[Argument]) -> dict[str, int]:
        """Check `arguments` and return the value of every symbol, in the order of `symbols`.

        Raises ContractError, which names the parameter, the symbol, what was expected and what
        came: for count, dtype, rank, contiguity, a read-only output, a static extent, two values
        of one symbol, a constraint that does not hold, an output that overlaps an argument, and a
        tensor packed as the program does not take it.
        """
        self.check_count(len(arguments))
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
        for symbol in self.symbols:
            _check_symbol(symbol, bound, binder[symbol.name])
        self._check_overlap(arguments)
        return bound

    def check_count(self, got: int) -> None:
        """Raise ContractError where `got` arguments are too few or too many."""
        expected = len(self.parameters)
        if got < expected:
            missing = ", ".join(f"`{each.name}`" for each in self.parameters[got:])
            raise ContractError(f"expected {expected} arguments, got {got}: missing {missing}")
        if got > expected:
            raise ContractError(f"expected {expected} arguments, got {got}")

    def panels(self) -> dict[str, int]:
        """Return the parameters that may be packed, and how: see `Parameter`."""
        return {each.name: each.panels for each in self.parameters if each.panels is not None}

    def with_panels(self, panels: Mapping[str, int]) -> Contract:
        """Return the contract of a program that takes these parameters packed, too."""
        parameters = tuple(
            msgspec.structs.replace(each, panels=panels.get(each.name)) for each in self.parameters
        )
        return replace(self, parameters=parameters)

    def index(self, name: str) -> int:
        """Return the position of the parameter `name`."""
        return [each.name for each in self.parameters].index(name)

    def _check_overlap(self, arguments: Sequence[Argument]) -> None:
        placed = [
            (parameter, argument.address, argument.address + argument.nbytes)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
            if argument.address is not None and argument.nbytes > 0
        ]
        for written, start, end in placed:
            if written.direction is Direction.IN:
                continue
            for other, other_start, other_end in placed:
                if other is not written and start < other_end and other_start < end:
                    raise ContractError(
                        f"`{written.name}` is written, and shares memory with `{other.name}`",
                        hint="pass tensors that do not overlap",
                    )


def to_json(contract: Contract) -> bytes:
    """Return the one JSON text of `contract`."""
    symbols = [
        _SymbolRecord(each.name, **{field: str(text) for field, text in each.constraints().items()})
        for each in contract.symbols
    ]
    return msgspec.json.encode(_Record(contract.parameters, symbols, contract.returns))


def from_json(text: bytes) -> Contract:
    """Return the contract that `to_json` wrote; raise ContractError where `text` is not one."""
    try:
        record = msgspec.json.decode(text, type=_Record)
        symbols = tuple(each.parse() for each in record.symbols)
    except (msgspec.MsgspecError, ExpressionError, UnicodeDecodeError) as error:
        raise ContractError(f"not a contract: {error}") from None
    return Contract(record.parameters, symbols, record.returns)


class _SymbolRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    minimum: str | None = None
    maximum: str | None = None
    multiple_of: str | None = None
    equals: str | None = None

    def parse(self) -> DynamicSymbol:
        texts = (self.minimum, self.maximum, self.multiple_of, self.equals)
        return DynamicSymbol(
            self.name, *(None if text is None else expression.parse(text) for text in texts)
        )


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    parameters: tuple[Parameter, ...]
    symbols: list[_SymbolRecord]
    returns: tuple[str, ...]


def _symbols_of(parameters: Iterable[Parameter]) -> list[str]:
    dims = (dim for parameter in parameters for dim in parameter.dims if isinstance(dim, str))
    return list(dict.fromkeys(dims))


def _check_symbol(symbol: DynamicSymbol, bound: Mapping[str, int], where: str) -> None:
    value = bound[symbol.name]
    for field, constraint in symbol.constraints().items():
        words, holds = _CONSTRAINTS[field]
        try:
            limit = constraint.evaluate(bound)
        except ExpressionError as error:
            raise ContractError(f"{where}: `{symbol.name}`: `{constraint}`: {error}") from None
        if not holds(value, limit):
            shown = f"{limit}" if constraint.text == str(limit) else f"{constraint} = {limit}"
            raise ContractError(f"{where}: `{symbol.name}` must be {words} {shown}, got {value}")


def _is_multiple(value: int, divisor: int) -> bool:
    return divisor > 0 and value % divisor == 0


_CONSTRAINTS = {
    "minimum": ("at least", operator.ge),
    "maximum": ("at most", operator.le),
    "multiple_of": ("a multiple of", _is_multiple),
    "equals": ("equal to", operator.eq),
}


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
    if argument.panels not in (None, parameter.panels):
        raise ContractError(
            f"`{parameter.name}`: the tensor is packed for another parameter",
            hint="allocate it for this one, or for none: then it is row-major",
        )
    if not argument.writable and parameter.direction is not Direction.IN:
        raise ContractError(f"`{parameter.name}`: it is written, and read-only memory was given")
