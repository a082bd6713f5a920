"""Random well-formed programs: a matrix, a row vector, scalars, loops, branches, updates."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from aotc.contract import Direction
from aotc.dtypes import BF16, BOOL, FP32, INDEX
from aotc.ir.nodes import (
    Block,
    Carried,
    For,
    If,
    LoopKind,
    Operation,
    Program,
    ProgramParameter,
    Statement,
    TensorType,
    TensorVar,
    Value,
    Var,
    While,
)
from aotc.ir.scalar import Constant, Scalar, ScalarVar, Symbol, add, binary, convert, index
from aotc.ops.registry import table

N = Symbol("N")
COLUMNS = 4


@dataclass
class Builder:
    """Makes statements; the names that it gives are unique."""

    rng: random.Random
    count: int = 0
    tensors: list[TensorVar] = field(default_factory=list)
    scalars: list[Scalar] = field(default_factory=list)

    def name(self, base: str) -> str:
        self.count += 1
        return f"{base}_{self.count}"

    def operation(self, statements: list[Statement], op: str, **given: object) -> Var:
        row = table()[op]
        arguments = {p.name: p.default for p in row.parameters} | given
        kind = row.infer(arguments)
        name = self.name("t")
        result = TensorVar(name, kind) if isinstance(kind, TensorType) else ScalarVar(name, kind)
        statements.append(Operation(result, op, *row.pack(arguments)))
        return result

    def statements(self, state: TensorVar, depth: int) -> tuple[list[Statement], TensorVar]:
        """Return statements that update `state`, and its last value."""
        found: list[Statement] = []
        tensors, scalars = list(self.tensors), list(self.scalars)
        for _ in range(self.rng.randint(1, 4)):
            step = self.rng.choice((self.compute, self.update, self.nest))
            if step == self.nest and depth == 0:
                step = self.update
            state = step(found, state, depth)
        self.tensors, self.scalars = tensors, scalars
        return found, state

    def compute(self, found: list[Statement], state: TensorVar, depth: int) -> TensorVar:
        value = self.rng.choice([*self.tensors, state])
        match self.rng.randrange(5):
            case 0:
                result = self.operation(found, "exp", input=value)
            case 1:
                result = self.operation(found, "add", lhs=value, rhs=Constant(0.1, FP32))
            case 2:
                total = self.operation(found, "row_sum", input=value)
                result = self.operation(found, "row_expand_mul", lhs=value, rhs=total)
            case 3:
                narrow = self.operation(found, "cast", input=value, target_type=BF16)
                result = self.operation(found, "cast", input=narrow, target_type=FP32)
            case _:
                result = self.operation(found, "mul", lhs=value, rhs=value)
        assert isinstance(result, TensorVar)
        self.tensors.append(result)
        return state

    def update(self, found: list[Statement], state: TensorVar, depth: int) -> TensorVar:
        row = binary("mod", self.rng.choice(self.scalars), N)
        shape, offset = (index(1), index(COLUMNS)), (row, index(0))
        if self.rng.random() < 0.3:
            number = self.operation(found, "read", src=state, offset=offset)
            self.scalars.append(convert(binary("lt", number, Constant(1.0, FP32)), INDEX))
            result = self.operation(found, "write", dst=state, offset=offset, value=number)
        else:
            part = self.operation(found, "slice", input=state, shape=shape, offset=offset)
            part = self.operation(found, "add", lhs=part, rhs=convert(row, FP32))
            result = self.operation(found, "assemble", target=state, source=part, offset=offset)
        assert isinstance(result, TensorVar)
        return result

    def nest(self, found: list[Statement], state: TensorVar, depth: int) -> TensorVar:
        kind = self.rng.randrange(3)
        result = TensorVar(self.name("after"), state.type)
        if kind == 0:
            condition = binary("lt", self.rng.choice(self.scalars), index(3))
            then, taken = self.statements(state, depth - 1)
            orelse, other = self.statements(state, depth - 1)
            blocks = Block(tuple(then), (taken,)), Block(tuple(orelse), (other,))
            found.append(If(condition, *blocks, (result,)))
            return result
        argument = TensorVar(self.name("state"), state.type)
        counter, last = ScalarVar(self.name("n"), INDEX), ScalarVar(self.name("n"), INDEX)
        start: Value = index(0)
        carried = (Carried(state, argument, result), Carried(start, counter, last))
        position = ScalarVar(self.name("i"), INDEX)
        self.scalars += [counter, position] if kind == 1 else [counter]
        body, final = self.statements(argument, depth - 1)
        block = Block(tuple(body), (final, add(counter, index(1))))
        if kind == 1:
            span = index(0), self.rng.choice((N, index(2))), index(1)
            what = self.rng.choice((LoopKind.RANGE, LoopKind.PIPELINE))
            found.append(For(position, *span, what, carried, block))
            self.scalars.remove(position)
        else:
            head = Block((), (binary("lt", counter, index(2)),))
            found.append(While(carried, head, block))
        self.scalars.remove(counter)
        self.scalars.append(last)
        return result


def program(seed: int) -> Program:
    """Return a program with parameters x (In), state (InOut), k (scalar), and flag (scalar)."""
    builder = Builder(random.Random(seed))
    kind = TensorType(FP32, (N, index(COLUMNS)))
    x, state = TensorVar("x", kind), TensorVar("state", kind)
    k, flag = ScalarVar("k", INDEX), ScalarVar("flag", BOOL)
    builder.tensors.append(x)
    builder.scalars += [k, convert(flag, INDEX), index(1)]
    body, final = builder.statements(state, 3)
    parameters = (
        ProgramParameter(x),
        ProgramParameter(state, Direction.INOUT),
        ProgramParameter(k),
        ProgramParameter(flag),
    )
    return Program(f"random_{seed}", parameters, Block(tuple(body), (final,)))


def arguments(seed: int) -> dict[str, object]:
    """Return arguments for `program(seed)`."""
    generator = np.random.default_rng(seed)
    shape = (int(generator.integers(1, 5)), COLUMNS)
    return {
        "x": generator.normal(0, 1, shape).astype(np.float32),
        "state": generator.normal(0, 1, shape).astype(np.float32),
        "k": int(generator.integers(0, 9)),
        "flag": bool(generator.integers(0, 2)),
    }
