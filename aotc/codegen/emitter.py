"""What the generator writes to: regions and nests in order, and the storage that they touch.

Code at the top level is *team* code: each thread runs it, scalars are computed by all, and loop
nests, contractions and `parallel` loops are shared out. The body of a `parallel` loop is *item*
code: one thread runs it alone, with workspace of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aotc.codegen import ctext
from aotc.codegen.analysis import Analysis, analyse
from aotc.codegen.barriers import Item, Region
from aotc.codegen.counting import count_nests
from aotc.codegen.nests import Group, Nest, column_index, column_loop, load, store
from aotc.codegen.sharing import (
    Claim,
    Columns,
    Everyone,
    First,
    Index,
    Partition,
    Rows,
    Touch,
    row_index,
)
from aotc.codegen.storage import Access, Buffer, element_count, row_major
from aotc.dtypes import BF16, FP16, FP32, DType
from aotc.errors import AotcError
from aotc.ir.nodes import Location, Operation, Program, TensorType, TensorVar, Value
from aotc.ir.scalar import Scalar, ScalarVar, constant_value, index, walk
from aotc.ops.registry import Pointwise, table


class _Elements:
    """Reads elements for one nest and records where memory is touched."""

    def __init__(self, emitter: Emitter, operation: Operation, loads: list[Touch]):
        self.emitter = emitter
        self.arguments: Mapping[str, Any] = table()[operation.op].arguments(operation)
        self.loads = loads

    def load(self, name: str, index: Index) -> str:
        value = self.arguments[name]
        if isinstance(value, TensorVar):
            return self.emitter.element(value, index, self.loads)
        return self.scalar(value)

    def scalar(self, scalar: Scalar) -> str:
        return ctext.scalar(scalar)


class Emitter:
    """Collects the code of one program.

    `accesses` tells where tensor values stand, `inlined` which operation computes the others.
    """

    def __init__(self, program: Program, counting: bool):
        self.program = program
        self.counting = counting
        self.analysis: Analysis = analyse(program)
        self.table = table()
        self.accesses: dict[str, Access] = {}
        self.inlined: dict[str, Operation] = {}
        self.buffers: list[Buffer] = []
        self.element_types: set[tuple[DType, DType]] = set()
        self.batch_types: set[tuple[DType, DType]] = set()
        self.position = 0
        self.team = True
        self.group = Group()
        self.items: list[Item] = []
        self.lines: list[str] = []
        self.touched: set[Buffer] = set()  # by the item code being written
        self.written: set[Buffer] = set()

    # Output. Team code collects regions, item code collects lines.

    def emit(
        self, lines: Sequence[str], reads: Iterable[Buffer] = (), leaves: bool = False
    ) -> None:
        """Write code that every thread runs, and that writes to no shared storage."""
        self.flush()
        self.append(list(lines), dict.fromkeys(reads), {}, leaves=leaves)

    def append(
        self,
        lines: list[str],
        reads: Mapping[Buffer, Claim | None],
        writes: Mapping[Buffer, Claim | None],
        leaves: bool = False,
    ) -> None:
        """Write code that reads and writes these buffers."""
        self.position += 1
        for buffer in {**reads, **writes}:
            buffer.touch(self.position)
        if self.team:
            shared_reads = {each: claim for each, claim in reads.items() if not each.private}
            shared_writes = {each: claim for each, claim in writes.items() if not each.private}
            self.items.append(Region(lines, shared_reads, shared_writes, self.position, leaves))
        else:
            self.lines += lines
            self.touched |= set(reads)
            self.written |= set(writes)

    def flush(self) -> None:
        """Write the nests that wait for others to join them."""
        if self.group.nests:
            group, self.group = self.group, Group()
            count = count_nests(group.nests, self.team) if self.counting else []
            self.append([*count, *group.lines(self.team)], group.reads, group.writes)

    def nest(self, nest: Nest) -> None:
        """Write a nest, with those before it where it may join them."""
        if not self.group.accepts(nest):
            self.flush()
        self.group.nests.append(nest)

    def partition(self, rows: tuple[Scalar, ...], columns: Scalar, target: Access) -> Partition:
        """Return how a nest that writes `target` is shared.

        Columns that a contraction has, or reads, are shared as it shares them: what passes between
        the two then stays with the thread.
        """
        if not self.team:
            return Rows(rows)
        if target.buffer.private:
            return Everyone()
        if columns in self.analysis.widths:
            return Columns(columns)
        return First() if all(constant_value(n) == 1 for n in rows) else Rows(rows)

    def extend(self, first: int) -> None:
        """What was alive before a loop and is used in it stays alive until the loop ends."""
        for buffer in self.buffers:
            if buffer.first is not None and buffer.first <= first < buffer.last:
                buffer.last = self.position

    # Storage.

    def allocate(
        self, name: str, tensor: TensorType, location: Location, private: bool = False
    ) -> Access:
        """Return a new buffer for `tensor`, `private` to each thread as all of item code is.

        Raises AotcError where its size is not known when a call starts.
        """
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
        buffer = Buffer(name, tensor.dtype, elements, private=private or not self.team)
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

    def copy(self, value: Value, target: Access, location: Location) -> None:
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
            aside = self.allocate(f"{value.name}_aside{len(self.buffers)}", value.type, location)
            self.store(value, aside, location)
            stored = TensorVar(aside.buffer.name, value.type)
            self.accesses[stored.name] = aside
            self.flush()
            self.copy(stored, target, location)
            return
        self.store(value, target, location)

    def store(self, value: TensorVar, target: Access, location: Location) -> None:
        """Store the valid region of `value` in `target`, which it does not read elsewhere."""
        shape = value.type.valid_shape
        rows, columns = shape[:-1], shape[-1]
        place = (*row_index(rows), column_index(columns))
        loads: list[Touch] = []
        line = store(target, place, self.element(value, place, loads, stored=True))
        self.nest(
            Nest(
                self.partition(rows, columns, target),
                rows,
                {"j": columns},
                column_loop(columns, line),
                loads,
                [Touch(target, place)],
                location.text,
            )
        )
