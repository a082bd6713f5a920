"""What code generation must know of every value before it writes the first line.

For each tensor: where it is defined and last used, which storage it names (its root), and whether
it stands in memory at all. An element-wise value whose readers come together in one loop is never
stored: the loop computes it (`Form.INLINE`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aotc.ir.nodes import (
    Block,
    Carried,
    For,
    If,
    LoopKind,
    Operand,
    Operation,
    Program,
    TensorVar,
    While,
)
from aotc.ir.scalar import Scalar, ScalarVar, constant_value, walk
from aotc.ops.registry import (
    Allocate,
    Lowering,
    Matmul,
    OpDef,
    Pointwise,
    Reduce,
    Update,
    View,
    table,
)

# More operations than this in one expression gain nothing and make unreadable C.
_MAX_INLINED = 48


class Form(Enum):
    """How a tensor value is represented in the generated code."""

    INLINE = "inline"  # computed where it is read
    BUFFER = "buffer"  # stored in workspace of its own
    VIEW = "view"  # a strided window on another value's storage
    ALIAS = "alias"  # the new state of storage that an update wrote
    PARAMETER = "parameter"


@dataclass
class Use:
    """One reader of a value: the statement's position, its block, and the reading operation."""

    position: int
    block: int
    operation: Operation | None
    operand: str = ""
    carried: str = ""  # the loop argument that the value initializes or continues


@dataclass
class _Loop:
    first: int
    last: int


