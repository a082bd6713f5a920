"""The one textual form of the IR: `parse_program(print_program(p)) == p`.

Text is Python syntax, parsed by `ast`. It carries no locations, so it does not change with
comments and line breaks of the source:

    program("scale")
    x: In[fp32[dim.N, 64]]
    out: Out[fp32[dim.N, 64]]
    for i in parallel(0, dim.N, 16):
        out_1: fp32[dim.N, 64] = carry(out, out_3)
        t: fp32[16, 64] = slice(x, [16, 64], [i, 0], [], clamp=False)
        out_2: fp32[dim.N, 64] = assemble(out_1, t, [i, 0])
        yields(out_2)
    yields(out_3)

`dim.N` is a symbol; `carry(initial, result)` defines a loop argument and names its value after the
loop; names declared without a value before an `if` are its results.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Sequence
from typing import NoReturn

from aotc.contract import Direction
from aotc.dtypes import BOOL, DTYPES, INDEX, DType
from aotc.ir.nodes import (
    Attribute,
    Block,
    Carried,
    For,
    If,
    LoopKind,
    Operand,
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
from aotc.ir.scalar import (
    COMPARISONS,
    LOGICAL,
    Binary,
    Constant,
    Convert,
    Scalar,
    ScalarVar,
    Symbol,
    Unary,
)

_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and": "and", "or": "or", "bit_and": "&", "bit_or": "|", "bit_xor": "^"},
    **{"shl": "<<", "shr": ">>"},
}
_PARSED: dict[type[ast.AST], str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod"},
    **{ast.Div: "truediv", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le"},
    **{ast.Gt: "gt", ast.GtE: "ge", ast.And: "and", ast.Or: "or", ast.BitAnd: "bit_and"},
    **{ast.BitOr: "bit_or", ast.BitXor: "bit_xor", ast.LShift: "shl", ast.RShift: "shr"},
}
_DIRECTIONS = {"In": Direction.IN, "Out": Direction.OUT, "InOut": Direction.INOUT}
_INDENT = "    "


class IrTextError(Exception):
    """The text is not a program of the IR; the message says where."""


def print_program(program: Program) -> str:
    """Return the text of `program`: deterministic, and equal for equal programs."""
    lines = [f"program({program.name!r})"]
    names = {direction: name for name, direction in _DIRECTIONS.items()}
    for each in program.parameters:
        kind = names[each.direction]
        lines.append(f"{_name(each.name)}: {kind}[{_type_of(each.variable)}]")
    lines += _block(program.body)
    return "\n".join(lines) + "\n"


def print_scalar(scalar: Scalar) -> str:
    """Return the text of a scalar expression."""
    match scalar:
        case Constant(value=value, dtype=dtype):
            if dtype == INDEX or dtype == BOOL:
                return repr(value)
            return f"{dtype}({_literal(value)})"
        case Symbol(name=name):
            return f"dim.{name}"
        case ScalarVar(name=name):
            return _name(name)
        case Unary(op="not", operand=operand):
            return f"not {_nested(operand)}"
        case Unary(op=op, operand=operand):
            return f"{op}({print_scalar(operand)})"
        case Binary(op=op, left=left, right=right) if op in _INFIX:
            return f"{_nested(left)} {_INFIX[op]} {_nested(right)}"
        case Binary(op=op, left=left, right=right):
            return f"{op}({print_scalar(left)}, {print_scalar(right)})"
        case Convert(operand=operand, dtype=dtype):
            return f"convert({print_scalar(operand)}, {dtype})"


def print_type(type_: TensorType | DType) -> str:
    """Return the text of the type of a value."""
    if isinstance(type_, DType):
        return type_.name
    text = f"{type_.dtype}{_extents(type_.shape)}"
    if type_.valid is not None:
        text += f".valid{_extents(type_.valid)}"
    return text if type_.space == "ddr" else f"{text} @ {type_.space}"


def readable(scalar: Scalar) -> str:
    """Return the text of a scalar for a message to a user."""
    return print_scalar(scalar).replace("dim.", "")


def _extents(extents: Sequence[Scalar]) -> str:
    return f"[{', '.join(print_scalar(each) for each in extents) or '()'}]"


def _nested(scalar: Scalar) -> str:
    text = print_scalar(scalar)
    infix = (isinstance(scalar, Binary) and scalar.op in _INFIX) or text.startswith("not ")
    return f"({text})" if infix else text


def _name(name: str) -> str:
    if name.isidentifier() and not keyword.iskeyword(name) and name not in ("var", "dim"):
        return name
    return f"var[{name!r}]"


def _literal(value: Attribute) -> str:
    match value:
        case DType():
            return value.name
        case tuple():
            return "(" + "".join(f"{_literal(each)}, " for each in value) + ")"
        case float() if value != value or value in (float("inf"), float("-inf")):
            return f"float({str(value)!r})"
    return repr(value)


def _operand(operand: Operand | Value) -> str:
    match operand:
        case TensorVar(name=name):
            return _name(name)
        case tuple():
            return f"[{', '.join(print_scalar(each) for each in operand)}]"
    return print_scalar(operand)


def _type_of(variable: Var) -> str:
    return print_type(variable.type if isinstance(variable, TensorVar) else variable.dtype)


def _define(variable: Var) -> str:
    return f"{_name(variable.name)}: {_type_of(variable)}"


def _indented(lines: Sequence[str]) -> list[str]:
    return [_INDENT + line for line in lines] or [f"{_INDENT}pass"]


def _block(block: Block) -> list[str]:
    lines = [line for each in block.statements for line in _statement(each)]
    if block.yields:
        lines.append(f"yields({', '.join(_operand(each) for each in block.yields)})")
    return lines


def _carried(carried: Sequence[Carried]) -> list[str]:
    return [
        f"{_define(each.argument)} = carry({_operand(each.initial)}, {_name(each.result.name)})"
        for each in carried
    ]


def _statement(statement: Statement) -> list[str]:
    match statement:
        case Operation(result=result, op=op, operands=operands, attributes=attributes):
            texts = [_operand(each) for each in operands]
            texts += [f"{name}={_literal(value)}" for name, value in attributes]
            call = f"{op}({', '.join(texts)})"
            return [call if result is None else f"{_define(result)} = {call}"]
        case For(index=index, start=start, stop=stop, step=step, kind=kind):
            span = ", ".join(print_scalar(each) for each in (start, stop, step))
            lines = [f"for {_name(index.name)} in {kind.value}({span}):"]
            return lines + _indented(_carried(statement.carried) + _block(statement.body))
        case While(carried=carried, head=head, body=body):
            inner = [line for each in head.statements for line in _statement(each)]
            inner = [*_carried(carried), *inner, f"condition({_operand(head.yields[0])})"]
            return ["while loop:", *_indented(inner + _block(body))]
        case If(condition=condition, then=then, orelse=orelse, results=results):
            lines = [_define(each) for each in results]
            lines += [f"if {print_scalar(condition)}:", *_indented(_block(then))]
            other = _block(orelse)
            return lines + (["else:", *_indented(other)] if other else [])


def parse_program(text: str) -> Program:
    """Return the program that `print_program` wrote; raise IrTextError where `text` is not one."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise IrTextError(f"not in the syntax of the IR: {error}") from None
    return _Parser().program(statements)


