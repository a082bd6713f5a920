"""The meaning of a program, by numpy: one operation after the other, without any optimization.

It is the oracle of every test of the compiler, so it is simple, and shares no code with it below
the operator registry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from aotc.contract import Direction
from aotc.dtypes import BF16, BOOL, FP16, DType
from aotc.errors import AotcError
from aotc.ir.nodes import (
    Block,
    Carried,
    For,
    If,
    Location,
    LoopKind,
    Operation,
    Program,
    Statement,
    TensorType,
    TensorVar,
    Value,
    Var,
    While,
)
from aotc.ir.scalar import Binary, Constant, Convert, Scalar, ScalarVar, Symbol, Unary
from aotc.ops import memory
from aotc.ops.registry import OpDef, Update, table
from aotc.ops.values import Array, computed, rounded, saturated, storage

Number = int | float | bool
Argument = Array | Number


class ReferenceRunError(AotcError):
    """The program does what its text does not allow: for one, it reads outside of a tensor."""


def run(
    program: Program,
    arguments: Mapping[str, Argument],
    symbols: Mapping[str, int] | None = None,
    *,
    reverse_parallel: bool = False,
) -> list[Argument]:
    """Run `program` and return what it returns; Out and InOut arrays are updated in place.

    Arrays have the dtype of `storage`: bf16 is a float32 array of bf16 values. `symbols` adds to
    the symbols that the shapes of the arguments give. With `reverse_parallel` the iterations of
    PARALLEL loops run backwards, which must change nothing.

    Raises ReferenceRunError, with the place of the statement, for an argument that does not fit, an
    unbound symbol, and a read or write outside of a tensor or of its valid region.
    """
    machine = _Machine(dict(symbols or {}), reverse_parallel)
    for parameter in program.parameters:
        if parameter.name not in arguments:
            raise ReferenceRunError(f"no argument `{parameter.name}`")
        machine.bind_parameter(parameter.variable, arguments[parameter.name])
    written = [p.name for p in program.parameters if p.direction is not Direction.IN]
    frozen = {
        name: value.copy()
        for name, value in arguments.items()
        if isinstance(value, np.ndarray) and name not in written
    }
    with np.errstate(all="ignore"):
        machine.block(program.body)
        results = [machine.value(each) for each in program.body.yields]
    for name, before in frozen.items():
        if not np.array_equal(before, np.asarray(arguments[name]), equal_nan=_is_float(before)):
            raise ReferenceRunError(f"`{name}` was written, and it is an In parameter")
    return results


def _is_float(array: Array) -> bool:
    return bool(array.dtype.kind == "f")


class _Machine:
    def __init__(self, symbols: dict[str, int], reverse_parallel: bool):
        self.symbols = symbols
        self.reverse_parallel = reverse_parallel
        self.values: dict[str, Argument] = {}
        self.location = Location()

    def bind_parameter(self, variable: Var, value: Argument) -> None:
        if isinstance(variable, ScalarVar):
            if isinstance(value, np.ndarray):
                self.fail(f"`{variable.name}` is a scalar, got an array")
            self.values[variable.name] = _as_type(value, variable.dtype)
            return
        if not isinstance(value, np.ndarray) or value.dtype != storage(variable.dtype):
            got = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
            self.fail(f"`{variable.name}`: expected {storage(variable.dtype)}, got {got}")
        if value.ndim != variable.type.rank:
            self.fail(f"`{variable.name}`: expected {variable.type.rank} dimensions")
        for dim, extent in zip(variable.shape, value.shape, strict=True):
            if isinstance(dim, Symbol):
                self.symbols.setdefault(dim.name, extent)
            if self.scalar(dim) != extent:
                self.fail(f"`{variable.name}`: expected extent {self.scalar(dim)}, got {extent}")
        self.values[variable.name] = value

    def fail(self, message: str) -> NoReturn:
        raise ReferenceRunError(message, place=self.location.place)

    # Statements.

    def block(self, block: Block) -> list[Argument]:
        for statement in block.statements:
            self.statement(statement)
        return [self.value(each) for each in block.yields]

    def statement(self, statement: Statement) -> None:
        self.location = statement.location
        match statement:
            case Operation():
                self.operation(statement)
            case For():
                self.for_loop(statement)
            case While():
                self.while_loop(statement)
            case If(condition=condition, then=then, orelse=orelse, results=results):
                taken = self.block(then if self.scalar(condition) else orelse)
                self.define(results, taken)

    def define(self, variables: Sequence[Var], values: Sequence[Argument]) -> None:
        for variable, value in zip(variables, values, strict=True):
            self.values[variable.name] = value

    def for_loop(self, loop: For) -> None:
        start, stop, step = (int(self.scalar(each)) for each in (loop.start, loop.stop, loop.step))
        if step == 0:
            self.fail("the step of a loop is 0")
        iterations: Sequence[int] = range(start, stop, step)
        if self.reverse_parallel and loop.kind is LoopKind.PARALLEL:
            iterations = iterations[::-1]
        self.start(loop.carried)
        for each in iterations:
            self.values[loop.index.name] = each
            self.define([c.argument for c in loop.carried], self.block(loop.body))
        self.finish(loop.carried)

    def while_loop(self, loop: While) -> None:
        self.start(loop.carried)
        while self.block(loop.head)[0]:
            self.define([c.argument for c in loop.carried], self.block(loop.body))
        self.finish(loop.carried)

    def start(self, carried: Sequence[Carried]) -> None:
        self.define([c.argument for c in carried], [self.value(c.initial) for c in carried])

    def finish(self, carried: Sequence[Carried]) -> None:
        self.define([c.result for c in carried], [self.values[c.argument.name] for c in carried])

    def operation(self, operation: Operation) -> None:
        row = table()[operation.op]
        given = row.arguments(operation)
        arguments = {name: self.operand(value) for name, value in given.items()}
        result = operation.result
        try:
            if isinstance(row.lowering, Update):
                value: Argument = _update(row.lowering, arguments)
            elif isinstance(result, TensorVar):
                value = self.tensor(row, arguments, result.type)
            else:
                assert result is not None
                value = _as_type(self.apply(row, arguments), result.dtype)
        except (IndexError, ValueError) as error:
            raise ReferenceRunError(
                f"`{operation.op}`: {error}", place=operation.location.place
            ) from None
        if result is not None:
            self.values[result.name] = value

    def tensor(self, row: OpDef, arguments: dict[str, Any], kind: TensorType) -> Array:
        shape = tuple(int(self.scalar(each)) for each in kind.shape)
        valid = tuple(int(self.scalar(each)) for each in kind.valid_shape)
        if any(not 0 <= region <= extent for region, extent in zip(valid, shape, strict=True)):
            raise IndexError(f"the valid shape {list(valid)} is not within {list(shape)}")
        array = self.apply(row, {**arguments, "result_shape": shape})
        if len(array.shape) != len(valid) or any(
            have < want for have, want in zip(array.shape, valid, strict=True)
        ):
            raise IndexError(
                f"{list(valid)} elements are wanted, and only {list(array.shape)} are there: "
                "this reads outside of the tensor, or of its valid region"
            )
        return rounded(array[tuple(slice(extent) for extent in valid)], kind.dtype)

    def apply(self, row: OpDef, arguments: Mapping[str, Any]) -> Any:
        ready = {
            name: computed(value) if isinstance(value, np.ndarray) else value
            for name, value in arguments.items()
        }
        return row.reference(ready)

    # Values.

    def operand(self, value: object) -> Any:
        if isinstance(value, tuple) and all(isinstance(each, Scalar) for each in value):
            return tuple(int(self.scalar(each)) for each in value)
        if isinstance(value, TensorVar | Scalar):
            return self.value(value)
        return value

    def value(self, value: Value) -> Argument:
        if isinstance(value, TensorVar):
            return self.values[value.name]
        return self.scalar(value)

    def scalar(self, scalar: Scalar) -> Number:
        match scalar:
            case Constant(value=value, dtype=dtype):
                return _as_type(value, dtype)
            case Symbol(name=name):
                if name not in self.symbols:
                    self.fail(f"the symbol `{name}` is not bound")
                return self.symbols[name]
            case ScalarVar(name=name):
                held = self.values[name]
                assert not isinstance(held, np.ndarray)
                return held
            case Convert(operand=operand, dtype=dtype):
                return _as_type(self.scalar(operand), dtype)
            case Unary(op=op, operand=operand, dtype=dtype):
                return _as_type(_UNARY[op](self.scalar(operand)), dtype)
            case Binary(op=op, left=left, right=right, dtype=dtype):
                return self.binary(op, left, right, dtype)

    def binary(self, op: str, left: Scalar, right: Scalar, dtype: DType) -> Number:
        one = self.scalar(left)
        if op in ("and", "or"):
            return bool(self.scalar(right)) if bool(one) == (op == "and") else bool(one)
        other = self.scalar(right)
        if op in ("floordiv", "mod") and other == 0 and not dtype.is_float:
            self.fail("division by zero")
        return _as_type(_BINARY[op](one, other), dtype)


def _update(lowering: Update, arguments: Mapping[str, Any]) -> Array:
    target: Array = arguments[lowering.target]
    source = arguments[lowering.source]
    if not isinstance(source, np.ndarray):
        source = np.asarray(source).astype(target.dtype).reshape((1,) * target.ndim)
    return memory.put(target, source, arguments[lowering.offsets])


def _as_type(value: Number, dtype: DType) -> Number:
    """Return `value` as a scalar of `dtype`: rounded, or wrapped; a float to integer truncates."""
    if dtype == BOOL:
        return bool(value)
    if dtype in (BF16, FP16):
        return float(rounded(np.asarray([value], np.float32), dtype)[0])
    if dtype.is_float:
        return float(np.float32(value))
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return int(saturated(np.asarray([value], np.float32), dtype)[0])
        value = math.trunc(value)
    bits = 8 * dtype.size
    wrapped = int(value) & ((1 << bits) - 1)
    negative = storage(dtype).kind == "i" and wrapped >> (bits - 1)
    return wrapped - (1 << bits) if negative else wrapped


def _divide(one: Any, other: Any) -> float:
    return float(np.float32(one) / np.float32(other))


_UNARY: dict[str, Callable[[Any], Number]] = {
    "neg": lambda x: -x,
    "not": lambda x: not x,
    "abs": abs,
    "exp": lambda x: float(np.exp(np.float64(x))),
    "log": lambda x: float(np.log(np.float64(x))),
    "sqrt": lambda x: float(np.sqrt(np.float32(x))),
    "rsqrt": lambda x: _divide(1, np.sqrt(np.float32(x))),
    "recip": lambda x: _divide(1, x),
}
_BINARY: dict[str, Callable[[Any, Any], Number]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "truediv": _divide,
    "min": min,
    "max": max,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "bit_and": lambda x, y: x & y,
    "bit_or": lambda x, y: x | y,
    "bit_xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << y,
    "shr": lambda x, y: x >> y,
}
