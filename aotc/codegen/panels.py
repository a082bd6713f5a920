"""Weights that are worth packing into panels, by how a program uses them.

A parameter is packed as a whole, so every use of it must be a contraction that can read it so:
`library/panels.h` has the layouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any

from aotc.codegen.storage import row_major
from aotc.contract import PANEL_DOTS, PANEL_WIDTH, Direction
from aotc.dtypes import BF16
from aotc.ir.nodes import For, If, Operation, Program, Statement, TensorVar, While
from aotc.ir.scalar import Binary, Scalar, add, constant_value, index
from aotc.ir.visit import blocks, statements
from aotc.ops.registry import Matmul, View, table

_MOST_DEPTH, _LEAST_DEPTH = 256, 32  # rows of a block of B[k][n]: 8 KB of a panel, and less
_MOST_K = 32768  # from there on B[n][k] is multiplied in another order, see matmul.h


def panels(program: Program) -> dict[str, int]:
    """Return the parameters of `program` that are worth packing, and how.

    The number is that of `Parameter.panels` in the contract: the rows of a block for B[k][n], 0 for
    B[n][k].
    """
    uses = _Uses(program)
    return {name: depth for name, depth in uses.depths.items() if name not in uses.refused}


@dataclass(frozen=True)
class _Window:
    """Where a value lies in a parameter, in elements."""

    parameter: str
    offset: Scalar
    strides: tuple[Scalar, ...]


class _Uses:
    """Follows views of parameters; what reads one is a contraction, or refuses it."""

    def __init__(self, program: Program):
        self.depths: dict[str, int] = {}
        self.refused: set[str] = set()
        self._windows: dict[str, _Window] = {}
        for each in program.parameters:
            variable = each.variable
            if (
                isinstance(variable, TensorVar)
                and variable.dtype == BF16
                and variable.type.rank == 2
                and each.direction is Direction.IN
            ):
                strides = row_major(variable.shape)
                self._windows[variable.name] = _Window(each.name, index(0), strides)
        self._refuse(program.body.yields)
        for statement in statements(program.body):
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Operation):
            self._operation(statement)
            return
        if isinstance(statement, For | While):
            self._refuse(tuple(each.initial for each in statement.carried))
        if isinstance(statement, For | While | If):
            for block in blocks(statement):
                self._refuse(block.yields)

    def _operation(self, operation: Operation) -> None:
        row = table()[operation.op]
        arguments = row.arguments(operation)
        match row.lowering:
            case View(place=place, operand=operand) if arguments[operand].name in self._windows:
                source = self._windows[arguments[operand].name]
                placed = place(arguments, source.strides)
                if placed is None:
                    self.refused.add(source.parameter)
                elif isinstance(operation.result, TensorVar):
                    offset = add(source.offset, placed[0])
                    self._windows[operation.result.name] = _Window(
                        source.parameter, offset, placed[1]
                    )
            case Matmul() as matmul:
                right = arguments[matmul.right]
                self._refuse(value for name, value in arguments.items() if name != matmul.right)
                if right.name in self._windows:
                    self._contraction(matmul, arguments, self._windows[right.name])
            case _:
                self._refuse(operation.operands)

    def _contraction(self, matmul: Matmul, arguments: dict[str, Any], right: _Window) -> None:
        turned = bool(matmul.transpose_right and arguments[matmul.transpose_right])
        depth = _depth(arguments[matmul.right], right, turned)
        known = self.depths.setdefault(right.parameter, depth or 0)
        if depth is None or (known == 0) != (depth == 0):
            self.refused.add(right.parameter)
        elif depth:
            self.depths[right.parameter] = gcd(known, depth)

    def _refuse(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, TensorVar) and value.name in self._windows:
                self.refused.add(self._windows[value.name].parameter)


def _depth(right: TensorVar, window: _Window, turned: bool) -> int | None:
    """Return the depth of the panels that a contraction can read `right` from, or None."""
    shape = [constant_value(each) for each in right.shape]
    strides = [constant_value(each) for each in window.strides]
    if right.type.valid_shape != right.shape or not all(isinstance(each, int) for each in shape):
        return None
    if turned:
        shape.reverse()
        strides.reverse()
    k, n = (int(each or 0) for each in shape)
    if n % PANEL_WIDTH or k == 0:
        return None
    # The first row of the window, as far as it is known.
    if strides == [n, 1]:
        row, rest = divmod(_divisor(window.offset), n)
        depth = gcd(_MOST_DEPTH, k, row)
        return depth if rest == 0 and depth >= _LEAST_DEPTH else None
    if strides == [1, k] and k % PANEL_DOTS == 0 and k <= _MOST_K:
        return 0 if _divisor(window.offset) % (PANEL_WIDTH * k) == 0 else None
    return None


def _divisor(scalar: Scalar) -> int:
    """Return a number that divides `scalar` whatever its variables are: 0 where it is 0."""
    value = constant_value(scalar)
    if value is not None:
        return abs(int(value))
    if isinstance(scalar, Binary) and scalar.op == "mul":
        return _divisor(scalar.left) * _divisor(scalar.right)
    if isinstance(scalar, Binary) and scalar.op in ("add", "sub"):
        return gcd(_divisor(scalar.left), _divisor(scalar.right))
    return 1
