"""Loops: what they carry is found by lowering the body with a guess, until the guess holds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from aotc.dtypes import INDEX, DType
from aotc.frontend import liveness
from aotc.frontend.state import TASK, Poison, TaskId, Yields, block, holds
from aotc.frontend.statements import Statements
from aotc.frontend.values import (
    article,
    as_index,
    describe,
    is_number,
    is_scalar,
    plain,
    show,
    typed,
)
from aotc.ir import scalar as ir_scalar
from aotc.ir import visit
from aotc.ir.nodes import (
    Block,
    Carried,
    For,
    LoopKind,
    Operation,
    Statement,
    TensorVar,
    Value,
    While,
)
from aotc.ir.scalar import Scalar, ScalarVar
from aotc.language import objects

_KINDS = {
    "range": LoopKind.RANGE,
    "parallel": LoopKind.PARALLEL,
    "pipeline": LoopKind.PIPELINE,
    "spmd": LoopKind.PARALLEL,
    "split_aiv": LoopKind.RANGE,
}
_MAX_UNROLL = 4096
_MAX_ATTEMPTS = 100


@dataclass
class _Plan:
    """A guess of what a loop carries: names of this function, and storages written in place."""

    names: list[str]
    roots: list[TensorVar] = field(default_factory=list)
    dtypes: dict[str, DType] = field(default_factory=dict)
    dropped: set[Any] = field(default_factory=set)


@dataclass
class _Slot:
    """One carried value during an attempt."""

    name: str
    initial: Value
    argument: Any
    root: TensorVar | None = None
    explicit: int | None = None
    exit: Any = None


@dataclass
class _Outcome:
    """A lowered loop: its statements, what they yield, and the head of a `while`."""

    slots: list[_Slot]
    inner: list[Statement]
    head: list[Statement]
    condition: Scalar | None
    carried: tuple[Carried, ...] = ()

    @property
    def body(self) -> Block:
        return block(self.inner, [each.exit for each in self.slots])


@dataclass
class _Spec:
    """The parts of a loop that do not depend on what it carries."""

    node: ast.stmt
    label: str
    body: Callable[[], None]
    entry: Callable[[], None]
    explicit: list[tuple[str, Any]] = field(default_factory=list)
    parallel: bool = False
    condition: ast.expr | None = None


class Loops(Statements):
    """Lowers loops."""

    def loop(self, node: ast.For, live: liveness.Names) -> None:
        """Lower a `for`: over a word of the language, or unrolled over compile-time values."""
        if isinstance(node.iter, ast.Call):
            word = self.evaluate(node.iter.func)
            if isinstance(word, objects.Word):
                if word.path == "while_":
                    self._explicit_while(node, live)
                elif word.path == "unroll":
                    bounds, words = self.arguments(node.iter)
                    if words:
                        self.fail(node.iter, f"`pl.unroll` has no parameter `{next(iter(words))}`",
                                  hint="use `pl.range` where a value is carried")  # fmt: skip
                    if not all(isinstance(each, int) for each in bounds):
                        self.fail(node.iter, "the bounds of `pl.unroll` must be known at compile "
                                  "time", hint="use `pl.range`")  # fmt: skip
                    self._unrolled(node, range(*bounds), live)
                elif word.path in _KINDS:
                    self._counted(node, word.path, live)
                else:
                    self.fail(node.iter, f"`pl.{word.path}` is not a loop")
                return
        values = self.evaluate(node.iter)
        if isinstance(values, TensorVar) or is_scalar(values) or not hasattr(values, "__iter__"):
            self.fail(node.iter, "a `for` over this is not supported", hint="use `pl.range`")
        self._unrolled(node, list(values), live)

    def _unrolled(self, node: ast.For, values: Sequence[Any], live: liveness.Names) -> None:
        if len(values) > _MAX_UNROLL:
            self.fail(node, f"{len(values)} unrolled iterations", hint="use `pl.range`")
        inside = live | liveness.live_in_loop(node, live)
        for value in values:
            self.assign(node.target, value)
            self.body(node.body, inside)

    def _counted(self, node: ast.For, path: str, live: liveness.Names) -> None:
        assert isinstance(node.iter, ast.Call)
        bounds, words = self.arguments(node.iter)
        initial = words.pop("init_values", None)
        start, stop, step = self._bounds(node.iter, path, bounds, words)
        target, arguments = self._targets(node, initial)
        index = ScalarVar(self.fresh(target.id.strip("<>")), INDEX)
        frame = self.frame

        def entry() -> None:
            frame.names[target.id] = index

        parallel = _KINDS[path] is LoopKind.PARALLEL
        spec = _Spec(
            node,
            f"`pl.{path}` loop",
            lambda: self.body(node.body, inside),
            entry,
            list(zip(arguments, initial or (), strict=True)),
            parallel,
        )
        inside = live | liveness.live_in_loop(node, live)
        core = path == "spmd"
        self.in_core += core
        if core:
            self.block_index.append((index, stop))
        try:
            outcome = self._carry(spec, live)
        finally:
            self.in_core -= core
            if core:
                self.block_index.pop()
        first, last, by = as_index(start), as_index(stop), as_index(step)
        self.statements.append(
            For(index, first, last, by, _KINDS[path], outcome.carried, outcome.body, self.location)
        )

    def _bounds(
        self, node: ast.Call, path: str, bounds: list[Any], words: dict[str, Any]
    ) -> tuple[Any, Any, Any]:
        allowed = {
            "pipeline": ("stage",),
            "spmd": (
                "name_hint",
                "sync_start",
                "deps",
                "allow_early_resolve",
                "optimizations",
                "core_num",
            ),
            "split_aiv": ("mode",),
        }.get(path, ())
        if path in ("range", "parallel"):
            allowed = ("attrs", "chunk", "chunk_policy")
        for name in words:
            if name not in allowed:
                self.fail(node, f"`pl.{path}` has no parameter `{name}`")
        if path == "spmd" and not bounds and "core_num" in words:
            bounds = [words["core_num"]]
        if path == "pipeline" and not (isinstance(words.get("stage"), int) and words["stage"] > 0):
            self.fail(node, "`pl.pipeline` needs `stage=`, a positive integer")
        if path == "split_aiv" and getattr(words.get("mode"), "name", "NONE") != "NONE":
            self.fail(
                node,
                "`pl.split_aiv` that halves tiles is not supported yet",
                hint="use `mode=pl.SplitMode.NONE`, or leave the region undivided",
            )
        if not 1 <= len(bounds) <= (1 if path in ("spmd", "split_aiv") else 3):
            self.fail(node, f"`pl.{path}` takes (stop), (start, stop) or (start, stop, step)")
        for bound in bounds:
            ok = is_scalar(bound) and bound.dtype.is_integer
            if not ok and (isinstance(bound, bool) or not isinstance(bound, int)):
                self.fail(node, f"a bound of `pl.{path}` is not an integer: {show(bound)}")
        start, stop, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: tuple(bounds)}[len(bounds)]
        if isinstance(step, int) and step <= 0:
            self.fail(node, f"the step of `pl.{path}` is {step}", hint="count upwards")
        return start, stop, step

    def _targets(self, node: ast.For, initial: Any) -> tuple[ast.Name, list[str]]:
        """Return the loop variable and the names of the explicitly carried values."""
        target = node.target
        if initial is None:
            if not isinstance(target, ast.Name):
                self.fail(target, "the loop variable is one name", hint="or give `init_values`")
            return target, []
        if not isinstance(initial, tuple | list):
            self.fail(node.iter, "`init_values` takes a tuple")
        match target:
            case ast.Tuple(elts=[ast.Name() as index, ast.Tuple(elts=names)]):
                return index, self._argument_names(target, names, initial)
        self.fail(target, "with `init_values` the target is `i, (a, b)`")

    def _argument_names(self, node: ast.AST, names: list[ast.expr], initial: Any) -> list[str]:
        found = [each.id for each in names if isinstance(each, ast.Name)]
        if len(found) != len(names) or len(found) != len(initial):
            self.fail(node, f"{len(names)} names for {len(initial)} `init_values`")
        return found

    def spmd_region(self, node: ast.With, call: ast.Call, live: liveness.Names) -> None:
        """`with pl.spmd(n):` is a loop over blocks whose index the body asks for."""
        # No name of the source: the index hides nothing.
        name = ast.Name("<block>", ast.Store())
        loop = ast.For(name, call, node.body, [])
        for each in (name, loop):
            ast.copy_location(each, node)
        self._counted(loop, "spmd", live)
        self.frame.names.pop("<block>", None)

    def spmd(self, node: ast.AST, count: Any, body: Callable[[], Any]) -> Any:
        """Run `body` once a block; its results are those of any block."""
        if not is_scalar(count) and not isinstance(count, int):
            self.fail(node, "the number of blocks is not an integer")
        index = ScalarVar(self.fresh("block"), INDEX)
        results: list[Any] = []

        def run() -> None:
            results[:] = [body()]

        unused = ast.Name("_", ast.Store())
        statement = ast.copy_location(ast.For(unused, ast.Constant(0), [], []), node)
        spec = _Spec(statement, "`pl.spmd_submit`", run, lambda: None, parallel=True)
        self.block_index.append((index, count))
        try:
            outcome = self._carry(spec, frozenset())
        finally:
            self.block_index.pop()
        bounds = (ir_scalar.index(0), as_index(count), ir_scalar.index(1))
        self.statements.append(
            For(index, *bounds, LoopKind.PARALLEL, outcome.carried, outcome.body, self.location)
        )
        return self._latest(results[0])

    def _latest(self, value: Any) -> Any:
        """Return the state behind a loop of what was updated in place in it, else None."""
        if isinstance(value, tuple):
            return tuple(self._latest(each) for each in value)
        root = self.root.get(value) if isinstance(value, TensorVar) else None
        while root is not None and root not in self.current and root in self.carried_from:
            root = self.root[self.carried_from[root]]
        return self.current.get(root) if root is not None else None

    # While

    def while_loop(self, node: ast.While, live: liveness.Names) -> None:
        spec = _Spec(
            node,
            "`while` loop",
            lambda: self.body(node.body, liveness.live_in_loop(node, live)),
            lambda: None,
            condition=node.test,
        )
        self._while(spec, live)

    def _explicit_while(self, node: ast.For, live: liveness.Names) -> None:
        assert isinstance(node.iter, ast.Call)
        _, words = self.arguments(node.iter)
        initial = words.get("init_values")
        if not isinstance(initial, tuple | list):
            self.fail(node.iter, "`pl.while_` needs `init_values`", hint="one counter is enough")
        if not isinstance(node.target, ast.Tuple):
            self.fail(node.target, "the target of a `pl.while_` loop is a tuple: `for (x,) in`")
        names = self._argument_names(node.target, node.target.elts, initial)
        first = node.body[0]
        if not (isinstance(first, ast.Expr) and self._is_word(first.value, "cond")):
            self.fail(first, "a `pl.while_` loop begins with `pl.cond(...)`")
        assert isinstance(first.value, ast.Call)
        if len(first.value.args) != 1:
            self.fail(first, "`pl.cond` takes one condition")
        spec = _Spec(
            node,
            "`pl.while_` loop",
            lambda: self.body(node.body[1:], live | liveness.live_in_loop(node, live)),
            lambda: None,
            list(zip(names, initial, strict=True)),
            condition=first.value.args[0],
        )
        self._while(spec, live)

    def _while(self, spec: _Spec, live: liveness.Names) -> None:
        outcome = self._carry(spec, live)
        assert outcome.condition is not None
        head = block(outcome.head, [outcome.condition])
        self.statements.append(While(outcome.carried, head, outcome.body, self.location))

    # What is carried

    def _carry(self, spec: _Spec, live: liveness.Names) -> _Outcome:
        """Lower a loop's body, and find what it carries."""
        plan = self._guess(spec, live)
        location = self.location
        for _ in range(_MAX_ATTEMPTS):
            before, taken = self.snapshot(), dict(self.taken)
            outcome = self._attempt(spec, plan)
            self.location = location
            if outcome is not None:
                self._check_consumed(spec, outcome)
                outcome.carried = self._finish(spec, before, outcome.slots)
                return outcome
            self.restore(before)
            self.taken = taken
        raise AssertionError("a loop's carried values do not settle")

    def _guess(self, spec: _Spec, live: liveness.Names) -> _Plan:
        node = spec.node
        assert isinstance(node, ast.For | ast.While)
        needed = liveness.live_in_loop(node, live) | live
        rebound = liveness.assigned(node.body)
        target = liveness.bound(node.target) if isinstance(node, ast.For) else frozenset()
        yielded = _yielded_names(node.body) if spec.explicit else frozenset()
        names = [
            name
            for name, value in self.frame.names.items()
            if name in rebound and name in needed and name not in target | yielded
            and (isinstance(value, TensorVar) or is_scalar(value) or is_number(value))
        ]  # fmt: skip
        plan = _Plan(names)
        for name in sorted(self.loop_roots.get(_loop_key(node), ())):
            value = self.frame.names.get(name)
            if isinstance(value, TensorVar):
                self._add_root(plan, self.root[value])
        return plan

    @staticmethod
    def _add_root(plan: _Plan, root: TensorVar) -> None:
        if root not in plan.roots and root not in plan.dropped:
            plan.roots.append(root)

    def _attempt(self, spec: _Spec, plan: _Plan) -> _Outcome | None:
        """Lower the body once; change `plan` and return None where it did not hold."""
        names = self.frame.names
        slots: list[_Slot] = []
        entry_current = dict(self.current)
        for root in plan.roots:
            value = self.current[root]
            argument = TensorVar(self.fresh(root.name), value.type)
            self.root[argument] = root
            self.current[root] = argument
            self.replace(value, argument)
            slots.append(_Slot(root.name, value, argument, root))
        for name in plan.names:
            value = names[name]
            if isinstance(value, TensorVar) and self.root[value] in plan.roots:
                continue
            slots.append(self._slot(spec, name, value, plan.dtypes.get(name)))
            names[name] = slots[-1].argument
        for position, (name, value) in enumerate(spec.explicit):
            if isinstance(value, TaskId):
                names[name] = value
                continue
            slot = self._slot(spec, name, value, plan.dtypes.get(f"({position})"))
            slot.explicit = position
            slots.append(slot)
            names[name] = slot.argument
        current = dict(self.current)
        yields = Yields("loop")
        with self.collecting() as head:
            condition = self._condition(spec)
        spec.entry()
        self.yields.append(yields)
        self.frame.depth += 1
        with self.collecting() as inner:
            spec.body()
        self.frame.depth -= 1
        self.yields.pop()
        if self._settle(spec, plan, slots, current, entry_current, yields):
            return _Outcome(slots, inner, head, condition)
        return None

    def _condition(self, spec: _Spec) -> Scalar | None:
        if spec.condition is None:
            return None
        condition = self.truth(spec.condition)
        if isinstance(condition, bool):
            self.fail(
                spec.condition,
                f"the condition is always {condition}",
                hint="a `while` condition reads something that the loop changes",
            )
        return condition

    def _slot(self, spec: _Spec, name: str, value: Any, dtype: DType | None) -> _Slot:
        if isinstance(value, TensorVar):
            value = self.use(spec.node, value)
            return _Slot(name, value, self.new_tensor(name, value.type))
        initial: Any = typed(value, dtype) if is_number(value) else value
        if not is_scalar(initial):
            self.fail(spec.node, f"`{name}` starts as {describe(value)}, which is no tensor "
                      "or scalar: a loop cannot carry it")  # fmt: skip
        return _Slot(name, initial, ScalarVar(self.fresh(name), initial.dtype))

    def _settle(
        self,
        spec: _Spec,
        plan: _Plan,
        slots: list[_Slot],
        current: dict[TensorVar, TensorVar],
        entry: dict[TensorVar, TensorVar],
        yields: Yields,
    ) -> bool:
        """Find each slot's value at the end of the body; return whether the guess held."""
        held = True
        if spec.explicit and len(yields.values or ()) != len(spec.explicit):
            self.fail(
                spec.node,
                f"the loop has {len(spec.explicit)} `init_values` and yields "
                f"{len(yields.values or ())} values",
                hint="end the body with `... = pl.yield_(...)`",
            )
        for root in entry:
            now = self.current[root]
            if now is not current[root] and self.root[now] is root and root not in plan.roots:
                plan.roots.append(root)
                names = self.loop_roots.setdefault(_loop_key(spec.node), set())
                names |= {
                    name
                    for name, value in self.frame.names.items()
                    if isinstance(value, TensorVar) and self.root[value] is root
                }
                held = False
        if not held:
            return False
        for slot in slots:
            if slot.root is not None:
                slot.exit = self.current[slot.root]
                if slot.exit is slot.argument:
                    plan.roots.remove(slot.root)
                    plan.dropped.add(slot.root)
                    held = False
                continue
            key = slot.name if slot.explicit is None else f"({slot.explicit})"
            value = self.frame.names[slot.name]
            if slot.explicit is not None:
                value = (yields.values or [])[slot.explicit]
            if value is slot.argument and slot.explicit is None:
                plan.names.remove(slot.name)
                held = False
                continue
            held = self._exit(spec, plan, slot, key, value) and held
            initial = slot.initial
            if isinstance(initial, TensorVar) and self._is_aliased(slot, initial, slots):
                # Written in place under one of its names: all of them mean what was written.
                plan.names.remove(slot.name)
                self._add_root(plan, self.root[initial])
                held = False
        slotted = {each.name for each in slots}
        for name in plan.names if held else ():
            value = self.frame.names[name]
            if name not in slotted and (
                not isinstance(value, TensorVar) or self.root[value] not in plan.roots
            ):
                self.fail(
                    spec.node,
                    f"`{name}` is updated in place in the loop, and bound to another value there",
                    hint="use two names",
                )
        return held

    def _is_aliased(self, slot: _Slot, initial: TensorVar, slots: list[_Slot]) -> bool:
        """Return whether an implicitly carried tensor is updated in place and has a second name."""
        if slot.explicit is not None or self.root.get(slot.exit) is not slot.argument:
            return False
        carried_twice = any(each is not slot and each.initial is initial for each in slots)
        return carried_twice or any(holds(each, initial) for each in self.frame.names.values())

    def _exit(self, spec: _Spec, plan: _Plan, slot: _Slot, key: str, value: Any) -> bool:
        node = spec.node
        if isinstance(value, Poison):
            self.fail(node, value.message, value.hint)
        if isinstance(slot.argument, TensorVar):
            if not isinstance(value, TensorVar) or value.type != slot.argument.type:
                self.fail(
                    node,
                    f"the {spec.label} carries `{slot.name}` as {describe(slot.initial)}, "
                    f"and rebinds it to {describe(value)}",
                    hint="a carried value keeps one type: use another name in the loop, or give "
                    "it that shape and dtype before",
                )
            slot.exit = self.use(node, value)
            return True
        wanted = slot.argument.dtype
        exit_value: Any = typed(value, wanted) if is_number(value) else value
        if is_scalar(exit_value) and exit_value.dtype != wanted:
            literal = isinstance(slot.initial, ir_scalar.Constant)
            if (
                literal
                and key not in plan.dtypes
                and typed(plain(slot.initial), exit_value.dtype) is not None
            ):
                plan.dtypes[key] = exit_value.dtype
                return False
            both = exit_value.dtype.is_integer and wanted.is_integer
            exit_value = ir_scalar.convert(exit_value, wanted) if both else None
        if not is_scalar(exit_value):
            self.fail(
                node,
                f"the {spec.label} carries `{slot.name}` as {article(wanted)} scalar, and "
                f"rebinds it to {describe(value)}",
                hint="a carried value keeps one type: start it with `pl.const` or `pl.cast`",
            )
        slot.exit = exit_value
        return True

    def _in_place(self, slot: _Slot) -> bool:
        return isinstance(slot.exit, TensorVar) and (
            slot.root is not None or self.root[slot.exit] is slot.argument
        )

    def _check_consumed(self, spec: _Spec, outcome: _Outcome) -> None:
        """Refuse a loop that reads a tensor under one name and updates it under another."""
        read = set(_read_tensors(Block(tuple(outcome.head)))) | set(_read_tensors(outcome.body))
        for slot in outcome.slots:
            if not isinstance(slot.initial, TensorVar) or not self._in_place(slot):
                continue
            twice = [each.initial for each in outcome.slots].count(slot.initial) > 1
            if twice or slot.initial in read:
                self.fail(
                    spec.node,
                    f"the {spec.label} updates `{slot.initial.name}` as `{slot.name}`, and reads "
                    "it under another name",
                    hint=f"read `{slot.name}` in the loop",
                )

    def _finish(self, spec: _Spec, before: Any, slots: list[_Slot]) -> tuple[Carried, ...]:
        """Bind names and storages behind the loop to its results."""
        inside = self.frame.names
        exits = {slot.name: slot for slot in slots}
        current = dict(self.current)
        yielded = {}
        if spec.explicit:
            yielded = _last_yield(spec.node, self.frame.names)
        self.restore(before)
        names = self.frame.names
        carried: list[Carried] = []
        for slot in slots:
            in_place = self._in_place(slot)
            if spec.parallel and not in_place:
                self.fail(
                    spec.node,
                    f"a {spec.label} cannot carry `{slot.name}` from one iteration to the next",
                    hint="its iterations are independent: write to a part of a tensor, or use "
                    "`pl.range`",
                )
            if isinstance(slot.initial, TensorVar) and isinstance(slot.exit, TensorVar):
                result: Any = TensorVar(self.fresh(slot.name), slot.initial.type)
                if in_place:
                    self.carried_from[slot.argument] = slot.initial
                    self.updated_to(spec.node, slot.initial, result, rebind=True)
                else:
                    self.root[result] = result
                    self.current[result] = result
                    if current[slot.argument] is not slot.argument:
                        self.updated_to(spec.node, slot.initial, slot.argument, rebind=False)
            else:
                result = ScalarVar(self.fresh(slot.name), slot.argument.dtype)
            carried.append(Carried(slot.initial, slot.argument, result))
            if slot.explicit is not None:
                for name, position in yielded.items():
                    if position == slot.explicit:
                        names[name] = result
            elif slot.root is None:
                names[slot.name] = result
        for name, value in inside.items():
            self._behind(spec, name, value, exits, yielded, names, before[0][-1])
        return tuple(carried)

    def _behind(
        self,
        spec: _Spec,
        name: str,
        value: Any,
        exits: dict[str, _Slot],
        yielded: dict[str, int],
        names: dict[str, Any],
        before: dict[str, Any],
    ) -> None:
        """Say what a name of the body means behind the loop, where it is not carried."""
        if name in yielded:
            if isinstance(value, TaskId):
                names[name] = TASK
            return
        slot = exits.get(name)
        if slot is not None and slot.root is None and slot.explicit is None:
            return
        line = self.place(spec.node).line
        if name not in before:
            if isinstance(value, TaskId):
                names[name] = TASK
                return
            latest = self._latest(value)
            if isinstance(latest, TensorVar) and self.root[latest] in self.current:
                names[name] = latest
                return
            names[name] = Poison(
                f"`{name}` is bound in the loop at line {line} only",
                hint="bind it before the loop, so that the loop carries it",
            )
        elif isinstance(value, TensorVar) and self.root[value] in self.current and (
            isinstance(before[name], TensorVar)
        ):  # fmt: skip
            return
        elif value is not before[name] and not isinstance(value, TaskId):
            same = not isinstance(value, TensorVar) and not is_scalar(value)
            if not (same and value == before[name]):
                names[name] = Poison(
                    f"`{name}` was rebound in the loop at line {line}, which does not carry it"
                )


