"""From IR to C: one function that every thread of the team runs, as regions before barriers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotc.codegen import ctext
from aotc.codegen.analysis import Form
from aotc.codegen.barriers import Item
from aotc.codegen.control import ControlFlow
from aotc.codegen.nests import (
    Contraction,
    Nest,
    Span,
    column_index,
    column_loop,
    indent,
    load,
    store,
)
from aotc.codegen.reductions import row_position, row_reduction, unit_reduction
from aotc.codegen.sharing import (
    ROW_UNIT,
    UNIT,
    Columns,
    Everyone,
    Index,
    Rows,
    Touch,
    row_index,
)
from aotc.codegen.storage import Access, Buffer, row_major
from aotc.dtypes import FP32, INT8, INT32, DType
from aotc.ir.nodes import (
    Block,
    For,
    If,
    Operation,
    Program,
    Statement,
    TensorType,
    TensorVar,
    While,
)
from aotc.ir.scalar import Scalar, ScalarVar, add, binary, constant_value, index, mul
from aotc.ops.registry import (
    Allocate,
    Matmul,
    Pointwise,
    Read,
    Reduce,
    Update,
    View,
    suffix,
)


@dataclass
class Generated:
    """The code of a program in order, before barriers, and every workspace buffer that it uses.

    `element_types` are those of the operands of contractions, `batch_types` of batched ones.
    """

    items: list[Item]
    shared: list[Buffer]
    private: list[Buffer]
    element_types: set[tuple[DType, DType]]
    batch_types: set[tuple[DType, DType]]


def generate_items(
    program: Program, panels: Mapping[str, int], *, counting: bool = False
) -> Generated:
    """Turn `program` into regions of C; with `counting` they also count flops and bytes.

    The parameters in `panels` may be packed, see `codegen.panels`.
    """
    generator = _Generator(program, panels, counting)
    items = generator.run()
    used = [each for each in generator.buffers if each.first is not None]
    return Generated(
        items,
        [each for each in used if not each.private],
        [each for each in used if each.private],
        generator.element_types,
        generator.batch_types,
    )


class _Generator(ControlFlow):
    """Writes operations."""

    def __init__(self, program: Program, panels: Mapping[str, int], counting: bool):
        super().__init__(program, counting)
        self.panels = panels

    def run(self) -> list[Item]:
        """Write the whole program."""
        for parameter in self.program.parameters:
            variable = parameter.variable
            if isinstance(variable, TensorVar):
                buffer = Buffer(variable.name, variable.dtype, None)
                strides = row_major(variable.shape)
                self.accesses[variable.name] = Access(buffer, index(0), strides)
        self.block(self.program.body)
        self.flush()
        return self.items

    def block(self, block: Block) -> None:
        """Write the statements of `block`."""
        for statement in block.statements:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Operation():
                self._operation(statement)
            case For():
                self.for_loop(statement)
            case While():
                self.while_loop(statement)
            case If():
                self.branch(statement)

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
                self.accesses[result.name] = self.allocate(
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
        private = self._replicated(operation.result)
        target = self.allocate(name, operation.result.type, operation.location, private)
        self.store(operation.result, target, operation.location)
        del self.inlined[name]
        self.accesses[name] = target

    def _replicated(self, value: TensorVar) -> bool:
        """Whether each thread computes all of `value`: one column, of what it has itself."""
        if not self.team or not self.analysis.may_be_replicated(value):
            return False
        loads: list[Touch] = []
        self.element(value, (*row_index(value.type.valid_shape[:-1]), "0"), loads)
        return any(touch.access.buffer.private for touch in loads)

    def _read(self, result: ScalarVar, source: TensorVar, indices: tuple[Scalar, ...]) -> None:
        loads: list[Touch] = []
        text = self.element(source, tuple(ctext.scalar(each) for each in indices), loads)
        line = f"const {ctext.value_type(result.dtype)} {ctext.identifier(result.name)} = {text};"
        self.emit([line], [touch.access.buffer for touch in loads])

    def _update(self, operation: Operation, update: Update, arguments: dict[str, Any]) -> None:
        assert isinstance(operation.result, TensorVar)
        self.accesses[operation.result.name] = self.accesses[arguments[update.target].name]
        source, window = arguments[update.source], self._window(update, arguments)
        if not isinstance(source, TensorVar):
            place: Index = ("0",) * len(window.strides)
            line = store(window, place, ctext.scalar(source))
            self.nest(
                Nest(
                    self.partition((), index(1), window),
                    (),
                    {"j": index(1)},
                    lambda _: [line],
                    [],
                    [Touch(window, place)],
                    operation.location.text,
                )
            )
        elif self.analysis.destinations.get(source.name) != operation:
            strides = window.strides[len(window.strides) - source.type.rank :]
            window = Access(window.buffer, window.offset, strides)
            self.copy(source, window, operation.location)

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
            source = self.allocate(f"{name}_source", operand.type, operation.location)
            self.store(operand, source, operation.location)
            placed = view.place(arguments, source.strides)
            assert placed is not None
        window = Access(source.buffer, add(source.offset, placed[0]), placed[1])
        self.accesses[name] = window
        if self.analysis.forms[name] is Form.BUFFER:
            # The storage is updated while this value is still needed: keep a copy.
            target = self.allocate(name, operation.result.type, operation.location)
            self.store(operation.result, target, operation.location)
            self.accesses[name] = target

    def _reduce(self, operation: Operation, reduce: Reduce, source: TensorVar) -> None:
        assert isinstance(operation.result, TensorVar)
        result = operation.result
        valid = source.type.valid_shape
        combine = f"{reduce.combine}_{suffix(source.dtype)}"
        initial = f"{reduce.initial}_{suffix(source.dtype)}"
        better = ">" if reduce.combine == "aotc_max" else "<"
        if reduce.axis == -2:
            self._reduce_columns(operation, reduce, source, combine, initial, better)
            return
        if (
            self.team
            and not reduce.position
            and valid[-1] in self.analysis.widths
            and self.analysis.may_be_replicated(result)
        ):
            self._reduce_by_units(operation, source, combine, initial)
            return
        target = self.allocate(result.name, result.type, operation.location)
        self.accesses[result.name] = target
        rows, columns = valid[:-1], valid[-1]
        place: Index = (*row_index(rows), "0")
        loads: list[Touch] = []
        element = self.element(source, (*row_index(rows), "j"), loads)
        done = store(target, place, "total")
        if reduce.position:
            lines = row_position(better, source.dtype, columns, element, done)
        else:
            lines = row_reduction(combine, initial, source.dtype, columns, element, done)
        self.nest(
            Nest(
                self.partition(rows, index(1), target),
                rows,
                {"j": columns},
                lambda _: lines,
                loads,
                [Touch(target, place)],
                operation.location.text,
            )
        )

    def _reduce_by_units(
        self, operation: Operation, source: TensorVar, combine: str, initial: str
    ) -> None:
        """Reduce rows whose columns the threads share: units first, which each thread adds up."""
        result = operation.result
        assert isinstance(result, TensorVar)
        rows, columns = source.type.valid_shape[:-1], source.type.valid_shape[-1]
        dtype = FP32 if source.dtype.is_float else source.dtype
        text = operation.location.text

        shape = (*source.shape[:-1], _units(source.shape[-1]))
        parts = self.allocate(f"{result.name}_units", TensorType(dtype, shape), operation.location)
        loads: list[Touch] = []
        element = self.element(source, (*row_index(rows), "j"), loads)
        part = Touch(parts, (*row_index(rows), ROW_UNIT))
        keep = store(parts, part.index, "total")

        def by_unit(span: Span) -> list[str]:
            return unit_reduction(combine, initial, dtype, columns, span, element, keep)

        self.nest(Nest(Columns(columns), rows, {"j": columns}, by_unit, loads, [part], text))

        target = self.allocate(result.name, result.type, operation.location, private=True)
        self.accesses[result.name] = target
        each = Touch(parts, (*row_index(rows), "j"))
        whole = Touch(target, (*row_index(rows), "0"))
        count, done = _units(columns), store(target, whole.index, "total")
        lines = row_reduction(combine, initial, dtype, count, load(parts, each.index), done)
        self.nest(Nest(Everyone(), rows, {"j": count}, lambda _: lines, [each], [whole], text))

    def _reduce_columns(
        self,
        operation: Operation,
        reduce: Reduce,
        source: TensorVar,
        combine: str,
        initial: str,
        better: str,
    ) -> None:
        result = operation.result
        assert isinstance(result, TensorVar)
        target = self.allocate(result.name, result.type, operation.location)
        self.accesses[result.name] = target
        valid = source.type.valid_shape
        rows, height, columns = valid[:-2], valid[-2], valid[-1]
        place: Index = (*row_index(rows), "0", "j")
        loads: list[Touch] = []
        element = self.element(source, (*row_index(rows), "r", "j"), loads)
        c_type = ctext.value_type(source.dtype)
        step = f"total = {combine}(total, {element});"
        before = [f"{c_type} total = {initial};"]
        after = "total"
        if reduce.position:
            before = [f"{c_type} total = 0;", "int32_t at = 0;"]
            step = (
                f"{{ const {c_type} x = {element}; "
                f"if (r == 0 || x {better} total) {{ total = x; at = (int32_t)r; }} }}"
            )
            after = "at"

        def down(span: Span) -> list[str]:
            return [
                f"for (int64_t j = {span[0]}; j < {span[1]}; ++j) {{",
                *indent(before),
                f"    for (int64_t r = 0; r < {ctext.scalar(height)}; ++r)",
                f"        {step}",
                f"    {store(target, place, after)}",
                "}",
            ]

        self.nest(
            Nest(
                self.partition(rows, columns, target),
                rows,
                {"j": columns, "r": height},
                down,
                loads,
                [Touch(target, place)],
                operation.location.text,
            )
        )

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
        a_strides = _turned(a.strides, turn_left)
        b_strides = _turned(b.strides, turn_right)
        *batch, rows, left_inner = _turned(left.type.valid_shape, turn_left)
        *_, right_inner, columns = _turned(right.type.valid_shape, turn_right)
        inner = binary("min", left_inner, right_inner)
        accumulate = str(int(matmul.accumulator is not None or matmul.bias is not None))
        overwrite = arguments.get(matmul.overwrite) if matmul.overwrite else None
        if overwrite is not None and overwrite != ():
            accumulate = f"!{ctext.scalar(overwrite)}"

        types = f"{left.dtype.name}_{right.dtype.name}"
        if batch:
            self.batch_types.add((left.dtype, right.dtype))

        target_strides = ", ".join(map(ctext.scalar, target.strides[:-1]))
        depth = None if b.buffer.elements is not None else self.panels.get(b.buffer.name)
        packed = None if depth is None else packed_name(b.buffer.name)

        def call(span: Span) -> list[str]:
            counts = [*map(ctext.scalar, (*batch, rows)), *span, ctext.scalar(inner)]
            from_left = f"{a.pointer()}, {', '.join(map(ctext.scalar, a_strides))}"
            to = f"{target.pointer()}, {target_strides}"
            plain = [
                f"aotc_batch_{types}(" if batch else f"aotc_matmul_{types}(",
                f"    {', '.join(counts)},",
                f"    {from_left},",
                f"    {b.pointer()}, {', '.join(map(ctext.scalar, b_strides))},",
                f"    {to}, {'' if batch else f'{accumulate}, '}matmul_scratch);",
            ]
            if packed is None:
                return plain
            kind, layout = ("kn", f", {ctext.scalar(columns)}, {depth}") if depth else ("nk", "")
            return [
                f"if ({packed})",
                f"    aotc_panels_{kind}({', '.join(counts)}, {from_left},",
                f"        {b.pointer()}{layout}, {to}, {accumulate}, matmul_scratch);",
                "else",
                *indent(plain),
            ]

        # It reads all of its operands, as far as is known, and writes its columns of the result.
        everywhere = ("all",) * (len(batch) + 2)
        place = Touch(target, (*row_index((*batch, rows)), "j"))
        self.nest(
            Contraction(
                Columns(columns) if self.team else Rows(()),
                (),
                {"j": columns},
                call,
                [Touch(a, everywhere), Touch(b, everywhere), place],
                [place],
                operation.location.text,
                batch=tuple(batch),
                size=(rows, columns, inner),
                left=a,
                right=b,
                result=target,
                accumulate=accumulate,
                packed=packed,
            )
        )
        if result.dtype != computed:
            final = self.allocate(result.name, result.type, operation.location)
            wide = TensorVar(
                target.buffer.name, TensorType(computed, result.shape, result.type.valid)
            )
            self.accesses[wide.name] = target
            self.store(wide, final, operation.location)
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
        target = self.allocate(name, wide, operation.location)
        self.accesses[result.name] = target
        if isinstance(start, TensorVar):
            rows, columns = result.type.valid_shape
            place = (*row_index((rows,)), column_index(columns))
            from_row = "0" if constant_value(start.shape[0]) == 1 else place[0]
            loads: list[Touch] = []
            line = store(target, place, self.element(start, (from_row, place[1]), loads))
            self.nest(
                Nest(
                    self.partition((rows,), columns, target),
                    (rows,),
                    {"j": columns},
                    column_loop(columns, line),
                    loads,
                    [Touch(target, place)],
                    operation.location.text,
                )
            )
        return target


def packed_name(parameter: str) -> str:
    """Return the C name of whether a parameter is packed."""
    return f"aotc_packed_{ctext.identifier(parameter)}"


def _units(columns: Scalar) -> Scalar:
    """Return how many units so many columns are; the last one may be short."""
    return binary("floordiv", add(columns, index(UNIT - 1)), index(UNIT))


def _turned(extents: Sequence[Scalar], turn: bool) -> tuple[Scalar, ...]:
    """Return `extents` of matrices, of the transposed ones where `turn` is set."""
    return (*extents[:-2], extents[-1], extents[-2]) if turn else tuple(extents)
