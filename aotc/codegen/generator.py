"""From IR to C: one function that every thread of the team runs.

Code at the top level is *team* code: each thread runs it, scalars are computed by all, and loop
nests, contractions and `parallel` loops are shared out, with a barrier where a thread may need
what another wrote. The body of a `parallel` loop is *item* code: one thread runs it alone, with
workspace of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotc.codegen import ctext
from aotc.codegen.analysis import Analysis, Form, analyse
from aotc.codegen.nests import (
    Group,
    Index,
    Nest,
    Touch,
    column_index,
    column_loop,
    indent,
    load,
    row_index,
    row_position,
    row_reduction,
    store,
)
from aotc.codegen.storage import Access, Buffer, element_count, row_major
from aotc.dtypes import BF16, FP16, FP32, INT8, INT32, DType
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
from aotc.ir.scalar import Scalar, ScalarVar, add, binary, constant_value, index, mul, walk
from aotc.ops.registry import (
    Allocate,
    Matmul,
    Pointwise,
    Read,
    Reduce,
    Update,
    View,
    suffix,
    table,
)


@dataclass
class Region:
    """Code between possible barriers: its lines, and the buffers that other threads may share."""

    lines: list[str]
    reads: set[Buffer]
    writes: set[Buffer]


@dataclass
class TeamBlock:
    """A loop, or a branch with its alternatives, that the whole team runs together."""

    arms: list[tuple[str, list[Item]]]  # the text before `{`, and what stands inside
    loops: bool


Item = Region | TeamBlock


@dataclass
class Generated:
    """The code of a program in order, before barriers, and every workspace buffer that it uses."""

    items: list[Item]
    shared: list[Buffer]
    private: list[Buffer]
    element_types: set[tuple[DType, DType]]


def generate_items(program: Program) -> Generated:
    """Turn `program` into regions of C."""
    generator = _Generator(program)
    items = generator.run()
    used = [each for each in generator.buffers if each.first is not None]
    return Generated(
        items,
        [each for each in used if not each.private],
        [each for each in used if each.private],
        generator.element_types,
    )


class _Elements:
    """Reads elements for one nest and records where memory is touched."""

    def __init__(self, generator: _Generator, operation: Operation, loads: list[Touch]):
        self.generator = generator
        self.arguments: Mapping[str, Any] = table()[operation.op].arguments(operation)
        self.loads = loads

    def load(self, name: str, index: Index) -> str:
        value = self.arguments[name]
        if isinstance(value, TensorVar):
            return self.generator.element(value, index, self.loads)
        return self.scalar(value)

    def scalar(self, scalar: Scalar) -> str:
        return ctext.scalar(scalar)


class _Generator:
    def __init__(self, program: Program):
        self.program = program
        self.analysis: Analysis = analyse(program)
        self.table = table()
        self.accesses: dict[str, Access] = {}
        self.inlined: dict[str, Operation] = {}
        self.buffers: list[Buffer] = []
        self.element_types: set[tuple[DType, DType]] = set()
        self.position = 0
        self.team = True
        self.group = Group()
        self.items: list[Item] = []
        self.reads: set[Buffer] = set()  # of the item code being written
        self.writes: set[Buffer] = set()
        self.lines: list[str] = []

    def run(self) -> list[Item]:
        for parameter in self.program.parameters:
            variable = parameter.variable
            if isinstance(variable, TensorVar):
                buffer = Buffer(variable.name, variable.dtype, None)
                strides = row_major(variable.shape)
                self.accesses[variable.name] = Access(buffer, index(0), strides)
        self._block(self.program.body)
        self._flush()
        return self.items

    # Output. Team code collects regions, item code collects lines.

    def _emit(self, lines: Sequence[str], reads: set[Buffer], writes: set[Buffer]) -> None:
        self._flush()
        self._append(list(lines), reads, writes)

    def _append(self, lines: list[str], reads: set[Buffer], writes: set[Buffer]) -> None:
        self.position += 1
        for buffer in reads | writes:
            buffer.touch(self.position)
        if self.team:
            self.items.append(Region(lines, reads, writes))
        else:
            self.lines += lines
            self.reads |= reads
            self.writes |= writes

    def _flush(self) -> None:
        if self.group.nests:
            group, self.group = self.group, Group()
            self._append(group.lines(self.team), group.reads, group.writes)

    def _nest(self, nest: Nest) -> None:
        if not self.group.accepts(nest):
            self._flush()
        self.group.nests.append(nest)

    def _extend(self, first: int) -> None:
        """What was alive before a loop and is used in it stays alive until the loop ends."""
        for buffer in self.buffers:
            if buffer.first is not None and buffer.first <= first < buffer.last:
                buffer.last = self.position

    # Storage.

    def _allocate(self, name: str, tensor: TensorType, location: Location) -> Access:
        elements = element_count(tensor.shape)
        for part in walk(elements):
            if isinstance(part, ScalarVar):
                raise AotcError(
                    f"`{name}` has an extent that is not known when the call starts: "
                    f"`{ctext.scalar(elements)}` elements",
                    place=location.place,
                    hint="use a static extent or a dynamic symbol, and give the part in use "
                    "as a valid shape",
                )
        buffer = Buffer(name, tensor.dtype, elements, private=not self.team)
        self.buffers.append(buffer)
        return Access(buffer, index(0), row_major(tensor.shape))

    def element(
        self, value: TensorVar, index: Index, loads: list[Touch], stored: bool = False
    ) -> str:
        """Return the C value of one element of `value`, and record the loads that it needs.

        The value is rounded to the type of `value`, unless it is `stored`, which rounds it.
        """
        operation = self.inlined.get(value.name)
        if operation is None:
            access = self.accesses[value.name]
            loads.append(Touch(access, index))
            return load(access, index)
        lowering = self.table[operation.op].lowering
        assert isinstance(lowering, Pointwise)
        text = lowering.element(_Elements(self, operation, loads), index)
        if stored or value.dtype == FP32:
            return text
        if value.dtype in (BF16, FP16):
            return f"aotc_round_{value.dtype.name}({text})"
        return f"(({value.dtype.c_type})({text}))"

    def _copy(self, value: Value, target: Access, location: Location) -> None:
        """Store the valid region of `value` in `target`; elements may be computed on the way."""
        assert isinstance(value, TensorVar)
        shape = value.type.valid_shape
        rows, columns = shape[:-1], shape[-1]
        place = (*row_index(rows), column_index(columns))
        loads: list[Touch] = []
        self.element(value, place, loads)
        moved = [t for t in loads if t.access.buffer is target.buffer]
        if any(t != Touch(target, place) for t in moved):
            # The elements come from the storage that they replace: finish them first.
            aside = self._allocate(f"{value.name}_aside{len(self.buffers)}", value.type, location)
            self._store(value, aside, location)
            stored = TensorVar(aside.buffer.name, value.type)
            self.accesses[stored.name] = aside
            self._flush()
            self._copy(stored, target, location)
            return
        self._store(value, target, location)

    def _store(self, value: TensorVar, target: Access, location: Location) -> None:
        shape = value.type.valid_shape
        rows, columns = shape[:-1], shape[-1]
        place = (*row_index(rows), column_index(columns))
        loads: list[Touch] = []
        line = store(target, place, self.element(value, place, loads, stored=True))
        lines = column_loop(columns, line)
        self._nest(Nest(rows, lines, loads, [Touch(target, place)], location.text))

    # Statements.

    def _block(self, block: Block) -> None:
        for statement in block.statements:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Operation():
                self._operation(statement)
            case For():
                self._for(statement)
            case While():
                self._while(statement)
            case If():
                self._if(statement)

    def _operation(self, operation: Operation) -> None:
        row = self.table[operation.op]
        arguments = row.arguments(operation)
        result = operation.result
        match row.lowering:
            case Read(operand=operand, indices=indices):
                assert isinstance(result, ScalarVar)
                self._read(result, arguments[operand], arguments[indices])
            case Update() as update:
                self._update(operation, update, arguments)
            case Allocate():
                assert isinstance(result, TensorVar)
                self.accesses[result.name] = self._allocate(
                    result.name, result.type, operation.location
                )
            case View() as view:
                self._view(operation, view, arguments)
            case Pointwise():
                self._pointwise(operation)
            case Reduce() as reduce:
                self._reduce(operation, reduce, arguments[reduce.operand])
            case Matmul() as matmul:
                self._matmul(operation, matmul, arguments)

    def _pointwise(self, operation: Operation) -> None:
        assert isinstance(operation.result, TensorVar)
        name = operation.result.name
        self.inlined[name] = operation
        if self.analysis.forms[name] is Form.INLINE:
            return
        target = self._allocate(name, operation.result.type, operation.location)
        self._store(operation.result, target, operation.location)
        del self.inlined[name]
        self.accesses[name] = target

    def _read(self, result: ScalarVar, source: TensorVar, indices: tuple[Scalar, ...]) -> None:
        loads: list[Touch] = []
        text = self.element(source, tuple(ctext.scalar(each) for each in indices), loads)
        line = f"const {ctext.value_type(result.dtype)} {ctext.identifier(result.name)} = {text};"
        self._emit([line], {touch.access.buffer for touch in loads}, set())

    def _update(self, operation: Operation, update: Update, arguments: dict[str, Any]) -> None:
        assert isinstance(operation.result, TensorVar)
        self.accesses[operation.result.name] = self.accesses[arguments[update.target].name]
        source, window = arguments[update.source], self._window(update, arguments)
        if not isinstance(source, TensorVar):
            place: Index = ("0",) * len(window.strides)
            line = store(window, place, ctext.scalar(source))
            self._nest(Nest((), [line], [], [Touch(window, place)], operation.location.text))
        elif self.analysis.destinations.get(source.name) != operation:
            strides = window.strides[len(window.strides) - source.type.rank :]
            window = Access(window.buffer, window.offset, strides)
            self._copy(source, window, operation.location)

    def _window(self, update: Update, arguments: dict[str, Any]) -> Access:
        """Return the part of its target that an update writes."""
        target = self.accesses[arguments[update.target].name]
        offset = target.offset
        for each, stride in zip(arguments[update.offsets], target.strides, strict=True):
            offset = add(offset, mul(each, stride))
        return Access(target.buffer, offset, target.strides)

    def _view(self, operation: Operation, view: View, arguments: dict[str, Any]) -> None:
        assert isinstance(operation.result, TensorVar)
        name = operation.result.name
        operand = arguments[view.operand]
        source = self.accesses[operand.name]
        placed = view.place(arguments, source.strides)
        if placed is None:
            # No strides describe the view, but a contiguous copy always has one.
            source = self._allocate(f"{name}_source", operand.type, operation.location)
            self._store(operand, source, operation.location)
            placed = view.place(arguments, source.strides)
            assert placed is not None
        window = Access(source.buffer, add(source.offset, placed[0]), placed[1])
        self.accesses[name] = window
        if self.analysis.forms[name] is Form.BUFFER:
            # The storage is updated while this value is still needed: keep a copy.
            target = self._allocate(name, operation.result.type, operation.location)
            self._store(operation.result, target, operation.location)
            self.accesses[name] = target

    def _reduce(self, operation: Operation, reduce: Reduce, source: TensorVar) -> None:
        assert isinstance(operation.result, TensorVar)
        result = operation.result
        target = self._allocate(result.name, result.type, operation.location)
        self.accesses[result.name] = target
        valid = source.type.valid_shape
        rows = valid[:-1] if reduce.axis == -1 else valid[:-2]
        loads: list[Touch] = []
        combine = f"{reduce.combine}_{suffix(source.dtype)}"
        initial = f"{reduce.initial}_{suffix(source.dtype)}"
        if reduce.axis == -1:
            place: Index = (*row_index(rows), "0")
            element = self.element(source, (*row_index(rows), "j"), loads)
            done = store(target, place, "total")
            if reduce.position:
                better = ">" if reduce.combine == "aotc_max" else "<"
                lines = row_position(better, source.dtype, valid[-1], element, done)
            else:
                lines = row_reduction(combine, initial, source.dtype, valid[-1], element, done)
        else:
            place = (*row_index(rows), "0", "j")
            element = self.element(source, (*row_index(rows), "r", "j"), loads)
            c_type = ctext.value_type(source.dtype)
            step = f"total = {combine}(total, {element});"
            before = [f"{c_type} total = {initial};"]
            after = "total"
            if reduce.position:
                better = ">" if reduce.combine == "aotc_max" else "<"
                before = [f"{c_type} total = 0;", "int32_t at = 0;"]
                step = (
                    f"{{ const {c_type} x = {element}; "
                    f"if (r == 0 || x {better} total) {{ total = x; at = (int32_t)r; }} }}"
                )
                after = "at"
            lines = [
                f"for (int64_t j = 0; j < {ctext.scalar(valid[-1])}; ++j) {{",
                *indent(before),
                f"    for (int64_t r = 0; r < {ctext.scalar(valid[-2])}; ++r)",
                f"        {step}",
                f"    {store(target, place, after)}",
                "}",
            ]
        self._nest(Nest(rows, lines, loads, [Touch(target, place)], operation.location.text))

    def _matmul(self, operation: Operation, matmul: Matmul, arguments: dict[str, Any]) -> None:
        result = operation.result
        assert isinstance(result, TensorVar)
        left = self._unconverted(arguments[matmul.left])
        right = self._unconverted(arguments[matmul.right])
        computed = INT32 if left.dtype == INT8 else FP32
        self.element_types.add((left.dtype, right.dtype))
        target = self._matmul_target(operation, matmul, arguments, computed)
        a, b = self.accesses[left.name], self.accesses[right.name]
        turn_left = bool(matmul.transpose_left and arguments[matmul.transpose_left])
        turn_right = bool(matmul.transpose_right and arguments[matmul.transpose_right])
        a_strides = a.strides[::-1] if turn_left else a.strides
        b_strides = b.strides[::-1] if turn_right else b.strides
        left_valid = left.type.valid_shape[::-1] if turn_left else left.type.valid_shape
        right_valid = right.type.valid_shape[::-1] if turn_right else right.type.valid_shape
        rows, columns = left_valid[0], right_valid[1]
        inner = binary("min", left_valid[1], right_valid[0])
        n_first, n_last = "0", ctext.scalar(columns)
        if self.team:
            n_first = f"aotc_share({ctext.scalar(columns)}, 16, thread, threads)"
            n_last = f"aotc_share({ctext.scalar(columns)}, 16, thread + 1, threads)"
        accumulate = str(int(matmul.accumulator is not None or matmul.bias is not None))
        overwrite = arguments.get(matmul.overwrite) if matmul.overwrite else None
        if overwrite is not None and overwrite != ():
            accumulate = f"!{ctext.scalar(overwrite)}"
        lines = [
            f"// {operation.location.text}",
            f"aotc_matmul_{left.dtype.name}_{right.dtype.name}(",
            f"    {ctext.scalar(rows)}, {n_first}, {n_last}, {ctext.scalar(inner)},",
            f"    {a.pointer()}, {ctext.scalar(a_strides[0])}, {ctext.scalar(a_strides[1])},",
            f"    {b.pointer()}, {ctext.scalar(b_strides[0])}, {ctext.scalar(b_strides[1])},",
            f"    {target.pointer()}, {ctext.scalar(target.strides[0])}, {accumulate}, "
            "matmul_scratch);",
        ]
        self._emit(lines, {a.buffer, b.buffer, target.buffer}, {target.buffer})
        if result.dtype != computed:
            final = self._allocate(result.name, result.type, operation.location)
            wide = TensorVar(
                target.buffer.name, TensorType(computed, result.shape, result.type.valid)
            )
            self.accesses[wide.name] = target
            self._store(wide, final, operation.location)
            self.accesses[result.name] = final

    def _unconverted(self, value: TensorVar) -> TensorVar:
        """Return the tensor in memory that an exact conversion, not stored itself, reads."""
        operation = self.inlined.get(value.name)
        if operation is None:
            return value
        row = self.table[operation.op]
        assert isinstance(row.lowering, Pointwise)
        arguments = row.arguments(operation)
        name = row.lowering.exact(arguments)
        assert name is not None
        source = arguments[name]
        assert isinstance(source, TensorVar)
        return source

    def _matmul_target(
        self, operation: Operation, matmul: Matmul, arguments: dict[str, Any], computed: DType
    ) -> Access:
        """Return where the contraction goes; what it adds to stands there already."""
        result = operation.result
        assert isinstance(result, TensorVar)
        if self.analysis.forms[result.name] is Form.ALIAS:
            assert matmul.accumulator is not None
            self.accesses[result.name] = self.accesses[arguments[matmul.accumulator].name]
            return self.accesses[result.name]
        taken_by = self.analysis.destinations.get(result.name)
        start = arguments.get(matmul.accumulator or "") or arguments.get(matmul.bias or "")
        if taken_by is not None and result.dtype == computed and start is None:
            row = self.table[taken_by.op]
            assert isinstance(row.lowering, Update)
            self.accesses[result.name] = self._window(row.lowering, row.arguments(taken_by))
            return self.accesses[result.name]
        self.analysis.destinations.pop(result.name, None)
        name = result.name if result.dtype == computed else f"{result.name}_wide"
        wide = TensorType(computed, result.shape, result.type.valid)
        target = self._allocate(name, wide, operation.location)
        self.accesses[result.name] = target
        if isinstance(start, TensorVar):
            rows, columns = result.type.valid_shape
            place = (*row_index((rows,)), column_index(columns))
            from_row = "0" if constant_value(start.shape[0]) == 1 else place[0]
            loads: list[Touch] = []
            line = store(target, place, self.element(start, (from_row, place[1]), loads))
            self._nest(Nest((rows,), column_loop(columns, line), loads, [Touch(target, place)]))
        return target

    # Control flow.

    def _for(self, loop: For) -> None:
        self._flush()
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
        self.reads, self.writes, self.lines = set(), set(), []
        first_position = self.position + 1
        self._block(loop.body)
        self._flush()
        self.team = True
        head = f"for (int64_t item = thread; item < {count}; item += threads) {{"
        if (start, step) == ("0", "1"):
            head = (
                f"for (int64_t {variable} = thread; {variable} < {stop}; {variable} += threads) {{"
            )
            first: list[str] = []
        else:
            first = [f"const int64_t {variable} = {start} + item * {step};"]
        lines = [f"// {loop.location.text}", head, *indent([*first, *self.lines]), "}"]
        reads = {each for each in self.reads if not each.private}
        writes = {each for each in self.writes if not each.private}
        for buffer in reads | writes:
            # Threads are at different places in the body: what it shares lives all along.
            buffer.touch(first_position)
        self._append(lines, reads, writes)

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
            self._emit([f"{c_type} {name} = {ctext.scalar(each.initial)};"], set(), set())
            own.append(True)
        self._flush()
        return own

    def _enter_tensor(self, carried: Carried, location: Location) -> bool:
        argument = carried.argument
        assert isinstance(argument, TensorVar)
        assert isinstance(carried.initial, TensorVar)
        if self.analysis.forms[argument.name] is Form.ALIAS:
            self.accesses[argument.name] = self.accesses[carried.initial.name]
            return False
        target = self._allocate(argument.name, argument.type, location)
        if carried.initial.name in self.inlined or not self._undefined(carried.initial):
            self._copy(carried.initial, target, location)
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
        self._block(body)
        self._continue(carried, body.yields, own, location)
        self._flush()
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
        self._extend(first)
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
                aside = self._allocate(
                    f"{argument.name}_next{len(self.buffers)}", value.type, location
                )
                self._store(value, aside, location)
                value = TensorVar(aside.buffer.name, value.type)
                self.accesses[value.name] = aside
            staged.append((argument, value))
        for argument, value in staged:
            self._copy(value, self.accesses[argument.name], location)
        scalars = [
            (a, v) for a, v in moves if isinstance(a, ScalarVar) and not isinstance(v, TensorVar)
        ]
        self._assign(scalars)

    def _assign(self, scalars: Sequence[tuple[ScalarVar, Scalar]]) -> None:
        if not scalars:
            return
        if len(scalars) == 1:
            target, value = scalars[0]
            self._emit([f"{ctext.identifier(target.name)} = {ctext.scalar(value)};"], set(), set())
            return
        lines = ["{"]
        for target, value in scalars:
            c_type = ctext.value_type(target.dtype)
            lines.append(f"    const {c_type} next_{target.name} = {ctext.scalar(value)};")
        lines += [f"    {ctext.identifier(t.name)} = next_{t.name};" for t, _ in scalars]
        self._emit([*lines, "}"], set(), set())

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
            self._emit([f"const {c_type} {result} = {argument};"], set(), set())

    def _while(self, loop: While) -> None:
        self._flush()
        own = self._enter(loop.carried, loop.location)
        outer_items, outer_lines = self.items, self.lines
        self.items, self.lines = [], []
        first = self.position
        self._block(loop.head)
        (condition,) = loop.head.yields
        assert not isinstance(condition, TensorVar)
        self._emit([f"if (!{ctext.scalar(condition)}) break;"], set(), set())
        self._block(loop.body)
        self._continue(loop.carried, loop.body.yields, own, loop.location)
        self._flush()
        self._close("for (;;)", outer_items, outer_lines, loop.carried, first)
        self._leave(loop.carried)

    def _if(self, branch: If) -> None:
        self._flush()
        for result in branch.results:
            if isinstance(result, ScalarVar):
                c_type = ctext.value_type(result.dtype)
                self._emit([f"{c_type} {ctext.identifier(result.name)};"], set(), set())
            elif self.analysis.forms[result.name] is Form.BUFFER:
                self.accesses[result.name] = self._allocate(
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
            self._block(block)
            for result, value in zip(branch.results, block.yields, strict=True):
                self._result(result, value, branch.location)
            self._flush()
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
            self._copy(value, self.accesses[result.name], location)
        else:
            self.accesses[result.name] = self.accesses[value.name]
