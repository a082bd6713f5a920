"""Calls: words of the language, operators, and functions, inlined where they are called."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aotc.contract import Direction
from aotc.dtypes import DType
from aotc.errors import AotcError
from aotc.frontend.expressions import Expressions, TensorMethod
from aotc.frontend.state import TASK, Frame, TaskId
from aotc.frontend.values import describe, is_number, is_scalar, plain, show, typed
from aotc.ir import scalar as ir_scalar
from aotc.ir.nodes import TensorVar
from aotc.ir.scalar import Scalar
from aotc.language import objects
from aotc.language.objects import Function, Plane

_SCALAR_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv"}
_SCALAR_UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "recip")
# Which planes a function of a plane may be called from: the call graph goes down only.
_CALLERS = {
    Plane.HOST: (),
    Plane.ORCHESTRATION: (Plane.HOST,),
    Plane.OPAQUE: (Plane.HOST, Plane.ORCHESTRATION, Plane.OPAQUE),
    Plane.INCORE: (Plane.HOST, Plane.ORCHESTRATION, Plane.OPAQUE, Plane.INCORE),
}


class Calls(Expressions):
    """Evaluates calls."""

    discarding = False

    def body(self, statements: Sequence[ast.stmt], live: frozenset[str]) -> None:
        raise NotImplementedError

    def spmd(self, node: ast.AST, count: Any, body: Callable[[], Any]) -> Any:
        raise NotImplementedError

    def call(self, node: ast.Call, hint: str) -> Any:
        discarded, self.discarding = self.discarding, False
        function = self.evaluate(node.func)
        if isinstance(function, objects.Word):
            handler = getattr(self, f"_word_{function.path.replace('.', '_')}", None)
            if handler is not None:
                return handler(node, hint)
            if function.path in _STATEMENT_WORDS:
                self.fail(
                    node,
                    f"`pl.{function.path}` cannot stand here",
                    hint=_STATEMENT_WORDS[function.path],
                )
            values, words = self.arguments(node)
            return self._operator(node, function.path, values, words, hint, discarded)
        if isinstance(function, TensorMethod):
            return self._bind_dynamic(node, function.tensor)
        values, words = self.arguments(node)
        if isinstance(function, Function | objects.Method):
            return self.inline(node, function, values, words)
        return self.call_python(node, function, values, words)

    def arguments(self, node: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """Evaluate the arguments of a call."""
        values = self._items(node.args)
        words: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                words[keyword.arg] = self.evaluate(keyword.value)
                continue
            given = self.evaluate(keyword.value)
            if not isinstance(given, dict):
                self.fail(keyword.value, "`**` takes a dict of compile-time names")
            words.update(given)
        return values, words

    def _operator(
        self,
        node: ast.Call,
        path: str,
        values: list[Any],
        words: dict[str, Any],
        hint: str,
        discarded: bool,
    ) -> Any:
        everything = [*values, *words.values()]
        base = path.split(".")[-1]
        if everything and all(is_scalar(each) or is_number(each) for each in everything):
            if base in _SCALAR_BINARY and len(everything) == 2:
                return self.scalar_binary(node, _SCALAR_BINARY[base], *everything)
            if base in _SCALAR_UNARY and len(everything) == 1:
                operand = typed(everything[0])
                assert operand is not None
                return ir_scalar.unary(base, operand)
        return self.operation(node, path, values, words, hint, discarded)

    # Words of the language

    def _word_min(self, node: ast.Call, hint: str) -> Any:
        return self._extremum(node, "min", hint)

    def _word_max(self, node: ast.Call, hint: str) -> Any:
        return self._extremum(node, "max", hint)

    _word_tile_min, _word_tile_max = _word_min, _word_max

    def _extremum(self, node: ast.Call, op: str, hint: str) -> Any:
        values, words = self.arguments(node)
        if any(isinstance(each, TensorVar) for each in values):
            return self.operation(node, f"{op}imum", values, words, hint)
        if len(values) < 2 or words:
            self.fail(node, f"`pl.{op}` takes two scalars")
        return self.scalar_fold(node, op, values)

    def _word_cast(self, node: ast.Call, hint: str) -> Any:
        values, words = self.arguments(node)
        if isinstance(values[0] if values else words.get("input"), TensorVar):
            return self.operation(node, "cast", values, words, hint)
        words.pop("mode", None)
        given = [*values, *words.values()]
        if len(given) != 2 or not isinstance(given[1], DType):
            self.fail(node, "`pl.cast` takes a value and a dtype")
        return self._converted(node, given[0], given[1])

    def _word_const(self, node: ast.Call, hint: str) -> Any:
        values, words = self.arguments(node)
        given = [*values, *words.values()]
        if len(given) != 2 or not is_number(given[0]) or not isinstance(given[1], DType):
            self.fail(node, "`pl.const` takes a number and a dtype")
        return self._converted(node, given[0], given[1])

    def _converted(self, node: ast.AST, value: Any, dtype: DType) -> Any:
        if isinstance(value, float) and not dtype.is_float:
            value = int(value)
        scalar: Any = typed(value, dtype) if is_number(value) else value
        if not is_scalar(scalar):
            self.fail(node, f"{describe(value)} is not {dtype}")
        return plain(ir_scalar.convert(scalar, dtype))

    def _word_tensor_dim(self, node: ast.Call, hint: str) -> Any:
        values, words = self.arguments(node)
        given = [*values, *words.values()]
        if len(given) != 2 or not isinstance(given[0], TensorVar) or not isinstance(given[1], int):
            self.fail(node, "`pl.tensor.dim` takes a tensor and the number of a dimension")
        tensor, axis = given
        if not -tensor.type.rank <= axis < tensor.type.rank:
            self.fail(node, f"`{tensor.name}` has {tensor.type.rank} dimensions, got {axis}")
        return plain(tensor.shape[axis])

    _word_dim = _word_tensor_dim

    def _block(self, node: ast.Call, which: int) -> Any:
        if not self.block_index:
            self.fail(
                node,
                "there is no block here",
                hint="use it in a `pl.spmd` region or in a kernel called from one",
            )
        return self.block_index[-1][which]

    def _word_get_block_idx(self, node: ast.Call, hint: str) -> Any:
        return self._block(node, 0)

    def _word_get_block_num(self, node: ast.Call, hint: str) -> Any:
        return self._block(node, 1)

    def _word_get_subblock_idx(self, node: ast.Call, hint: str) -> Any:
        return 0

    _word_tile_get_block_idx = _word_tensor_get_block_idx = _word_get_block_idx
    _word_tile_get_block_num = _word_tensor_get_block_num = _word_get_block_num
    _word_tile_get_subblock_idx = _word_tensor_get_subblock_idx = _word_get_subblock_idx

    def _ordering(self, node: ast.Call, hint: str) -> TaskId:
        """A barrier or task handle: statements run in order here, so evaluate and go on."""
        self.arguments(node)
        return TASK

    _word_system_syncall = _word_system_fence = _word_system_cacheinvalid = _ordering
    _word_task_dummy = _word_system_task_dummy = _word_dump_tag = _ordering

    def _word_no_dep(self, node: ast.Call, hint: str) -> Any:
        return self._only(node)

    _word_aiv_shard = _word_aic_gather = _word_no_dep

    def _only(self, node: ast.Call) -> Any:
        values, _ = self.arguments(node)
        if not values:
            self.fail(node, f"`{ast.unparse(node.func)}` takes a tensor")
        return values[0]

    def _optimization(self, node: ast.Call, hint: str) -> None:
        self.arguments(node)

    _word_split = _word_cross_core_slot = _optimization

    def _word_array_create(self, node: ast.Call, hint: str) -> Any:
        values, words = self.arguments(node)
        given = [*values, *words.values()]
        if len(given) != 2:
            self.fail(node, "`pl.array.create` takes an extent and a dtype")
        if given[1] is objects.TASK_ID:
            return TASK
        return self.operation(node, "create_tensor", [[given[0]], given[1]], {}, hint)

    def _word_array_get_element(self, node: ast.Call, hint: str) -> Any:
        values, _ = self.arguments(node)
        if isinstance(values[0], TaskId):
            return TASK
        return self.operation(node, "read", [values[0], [values[1]]], {}, hint)

    def _word_array_update_element(self, node: ast.Call, hint: str) -> Any:
        values, _ = self.arguments(node)
        if isinstance(values[0], TaskId):
            return TASK
        return self.operation(node, "write", [values[0], [values[1]], values[2]], {}, hint)

    def _count(self, node: ast.Call, hint: str) -> int:
        self.fail(
            node,
            f"`{ast.unparse(node.func)}`: a cpu program does not know its cores while it is built",
            hint="give the number of blocks in the config's tiling",
        )

    _word_system_available_cluster_count = _word_system_available_aiv_count = _count

    def _word_submit(self, node: ast.Call, hint: str) -> Any:
        return self._submitted(node, None)

    def _word_spmd_submit(self, node: ast.Call, hint: str) -> Any:
        words = {each.arg: each.value for each in node.keywords}
        if "core_num" not in words:
            self.fail(node, "`pl.spmd_submit` needs `core_num`")
        return self._submitted(node, self.evaluate(words["core_num"]))

    def _submitted(self, node: ast.Call, blocks: Any) -> Any:
        """A kernel call that also gives a task handle, which orders nothing here."""
        own = ("deps", "dumps", "allow_early_resolve", "core_num", "sync_start")

        def run() -> Any:
            values, words = self.arguments(node)
            if "predicate" in words:
                self.fail(node, "`predicate` is not supported yet", "write an `if` around it")
            function = values[0] if values else None
            if not isinstance(function, Function | objects.Method):
                self.fail(node, "`pl.submit` takes a kernel, written `self.NAME`, first")
            kept = {name: value for name, value in words.items() if name not in own}
            return self.inline(node, function, values[1:], kept)

        result = run() if blocks is None else self.spmd(node, blocks, run)
        if result is None:
            return TASK
        return (*result, TASK) if isinstance(result, tuple) else (result, TASK)

    # Functions

    def inline(
        self,
        node: ast.Call,
        function: Function | objects.Method,
        values: list[Any],
        words: dict[str, Any],
    ) -> Any:
        """Lower the body of `function` here, specialized by these arguments; return its value."""
        itself = objects.Itself(function.program) if isinstance(function, objects.Method) else None
        callee = function.function if isinstance(function, objects.Method) else function
        self._check_call(node, callee)
        frame, definition = self.enter(callee)
        parameters = [*definition.args.posonlyargs, *definition.args.args]
        if itself is not None and parameters:
            frame.names[parameters[0].arg] = itself
            parameters = parameters[1:]
        bound = self._bind_arguments(node, frame, parameters, values, words)
        tensors = [each for each in bound.values() if isinstance(each[1], TensorVar)]
        for expression, value in bound.values():
            if isinstance(value, TensorVar):
                self.use(expression, value)
        saved, live = self.location, frozenset[str]()
        in_core, self.in_core = self.in_core, self.in_core + (callee.plane is Plane.INCORE)
        checks = [(each, *bound[each.arg]) for each in parameters]
        self._check_parameters(node, frame, checks)
        updated = dict(self.updated)
        self.frames.append(frame)
        try:
            self.body(definition.body, live)
            result = frame.returned
        finally:
            self.frames.pop()
            self.in_core = in_core
            self.location = saved
        # To the caller, the call is what updated.
        for root, place in self.updated.items():
            if updated.get(root) is not place:
                self.updated[root] = self.place(node)
        for _, tensor in tensors:
            latest = self.current[self.root[tensor]]
            if latest is not tensor:
                self.replace(tensor, latest)
        if result is None:
            return None
        return result[0] if len(result) == 1 else tuple(result)

    def enter(self, function: Function) -> tuple[Frame, ast.FunctionDef]:
        """Return a new frame for `function`, and its definition."""
        python = function.python
        file, definition = self.sources.function(python)
        extra = definition.args.vararg or definition.args.kwarg
        if extra is not None:
            raise AotcError(
                f"`*` and `**` parameters are not supported in `{function.name}`",
                place=file.place(extra),
                hint="name each parameter",
            )
        closure: dict[str, Any] = dict(function.enclosing)
        for name, cell in zip(python.__code__.co_freevars, python.__closure__ or (), strict=True):
            try:
                closure[name] = cell.cell_contents
            except ValueError:
                continue  # bound later in the enclosing function: unknown here
        names: Mapping[str, Any] = ChainMap(closure, python.__globals__)
        return Frame(function, file, globals=names), definition

    def _check_call(self, node: ast.Call, callee: Function) -> None:
        if any(frame.function is callee for frame in self.frames):
            self.fail(node, f"`{callee.name}` calls itself", hint="write it as a loop")
        allowed = _CALLERS.get(callee.plane)
        if allowed is not None and self.plane not in allowed and self.plane is not Plane.FUNCTION:
            caller = self.frame.function
            self.fail(
                node,
                f"`@pl.{self.plane.value}` function `{caller.name}` cannot call "
                f"`@pl.{callee.plane.value}` function `{callee.name}`",
                hint="make the callee `@pl.jit.inline` or `@pl.jit.incore`, or the caller "
                "`@pl.jit.host`",
            )

    def _bind_arguments(
        self,
        node: ast.Call,
        frame: Frame,
        parameters: list[ast.arg],
        values: list[Any],
        words: dict[str, Any],
    ) -> dict[str, tuple[ast.AST, Any]]:
        """Return each parameter's (expression of the call, value); defaults are filled in."""
        name = frame.function.name
        if len(values) > len(parameters):
            self.fail(node, f"`{name}` takes {len(parameters)} arguments, got {len(values)}")
        plain_arguments = not any(isinstance(each, ast.Starred) for each in node.args)
        skip = len(node.args) - len(values) if plain_arguments else 0
        expressions = [*node.args[skip:]] if plain_arguments else [node] * len(values)
        bound: dict[str, tuple[ast.AST, Any]] = {
            parameter.arg: (expression, value)
            for parameter, expression, value in zip(parameters, expressions, values, strict=False)
        }
        places = {each.arg: each.value for each in node.keywords}
        for word, value in words.items():
            if word == "device":
                self.fail(
                    places.get(word, node),
                    "`device=` places a call on a rank: programs of several ranks are not "
                    "supported yet",
                    hint="call the kernel without it",
                )
            if word not in {each.arg for each in parameters}:
                self.fail(places.get(word, node), f"`{name}` has no parameter `{word}`")
            if word in bound:
                self.fail(places.get(word, node), f"`{name}` got `{word}` twice")
            bound[word] = (places.get(word, node), value)
        defaults = frame.function.python.__defaults__ or ()
        for parameter, value in zip(parameters[::-1], defaults[::-1], strict=False):
            if parameter.arg not in bound and value is not objects.RUNTIME:
                bound[parameter.arg] = (node, value)
        missing = [each.arg for each in parameters if each.arg not in bound]
        if missing:
            self.fail(node, f"`{name}` needs `{missing[0]}`: its call has no argument for it")
        return bound

    def _check_parameters(
        self, node: ast.Call, frame: Frame, parameters: list[tuple[ast.arg, ast.AST, Any]]
    ) -> None:
        """Check the arguments against the annotations, and bind names and dynamic dimensions."""
        written: set[TensorVar] = set()
        protected: dict[TensorVar, str] = {}
        for parameter, expression, value in parameters:
            annotation, direction = self.annotation(frame, parameter)
            match annotation:
                case objects.TensorAnnotation() | objects.Container():
                    if not isinstance(value, TensorVar):
                        self.fail(
                            expression,
                            f"`{frame.function.name}`, `{parameter.arg}`: takes a tensor, got "
                            f"{describe(value)}",
                        )
                    if isinstance(annotation, objects.TensorAnnotation):
                        self._check_tensor(frame, parameter, expression, value, annotation)
                case objects.ScalarAnnotation(dtype=dtype) if dtype is not None:
                    value = self._scalar_argument(frame, parameter, expression, value, dtype)
            if isinstance(value, TensorVar):
                root = self.root[value]
                if direction is not Direction.IN:
                    frame.outputs[parameter.arg] = root
                if direction is not Direction.IN or annotation is None:
                    written.add(root)
                elif frame.function.plane in (Plane.ORCHESTRATION, Plane.INCORE, Plane.OPAQUE):
                    protected[root] = (
                        f"`{parameter.arg}` is an In parameter of `{frame.function.name}`, "
                        "and is written here"
                    )
            frame.names[parameter.arg] = value
        frame.read_only = {root: text for root, text in protected.items() if root not in written}

    def annotation(self, frame: Frame, parameter: ast.arg) -> tuple[Any, Direction]:
        """Return the annotation of a parameter without its direction, and the direction."""
        if parameter.annotation is None:
            return None, Direction.IN
        value = frame.function.python.__annotations__.get(parameter.arg)
        if isinstance(value, str):
            value = self._postponed(frame, parameter.annotation)
        direction = Direction.IN
        if isinstance(value, objects.DirectedAnnotation):
            value, direction = value.inner, value.direction
        if isinstance(value, DType):
            value = objects.ScalarAnnotation(value)
        if value in (int, float, bool):
            value = None
        return value, direction

    def _postponed(self, frame: Frame, node: ast.expr) -> Any:
        """Evaluate an annotation that Python left as text."""
        self.frames.append(frame)
        self.in_annotation = True
        try:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = ast.parse(node.value, mode="eval").body
                for each in ast.walk(text):
                    ast.copy_location(each, node)
                node = text
            return self.evaluate(node)
        finally:
            self.in_annotation = False
            self.frames.pop()

    def _declared(self, frame: Frame, parameter: ast.arg) -> str:
        place = frame.file.place(parameter.annotation or parameter)
        return f"`{frame.function.name}` ({place.path.name}:{place.line}:{place.column})"

    def _check_tensor(
        self,
        frame: Frame,
        parameter: ast.arg,
        expression: ast.AST,
        value: TensorVar,
        annotation: objects.TensorAnnotation,
    ) -> None:
        declared = self._declared(frame, parameter)
        between = f"between `{self.frame.function.name}` and {declared}"
        if value.dtype != annotation.dtype:
            self.fail(
                expression,
                f"dtype mismatch {between}: `{parameter.arg}` is {value.dtype} here, and "
                f"{annotation.dtype} there",
                hint="there is no promotion: give both one dtype, or `pl.cast`",
            )
        dims = annotation.dims or ()
        if len(dims) != value.type.rank:
            self.fail(
                expression,
                f"rank mismatch {between}: `{parameter.arg}` has {value.type.rank} dimensions "
                f"here, and {len(dims)} there",
            )
        for axis, (dim, extent) in enumerate(zip(dims, value.shape, strict=True)):
            where = f"`{parameter.arg}` dimension {axis}"
            if isinstance(dim, objects.Symbol):
                self._bind_symbol(frame, expression, dim.name, extent, where)
                self._warn_pinned(frame, value, axis, dim.name, extent)
            elif plain(extent) != plain(dim):
                self.fail(
                    expression,
                    f"shape mismatch {between}: {where} is {show(extent)} here, and {show(dim)} "
                    "there",
                    hint="give both the same extents"
                    + ("" if isinstance(plain(extent), int) else ", or make the kernel's dynamic"),
                )

    def _bind_symbol(
        self, frame: Frame, expression: ast.AST, name: str, extent: Scalar, where: str
    ) -> None:
        known, first = frame.symbols.setdefault(name, (extent, where))
        if known != extent:
            self.fail(
                expression,
                f"conflicting symbol bindings in the call of `{frame.function.name}`: `{name}` "
                f"is {show(known)} by {first}, and {show(extent)} by {where}",
                hint="one name is one extent: use two names, or pass tensors of one extent",
            )

    def _warn_pinned(
        self, frame: Frame, value: TensorVar, axis: int, name: str, extent: Scalar
    ) -> None:
        host = self.frames[0]
        root = self.root[value]
        if len(self.frames) != 1 or not isinstance(plain(extent), int):
            return
        if root is value and host.names.get(value.name) is value:
            self.warnings.append(
                f"wrapper `{host.function.name}` pins `{value.name}` dimension {axis} to "
                f"{show(extent)}, and its kernel `{frame.function.name}` leaves it dynamic "
                f"(`{name}`)"
            )

    def _scalar_argument(
        self, frame: Frame, parameter: ast.arg, expression: ast.AST, value: Any, dtype: DType
    ) -> Any:
        scalar: Any = typed(value, dtype) if is_number(value) else value
        if is_scalar(scalar) and scalar.dtype != dtype:
            both_integer = scalar.dtype.is_integer and dtype.is_integer
            scalar = ir_scalar.convert(scalar, dtype) if both_integer else None
        if not is_scalar(scalar):
            self.fail(
                expression,
                f"`{parameter.arg}` of {self._declared(frame, parameter)} is a {dtype} scalar, "
                f"got {describe(value)}",
                hint="`pl.cast` it",
            )
        return plain(scalar)

    def _bind_dynamic(self, node: ast.Call, tensor: TensorVar) -> None:
        """`x.bind_dynamic(axis, NAME)`: NAME is that extent from here on."""
        if len(node.args) != 2:
            self.fail(node, "`bind_dynamic` takes the number of a dimension and a `pl.dynamic`")
        axis = self.evaluate(node.args[0])
        self.in_annotation = True
        symbol = self.evaluate(node.args[1])
        self.in_annotation = False
        if not isinstance(symbol, objects.Symbol) or axis not in range(tensor.type.rank):
            self.fail(node, "`bind_dynamic` takes the number of a dimension and a `pl.dynamic`")
        where = f"`{tensor.name}` dimension {axis}"
        self._bind_symbol(self.frame, node, symbol.name, tensor.shape[axis], where)


_STATEMENT_WORDS = {
    "range": "it is the iterable of a `for`",
    "parallel": "it is the iterable of a `for`",
    "pipeline": "it is the iterable of a `for`",
    "unroll": "it is the iterable of a `for`",
    "while_": "it is the iterable of a `for`",
    "split_aiv": "it is the iterable of a `for`",
    "spmd": "it is the iterable of a `for`, or a `with`",
    "at": "it is written `with pl.at(...):`",
    "scope": "it is written `with pl.scope():`",
    "manual_scope": "it is written `with pl.manual_scope():`",
    "auto_scope": "it is written `with pl.auto_scope():`",
    "cluster": "it is written `with pl.cluster():`",
    "cond": "it is the first statement of a `pl.while_` loop",
    "yield_": "assign it, as the last statement of a loop or branch",
    "static_assert": "it is a statement of its own",
    "static_print": "it is a statement of its own",
    "func_attr": "it is a statement of its own, first in the body",
}
