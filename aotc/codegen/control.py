"""Loops and branches: of the team, with regions inside, or within item code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from aotc.codegen import ctext
from aotc.codegen.analysis import Form
from aotc.codegen.barriers import Item, Region, TeamBlock
from aotc.codegen.emitter import Emitter
from aotc.codegen.nests import indent, pieces_loop
from aotc.codegen.sharing import Touch
from aotc.errors import AotcError
from aotc.ir.nodes import (
    Block,
    Carried,
    For,
    If,
    Location,
    LoopKind,
    TensorVar,
    Value,
    Var,
    While,
)
from aotc.ir.scalar import Scalar, ScalarVar, constant_value


class ControlFlow(Emitter):
    """Writes loops and branches; a subclass writes what is inside."""

    @abstractmethod
    def block(self, block: Block) -> None:
        """Write the statements of `block`."""

    def for_loop(self, loop: For) -> None:
        """Write a loop; the threads share the iterations of a parallel one."""
        self.flush()
        shared = self.team and loop.kind is LoopKind.PARALLEL
        declared = self._enter(loop.carried, loop.location)
        variable = ctext.identifier(loop.index.name)
        start, stop, step = (ctext.scalar(each) for each in (loop.start, loop.stop, loop.step))
        down = (constant_value(loop.step) or 1) < 0
        if shared:
            self._shared_for(loop, start, stop, step, variable)
        else:
            head = (
                f"for (int64_t {variable} = {start}; {variable} {'>' if down else '<'} {stop}; "
                f"{variable} += {step})"
            )
            self._carrying_loop(head, loop.body, loop.carried, declared, loop.location)
        self._leave(loop.carried)

    def _shared_for(self, loop: For, start: str, stop: str, step: str, variable: str) -> None:
        """Emit a loop whose iterations the threads share, as one region."""
        if any(isinstance(each.argument, ScalarVar) for each in loop.carried):
            raise AotcError(
                "a scalar is carried from one iteration of a parallel loop to the next",
                place=loop.location.place,
                hint="use `pl.range`",
            )
        count = f"aotc_scalar_floordiv_index({stop} - {start} + {step} - 1, {step})"
        if (start, step) == ("0", "1"):
            count = stop
        self.team = False
        self.touched, self.written, self.lines = set(), set(), []
        first = self.position
        self.block(loop.body)
        self.flush()
        self.team = True
        begin = f"const int64_t {variable} = {start} + item * {step};"
        body = pieces_loop((count, "1"), "1", ("1", "1"), ("item", "after"), [begin, *self.lines])
        lines = [f"// {loop.location.text}", *body]
        self.extend(first)
        for buffer in self.touched:
            if not buffer.private:
                # Threads are at different places in the body: what it shares lives all along.
                buffer.touch(first + 1)
        self.append(lines, dict.fromkeys(self.touched), dict.fromkeys(self.written))
        region = self.items[-1]
        assert isinstance(region, Region)
        region.position = first + 1

    def _enter(self, carried: Sequence[Carried], location: Location) -> list[bool]:
        """Set up what a loop carries; say of each whether it lives in storage of its own."""
        own: list[bool] = []
        for each in carried:
            if isinstance(each.argument, TensorVar):
                own.append(self._enter_tensor(each, location))
                continue
            assert not isinstance(each.initial, TensorVar)
            c_type = ctext.value_type(each.argument.dtype)
            name = ctext.identifier(each.argument.name)
            self.emit([f"{c_type} {name} = {ctext.scalar(each.initial)};"])
            own.append(True)
        self.flush()
        return own

    def _enter_tensor(self, carried: Carried, location: Location) -> bool:
        argument = carried.argument
        assert isinstance(argument, TensorVar)
        assert isinstance(carried.initial, TensorVar)
        if self.analysis.forms[argument.name] is Form.ALIAS:
            self.accesses[argument.name] = self.accesses[carried.initial.name]
            return False
        target = self.allocate(argument.name, argument.type, location)
        if carried.initial.name in self.inlined or not self._undefined(carried.initial):
            self.copy(carried.initial, target, location)
        self.accesses[argument.name] = target
        return True

    def _undefined(self, value: TensorVar) -> bool:
        """Whether nothing has been stored in `value` yet."""
        buffer = self.accesses[value.name].buffer
        return (
            buffer.elements is not None
            and buffer.first is None
            and not any(
                touch.access.buffer is buffer for nest in self.group.nests for touch in nest.stores
            )
        )

    def _carrying_loop(
        self,
        head: str,
        body: Block,
        carried: Sequence[Carried],
        own: Sequence[bool],
        location: Location,
    ) -> None:
        outer_items, outer_lines = self.items, self.lines
        self.items, self.lines = [], []
        first = self.position
        self.block(body)
        self._continue(carried, body.yields, own, location)
        self.flush()
        self._close(head, outer_items, outer_lines, carried, first)

    def _close(
        self,
        head: str,
        outer_items: list[Item],
        outer_lines: list[str],
        carried: Sequence[Carried],
        first: int,
    ) -> None:
        """Put the loop whose body has been written behind what came before it."""
        for each in carried:
            if isinstance(each.argument, TensorVar):
                buffer = self.accesses[each.argument.name].buffer
                buffer.touch(first)
                buffer.touch(self.position)
        self.extend(first)
        inner_items, inner_lines = self.items, self.lines
        self.items, self.lines = outer_items, outer_lines
        if self.team:
            self.items.append(TeamBlock([(head, inner_items)], loops=True))
        else:
            self.lines += [f"{head} {{", *indent(inner_lines), "}"]

    def _continue(
        self,
        carried: Sequence[Carried],
        values: Sequence[Value],
        own: Sequence[bool],
        location: Location,
    ) -> None:
        """Store what the next iteration takes. No store may change what a later one reads."""
        moves = [
            (each.argument, value)
            for each, value, stored in zip(carried, values, own, strict=True)
            if stored and value != each.argument
        ]
        tensors = [
            (a, v) for a, v in moves if isinstance(a, TensorVar) and isinstance(v, TensorVar)
        ]
        targets = {self.accesses[argument.name].buffer for argument, _ in tensors}
        staged: list[tuple[TensorVar, TensorVar]] = []
        for argument, value in tensors:
            mine = self.accesses[argument.name].buffer
            loads: list[Touch] = []
            self.element(value, ("0",) * value.type.rank, loads)
            if any(t.access.buffer in targets - {mine} for t in loads):
                aside = self.allocate(
                    f"{argument.name}_next{len(self.buffers)}", value.type, location
                )
                self.store(value, aside, location)
                value = TensorVar(aside.buffer.name, value.type)
                self.accesses[value.name] = aside
            staged.append((argument, value))
        for argument, value in staged:
            self.copy(value, self.accesses[argument.name], location)
        scalars = [
            (a, v) for a, v in moves if isinstance(a, ScalarVar) and not isinstance(v, TensorVar)
        ]
        self._assign(scalars)

    def _assign(self, scalars: Sequence[tuple[ScalarVar, Scalar]]) -> None:
        if not scalars:
            return
        if len(scalars) == 1:
            target, value = scalars[0]
            self.emit([f"{ctext.identifier(target.name)} = {ctext.scalar(value)};"])
            return
        lines = ["{"]
        for target, value in scalars:
            c_type = ctext.value_type(target.dtype)
            lines.append(f"    const {c_type} next_{target.name} = {ctext.scalar(value)};")
        lines += [f"    {ctext.identifier(t.name)} = next_{t.name};" for t, _ in scalars]
        self.emit([*lines, "}"])

    def _leave(self, carried: Sequence[Carried]) -> None:
        """Give what the loop leaves behind the name that the program uses after it."""
        for each in carried:
            if isinstance(each.result, TensorVar):
                self.accesses[each.result.name] = self.accesses[each.argument.name]
                continue
            c_type = ctext.value_type(each.result.dtype)
            result, argument = (
                ctext.identifier(name) for name in (each.result.name, each.argument.name)
            )
            self.emit([f"const {c_type} {result} = {argument};"])

    def while_loop(self, loop: While) -> None:
        """Write a loop that ends where its condition does not hold."""
        self.flush()
        own = self._enter(loop.carried, loop.location)
        outer_items, outer_lines = self.items, self.lines
        self.items, self.lines = [], []
        first = self.position
        self.block(loop.head)
        (condition,) = loop.head.yields
        assert not isinstance(condition, TensorVar)
        self.emit([f"if (!{ctext.scalar(condition)}) break;"], leaves=True)
        self.block(loop.body)
        self._continue(loop.carried, loop.body.yields, own, loop.location)
        self.flush()
        self._close("for (;;)", outer_items, outer_lines, loop.carried, first)
        self._leave(loop.carried)

    def branch(self, branch: If) -> None:
        """Write a branch."""
        self.flush()
        for result in branch.results:
            if isinstance(result, ScalarVar):
                c_type = ctext.value_type(result.dtype)
                self.emit([f"{c_type} {ctext.identifier(result.name)};"])
            elif self.analysis.forms[result.name] is Form.BUFFER:
                self.accesses[result.name] = self.allocate(
                    result.name, result.type, branch.location
                )
        outer_items, outer_lines = self.items, self.lines
        arms: list[tuple[str, list[Item]]] = []
        lines: list[str] = []
        heads = (f"if ({ctext.scalar(branch.condition)})", "else")
        for head, block in zip(heads, (branch.then, branch.orelse), strict=True):
            if not block.statements and not block.yields and head == "else":
                continue
            self.items, self.lines = [], []
            self.block(block)
            for result, value in zip(branch.results, block.yields, strict=True):
                self._result(result, value, branch.location)
            self.flush()
            arms.append((head, self.items))
            lines += [f"{head} {{", *indent(self.lines), "}"]
        self.items, self.lines = outer_items, outer_lines
        if self.team:
            self.items.append(TeamBlock(arms, loops=False))
        else:
            self.lines += lines

    def _result(self, result: Var, value: Value, location: Location) -> None:
        if isinstance(result, ScalarVar):
            assert not isinstance(value, TensorVar)
            self._assign([(result, value)])
            return
        assert isinstance(value, TensorVar)
        if self.analysis.forms[result.name] is Form.BUFFER:
            self.copy(value, self.accesses[result.name], location)
        else:
            self.accesses[result.name] = self.accesses[value.name]
