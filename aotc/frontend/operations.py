"""Operations: the row of an operator is found, its arguments bound, and its result defined."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from aotc.dtypes import INDEX, DType
from aotc.errors import suggestion
from aotc.frontend.state import State
from aotc.frontend.values import article, is_number, is_scalar, named, plain, typed, widened
from aotc.ir.nodes import Operation, TensorType, TensorVar
from aotc.ir.scalar import Scalar, ScalarVar
from aotc.language.objects import Plane
from aotc.ops import registry
from aotc.ops.registry import Kind, OpDef, OpError, Update

# Planes whose code only creates, views and passes tensors.
_CONTROL = (Plane.HOST, Plane.ORCHESTRATION, Plane.OPAQUE)


class Operations(State):
    """Emits operations."""

    def operation(
        self,
        node: ast.AST,
        spelling: str,
        positional: Sequence[Any],
        keywords: dict[str, Any],
        hint: str,
        discarded: bool = False,
    ) -> Any:
        """Emit the operator that PyPTO writes `pl.SPELLING`, with arguments already evaluated."""
        row = registry.lookup(spelling)
        if row is None:
            self.fail(node, f"`pl.{spelling}` is not supported yet")
        if not row.orchestration and not self.in_core and self.plane in _CONTROL:  # fmt: skip
            self.fail(
                node,
                f"misplaced tensor op `{spelling}` in `{self.frame.function.name}`: "
                "it should be inside an InCore block",
                hint="put it in `with pl.at(level=pl.Level.CORE_GROUP):` or in a `@pl.jit.incore` "
                "function",
            )
        arguments = self._bind(node, spelling, row, positional, keywords)
        try:
            kind = row.infer(arguments)
        except OpError as error:
            self.fail(node, f"`pl.{spelling}`: {error}", error.hint)
        operands, attributes = row.pack(arguments)
        if not isinstance(kind, TensorType):
            scalar = ScalarVar(self.fresh(hint or "value"), kind)
            self.statements.append(Operation(scalar, row.name, operands, attributes, self.location))
            return scalar
        if not isinstance(row.lowering, Update):
            tensor = self.new_tensor(hint or row.name, kind)
            self.statements.append(Operation(tensor, row.name, operands, attributes, self.location))
            if isinstance(row.lowering, registry.View) and not self.in_core:
                base = arguments[row.lowering.operand]
                write_back = self._write_back(node, row, arguments)
                self.base_of_view[tensor] = (self.root[base], write_back)
            return tensor
        target = arguments[row.lowering.target]
        result = TensorVar(self.fresh(hint or self.root[target].name), kind)
        self.statements.append(Operation(result, row.name, operands, attributes, self.location))
        # `pl.assemble` gives a new value under the name it is assigned to; `pl.store` and
        # `pl.write` write memory, whatever is done with their result.
        in_place = discarded or row.name not in ("assemble",)
        self.updated_to(node, target, result, rebind=in_place)
        return result

    def _write_back(
        self, node: ast.AST, row: OpDef, arguments: dict[str, Any]
    ) -> Callable[[TensorVar], None]:
        """Return what updates the base where a view of it, taken on the control plane, was."""
        base: TensorVar = arguments[row.parameters[0].name]
        root = self.root[base]

        def write(view: TensorVar) -> None:
            saved, self.in_core = self.in_core, 1
            latest = self.current[root]
            if row.name == "slice":
                offsets = list(arguments[row.parameters[2].name])
                self.operation(node, "assemble", [latest, view, offsets], {}, root.name, True)
            elif row.name == "reshape":
                whole = self.operation(node, "reshape", [view, list(base.shape)], {}, root.name)
                zeros = [0] * base.type.rank
                self.operation(node, "assemble", [latest, whole, zeros], {}, root.name, True)
            else:
                self.fail(
                    node,
                    f"`{view.name}` is written through this view of `{base.name}`",
                    hint=f"pass `{base.name}` itself, and take the part of it in the kernel",
                )
            self.in_core = saved
            # The view shows what was just written.
            self.current[self.root[view]] = view

        return write

    def _bind(
        self,
        node: ast.AST,
        spelling: str,
        row: OpDef,
        positional: Sequence[Any],
        keywords: dict[str, Any],
    ) -> dict[str, Any]:
        names = [each.name for each in row.parameters]
        aliases = {alias: each.name for each in row.parameters for alias in each.aliases}
        keywords = {aliases.get(name, name): value for name, value in keywords.items()}
        if len(positional) > len(names) + len(row.refused):
            self.fail(node, f"`pl.{spelling}` takes {len(names)} arguments, got {len(positional)}")
        given = dict(zip([*names, *row.refused], positional, strict=False))
        for name, value in keywords.items():
            if name not in names and name not in row.refused:
                self.fail(
                    node,
                    f"`pl.{spelling}` has no parameter `{name}`",
                    suggestion(name, names) or f"it has {', '.join(names)}",
                )
            if name in given:
                self.fail(node, f"`pl.{spelling}` got `{name}` twice")
            given[name] = value
        for name in row.refused:
            if name in given and not _says_nothing(given[name], positional):
                self.fail(
                    node,
                    f"`pl.{spelling}`: `{name}` is not supported yet",
                    hint="leave it out",
                )
        # Numbers of a view are places in it, never elements.
        is_view = isinstance(row.lowering, registry.View)
        literal = INDEX if is_view else self._literal_type(given)
        arguments: dict[str, Any] = {}
        for parameter in row.parameters:
            where = f"`pl.{spelling}`, `{parameter.name}`"
            optional = parameter.default is not registry.REQUIRED
            if parameter.name not in given and not optional:
                self.fail(node, f"`pl.{spelling}` needs `{parameter.name}`")
            value = given.get(parameter.name)
            if parameter.name not in given or (value is None and optional):
                omitted = parameter.kind.is_operand and parameter.default is None
                arguments[parameter.name] = () if omitted else parameter.default
                continue
            arguments[parameter.name] = self._argument(node, where, parameter.kind, value, literal)
        return arguments

    @staticmethod
    def _literal_type(given: dict[str, Any]) -> DType | None:
        """Return the type that literals among the arguments take."""
        for kind in (TensorVar, DType):
            for value in given.values():
                if isinstance(value, kind):
                    return value.dtype if isinstance(value, TensorVar) else value
        return None

    def _argument(
        self, node: ast.AST, where: str, kind: Kind, value: Any, literal: DType | None
    ) -> Any:
        match kind:
            case Kind.TENSOR | Kind.TENSOR_OR_SCALAR if isinstance(value, TensorVar):
                return self.use(node, value)
            case Kind.TENSOR:
                self.fail(node, f"{where} takes a tensor, got {named(value)}")
            case Kind.SCALAR | Kind.TENSOR_OR_SCALAR:
                if is_scalar(value):
                    return value
                wanted = None if isinstance(value, bool) else literal
                scalar = typed(value, wanted) if is_number(value) else None
                if scalar is None and is_number(value):
                    self.fail(
                        node,
                        f"{where}: the literal {value} is not {article(literal)} value",
                        hint="`pl.cast` the tensor, or write an integer",
                    )
                if scalar is None:
                    self.fail(node, f"{where} takes a number or scalar, got {named(value)}")
                return scalar
            case Kind.EXTENTS:
                if is_scalar(value) or (isinstance(value, int) and not isinstance(value, bool)):
                    value = [value]
                if not isinstance(value, list | tuple):
                    self.fail(node, f"{where} takes a list of extents, got {named(value)}")
                return tuple(self._extent(node, where, each) for each in value)
            case Kind.SCRATCH:
                return None
            case Kind.DTYPE if isinstance(value, DType):
                return value
            case Kind.TEXT if isinstance(value, str | Enum):
                return value.name if isinstance(value, Enum) else value
            case Kind.BOOLEAN if isinstance(value, bool):
                return value
            case Kind.INTEGER if isinstance(value, int) and not isinstance(value, bool):
                return value
            case Kind.NUMBER if is_number(value):
                return value
        self.fail(node, f"{where} takes a compile-time {kind.value}, got {named(value)}")

    def _extent(self, node: ast.AST, where: str, value: Any) -> Scalar:
        scalar = typed(value) if is_number(value) or is_scalar(value) else None
        if scalar is None or not scalar.dtype.is_integer:
            self.fail(node, f"{where}: {named(value)} is not an integer")
        return widened(scalar)


def _says_nothing(value: Any, positional: Sequence[Any]) -> bool:
    """Return whether the value of a refused parameter only repeats what holds anyway."""
    if isinstance(value, list | tuple):
        first = positional[0] if positional else None
        return isinstance(first, TensorVar) and list(value) == [plain(e) for e in first.shape]
    return value in (None, False) or getattr(value, "name", "") in ("None_", "null")