@dataclass
class Analysis:
    """The result; maps are keyed by the unique name of a tensor value.

    `destinations` gives the update that alone takes a contraction's result: it is computed there.
    `widths` are the columns of the contractions that the team shares, and of what they multiply.
    """

    forms: dict[str, Form] = field(default_factory=dict)
    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))
    defined: dict[str, int] = field(default_factory=dict)
    last_use: dict[str, int] = field(default_factory=dict)
    in_place: set[str] = field(default_factory=set)
    destinations: dict[str, Operation] = field(default_factory=dict)
    widths: set[Scalar] = field(default_factory=set)
    _roots: dict[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """Return the name that stands for the storage of value `name`."""
        while self._roots[name] != name:
            name = self._roots[name]
        return name

    def may_be_replicated(self, value: TensorVar) -> bool:
        """Whether a copy of `value` for each thread does: it is small, and never updated."""
        root = self.root(value.name)
        return constant_value(value.shape[-1]) == 1 and not any(
            form is Form.ALIAS and self.root(name) == root for name, form in self.forms.items()
        )


def tensors(operands: tuple[Operand, ...]) -> Iterator[TensorVar]:
    """Yield the tensors among `operands`."""
    return (each for each in operands if isinstance(each, TensorVar))


def analyse(program: Program) -> Analysis:
    """Analyse `program`."""
    return _Analyser(program).run()


class _Analyser:
    def __init__(self, program: Program):
        self.program = program
        self.table = table()
        self.result = Analysis()
        self.position = 0
        self.blocks = 0
        self.block_of: dict[str, int] = {}
        self.loops: list[_Loop] = []
        self.team = True  # not inside a parallel loop
        self.loops_of: dict[str, tuple[_Loop, ...]] = {}
        self.operations: dict[str, Operation] = {}
        self.updates: dict[str, list[int]] = defaultdict(list)  # target name -> positions
        self.read_roots: dict[str, set[str]] = {}
        self.sizes: dict[str, int] = {}
        self.sinks: dict[str, int] = {}

    def run(self) -> Analysis:
        for parameter in self.program.parameters:
            if isinstance(parameter.variable, TensorVar):
                self._define(parameter.variable, Form.PARAMETER)
        self._count_block(self.program.body)
        self._extend_uses()
        self._root_block(self.program.body)
        self._choose_block(self.program.body)
        return self.result

    # First walk: positions and uses.

    def _define(self, variable: object, form: Form | None = None) -> None:
        if not isinstance(variable, TensorVar):
            return
        name = variable.name
        self.result.defined[name] = self.position
        self.result.last_use[name] = self.position
        self.result._roots[name] = name
        self.loops_of[name] = tuple(self.loops)
        if form is not None:
            self.result.forms[name] = form

    def _use(
        self,
        value: object,
        block: int,
        operation: Operation | None = None,
        operand: str = "",
        carried: str = "",
    ) -> None:
        if isinstance(value, TensorVar):
            use = Use(self.position, block, operation, operand, carried)
            self.result.uses[value.name].append(use)

    def _count_block(self, block: Block) -> int:
        self.blocks += 1
        number = self.blocks
        for statement in block.statements:
            self.position += 1
            match statement:
                case Operation():
                    self._count_operation(statement, number)
                case For(carried=carried, body=body, kind=kind):
                    outer, self.team = self.team, self.team and kind is not LoopKind.PARALLEL
                    self._count_loop(carried, None, body, number)
                    self.team = outer
                case While(carried=carried, head=head, body=body):
                    self._count_loop(carried, head, body, number)
                case If(then=then, orelse=orelse, results=results):
                    for branch in (then, orelse):
                        inner = self._count_block(branch)
                        self.position += 1
                        for value in branch.yields:
                            self._use(value, inner)
                    for variable in results:
                        self._define(variable)
        return number

    def _count_operation(self, operation: Operation, block: int) -> None:
        row = self.table[operation.op]
        for name, value in row.arguments(operation).items():
            self._use(value, block, operation, operand=name)
        self._define(operation.result)
        if isinstance(operation.result, TensorVar):
            self.operations[operation.result.name] = operation
            self.block_of[operation.result.name] = block
        if isinstance(row.lowering, Update):
            target = row.arguments(operation)[row.lowering.target]
            self.updates[target.name].append(self.position)
        if isinstance(row.lowering, Matmul) and self.team:
            self._count_widths(operation, row.lowering, row.arguments(operation))

    def _count_widths(
        self, operation: Operation, matmul: Matmul, arguments: dict[str, Any]
    ) -> None:
        assert isinstance(operation.result, TensorVar)
        right: TensorVar = arguments[matmul.right]
        turned = bool(matmul.transpose_right and arguments[matmul.transpose_right])
        found = {
            operation.result.type.valid_shape[-1],
            right.type.valid_shape[-2 if turned else -1],
            arguments[matmul.left].type.valid_shape[-1],
        }
        self.result.widths |= {each for each in found if constant_value(each) != 1}

    def _count_loop(
        self, carried: tuple[Carried, ...], head: Block | None, body: Block, block: int
    ) -> None:
        for each in carried:
            self._use(each.initial, block, carried=each.argument.name)
        loop = _Loop(self.position, 0)
        self.loops.append(loop)
        for each in carried:
            self._define(each.argument)
        if head is not None:
            self._count_block(head)
        inner = self._count_block(body)
        self.position += 1
        for each, value in zip(carried, body.yields, strict=True):
            self._use(value, inner, carried=each.argument.name)
        self.loops.pop()
        loop.last = self.position
        for each in carried:
            self._define(each.result)

    def _extend_uses(self) -> None:
        """A use inside a loop that the definition is outside of lasts until the loop ends."""
        all_loops = self._all_loops()
        for name, uses in self.result.uses.items():
            inside = self.loops_of[name]
            for use in uses:
                last = use.position
                for loop in all_loops:
                    if loop not in inside and loop.first < use.position <= loop.last:
                        last = max(last, loop.last)
                self.result.last_use[name] = max(self.result.last_use[name], last)

    def _all_loops(self) -> list[_Loop]:
        found: list[_Loop] = []
        for loops in self.loops_of.values():
            found += [loop for loop in loops if loop not in found]
        return found

    # Second walk: roots.

    def _root_block(self, block: Block) -> None:
        for statement in block.statements:
            match statement:
                case Operation():
                    self._root_operation(statement)
                case For(carried=carried, body=body) | While(carried=carried, body=body):
                    if isinstance(statement, While):
                        self._root_block(statement.head)
                    self._root_block(body)
                    for each, value in zip(carried, body.yields, strict=True):
                        self._root_carried(each, value)
                case If(then=then, orelse=orelse, results=results):
                    self._root_block(then)
                    self._root_block(orelse)
                    self._root_results(then, orelse, results)

    def _root_operation(self, operation: Operation) -> None:
        row = self.table[operation.op]
        if not isinstance(operation.result, TensorVar):
            return
        name = operation.result.name
        arguments = row.arguments(operation)
        match row.lowering:
            case View(operand=operand):
                self._join(name, arguments[operand].name)
            case Update(target=target):
                self._join(name, arguments[target].name)
            case Matmul(accumulator=str() as accumulator):
                total = arguments[accumulator]
                if self.accumulates_in_place(operation, total):
                    self._join(name, total.name)

    def accumulates_in_place(self, operation: Operation, total: TensorVar) -> bool:
        """Whether a contraction may add to the storage of `total`: nothing reads it later."""
        assert isinstance(operation.result, TensorVar)
        uses = self.result.uses[total.name]
        return (
            total.type == operation.result.type
            and self.result.last_use[total.name] == self.result.defined[operation.result.name]
            and len(uses) == 1
            and self.result.root(total.name) not in self._parameters()
        )

    def _parameters(self) -> set[str]:
        return {each.name for each in self.program.parameters}

    def _join(self, name: str, other: str) -> None:
        self.result._roots[self.result.root(name)] = self.result.root(other)

    def _root_carried(self, carried: Carried, value: object) -> None:
        if not isinstance(carried.argument, TensorVar):
            return
        assert isinstance(value, TensorVar)
        assert isinstance(carried.initial, TensorVar)
        assert isinstance(carried.result, TensorVar)
        argument, initial = carried.argument.name, carried.initial.name
        if self.result.root(value.name) == argument:
            # The loop updates the storage of the initial value, which is dead afterwards.
            self.result.in_place.add(argument)
            self._join(argument, initial)
        self._join(carried.result.name, argument)

    def _root_results(self, then: Block, orelse: Block, results: tuple[object, ...]) -> None:
        for result, one, other in zip(results, then.yields, orelse.yields, strict=True):
            if not isinstance(result, TensorVar):
                continue
            assert isinstance(one, TensorVar)
            assert isinstance(other, TensorVar)
            if (
                self.result.root(one.name) == self.result.root(other.name)
                and one.shape == other.shape
            ):
                self._join(result.name, one.name)

    # Third walk: forms, now that roots and updates are known.

    def _choose_block(self, block: Block) -> None:
        for statement in block.statements:
            match statement:
                case Operation():
                    if isinstance(statement.result, TensorVar):
                        self.result.forms[statement.result.name] = self._form(statement)
                case For(carried=carried, body=body):
                    self._choose_carried(carried)
                    self._choose_block(body)
                case While(carried=carried, head=head, body=body):
                    self._choose_carried(carried)
                    self._choose_block(head)
                    self._choose_block(body)
                case If(then=then, orelse=orelse, results=results):
                    self._choose_block(then)
                    self._choose_block(orelse)
                    for result in results:
                        if isinstance(result, TensorVar):
                            own = self.result.root(result.name) == result.name
                            self.result.forms[result.name] = Form.BUFFER if own else Form.ALIAS

    def _choose_carried(self, carried: tuple[Carried, ...]) -> None:
        for each in carried:
            if isinstance(each.argument, TensorVar) and isinstance(each.result, TensorVar):
                own = self.result.root(each.argument.name) == each.argument.name
                self.result.forms[each.argument.name] = Form.BUFFER if own else Form.ALIAS
                self.result.forms[each.result.name] = Form.ALIAS

    def _form(self, operation: Operation) -> Form:
        assert isinstance(operation.result, TensorVar)
        name = operation.result.name
        row = self.table[operation.op]
        match row.lowering:
            case View(operand=operand):
                source = row.arguments(operation)[operand]
                self.read_roots[name] = {self.result.root(source.name)}
                last = self.result.last_use[name]
                return Form.BUFFER if self._updated_between({name}, name, last) else Form.VIEW
            case Update():
                return Form.ALIAS
            case Matmul() if self.result.root(name) != name:
                return Form.ALIAS
            case Matmul():
                self._find_destination(operation.result)
            case Pointwise():
                return self._pointwise_form(operation, row, name)
        return Form.BUFFER

    def _find_destination(self, value: TensorVar) -> None:
        """Note the update that copies `value`, if that is all that is done with it."""
        uses = self.result.uses[value.name]
        if len(uses) != 1 or uses[0].operation is None:
            return
        update, block = uses[0].operation, uses[0].block
        row = self.table[update.op]
        if not isinstance(row.lowering, Update) or block != self.block_of[value.name]:
            return
        arguments = row.arguments(update)
        target, offsets = arguments[row.lowering.target], arguments[row.lowering.offsets]
        known = not any(isinstance(v, ScalarVar) for each in offsets for v in walk(each))
        same = target.dtype == value.dtype and target.type.rank == value.type.rank
        first, last = self.result.defined[value.name], uses[0].position
        root = self.result.root(target.name)
        touched = any(
            self.result.root(name) == root and any(first <= use.position < last for use in uses)
            for name, uses in self.result.uses.items()
        )
        if known and same and not touched:
            self.result.destinations[value.name] = update

    def _pointwise_form(self, operation: Operation, row: OpDef, name: str) -> Form:
        size = 1
        reads: set[str] = set()
        for each in tensors(operation.operands):
            if self.result.forms[each.name] is Form.INLINE:
                size += self.sizes[each.name]
                reads |= self.read_roots[each.name]
            else:
                reads.add(each.name)
        self.sizes[name] = size
        self.read_roots[name] = reads
        trivial = not reads
        uses = self.result.uses[name]
        if size > _MAX_INLINED or not (trivial or self._meets(name)):
            return Form.BUFFER
        if all(self._reads_elements(use, operation.result, trivial) for use in uses) and not (
            self._updated_between(reads, name, max((use.position for use in uses), default=0))
        ):
            return Form.INLINE
        return Form.BUFFER

    def _meets(self, name: str) -> bool:
        """Whether all that `name` is read for comes together in one loop, which may compute it.

        The C compiler then finds the common expression, and nothing is computed twice.
        """
        return len({self._sink(use) for use in self.result.uses[name]}) == 1

    def _sink(self, use: Use) -> int:
        """Return the position of the loop in which a reader's element is computed."""
        operation = use.operation
        if operation is None or not isinstance(operation.result, TensorVar):
            return use.position
        name = operation.result.name
        if name not in self.sinks:
            self.sinks[name] = use.position  # where it is stored, if it is
            if isinstance(self.table[operation.op].lowering, Pointwise):
                uses = self.result.uses[name]
                found = {
                    self._sink(each) if self._reads_elements(each, operation.result, False) else -1
                    for each in uses
                }
                if len(found) == 1 and -1 not in found:
                    self.sinks[name] = found.pop()
        return self.sinks[name]

    def _reads_elements(self, use: Use, value: object, trivial: bool) -> bool:
        """Whether the reader takes each element of `value` once, where it computes its own."""
        assert isinstance(value, TensorVar)
        if use.block != self.block_of[value.name] and not trivial:
            return False
        if use.operation is None:
            # Written straight into the loop's own storage, unless the loop takes over the value's.
            return use.carried != "" and use.carried not in self.result.in_place
        row = self.table[use.operation.op]
        match row.lowering:
            case Pointwise(memory=memory):
                result = use.operation.result
                assert isinstance(result, TensorVar)
                broadcast = [
                    (constant_value(a), constant_value(b))
                    for a, b in zip(value.shape[::-1], result.shape[::-1], strict=False)
                    if a != b
                ]
                same = not broadcast and value.type.rank == result.type.rank
                return use.operand not in memory and (same or trivial)
            case Reduce(operand=operand):
                return use.operand == operand
            case Update(source=source):
                return use.operand == source
            case Matmul(left=left, right=right):
                # A contraction converts what it reads: an exact conversion needs no storage.
                return use.operand in (left, right) and self._widens(value)
        return False

    def _widens(self, value: TensorVar) -> bool:
        """Whether `value` has the elements of a tensor in memory, exactly converted."""
        operation = self.operations[value.name]
        row = self.table[operation.op]
        arguments = row.arguments(operation)
        assert isinstance(row.lowering, Pointwise)
        name = row.lowering.exact(arguments)
        return name is not None and self.result.forms.get(arguments[name].name) is not Form.INLINE

    def _updated_between(self, values: set[str], name: str, last: int) -> bool:
        """Whether storage that `values` name is updated after `name` is defined, before `last`."""
        first = self.result.defined[name]
        roots = {self.result.root(value) for value in values}
        return any(
            self.result.root(target) in roots and any(first < p < last for p in positions)
            for target, positions in self.updates.items()
        )


def lowering_of(operation: Operation) -> Lowering:
    """Return how `operation` becomes code."""
    return table()[operation.op].lowering


def allocates(operation: Operation) -> bool:
    """Whether `operation` only names new storage."""
    return isinstance(lowering_of(operation), Allocate)