class _Parser:
    """Names of every scope live in one table: they are unique in a program."""

    def __init__(self) -> None:
        self.names: dict[str, Var] = {}

    def program(self, statements: list[ast.stmt]) -> Program:
        if not statements:
            raise IrTextError("empty text")
        match statements[0]:
            case ast.Expr(ast.Call(ast.Name("program"), [ast.Constant(str() as name)])):
                pass
            case _:
                _refuse(statements[0], "expected program(name)")
        parameters = []
        position = 1
        for each in statements[1:]:
            match each:
                case ast.AnnAssign(
                    target=target, annotation=ast.Subscript(ast.Name(direction), type_), value=None
                ) if direction in _DIRECTIONS:
                    variable = self.define(target, type_)
                    parameters.append(ProgramParameter(variable, _DIRECTIONS[direction]))
                    position += 1
                case _:
                    break
        return Program(name, tuple(parameters), self.block(statements[position:]))

    def define(self, target: ast.expr, type_: ast.expr) -> Var:
        name, parsed = self.name(target), self.type(type_)
        if isinstance(parsed, DType):
            return self.bind(ScalarVar(name, parsed))
        return self.bind(TensorVar(name, parsed))

    def bind(self, variable: Var) -> Var:
        if variable.name in self.names:
            raise IrTextError(f"`{variable.name}` is defined twice")
        self.names[variable.name] = variable
        return variable

    def name(self, node: ast.expr) -> str:
        match node:
            case ast.Name(name):
                return name
            case ast.Subscript(ast.Name("var"), ast.Constant(str() as name)):
                return name
        _refuse(node, "expected a name")

    def type(self, node: ast.expr) -> TensorType | DType:
        match node:
            case ast.Name(name) if name in DTYPES:
                return DTYPES[name]
            case ast.BinOp(left, ast.MatMult(), ast.Name(space)):
                inner = self.type(left)
                if isinstance(inner, TensorType):
                    return TensorType(inner.dtype, inner.shape, inner.valid, space)
            case ast.Subscript(ast.Attribute(value, "valid"), valid):
                inner = self.type(value)
                if isinstance(inner, TensorType):
                    return TensorType(inner.dtype, inner.shape, self.extents(valid))
            case ast.Subscript(ast.Name(name), shape) if name in DTYPES:
                return TensorType(DTYPES[name], self.extents(shape))
        _refuse(node, "expected a type")

    def extents(self, node: ast.expr) -> tuple[Scalar, ...]:
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        return tuple(self.scalar(each) for each in items)

    def block(self, statements: list[ast.stmt]) -> Block:
        parsed: list[Statement] = []
        results: list[Var] = []
        yields: tuple[Value, ...] = ()
        for each in statements:
            match each:
                case ast.Pass():
                    pass
                case ast.AnnAssign(target=target, annotation=annotation, value=None):
                    results.append(self.define(target, annotation))
                case ast.If(test, then, orelse):
                    condition = self.scalar(test)
                    branches = self.block(then), self.block(orelse)
                    parsed.append(If(condition, *branches, tuple(results)))
                    results = []
                case ast.Expr(ast.Call(ast.Name("yields"), values)):
                    yields = tuple(self.value(value) for value in values)
                case _:
                    parsed.append(self.statement(each))
        return Block(tuple(parsed), yields)

    def statement(self, node: ast.stmt) -> Statement:
        match node:
            case ast.AnnAssign(target, annotation, ast.Call(ast.Name(op)) as call):
                operands, attributes = self.arguments(call)
                return Operation(self.define(target, annotation), op, operands, attributes)
            case ast.Expr(ast.Call(ast.Name(op)) as call):
                return Operation(None, op, *self.arguments(call))
            case ast.For(target, ast.Call(ast.Name(kind), [start, stop, step]), body):
                span = self.scalar(start), self.scalar(stop), self.scalar(step)
                variable = ScalarVar(self.name(target), INDEX)
                self.bind(variable)
                carried, rest = self.carried(body)
                parsed = self.block(rest)
                self.after(carried)
                return For(variable, *span, LoopKind(kind), carried, parsed)
            case ast.While(ast.Name("loop"), body):
                carried, rest = self.carried(body)
                head, condition, rest = self.head(rest)
                parsed = self.block(rest)
                self.after(carried)
                return While(carried, Block(head.statements, (condition,)), parsed)
        _refuse(node, "expected a statement")

    def arguments(
        self, call: ast.Call
    ) -> tuple[tuple[Operand, ...], tuple[tuple[str, Attribute], ...]]:
        operands: list[Operand] = []
        for each in call.args:
            if isinstance(each, ast.List):
                operands.append(tuple(self.scalar(item) for item in each.elts))
            else:
                operands.append(self.value(each))
        named = ((each.arg or "", _attribute(each.value)) for each in call.keywords)
        return tuple(operands), tuple(named)

    def carried(self, body: list[ast.stmt]) -> tuple[tuple[Carried, ...], list[ast.stmt]]:
        found = []
        for position, each in enumerate(body):
            match each:
                case ast.AnnAssign(
                    target, annotation, ast.Call(ast.Name("carry"), [initial, result])
                ):
                    start = self.value(initial)
                    argument = self.define(target, annotation)
                    name = self.name(result)
                    after: Var = (
                        TensorVar(name, argument.type)
                        if isinstance(argument, TensorVar)
                        else ScalarVar(name, argument.dtype)
                    )
                    found.append(Carried(start, argument, after))
                case _:
                    return tuple(found), body[position:]
        return tuple(found), []

    def after(self, carried: tuple[Carried, ...]) -> None:
        for each in carried:
            self.bind(each.result)

    def head(self, body: list[ast.stmt]) -> tuple[Block, Scalar, list[ast.stmt]]:
        for position, each in enumerate(body):
            match each:
                case ast.Expr(ast.Call(ast.Name("condition"), [condition])):
                    head = self.block(body[:position])
                    return head, self.scalar(condition), body[position + 1 :]
        raise IrTextError("a while loop without condition(...)")

    def value(self, node: ast.expr) -> Value:
        match node:
            case ast.Name() | ast.Subscript():
                name = self.name(node)
                if name not in self.names:
                    _refuse(node, f"`{name}` is not defined")
                return self.names[name]
        return self.scalar(node)

    def scalar(self, node: ast.expr) -> Scalar:
        match node:
            case ast.Attribute(ast.Name("dim"), name):
                return Symbol(name)
            case ast.Constant(bool() as value):
                return Constant(value, BOOL)
            case ast.Constant(int() as value):
                return Constant(value, INDEX)
            case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)):
                return Constant(-value, INDEX)
            case ast.UnaryOp(ast.Not(), operand):
                return Unary("not", self.scalar(operand), BOOL)
            case ast.BinOp(left, op, right):
                return self.binary(node, op, left, right)
            case ast.BoolOp(op, [left, right]) | ast.Compare(left, [op], [right]):
                return self.binary(node, op, left, right)
            case ast.Call(ast.Name("convert"), [operand, ast.Name(name)]) if name in DTYPES:
                return Convert(self.scalar(operand), DTYPES[name])
            case ast.Call(ast.Name(name), [literal]) if name in DTYPES:
                return self.constant(literal, DTYPES[name])
            case ast.Call(ast.Name(name), [operand]):
                inner = self.scalar(operand)
                return Unary(name, inner, inner.dtype)
            case ast.Call(ast.Name(name), [left, right]):
                one, other = self.scalar(left), self.scalar(right)
                return Binary(name, one, other, one.dtype)
            case ast.Name() | ast.Subscript():
                named = self.value(node)
                if not isinstance(named, TensorVar):
                    return named
        _refuse(node, "expected a scalar")

    def binary(self, node: ast.expr, op: ast.AST, left: ast.expr, right: ast.expr) -> Scalar:
        name = _PARSED.get(type(op))
        if name is None:
            _refuse(node, "unknown operator")
        one, other = self.scalar(left), self.scalar(right)
        dtype = BOOL if name in COMPARISONS or name in LOGICAL else one.dtype
        return Binary(name, one, other, dtype)

    def constant(self, node: ast.expr, dtype: DType) -> Scalar:
        value = _attribute(node)
        if not isinstance(value, int | float):
            _refuse(node, "expected a number")
        return Constant(value, dtype)


def _attribute(node: ast.expr) -> Attribute:
    match node:
        case ast.Name(name) if name in DTYPES:
            return DTYPES[name]
        case ast.Tuple(items):
            return tuple(_attribute(each) for each in items)
        case ast.Call(ast.Name("float"), [ast.Constant(str() as text)]):
            return float(text)
    try:
        value = ast.literal_eval(node)
    except ValueError:
        _refuse(node, "expected an attribute")
    if value is None or isinstance(value, int | float | str):
        return value
    _refuse(node, "expected an attribute")


def _refuse(node: ast.AST, message: str) -> NoReturn:
    line = getattr(node, "lineno", 0)
    raise IrTextError(f"line {line}: {message}: `{ast.unparse(node)}`")
