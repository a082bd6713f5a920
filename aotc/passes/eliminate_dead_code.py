"""Remove operations whose result nothing needs.

Needed are the final states of Out and InOut parameters, and what they are computed from. An
update counts as needed where the storage that it writes is a parameter's, or is read later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from aotc.contract import Direction
from aotc.ir.nodes import (
    Block,
    For,
    If,
    Operand,
    Operation,
    Program,
    Statement,
    TensorVar,
    While,
)
from aotc.ir.scalar import ScalarVar, walk
from aotc.ops.registry import Update, table

_Item = TypeVar("_Item")


def eliminate_dead_code(program: Program) -> Program:
    """Return `program` without the operations that no output depends on."""
    written = {p.name for p in program.parameters if p.direction is not Direction.IN}
    return replace(program, body=_Sweep(program, written).block(program.body))


class _Sweep:
    """Marks names until nothing changes, then drops what defines none of them."""

    def __init__(self, program: Program, written: set[str]):
        self.live: set[str] = set()
        self.states = set(written)  # values that are some state of an output's storage
        before = -1
        while before != len(self.live) + len(self.states):
            before = len(self.live) + len(self.states)
            self._mark_values(program.body.yields)
            self._mark(program.body)

    def _mark_values(self, values: tuple[Operand, ...]) -> None:
        for value in values:
            if isinstance(value, TensorVar):
                self.live.add(value.name)
            elif isinstance(value, tuple):
                self._mark_values(value)
            else:
                self.live |= {v.name for v in walk(value) if isinstance(v, ScalarVar)}

    def _mark(self, block: Block) -> None:
        for statement in reversed(block.statements):
            match statement:
                case Operation():
                    self._note_state(statement)
                    if self._needed(statement):
                        self._mark_values(statement.operands)
                case For(start=start, stop=stop, step=step):
                    self._mark_loop(statement, statement.body)
                    if self._kept(statement):
                        self._mark_values((start, stop, step))
                case While(head=head):
                    self._mark_loop(statement, statement.body)
                    if self._kept(statement):
                        self._mark_values(head.yields)
                        self._mark(head)
                case If(condition=condition, then=then, orelse=orelse, results=results):
                    for result, one, other in zip(results, then.yields, orelse.yields, strict=True):
                        if result.name in self.live:
                            self._mark_values((one, other))
                    self._mark(then)
                    self._mark(orelse)
                    if self._kept(statement):
                        self._mark_values((condition,))

    def _mark_loop(self, loop: For | While, body: Block) -> None:
        for each, value in zip(loop.carried, body.yields, strict=True):
            if isinstance(each.initial, TensorVar) and each.initial.name in self.states:
                self.states.add(each.argument.name)
                self.live.add(each.argument.name)
            if {each.argument.name, each.result.name} & self.live:
                self.live |= {each.argument.name}
                self._mark_values((each.initial, value))
        self._mark(body)

    def _note_state(self, operation: Operation) -> None:
        lowering = table()[operation.op].lowering
        if isinstance(lowering, Update) and isinstance(operation.result, TensorVar):
            target = table()[operation.op].arguments(operation)[lowering.target]
            if target.name in self.states:
                self.states.add(operation.result.name)

    def _needed(self, operation: Operation) -> bool:
        result = operation.result
        return result is None or result.name in self.live or result.name in self.states

    def _kept(self, statement: Statement) -> bool:
        match statement:
            case Operation():
                return self._needed(statement)
            case If(then=then, orelse=orelse):
                return any(self._kept(each) for each in (*then.statements, *orelse.statements)) or (
                    any(result.name in self.live for result in statement.results)
                )
            case While():
                return True
            case For(body=body, carried=carried):
                return any(self._kept(each) for each in body.statements) or any(
                    each.result.name in self.live for each in carried
                )

    def block(self, block: Block) -> Block:
        """Return `block` without dead statements."""
        kept = tuple(self._sweep(each) for each in block.statements if self._kept(each))
        return replace(block, statements=kept)

    def _sweep(self, statement: Statement) -> Statement:
        match statement:
            case For(carried=carried, body=body) | While(carried=carried, body=body):
                alive = [{e.argument.name, e.result.name} & self.live != set() for e in carried]
                body = self._take(body, alive)
                return replace(statement, carried=_keep(carried, alive), body=body)
            case If(then=then, orelse=orelse, results=results):
                alive = [each.name in self.live for each in results]
                then, orelse = self._take(then, alive), self._take(orelse, alive)
                return replace(statement, then=then, orelse=orelse, results=_keep(results, alive))
        return statement

    def _take(self, block: Block, alive: list[bool]) -> Block:
        return self.block(replace(block, yields=_keep(block.yields, alive)))


def _keep(items: tuple[_Item, ...], alive: list[bool]) -> tuple[_Item, ...]:
    return tuple(item for item, keep in zip(items, alive, strict=True) if keep)
