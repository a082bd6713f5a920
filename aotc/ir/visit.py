"""Walks over statements and definitions that passes and checks share."""

from __future__ import annotations

from collections.abc import Iterator

from aotc.ir.nodes import Block, For, If, Operation, Program, Statement, Var, While


def blocks(statement: Statement) -> tuple[Block, ...]:
    """Return the blocks inside `statement`, in the order in which they run."""
    match statement:
        case For(body=body):
            return (body,)
        case While(head=head, body=body):
            return (head, body)
        case If(then=then, orelse=orelse):
            return (then, orelse)
    return ()


def statements(block: Block) -> Iterator[Statement]:
    """Yield every statement of `block` and of the blocks inside, each before what it holds."""
    for statement in block.statements:
        yield statement
        for inner in blocks(statement):
            yield from statements(inner)


def inner_variables(statement: Statement) -> tuple[Var, ...]:
    """Return the variables that `statement` defines for its own blocks alone."""
    match statement:
        case For(index=index, carried=carried):
            return (index, *(each.argument for each in carried))
        case While(carried=carried):
            return tuple(each.argument for each in carried)
    return ()


def results(statement: Statement) -> tuple[Var, ...]:
    """Return the variables that `statement` defines for the statements after it."""
    match statement:
        case Operation(result=result):
            return () if result is None else (result,)
        case For(carried=carried) | While(carried=carried):
            return tuple(each.result for each in carried)
        case If(results=found):
            return found


def variables(program: Program) -> Iterator[Var]:
    """Yield every variable that `program` defines."""
    for parameter in program.parameters:
        yield parameter.variable
    for statement in statements(program.body):
        yield from inner_variables(statement)
        yield from results(statement)
