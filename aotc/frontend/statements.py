"""Statements: assignments, branches, scopes; loops are in `loops`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NoReturn

from aotc.frontend import liveness
from aotc.frontend.calls import Calls
from aotc.frontend.state import TASK, Poison, TaskId, Yields, block
from aotc.frontend.values import describe, is_number, is_scalar, plain, show, typed
from aotc.ir import scalar as ir_scalar
from aotc.ir.nodes import If, Location, TensorVar, Value, Var
from aotc.ir.scalar import Scalar, ScalarVar
from aotc.language import objects

_CORE_LEVELS = ("CORE_GROUP", "CORE", "AIC", "AIV")
_SCOPES = ("scope", "manual_scope", "auto_scope", "cluster")
_HINTS: dict[type[ast.stmt], str] = {
    ast.Try: "programs raise nothing; drop it",
    ast.Assert: "use `pl.static_assert`",
    ast.Raise: "use `pl.static_assert`",
    ast.Import: "import at module level",
    ast.ImportFrom: "import at module level",
    ast.FunctionDef: "define it at module level, with `@pl.jit.inline`",
    ast.Break: "compute the loop's bounds, or guard the body with `if`",
    ast.Continue: "guard the rest of the body with `if`",
    ast.Delete: "a name needs no deletion",
    ast.Global: "pass it as a parameter",
    ast.Nonlocal: "pass it as a parameter",
    ast.Match: "write it as `if`/`elif`",
}


class Statements(Calls):
    """Lowers statements into `self.statements`."""

    def loop(self, node: ast.For, live: liveness.Names) -> None:
        raise NotImplementedError

    def while_loop(self, node: ast.While, live: liveness.Names) -> None:
        raise NotImplementedError

    def spmd_region(self, node: ast.With, call: ast.Call, live: liveness.Names) -> None:
        raise NotImplementedError

    def body(self, statements: Sequence[ast.stmt], live: liveness.Names) -> None:
        """Lower statements in order; the names of `live` are read behind them."""
        if not statements:
            return
        after = [live]
        for statement in reversed(statements[1:]):
            after.append(liveness.live_before([statement], after[-1]))
        for statement, behind in zip(statements, reversed(after), strict=True):
            if self.frame.returned is not None:
                return  # behind the `return` of a branch that was decided at compile time
            self.statement(statement, behind)

    def statement(self, node: ast.stmt, live: liveness.Names) -> None:
        """Lower one statement."""
        saved = self.location
        self.location = Location(self.place(node), ast.unparse(node).splitlines()[0])
        match node:
            case ast.Assign(targets=targets, value=value):
                self._assign_statement(node, targets, value)
            case ast.AnnAssign(target=target, value=value, annotation=annotation):
                if value is None:
                    self.fail(node, "a declaration without a value", hint="assign it here")
                self._assign_statement(node, [target], value)
                self._check_annotation(annotation, target)
            case ast.AugAssign():
                self._augmented(node)
            case ast.Expr(value=value):
                self._expression_statement(value)
            case ast.Return():
                self._return(node)
            case ast.If():
                self._branch(node, live)
            case ast.For():
                self._no_else(node)
                self.loop(node, live)
            case ast.While():
                self._no_else(node)
                self.while_loop(node, live)
            case ast.With():
                self._with(node, live)
            case ast.Pass():
                pass
            case _:
                self._unsupported(node)
        self.location = saved

    def _unsupported(self, node: ast.stmt) -> NoReturn:
        word = ast.unparse(node).split(maxsplit=1)[0].rstrip(":")
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            word = "def" if isinstance(node, ast.FunctionDef) else "class"
        self.fail(
            node,
            f"Python's `{word}` statement is not supported in a PyPTO function",
            hint=_HINTS.get(type(node), "write it at module level"),
        )

    def _no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            self.fail(node.orelse[0], "`else` of a loop is not supported")

    # Assignments

    def _assign_statement(
        self, node: ast.stmt, targets: Sequence[ast.expr], value: ast.expr
    ) -> None:
        if self._is_word(value, "yield_"):
            self._yield(value, targets)
            return
        hint = targets[0].id if isinstance(targets[0], ast.Name) else ""
        result = self.evaluate(value, hint)
        if result is None and isinstance(value, ast.Call):
            self.fail(value, f"`{ast.unparse(value.func)}` gives no value to assign")
        for target in targets:
            self.assign(target, result)

    def assign(self, target: ast.expr, value: Any) -> None:
        """Bind `target` to an evaluated value."""
        match target:
            case ast.Name(id=name):
                self.frame.names[name] = value
            case ast.Tuple(elts=items) | ast.List(elts=items):
                if not isinstance(value, tuple | list):
                    self.fail(target, f"cannot unpack {describe(value)} to {len(items)} names")
                star = [i for i, each in enumerate(items) if isinstance(each, ast.Starred)]
                if star:
                    self.fail(items[star[0]], "`*` in an assignment is not supported")
                if len(items) != len(value):
                    self.fail(target, f"{len(items)} names for {len(value)} values")
                for item, part in zip(items, value, strict=True):
                    self.assign(item, part)
            case ast.Subscript():
                self._assign_subscript(target, value)
            case _:
                self.fail(target, f"cannot assign to `{ast.unparse(target)}`")

    def _assign_subscript(self, target: ast.Subscript, value: Any) -> None:
        base = self.evaluate(target.value)
        hint = target.value.id if isinstance(target.value, ast.Name) else ""
        if isinstance(base, TaskId):
            self.evaluate(target.slice)
            return
        if not isinstance(base, TensorVar):
            self.fail(target, f"`{ast.unparse(target.value)}` is not a tensor: it has no elements")
        offsets, extents, dropped = self.region(target, base)
        if not isinstance(value, TensorVar):
            if len(dropped) == base.type.rank:
                self.operation(target, "write", [base, offsets, value], {}, hint, True)
                return
            self.fail(
                target,
                f"`{ast.unparse(target)}` takes a tensor, got {describe(value)}",
                hint="fill it with `pl.full(shape, dtype, value)`",
            )
        source = self._fitted(target, base, value, extents, dropped)
        self.operation(target, "assemble", [base, source, offsets], {}, hint, True)

    def _fitted(
        self,
        node: ast.AST,
        base: TensorVar,
        source: TensorVar,
        extents: list[Any],
        dropped: list[int],
    ) -> TensorVar:
        """Return `source` with the rank of `base`, or fail where it does not fit the region."""
        natural = [each for axis, each in enumerate(extents) if axis not in dropped]
        given = [plain(each) for each in source.shape]
        padded = [1] * (len(given) - len(natural)) + natural
        valid = [plain(each) for each in source.type.valid_shape]
        wrong = len(given) < len(natural) or any(
            a != b and v != b and isinstance(a, int) and isinstance(b, int)
            for a, v, b in zip(given, valid, padded, strict=True)
        )
        if wrong:
            self.fail(
                node,
                f"the region of `{base.name}` is [{_list(natural)}], and `{source.name}` is "
                f"[{_list(given)}]",
            )
        if len(given) == base.type.rank:
            return source
        result: TensorVar = self.operation(node, "reshape", [source, extents], {}, source.name)
        return result

    def _augmented(self, node: ast.AugAssign) -> None:
        load: Any = ast.copy_location(_loading(node.target), node.target)
        left = self.evaluate(load)
        hint = node.target.id if isinstance(node.target, ast.Name) else ""
        self.assign(node.target, self.binary(node, node.op, left, self.evaluate(node.value), hint))

    def _check_annotation(self, annotation: ast.expr, target: ast.expr) -> None:
        """Compare a local annotation with what was computed: dtype, rank and static extents."""
        self.in_annotation = True
        try:
            declared = self.evaluate(annotation)
        finally:
            self.in_annotation = False
        value = self.frame.names.get(target.id) if isinstance(target, ast.Name) else None
        if not isinstance(declared, objects.TensorAnnotation) or not isinstance(value, TensorVar):
            return
        dims = [plain(each) for each in declared.dims or ()]
        shape = [plain(each) for each in value.shape]
        fits = len(dims) == len(shape) and all(
            a == b for a, b in zip(dims, shape, strict=True) if isinstance(a, int | float)
            and isinstance(b, int)
        )  # fmt: skip
        if declared.dtype != value.dtype or not fits:
            self.fail(
                annotation,
                f"`{value.name}` is annotated {declared.dtype}[{_list(dims)}], and is "
                f"{value.dtype}[{_list(shape)}]",
            )

    # Expressions as statements

    def _is_word(self, node: ast.expr, path: str) -> bool:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            return False
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        return name == path.split(".")[-1] and self.evaluate(node.func) == objects.Word(path)

    def _expression_statement(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | type(...)):
            return  # a docstring
        if self._is_word(node, "yield_"):
            self._yield(node, ())
        elif self._is_word(node, "static_assert"):
            self._static_assert(node)
        elif self._is_word(node, "static_print"):
            assert isinstance(node, ast.Call)
            shown = [describe(self.evaluate(each)) for each in node.args]
            self.warnings.append(f"static_print: {' '.join(shown)}")
        elif self._is_word(node, "func_attr") or self._is_word(node, "cond"):
            if self._is_word(node, "cond"):
                self.fail(node, "`pl.cond` is the first statement of a `pl.while_` loop")
        elif isinstance(node, ast.Call):
            self.discarding = True
            self.evaluate(node)
            self.discarding = False
        else:
            self.fail(
                node,
                f"`{ast.unparse(node)}` has no effect",
                hint="assign it to a name, or drop it",
            )

    def _static_assert(self, node: ast.expr) -> None:
        assert isinstance(node, ast.Call)
        if not node.args:
            self.fail(node, "`pl.static_assert` takes a condition")
        condition = self.truth(node.args[0])
        message = node.args[1] if len(node.args) > 1 else None
        for word in node.keywords:
            message = word.value if word.arg == "msg" else message
        if message is not None and not isinstance(message, ast.Constant | ast.JoinedStr):
            self.fail(message, "the message of `pl.static_assert` is not a string literal")
        if not isinstance(condition, bool):
            self.fail(
                node.args[0],
                "`pl.static_assert` of a condition that is known at run time only",
                hint="check it before the call, or give the config's symbol a constraint",
            )
        if not condition:
            text = f": {self.evaluate(message)}" if message is not None else ""
            self.fail(node, f"static assertion failed{text}")

    def _yield(self, node: ast.expr, targets: Sequence[ast.expr]) -> None:
        """`a, b = pl.yield_(x, y)`: in a branch an assignment, in a loop what it carries on."""
        assert isinstance(node, ast.Call)
        if node.keywords:
            self.fail(node, "`pl.yield_` takes values by position")
        values = self._items(node.args)
        names: list[str] = []
        for target in targets:
            items = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            if len(items) != len(values):
                self.fail(target, f"{len(items)} names for {len(values)} yielded values")
            for item, value in zip(items, values, strict=True):
                if not isinstance(item, ast.Name):
                    self.fail(item, "a yielded value is bound to a name")
                self.frame.names[item.id] = value
                names.append(item.id)
        if not self.yields:
            self.fail(node, "`pl.yield_` outside a loop or branch")
        if self.yields[-1].values is not None:
            self.fail(node, "a second `pl.yield_` in one loop or branch")
        self.yields[-1].values, self.yields[-1].names = values, tuple(names)

    # Return

    def _return(self, node: ast.Return) -> None:
        if self.frame.depth:
            self.fail(
                node,
                "`return` in a run-time loop or branch",
                hint="assign the value there, and return it at the end of the function",
            )
        if node.value is None:
            self.frame.returned = []
            return
        value = node.value
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        results: list[Any] = []
        for item in items:
            result = self.evaluate(item, item.id if isinstance(item, ast.Name) else "")
            parts = result if isinstance(result, tuple) and len(items) == 1 else (result,)
            for part in parts:
                if isinstance(part, TensorVar):
                    part = self.returned_tensor(item, part)
                results.append(part)
        self.frame.returned = results

    def returned_tensor(self, node: ast.expr, tensor: TensorVar) -> TensorVar:
        """Return the tensor to return for `node`.

        A fresh value under the name of an Out parameter is written there: the name is the buffer.
        """
        root = self.frame.outputs.get(node.id) if isinstance(node, ast.Name) else None
        if root is None or self.root[tensor] in self.frame.outputs.values():
            return self.use(node, tensor)
        target = self.current[root]
        if target.dtype != tensor.dtype or target.shape != tensor.shape:
            self.fail(
                node,
                f"the returned `{ast.unparse(node)}` is {describe(tensor)}, and the "
                f"parameter is {describe(target)}",
            )
        saved, self.in_core = self.in_core, 1
        offsets = [0] * target.type.rank
        self.operation(node, "assemble", [target, tensor, offsets], {}, root.name, True)
        self.in_core = saved
        return self.current[root]

    # Scopes

    def _with(self, node: ast.With, live: liveness.Names) -> None:
        calls = []
        for item in node.items:
            call = item.context_expr
            word = self.evaluate(call.func) if isinstance(call, ast.Call) else None
            if not isinstance(call, ast.Call) or not isinstance(word, objects.Word):
                self.fail(
                    call,
                    f"`with {ast.unparse(call)}` is not a PyPTO scope",
                    hint="scopes are `pl.at`, `pl.spmd`, `pl.cluster`, `pl.scope` and "
                    "`pl.manual_scope`",
                )
            calls.append((item, call, word.path))
        if len(calls) == 1 and calls[0][2] == "spmd":
            item, call, _ = calls[0]
            if item.optional_vars is not None:
                self.assign(item.optional_vars, TASK)
            self.spmd_region(node, call, live)
            return
        entered = 0
        for item, call, path in calls:
            if path not in ("at", *_SCOPES):
                self.fail(call, f"`with pl.{path}` is not a scope")
            _, words = self.arguments(call)
            if path == "at":
                entered += self._enters_core(call, words)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, TASK)
        self.in_core += entered
        try:
            self.body(node.body, live)
        finally:
            self.in_core -= entered

    def _enters_core(self, node: ast.Call, words: dict[str, Any]) -> bool:
        known = ("level", "optimizations", "name_hint", "deps", "no_dep_args", "dumps",
                 "allow_early_resolve", "role", "split", "optimization")  # fmt: skip
        for name in words:
            if name not in known:
                self.fail(node, f"`pl.at` has no parameter `{name}`")
        level = words.get("level", self.evaluate(node.args[0]) if node.args else None)
        if level is None:
            self.fail(node, "`pl.at` needs `level=`", hint="write `level=pl.Level.CORE_GROUP`")
        return getattr(level, "name", "") in _CORE_LEVELS

    # Branches

    def _branch(self, node: ast.If, live: liveness.Names) -> None:
        condition = self.truth(node.test)
        if isinstance(condition, bool):
            self._decided(node.body if condition else node.orelse, live)
            return
        location = self.location
        before = self.snapshot()
        arms = []
        for statements in (node.body, node.orelse):
            self.restore(before)
            self.yields.append(Yields("if"))
            self.frame.depth += 1
            with self.collecting() as emitted:
                self.body(statements, live)
            self.frame.depth -= 1
            arms.append((emitted, self.snapshot(), self.yields.pop(), statements))
        self.restore(before)
        self.location = location
        (then, first, gave, _), (orelse, second, gave_other, statements) = arms
        if len(gave.values or ()) != len(gave_other.values or ()):
            where = statements[-1] if statements else node
            self.fail(
                where,
                f"one branch yields {len(gave.values or ())} values, the other "
                f"{len(gave_other.values or ())}",
                hint="yield the same number of values from both",
            )
        results, left, right = self._merge(node, before, first, second, live)
        self.statements.append(
            If(
                condition,
                block(then, left),
                block(orelse, right),
                tuple(results),
                location,
            )
        )

    def _decided(self, statements: Sequence[ast.stmt], live: liveness.Names) -> None:
        """Lower the arm of a branch that is decided at compile time, as if it stood alone."""
        outer = self.yields
        self.yields = [*outer, Yields("if")]
        self.body(statements, live)
        self.yields = outer

    def _merge(
        self, node: ast.If, before: Any, first: Any, second: Any, live: liveness.Names
    ) -> tuple[list[Var], list[Value], list[Value]]:
        """Define the results of a branch and bind names and storages to them."""
        results: list[Var] = []
        left: list[Value] = []
        right: list[Value] = []
        _, current, _ = before
        for root, start in current.items():
            pair = first[1].get(root), second[1].get(root)
            if all(each is start for each in pair):
                continue
            if any(each is None or self.root[each] is not root for each in pair):
                stale = first if pair[0] is not start else second
                self.current[root] = stale[1][root]
                self.updated[root] = stale[2][root]
                continue
            result = TensorVar(self.fresh(root.name), start.type)
            results.append(result)
            left.append(pair[0])
            right.append(pair[1])
            self.updated_to(node, start, result, rebind=True)
            for snapshot, value in zip((first, second), pair, strict=True):
                _rename(snapshot, value, result)
        mine, other = first[0][-1], second[0][-1]
        made: dict[tuple[int, int], Any] = {}
        for name in [*mine, *(each for each in other if each not in mine)]:
            a, b = mine.get(name), other.get(name)
            if a is b:
                if a is not None:
                    self.frame.names[name] = a
                continue
            if name not in live:
                self.frame.names[name] = Poison(f"`{name}` was bound in one branch only")
                continue
            key = (id(a), id(b))
            if key not in made:
                made[key] = self._merged(node, name, a, b, results, left, right)
            self.frame.names[name] = made[key]
        return results, left, right

    def _merged(
        self,
        node: ast.If,
        name: str,
        a: Any,
        b: Any,
        results: list[Var],
        left: list[Value],
        right: list[Value],
    ) -> Any:
        line = self.place(node).line
        if a is None or b is None or isinstance(a, Poison) or isinstance(b, Poison):
            return Poison(
                f"`{name}` is bound in one branch of the `if` at line {line} only",
                hint="bind it before the `if`, or in both branches",
            )
        if isinstance(a, TensorVar) and isinstance(b, TensorVar):
            if a.type != b.type:
                return Poison(
                    f"the branches at line {line} give `{name}` two types: "
                    f"{describe(a)} and {describe(b)}",
                    hint="give it one shape and dtype",
                )
            tensor = self.new_tensor(name, a.type)
            results.append(tensor)
            left.append(a)
            right.append(b)
            return tensor
        if all(is_scalar(each) or is_number(each) for each in (a, b)):
            if not is_scalar(a) and not is_scalar(b) and a == b and type(a) is type(b):
                return a
            x, y = self._one_type(name, line, a, b)
            if isinstance(x, Poison):
                return x
            scalar = ScalarVar(self.fresh(name), x.dtype)
            results.append(scalar)
            left.append(x)
            right.append(y)
            return scalar
        if not isinstance(a, TensorVar) and not is_scalar(a) and a == b:
            return a
        return Poison(
            f"`{name}` is a compile-time value, and differs between the branches at line {line}",
            hint="decide it at compile time, or use tensors and scalars",
        )

    def _one_type(self, name: str, line: int, a: Any, b: Any) -> tuple[Any, Scalar]:
        x, y = typed(a), typed(b)
        if is_number(a):
            x = typed(a, y.dtype if y is not None else None)
        elif is_number(b):
            y = typed(b, x.dtype if x is not None else None)
        if is_number(a) and is_number(b) and isinstance(a, float) != isinstance(b, float):
            x, y = typed(float(a)), typed(float(b))
        if x is not None and y is not None and x.dtype != y.dtype:
            if x.dtype.is_integer and y.dtype.is_integer:
                wide = max(x.dtype, y.dtype, key=lambda each: (each.name == "index", each.size))
                return ir_scalar.convert(x, wide), ir_scalar.convert(y, wide)
            x = None
        if x is None or y is None:
            message = (
                f"the branches at line {line} give `{name}` two types: {show(a)} and {show(b)}"
            )
            poison = Poison(message, hint="`pl.cast` one of them")
            return poison, ir_scalar.index(0)
        return x, y


def _rename(snapshot: Any, old: TensorVar, new: TensorVar) -> None:
    for names in snapshot[0]:
        for name, value in names.items():
            if value is old:
                names[name] = new


def _loading(target: ast.expr) -> ast.expr:
    """Return an assignment's target as an expression that reads it."""
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load())
        case ast.Subscript(value=value, slice=index):
            return ast.copy_location(ast.Subscript(value, index, ast.Load()), target)
    return target


def _list(dims: Sequence[Any]) -> str:
    return ", ".join(show(each) for each in dims)