def _read_tensors(block: Block) -> Iterator[TensorVar]:
    """Yield every tensor that the statements of `block` read."""
    for statement in visit.statements(block):
        values: tuple[Any, ...] = ()
        match statement:
            case Operation(operands=operands):
                values = operands
            case For(carried=carried) | While(carried=carried):
                values = tuple(each.initial for each in carried)
        inner = [each.yields for each in visit.blocks(statement)]
        for value in (*values, *(each for yields in inner for each in yields)):
            if isinstance(value, TensorVar):
                yield value
    yield from (each for each in block.yields if isinstance(each, TensorVar))


def _loop_key(node: ast.stmt) -> ast.AST:
    """Return what stays the same for a loop that is lowered again."""
    assert isinstance(node, ast.For | ast.While)
    return node.body[0] if node.body else node


def _yielded_names(statements: Sequence[ast.stmt]) -> liveness.Names:
    """Return the names bound by the `pl.yield_` of a loop's own body."""
    return frozenset(_yield_targets(statements))


def _yield_targets(statements: Sequence[ast.stmt]) -> list[str]:
    for statement in reversed(statements):
        match statement:
            case ast.Assign(targets=[target], value=ast.Call(func=function)):
                if ast.unparse(function).split(".")[-1] == "yield_":
                    items = target.elts if isinstance(target, ast.Tuple) else [target]
                    return [each.id for each in items if isinstance(each, ast.Name)]
            case ast.With(body=body):
                found = _yield_targets(body)
                if found:
                    return found
    return []


def _last_yield(node: ast.stmt, names: dict[str, Any]) -> dict[str, int]:
    assert isinstance(node, ast.For)
    return {name: position for position, name in enumerate(_yield_targets(node.body))}
