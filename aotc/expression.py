"""Integer expressions over names, as model configs use them.

The grammar is Python's, restricted to integers, names, `+ - * // %`, unary minus, parentheses and
calls of the functions in `FUNCTIONS`. Text is parsed, never run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_LENGTH = 1000
MAX_DEPTH = 50
MAX_MAGNITUDE = 2**63 - 1  # extents are int64 in the call contract


class ExpressionError(ValueError):
    """The text is not an expression of the grammar, or has no value under the names given."""


class UnknownNameError(ExpressionError):
    """The expression uses a name that has no value."""

    def __init__(self, name: str):
        super().__init__(f"unknown name `{name}`")
        self.name = name


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise ExpressionError("division by zero")
    return left // right


def _modulo(left: int, right: int) -> int:
    if right == 0:
        raise ExpressionError("division by zero")
    return left % right


def ceiling_divide(value: int, divisor: int) -> int:
    """Return `value / divisor` rounded up; raise ExpressionError where `divisor` is 0."""
    return -_divide(-value, divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple of `multiple` not below `value`; `multiple` must be positive."""
    if multiple < 0:
        raise ExpressionError("round_up takes a positive multiple")
    return ceiling_divide(value, multiple) * multiple


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: _divide,
    ast.Mod: _modulo,
}

FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "min": min,
    "max": max,
    "round_up": round_up,
    "cdiv": ceiling_divide,
}


@dataclass(frozen=True)
class Expression:
    """A parsed expression: its source text and the names that it uses, in order of appearance."""

    text: str
    names: tuple[str, ...]
    _root: ast.expr = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the value under `values`.

        Raises UnknownNameError for a name without a value, and ExpressionError for a division by
        zero or a result outside int64.
        """
        return _evaluate(self._root, values)

    def substitute(self, values: Mapping[str, int]) -> Expression:
        """Return the expression with the names in `values` replaced, and constants folded.

        It has the value of this one under every binding of the names left. Raises
        ExpressionError where a constant part has no value.
        """
        return parse(ast.unparse(_substitute(self._root, values)))


def parse(text: str) -> Expression:
    """Parse `text`; raise ExpressionError where it is not an expression of the grammar."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression longer than {MAX_LENGTH} characters")
    try:
        root = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"not an expression: `{text}`") from None
    names: dict[str, None] = {}
    _check(root, names, 0)
    return Expression(text, tuple(names), root)


def _check(node: ast.expr, names: dict[str, None], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"expression nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return
        case ast.Name(id=name) if name in FUNCTIONS:
            raise ExpressionError(f"`{name}` is a function: call it with two arguments")
        case ast.Name(id=name):
            names[name] = None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check(operand, names, depth + 1)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            _check(left, names, depth + 1)
            _check(right, names, depth + 1)
        case ast.Call(func=ast.Name(id=function), args=[left, right], keywords=[]) if (
            function in FUNCTIONS
        ):
            _check(left, names, depth + 1)
            _check(right, names, depth + 1)
        case ast.Call(func=ast.Name(id=function)) if function in FUNCTIONS:
            raise ExpressionError(f"`{function}` takes two arguments")
        case _:
            allowed = ", ".join(FUNCTIONS)
            raise ExpressionError(
                f"`{ast.unparse(node)}` is not allowed here; "
                f"use integers, names, + - * // % and {allowed}"
            )


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            result = value
        case ast.Name(id=name):
            if name not in values:
                raise UnknownNameError(name)
            result = values[name]
        case ast.UnaryOp(operand=operand):
            result = -_evaluate(operand, values)
        case ast.BinOp(left=left, op=operator, right=right):
            result = _OPERATORS[type(operator)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(func=ast.Name(id=function), args=[left, right]):
            result = FUNCTIONS[function](_evaluate(left, values), _evaluate(right, values))
        case _:
            raise AssertionError(f"unchecked node {node!r}")
    if abs(result) > MAX_MAGNITUDE:
        raise ExpressionError("value outside the range of int64")
    return result


def _substitute(node: ast.expr, values: Mapping[str, int]) -> ast.expr:
    match node:
        case ast.Name(id=name):
            return ast.Constant(values[name]) if name in values else node
        case ast.UnaryOp(op=op, operand=operand):
            parts = [_substitute(operand, values)]
            result: ast.expr = ast.UnaryOp(op, *parts)
        case ast.BinOp(left=left, op=op, right=right):
            parts = [_substitute(left, values), _substitute(right, values)]
            result = ast.BinOp(parts[0], op, parts[1])
        case ast.Call(func=function, args=arguments):
            parts = [_substitute(each, values) for each in arguments]
            result = ast.Call(function, parts, [])
        case _:
            return node
    folds = all(isinstance(part, ast.Constant) for part in parts)
    return ast.Constant(_evaluate(result, {})) if folds else result
