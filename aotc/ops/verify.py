"""Whether a program is well formed, as the front end and every pass must leave it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from aotc.contract import Direction
from aotc.dtypes import BOOL, INDEX
from aotc.ir.nodes import (
    Block,
    Carried,
    For,
    If,
    Operand,
    Operation,
    Program,
    Statement,
    TensorType,
    TensorVar,
    Value,
    Var,
    While,
)
from aotc.ir.scalar import Scalar, ScalarVar, walk
from aotc.ir.text import print_program
from aotc.ir.visit import blocks, inner_variables
from aotc.ops.registry import OpError, Update, table


class VerifyError(Exception):
    """A fault of the compiler: the program that it made is malformed."""


def verify(program: Program) -> None:
    """Raise VerifyError unless `program` is well formed.

    Checked: every name is defined once, before its uses and in their scope; operands are those of
    the operator; stated types are the inferred ones; yields have the types of what they become; a
    value whose storage an update rewrote is not used again; only Out and InOut parameters and the
    program's own tensors are updated; every returned tensor is the state of a parameter.
    """
    _Verifier(program).run()


def returned_parameters(program: Program) -> tuple[str, ...]:
    """Return the name of the parameter whose storage each returned tensor is.

    Raises VerifyError where it is none.
    """
    verifier = _Verifier(program)
    verifier.run()
    return verifier.returned


class _Verifier:
    def __init__(self, program: Program):
        self.program = program
        self.names: dict[str, Var] = {}
        self.scope: set[str] = set()
        self.consumed: dict[str, str] = {}  # dead value -> the value that replaced it
        self.origin: dict[str, str] = {}  # tensor -> the parameter or own tensor that it updates
        self.outside: list[set[str]] = []  # names defined outside of each enclosing loop
        self.returned: tuple[str, ...] = ()

    def run(self) -> None:
        for parameter in self.program.parameters:
            variable = parameter.variable
            self.define(variable)
            if isinstance(variable, TensorVar):
                self.type(variable.type, variable.name)
            elif parameter.direction is not Direction.IN:
                self.fail(f"scalar parameter `{variable.name}` is written")
        self.block(self.program.body)
        writable = [p.name for p in self.program.parameters if p.direction is not Direction.IN]
        found = []
        for value in self.program.body.yields:
            name = self.origin[value.name] if isinstance(value, TensorVar) else ""
            if name not in writable:
                self.fail(f"returned `{value}` is not the state of an Out or InOut parameter")
            found.append(name)
        self.returned = tuple(found)

    def fail(self, message: str) -> NoReturn:
        raise VerifyError(f"{message}\n{print_program(self.program)}")

    # Names.

    def define(self, variable: Var, origin: str | None = None) -> None:
        if variable.name in self.names:
            self.fail(f"`{variable.name}` is defined twice")
        self.names[variable.name] = variable
        self.scope.add(variable.name)
        if isinstance(variable, TensorVar):
            self.origin[variable.name] = origin or variable.name

    def use(self, value: Value) -> None:
        variables = [value] if isinstance(value, TensorVar) else list(walk(value))
        for each in variables:
            if not isinstance(each, TensorVar | ScalarVar):
                continue
            if each.name not in self.scope:
                self.fail(f"`{each.name}` is not defined here")
            if self.names[each.name] != each:
                self.fail(f"`{each.name}` is used with another type than it is defined with")
            if each.name in self.consumed:
                self.fail(f"`{each.name}` is used after `{self.consumed[each.name]}` updated it")

    def type(self, kind: TensorType, name: str) -> None:
        for each in (*kind.shape, *(kind.valid or ())):
            self.use(each)
            if each.dtype != INDEX:
                self.fail(f"`{name}` has an extent that is no INDEX")
        if kind.valid is not None and (len(kind.valid) != kind.rank or kind.valid == kind.shape):
            self.fail(f"`{name}` has a malformed valid shape")

    # Statements.

    def block(self, block: Block) -> None:
        for statement in block.statements:
            self.statement(statement)
        for value in block.yields:
            self.use(value)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Operation():
                self.operation(statement)
            case For(start=start, stop=stop, step=step, index=index):
                if index.dtype != INDEX:
                    self.fail(f"loop index `{index.name}` is no INDEX")
                for each in (start, stop, step):
                    self.use(each)
                self.loop(statement, statement.carried)
            case While(head=head):
                if len(head.yields) != 1 or _dtype(head.yields[0]) != BOOL:
                    self.fail("the head of a while loop yields its condition")
                self.loop(statement, statement.carried)
            case If():
                self.branch(statement)

    def operation(self, operation: Operation) -> None:
        row = table().get(operation.op)
        if row is None:
            self.fail(f"`{operation.op}` is no operator")
        for operand in operation.operands:
            self.operand(operand)
        expected = sum(each.kind.is_operand for each in row.parameters)
        attributes = sorted(each.name for each in row.parameters if not each.kind.is_operand)
        if len(operation.operands) != expected:
            self.fail(f"`{operation.op}` takes {expected} operands")
        if [name for name, _ in operation.attributes] != attributes:
            self.fail(f"`{operation.op}` takes the attributes {attributes}")
        arguments = row.arguments(operation)
        try:
            inferred = row.infer(arguments)
        except OpError as error:
            self.fail(f"`{operation.op}`: {error}")
        result = operation.result
        if result is None:
            self.fail(f"`{operation.op}` has no result")
        stated = result.type if isinstance(result, TensorVar) else result.dtype
        if stated != inferred:
            self.fail(f"`{result.name}` is {stated}, and `{operation.op}` gives {inferred}")
        if isinstance(result, TensorVar):
            self.type(result.type, result.name)
        origin = None
        if isinstance(row.lowering, Update):
            target: TensorVar = arguments[row.lowering.target]
            origin = self.origin[target.name]
            self.consume(target.name, result.name)
        self.define(result, origin)

    def operand(self, operand: Operand) -> None:
        if isinstance(operand, tuple):
            for each in operand:
                self.use(each)
        else:
            self.use(operand)

    def consume(self, name: str, by: str) -> None:
        for outside in self.outside:
            if name in outside:
                self.fail(f"`{name}` is updated in a loop that does not carry it")
        for parameter in self.program.parameters:
            if parameter.name == self.origin[name] and parameter.direction is Direction.IN:
                self.fail(f"In parameter `{parameter.name}` is updated")
        self.consumed[name] = by

    def loop(self, loop: For | While, carried: Sequence[Carried]) -> None:
        for each in carried:
            self.use(each.initial)
            self.match(each.initial, each.argument, "a loop argument")
            self.match(each.argument, each.result, "the result of a loop")
        before = set(self.scope)
        self.outside.append(before)
        for variable in inner_variables(loop):
            self.define(variable)
        for block in blocks(loop):
            self.block(block)
        body = loop.body
        if len(body.yields) != len(carried):
            self.fail(f"a loop carries {len(carried)} values and yields {len(body.yields)}")
        for value, each in zip(body.yields, carried, strict=True):
            self.match(value, each.argument, "a yield")
        self.outside.pop()
        self.scope = before
        for each, value in zip(carried, body.yields, strict=True):
            self.after_loop(each, value)

    def after_loop(self, carried: Carried, value: Value) -> None:
        origin = None
        if isinstance(value, TensorVar) and isinstance(carried.initial, TensorVar):
            argument, initial = carried.argument.name, carried.initial.name
            if argument in self.consumed:
                self.consume(initial, carried.result.name)
            if self.origin[value.name] == argument:
                origin = self.origin[initial]
        self.define(carried.result, origin)

    def branch(self, branch: If) -> None:
        self.use(branch.condition)
        if _dtype(branch.condition) != BOOL:
            self.fail("the condition of a branch is no BOOL")
        before, alive = set(self.scope), dict(self.consumed)
        dead = dict(alive)
        for block in blocks(branch):
            self.consumed = dict(alive)
            self.block(block)
            dead |= self.consumed
            self.scope = set(before)
            if len(block.yields) != len(branch.results):
                self.fail("a branch does not yield the results")
            for value, result in zip(block.yields, branch.results, strict=True):
                self.match(value, result, "a yield")
        self.consumed = dead
        pairs = zip(branch.then.yields, branch.orelse.yields, strict=True)
        for result, (one, other) in zip(branch.results, pairs, strict=True):
            self.define(result, self.common_origin((one, other)))

    def common_origin(self, values: Iterable[Value]) -> str | None:
        origins = {self.origin[each.name] for each in values if isinstance(each, TensorVar)}
        return origins.pop() if len(origins) == 1 else None

    def match(self, value: Value, variable: Var, what: str) -> None:
        mine = value.type if isinstance(value, TensorVar) else value.dtype
        its = variable.type if isinstance(variable, TensorVar) else variable.dtype
        if mine != its:
            self.fail(f"{what}: `{variable.name}` is {its}, and its value {mine}")


def _dtype(value: Value) -> object:
    return value.dtype if isinstance(value, Scalar) else None
