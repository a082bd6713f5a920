"""Expressions: compile-time Python values are folded, the rest becomes scalars and operations."""

from __future__ import annotations

import ast
import builtins
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from aotc.dtypes import BOOL, INDEX
from aotc.errors import AotcError, suggestion
from aotc.frontend.operations import Operations
from aotc.frontend.state import Poison, TaskId, block
from aotc.frontend.values import article, as_index, describe, is_number, is_scalar, plain, typed
from aotc.ir import scalar as ir_scalar
from aotc.ir.nodes import If, TensorVar
from aotc.ir.scalar import Scalar, ScalarVar
from aotc.language import objects

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any], str]] = {
    # operator: scalar operation, Python operation, tensor operator
    ast.Add: ("add", operator.add, "add"),
    ast.Sub: ("sub", operator.sub, "sub"),
    ast.Mult: ("mul", operator.mul, "mul"),
    ast.Div: ("truediv", operator.truediv, "div"),
    ast.FloorDiv: ("floordiv", operator.floordiv, ""),
    ast.Mod: ("mod", operator.mod, "rem"),
    ast.Pow: ("", operator.pow, ""),
    ast.BitAnd: ("bit_and", operator.and_, "and_"),
    ast.BitOr: ("bit_or", operator.or_, "or_"),
    ast.BitXor: ("bit_xor", operator.xor, "xor"),
    ast.LShift: ("shl", operator.lshift, "shl"),
    ast.RShift: ("shr", operator.rshift, "shr"),
}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}
# The comparison types of `pl.cmp`.
_CMP_TYPES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}
_FOLDED_BUILTINS: tuple[Any, ...] = (
    *(len, min, max, abs, int, float, bool, round, sum, range, tuple, list, str, enumerate, zip),
    *(sorted, reversed, divmod, isinstance, any, all),
)


