"""Contract: does the artifact match the sources as they are now?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import zip_longest

from aotc.config import Config
from aotc.contract import Contract, ContractError, DynamicSymbol, Parameter, from_json
from aotc.errors import AotcError
from aotc.store.artifact import StoredProgram
from aotc.verify.check import CONTRACT, Check

# (field, value in the sources, value in the artifact); None where one has no such field.
Difference = tuple[str, str | None, str | None]


def check(config: Config, stored: StoredProgram) -> Iterator[Check]:
    """Read the signature of the program again, and compare contracts field by field.

    The sources are parsed, nothing is compiled.
    """
    from aotc.toolchain import toolchain_for

    begin = time.monotonic()
    name = stored.program
    try:
        declared = toolchain_for(stored.target).contract(config, name, stored.target)
        built = from_json(stored.contract_json)
    except ContractError as error:
        yield _failure(name, f"the artifact has no contract that can be read: {error}", begin)
        return
    except AotcError as error:
        yield _failure(name, f"the sources do not compile: {error.render()}", begin)
        return
    differences = list(compare(declared, built))
    seconds = time.monotonic() - begin
    if not differences:
        count = len(declared.parameters)
        message = f"{count} parameters are as the sources declare them"
        yield Check(CONTRACT, name, True, message, seconds=seconds)
    for field, expected, found in differences:
        message = (
            f"{field} is {found or 'absent'} in the artifact, {expected or 'absent'} in the "
            f"sources: run `aotc build {config.model}`"
        )
        yield Check(
            CONTRACT,
            name,
            False,
            message,
            field=field,
            expected=expected,
            found=found,
            seconds=seconds,
        )


def compare(declared: Contract, built: Contract) -> Iterator[Difference]:
    """Yield every field in which the contracts differ, in the order of the signature."""
    count, found = len(declared.parameters), len(built.parameters)
    if count != found:
        yield "parameter count", str(count), str(found)
    for number, (mine, theirs) in enumerate(zip_longest(declared.parameters, built.parameters)):
        yield from _compare_parameters(number, mine, theirs)
    theirs_by_name = {each.name: each for each in built.symbols}
    mine_by_name = {each.name: each for each in declared.symbols}
    for name in dict.fromkeys([*mine_by_name, *theirs_by_name]):
        yield from _compare_symbols(name, mine_by_name.get(name), theirs_by_name.get(name))
    for number, (returned, other) in enumerate(zip_longest(declared.returns, built.returns)):
        if returned != other:
            yield f"return value {number}", returned, other


def _compare_parameters(
    number: int, mine: Parameter | None, theirs: Parameter | None
) -> Iterator[Difference]:
    if mine is None or theirs is None:
        yield f"parameter {number}", _name(mine), _name(theirs)
        return
    if mine.name != theirs.name:
        yield f"name of parameter {number}", mine.name, theirs.name
    subject = f"`{mine.name}`"
    if mine.dtype != theirs.dtype:
        yield f"dtype of {subject}", mine.dtype, theirs.dtype
    if mine.direction is not theirs.direction:
        yield f"direction of {subject}", mine.direction.value, theirs.direction.value
    if len(mine.dims) != len(theirs.dims):
        yield f"rank of {subject}", str(len(mine.dims)), str(len(theirs.dims))
        return
    for axis, (dim, other) in enumerate(zip(mine.dims, theirs.dims, strict=True)):
        if dim != other:
            yield f"{subject} dimension {axis}", str(dim), str(other)


def _compare_symbols(
    name: str, mine: DynamicSymbol | None, theirs: DynamicSymbol | None
) -> Iterator[Difference]:
    if mine is None or theirs is None:
        yield f"symbol `{name}`", _name(mine), _name(theirs)
        return
    declared, built = mine.constraints(), theirs.constraints()
    for field in dict.fromkeys([*declared, *built]):
        expected, found = declared.get(field), built.get(field)
        if expected != found:
            yield (
                f"{field} of `{name}`",
                None if expected is None else str(expected),
                None if found is None else str(found),
            )


def _name(part: Parameter | DynamicSymbol | None) -> str | None:
    return None if part is None else part.name


def _failure(program: str, message: str, begin: float) -> Check:
    return Check(CONTRACT, program, False, message, seconds=time.monotonic() - begin)