class Expressions(Operations):
    """Evaluates an expression to a Python value, a scalar, a tensor, or a tuple of them."""

    # Dimensions of an annotation stay names; elsewhere they are what they are bound to.
    in_annotation = False

    def call(self, node: ast.Call, hint: str) -> Any:
        raise NotImplementedError

    def evaluate(self, node: ast.expr, hint: str = "") -> Any:
        """Return the value of `node`; `hint` names what it defines."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Tuple(elts=items):
                return tuple(self._items(items))
            case ast.List(elts=items):
                return self._items(items)
            case ast.Dict(keys=keys, values=values) if all(key is not None for key in keys):
                return {
                    self.evaluate(key): self.evaluate(value)
                    for key, value in zip(keys, values, strict=True)
                    if key is not None
                }
            case ast.UnaryOp():
                return self._unary(node, hint)
            case ast.BinOp(left=left, op=op, right=right):
                first = self.evaluate(left)
                return self.binary(node, op, first, self.evaluate(right), hint)
            case ast.BoolOp():
                return self._logic(node)
            case ast.Compare():
                return self._compare(node, hint)
            case ast.IfExp():
                return self._choice(node, hint)
            case ast.Subscript():
                return self._subscript(node, hint)
            case ast.Call():
                return self.call(node, hint)
            case ast.JoinedStr():
                return self._text(node)
        kind = type(node).__name__
        self.fail(
            node,
            f"Python's {_KIND_WORDS.get(kind, kind)} is not supported in a PyPTO function",
            hint="compute it at module level, or write it out",
        )

    def constant(self, node: ast.expr, what: str) -> Any:
        """Return the compile-time value of `node`, or fail."""
        value = self.evaluate(node)
        if is_scalar(value) or isinstance(value, TensorVar):
            self.fail(node, f"{what} must be known at compile time")
        return value

    def truth(self, node: ast.expr) -> bool | Scalar:
        """Return a condition: a bool where it is known, else a BOOL scalar."""
        value = self.evaluate(node)
        if isinstance(value, TensorVar):
            self.fail(
                node, "a tensor has no truth value", hint="read an element of it with `pl.read`"
            )
        if is_scalar(value):
            result = plain(self._as_bool(value))
            return bool(result) if isinstance(result, bool) else result
        return bool(value)

    @staticmethod
    def _as_bool(value: Scalar) -> Scalar:
        if value.dtype == BOOL:
            return value
        zero = typed(0, value.dtype)
        assert zero is not None
        return ir_scalar.binary("ne", value, zero)

    # Names

    def _name(self, node: ast.Name) -> Any:
        name, frame = node.id, self.frame
        if name in frame.names:
            value = frame.names[name]
            if isinstance(value, Poison):
                self.fail(node, value.message, value.hint)
            return self._read(node, value)
        if name in frame.globals:
            return self._read(node, frame.globals[name])
        if hasattr(builtins, name):
            return getattr(builtins, name)
        known = [*frame.names, *frame.globals]
        self.fail(
            node,
            f"unknown name `{name}`",
            suggestion(name, known) or "bind it before, or define it at module level",
        )

    def _read(self, node: ast.AST, value: Any) -> Any:
        if isinstance(value, objects.Symbol) and not self.in_annotation:
            return self.symbol(node, value.name)
        return plain(value)

    def symbol(self, node: ast.AST, name: str) -> Any:
        """Return what the dynamic dimension `name` is in the function being lowered."""
        for frame in reversed(self.frames):
            if name in frame.symbols:
                return plain(frame.symbols[name][0])
        self.fail(
            node,
            f"the dynamic dimension `{name}` is not bound by a parameter here",
            hint=f"use it in an annotation of `{self.frame.function.name}`",
        )

    def _attribute(self, node: ast.Attribute) -> Any:
        value = self.evaluate(node.value)
        name = node.attr
        if isinstance(value, TensorVar):
            if name == "shape":
                return tuple(plain(extent) for extent in value.shape)
            if name == "dtype":
                return value.dtype
            if name == "ndim":
                return value.type.rank
            if name == "bind_dynamic":
                return _Bound(value, name)
            self.fail(node, f"a tensor has no `{name}`", hint="it has `shape`, `dtype`, `ndim`")
        if isinstance(value, objects.Itself):
            function = value.program.functions.get(name)
            if function is None:
                known = value.program.functions
                self.fail(
                    node,
                    f"`{value.program.name}` has no function `{name}`",
                    suggestion(name, known),
                )
            return objects.Method(value.program, function)
        if is_scalar(value):
            if name == "dtype":
                return value.dtype
            self.fail(node, f"a scalar has no `{name}`")
        try:
            return self._read(node, getattr(value, name))
        except AotcError as error:
            self.fail(node, error.message, error.hint)
        except AttributeError as error:
            self.fail(node, str(error))

    def _items(self, items: Sequence[ast.expr]) -> list[Any]:
        values: list[Any] = []
        for item in items:
            if isinstance(item, ast.Starred):
                values += list(self.evaluate(item.value))
            else:
                values.append(self.evaluate(item))
        return values

    def _text(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                parts.append(describe(self.evaluate(part.value)))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
        return "".join(parts)

    # Operators

    def _unary(self, node: ast.UnaryOp, hint: str) -> Any:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            if isinstance(value, TensorVar):
                self.fail(node, "`not` of a tensor", hint="use `pl.not_`")
            return (
                plain(ir_scalar.unary("not", self._as_bool(value)))
                if is_scalar(value)
                else not value
            )
        if isinstance(value, TensorVar):
            if isinstance(node.op, ast.USub):
                return self.operation(node, "neg", [value], {}, hint)
            if isinstance(node.op, ast.Invert):
                return self.operation(node, "not_", [value], {}, hint)
            return value
        if is_scalar(value):
            if isinstance(node.op, ast.USub):
                return plain(ir_scalar.unary("neg", value))
            if isinstance(node.op, ast.UAdd):
                return value
            self.fail(node, "`~` of a scalar is not supported", hint="use `^` with a mask")
        folded: dict[type[ast.unaryop], Callable[[Any], Any]] = {
            ast.USub: operator.neg,
            ast.UAdd: operator.pos,
            ast.Invert: operator.invert,
        }
        return self._folded(node, lambda: folded[type(node.op)](value))

    def _folded(self, node: ast.AST, compute: Callable[[], Any]) -> Any:
        """Compute with compile-time values; an exception of Python becomes a diagnosis."""
        try:
            return compute()
        except AotcError as error:
            if error.place is None:
                error.place = self.place(node)
            raise
        except Exception as error:
            self.fail(node, f"{type(error).__name__}: {error}")

    def binary(self, node: ast.AST, op: ast.operator, left: Any, right: Any, hint: str) -> Any:
        """Return `left op right` for tensors, scalars or compile-time values."""
        scalar_op, python_op, tensor_op = _BINARY.get(type(op), ("", operator.matmul, ""))
        if isinstance(left, TensorVar) or isinstance(right, TensorVar):
            if not tensor_op:
                self.fail(
                    node,
                    f"{_symbol(op)} of tensors is not an operator",
                    hint="use `pl.matmul`" if isinstance(op, ast.MatMult) else None,
                )
            if not isinstance(left, TensorVar) and tensor_op in ("add", "mul"):
                left, right = right, left
            elif not isinstance(left, TensorVar):
                left = self._filled(node, left, right)
            return self.operation(node, tensor_op, [left, right], {}, hint)
        if is_scalar(left) or is_scalar(right):
            if not scalar_op:
                self.fail(node, f"{_symbol(op)} of scalars is not supported")
            return self.scalar_binary(node, scalar_op, left, right)
        return self._folded(node, lambda: python_op(left, right))

    def _filled(self, node: ast.AST, number: Any, like: TensorVar) -> Any:
        """Return a tensor of `like`'s shape that holds `number`, for `number - tensor`."""
        shape = [plain(extent) for extent in like.shape]
        return self.operation(node, "full", [shape, like.dtype, number], {}, "filled")

    def scalar_binary(self, node: ast.AST, op: str, left: Any, right: Any) -> Any:
        """Return `left op right`, where one is a scalar of the IR; a literal takes its type."""
        first, second = self.same_type(node, left, right)
        if op == "truediv" and not first.dtype.is_float:
            self.fail(
                node, f"`/` of {first.dtype} scalars", hint="use `//`, or `pl.cast` to pl.FP32"
            )
        if op in ("floordiv", "mod") and first.dtype.is_float:
            self.fail(node, f"`{op}` of {first.dtype} scalars", hint="`pl.cast` to an integer type")
        if op in ("floordiv", "mod", "truediv") and second == typed(0, second.dtype):
            self.fail(node, "division by zero")
        return self._folded(node, lambda: plain(ir_scalar.binary(op, first, second)))

    def same_type(self, node: ast.AST, left: Any, right: Any) -> tuple[Scalar, Scalar]:
        """Return both as scalars of one type: literals adapt, integers widen, nothing else does."""
        if not is_scalar(left) and not is_scalar(right):
            left = typed(left)
        for value in (left, right):
            if not (is_scalar(value) or is_number(value)):
                self.fail(node, f"{value!r} is not a number")
        first = left if is_scalar(left) else typed(left, right.dtype)
        second = right if is_scalar(right) else typed(right, left.dtype)
        if first is None or second is None:
            literal, other = (left, right) if first is None else (right, left)
            self.fail(
                node,
                f"the literal {literal} is not {article(other.dtype)} value",
                hint="`pl.cast` the scalar first",
            )
        if first.dtype == second.dtype:
            return first, second
        if first.dtype.is_integer and second.dtype.is_integer:
            wide = max(first.dtype, second.dtype, key=lambda each: (each == INDEX, each.size))
            return ir_scalar.convert(first, wide), ir_scalar.convert(second, wide)
        self.fail(
            node,
            f"scalars of {first.dtype} and {second.dtype}",
            hint="there is no promotion: `pl.cast` one of them",
        )

    def _logic(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        result: bool | Scalar = is_and
        for item in node.values:
            value = self.truth(item)
            if isinstance(value, bool):
                if value is not is_and:
                    return value
            elif isinstance(result, bool):
                result = value
            else:
                result = ir_scalar.binary("and" if is_and else "or", result, value)
        return plain(result)

    def _compare(self, node: ast.Compare, hint: str) -> Any:
        values = [self.evaluate(item) for item in (node.left, *node.comparators)]
        result: Any = True
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            part = self._compare_two(node, op, left, right, hint)
            if isinstance(part, TensorVar) and len(node.ops) == 1:
                return part
            if isinstance(part, TensorVar):
                self.fail(node, "a chained comparison of tensors", hint="compare two at a time")
            if isinstance(result, bool):
                result = part if result else False
            elif isinstance(part, bool):
                result = result if part else False
            else:
                result = plain(ir_scalar.binary("and", result, part))
        return result

    def _compare_two(self, node: ast.AST, op: ast.cmpop, left: Any, right: Any, hint: str) -> Any:
        if type(op) not in _COMPARE:
            if isinstance(left, TensorVar) or is_scalar(left):
                self.fail(node, "`in` and `is` compare compile-time values only")
            folded: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
                ast.Is: operator.is_,
                ast.IsNot: operator.is_not,
                ast.In: lambda item, items: item in items,
                ast.NotIn: lambda item, items: item not in items,
            }
            return self._folded(node, lambda: folded[type(op)](left, right))
        name, python_op = _COMPARE[type(op)]
        if isinstance(left, TensorVar) or isinstance(right, TensorVar):
            if not isinstance(left, TensorVar):
                left = self._filled(node, left, right)
            return self.operation(node, "cmp", [left, right, _CMP_TYPES[name]], {}, hint)
        if is_scalar(left) or is_scalar(right):
            return self.scalar_binary(node, name, left, right)
        return self._folded(node, lambda: python_op(left, right))

    def _choice(self, node: ast.IfExp, hint: str) -> Any:
        condition = self.truth(node.test)
        if isinstance(condition, bool):
            return self.evaluate(node.body if condition else node.orelse, hint)
        with self.collecting() as then:
            first = self.evaluate(node.body)
        with self.collecting() as orelse:
            second = self.evaluate(node.orelse)
        if isinstance(first, TensorVar) or isinstance(second, TensorVar):
            self.fail(node, "a conditional expression of tensors", hint="write it as `if`/`else`")
        left, right = self.same_type(node, first, second)
        if left == right:
            return plain(left)
        result = ScalarVar(self.fresh(hint or "choice"), left.dtype)
        self.statements.append(
            If(condition, block(then, [left]), block(orelse, [right]), (result,), self.location)
        )
        return result

    # Subscripts

    def _subscript(self, node: ast.Subscript, hint: str) -> Any:
        value = self.evaluate(node.value)
        if isinstance(value, TensorVar):
            return self._tensor_subscript(node, value, hint)
        if isinstance(value, TaskId):
            self.evaluate(node.slice)
            return value
        if is_scalar(value):
            self.fail(node, "a scalar has no elements")
        if isinstance(node.slice, ast.Slice):
            parts = [
                None if each is None else self.constant(each, "a slice bound")
                for each in (node.slice.lower, node.slice.upper, node.slice.step)
            ]
            return self._folded(node, lambda: value[slice(*parts)])
        index = self.constant(node.slice, "the index of a tuple, list or annotation")
        result = self._folded(node, lambda: value[index])
        return self._read(node, result)

    def _tensor_subscript(self, node: ast.Subscript, tensor: TensorVar, hint: str) -> Any:
        offsets, extents, dropped = self.region(node, tensor)
        if len(dropped) == tensor.type.rank:
            return self.operation(node, "read", [tensor, offsets], {}, hint)
        sliced = tensor
        full = [plain(extent) for extent in tensor.shape]
        if extents != full or any(offset != 0 for offset in offsets):
            sliced = self.operation(node, "slice", [tensor, extents, offsets], {}, hint)
        if not dropped:
            return sliced
        kept = [extent for axis, extent in enumerate(extents) if axis not in dropped]
        return self.operation(node, "reshape", [sliced, kept], {}, hint)

    def region(
        self, node: ast.Subscript, tensor: TensorVar
    ) -> tuple[list[Any], list[Any], list[int]]:
        """Return (offsets, extents, axes indexed by a single number) of a tensor's subscript."""
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        rank = tensor.type.rank
        if any(isinstance(each, ast.Constant) and each.value is Ellipsis for each in items):
            at = next(
                i
                for i, each in enumerate(items)
                if isinstance(each, ast.Constant) and each.value is Ellipsis
            )
            missing = rank - len(items) + 1
            items = [*items[:at], *(ast.Slice() for _ in range(missing)), *items[at + 1 :]]
        if len(items) > rank:
            self.fail(
                node, f"{len(items)} subscripts for `{tensor.name}`, which has {rank} dimensions"
            )
        offsets: list[Any] = []
        extents: list[Any] = []
        dropped: list[int] = []
        for axis in range(rank):
            extent = plain(tensor.shape[axis])
            item = items[axis] if axis < len(items) else ast.Slice()
            if not isinstance(item, ast.Slice):
                index = self._index(item)
                offsets.append(plain(as_index(self._from_end(item, index, extent))))
                extents.append(1)
                dropped.append(axis)
                continue
            if item.step is not None and self.constant(item.step, "a slice step") != 1:
                self.fail(item.step, "a slice step other than 1 is not supported")
            lower = 0 if item.lower is None else self._bound(item.lower, extent)
            upper = extent if item.upper is None else self._bound(item.upper, extent)
            size = self._minus(node, upper, lower)
            if isinstance(size, int) and size <= 0:
                self.fail(item.lower or item.upper or node, f"the slice has {size} elements")
            if isinstance(extent, int) and isinstance(upper, int) and upper > extent:
                self.fail(
                    item.upper or node,
                    f"the slice ends at {upper}, and dimension {axis} of `{tensor.name}` has "
                    f"{extent}",
                )
            offsets.append(plain(as_index(lower)))
            extents.append(size)
        return offsets, extents, dropped

    def _index(self, node: ast.expr) -> Any:
        value = self.evaluate(node)
        if isinstance(value, bool) or not (isinstance(value, int) or is_scalar(value)):
            self.fail(node, f"`{ast.unparse(node)}` is not an integer index")
        if is_scalar(value) and not value.dtype.is_integer:
            self.fail(node, f"an index of {value.dtype}", hint="`pl.cast` it to pl.INDEX")
        return value

    def _bound(self, node: ast.expr, extent: Any) -> Any:
        return self._from_end(node, self._index(node), extent)

    def _from_end(self, node: ast.expr, index: Any, extent: Any) -> Any:
        if isinstance(index, int) and index < 0:
            return self._folded(
                node, lambda: plain(ir_scalar.add(as_index(extent), ir_scalar.index(index)))
            )
        return index

    def _minus(self, node: ast.AST, left: Any, right: Any) -> Any:
        return self._folded(node, lambda: plain(ir_scalar.sub(as_index(left), as_index(right))))

    # Python calls with compile-time arguments

    def call_python(self, node: ast.Call, function: Any, values: list[Any], words: Any) -> Any:
        """Call a Python function whose arguments are all known, or fail."""
        everything = [*values, *words.values()]
        if function in (min, max) and any(is_scalar(each) for each in everything):
            return self.scalar_fold(node, function.__name__, values)
        if function is abs and is_scalar(values[0]):
            return ir_scalar.unary("abs", values[0])
        if function is len and isinstance(values[0], TensorVar):
            return plain(values[0].shape[0])
        if function in (int, float, bool) and is_scalar(values[0]):
            self.fail(node, f"`{function.__name__}` of a scalar", hint="use `pl.cast`")
        if any(is_scalar(each) or isinstance(each, TensorVar) for each in everything):
            self.fail(
                node,
                f"`{getattr(function, '__name__', function)}` is Python, and its arguments are "
                "known at run time only",
                hint="decorate it with `@pl.jit.inline`",
            )
        allowed = function in _FOLDED_BUILTINS or isinstance(
            function, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type
        )
        if not allowed or function in (print, eval, exec, open, input, __import__):
            self.fail(node, f"`{ast.unparse(node.func)}` cannot be called in a PyPTO function")
        return self._folded(node, lambda: function(*values, **words))

    def scalar_fold(self, node: ast.AST, op: str, values: Sequence[Any]) -> Any:
        """Return the least or greatest of two and more scalars or numbers."""
        result = values[0]
        for value in values[1:]:
            if is_scalar(result) or is_scalar(value):
                result = self.scalar_binary(node, op, result, value)
            else:
                result = min(result, value) if op == "min" else max(result, value)
        return result


class _Bound:
    """A method of a tensor, about to be called."""

    def __init__(self, tensor: TensorVar, name: str):
        self.tensor = tensor
        self.name = name


TensorMethod = _Bound

_KIND_WORDS = {
    "Lambda": "`lambda`",
    "ListComp": "list comprehension",
    "DictComp": "dict comprehension",
    "SetComp": "set comprehension",
    "GeneratorExp": "generator expression",
    "NamedExpr": "`:=`",
    "Await": "`await`",
    "Yield": "`yield`",
    "YieldFrom": "`yield from`",
    "Starred": "`*` unpacking here",
    "Set": "set",
    "Slice": "slice here",
}


def _symbol(op: ast.operator) -> str:
    return f"`{ast.unparse(ast.BinOp(ast.Name('a'), op, ast.Name('b')))}`"
