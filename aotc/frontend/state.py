"""What the lowering knows at a point of the program: names, storages, and statements so far.

A tensor value belongs to a storage, its root. An update defines a new value on the same root, and
`current` gives the latest one; any other value on that root is dead. Names may denote
compile-time Python values, scalars and tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aotc.errors import AotcError, Place
from aotc.frontend.source import SourceFile, Sources
from aotc.ir.nodes import Block, Location, Statement, TensorType, TensorVar, Value, Var
from aotc.ir.scalar import Scalar, ScalarVar
from aotc.language.objects import Function, Plane


class TaskId:
    """A handle of a task or an array of them: order of the program is order enough on a cpu."""


TASK = TaskId()


@dataclass(frozen=True)
class Poison:
    """A name that has no usable value here, and why."""

    message: str
    place: Place | None = None
    hint: str | None = None


@dataclass
class Frame:
    """One function being inlined: its names, its file, and what its dynamic names are bound to."""

    function: Function
    file: SourceFile
    names: dict[str, Any] = field(default_factory=dict)
    globals: Mapping[str, Any] = field(default_factory=dict)
    symbols: dict[str, tuple[Scalar, str]] = field(default_factory=dict)
    # Storages that this function must not write, with the message for it.
    read_only: dict[TensorVar, str] = field(default_factory=dict)
    # The storages of Out and InOut parameters, by name.
    outputs: dict[str, TensorVar] = field(default_factory=dict)
    # How many run-time loops and branches of this function are open.
    depth: int = 0
    # What a `return` gave; None until there is one.
    returned: list[Any] | None = None


@dataclass
class Yields:
    """The explicit `pl.yield_` of the innermost loop or branch."""

    kind: str
    values: list[Any] | None = None
    names: tuple[str, ...] = ()


Snapshot = tuple[list[dict[str, Any]], dict[TensorVar, TensorVar], dict[TensorVar, Place]]


class State:
    """The lowering's memory, and the primitive steps on it."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.frames: list[Frame] = []
        self.statements: list[Statement] = []
        self.taken: dict[str, int] = {}
        self.root: dict[TensorVar, TensorVar] = {}
        self.current: dict[TensorVar, TensorVar] = {}
        # Where the value of a root was last updated.
        self.updated: dict[TensorVar, Place] = {}
        # The argument of a loop that updates in place, and the value that it starts from.
        self.carried_from: dict[TensorVar, TensorVar] = {}
        # Views taken on the control plane share memory with their base.
        self.base_of_view: dict[TensorVar, tuple[TensorVar, Callable[[TensorVar], None]]] = {}
        self.location = Location()
        self.in_core = 0
        self.block_index: list[tuple[Any, Any]] = []
        self.yields: list[Yields] = []
        self.live: list[frozenset[str]] = [frozenset()]
        self.loop_roots: dict[ast.AST, set[str]] = {}
        self.warnings: list[str] = []

    # Places and errors

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def place(self, node: ast.AST) -> Place:
        return self.frame.file.place(node)

    def fail(self, node: ast.AST, message: str, hint: str | None = None) -> NoReturn:
        raise AotcError(message, place=self.place(node), hint=hint)

    @property
    def plane(self) -> Plane:
        """The plane of the code being lowered: that of the caller for spliced functions."""
        for frame in reversed(self.frames):
            if frame.function.plane not in (Plane.INLINE, Plane.FUNCTION):
                return frame.function.plane
        return self.frames[0].function.plane

    # Names of the IR

    def fresh(self, hint: str) -> str:
        """Return a name that the program does not use yet, derived from `hint`."""
        base = hint or "value"
        count = self.taken.get(base)
        while True:
            name = base if count is None else f"{base}_{count}"
            count = 1 if count is None else count + 1
            if name == base or name not in self.taken:
                break
        self.taken[base] = count
        self.taken.setdefault(name, 1)
        return name

    def new_tensor(self, hint: str, kind: TensorType, root: TensorVar | None = None) -> TensorVar:
        """Define a tensor on its own storage, or as the new state of `root`'s."""
        variable = TensorVar(self.fresh(hint), kind)
        self.root[variable] = variable if root is None else root
        self.current[self.root[variable]] = variable
        return variable

    def new_like(self, hint: str, value: Value) -> Var:
        if isinstance(value, TensorVar):
            return self.new_tensor(hint, value.type)
        return ScalarVar(self.fresh(hint), value.dtype)

    # Storages

    def use(self, node: ast.AST, tensor: TensorVar) -> TensorVar:
        """Return `tensor`, or fail where a later state has replaced it."""
        root = self.root[tensor]
        if self.current[root] is not tensor:
            where = self.updated.get(root)
            at = f" at {where.path.name}:{where.line}:{where.column}" if where else ""
            self.fail(
                node,
                f"`{tensor.name}` was updated through another name{at}; "
                "this is its value before that",
                hint="use the name that the update was assigned to, or copy the tensor before it",
            )
        return tensor

    def updated_to(self, node: ast.AST, old: TensorVar, new: TensorVar, rebind: bool) -> None:
        """Record that `new` is the state of `old`'s storage from here on.

        With `rebind` every name of `old` means `new`: memory was written in place.
        """
        root = self.root[old]
        for frame in reversed(self.frames):
            if root in frame.read_only:
                self.fail(
                    node,
                    frame.read_only[root],
                    hint="declare it `pl.Out[...]` or `pl.InOut[...]`, or write to a tensor of "
                    "`pl.create_tensor`",
                )
        self.root[new] = root
        self.current[root] = new
        self.updated[root] = self.place(node)
        for view, (base, _) in list(self.base_of_view.items()):
            if base is root:
                self.current[view] = new  # the view shows what was there before
                self.updated[view] = self.place(node)
        if rebind:
            self.replace(old, new)
        if root in self.base_of_view:
            self.base_of_view[root][1](self.current[root])

    def replace(self, old: TensorVar, new: Any) -> None:
        """Let every name that means `old` mean `new`."""
        for frame in self.frames:
            for name, value in frame.names.items():
                frame.names[name] = _replaced(value, old, new)

    def snapshot(self) -> Snapshot:
        names = [dict(frame.names) for frame in self.frames]
        return names, dict(self.current), dict(self.updated)

    def restore(self, snapshot: Snapshot) -> None:
        names, current, updated = snapshot
        for frame, saved in zip(self.frames, names, strict=True):
            frame.names = dict(saved)
        self.current, self.updated = dict(current), dict(updated)

    @contextmanager
    def collecting(self) -> Iterator[list[Statement]]:
        """Collect the statements emitted inside in a list of their own."""
        saved, self.statements = self.statements, []
        try:
            yield self.statements
        finally:
            self.statements = saved


def _replaced(value: Any, old: TensorVar, new: Any) -> Any:
    if value is old:
        return new
    if isinstance(value, tuple | list) and any(holds(each, old) for each in value):
        return type(value)(_replaced(each, old, new) for each in value)
    return value


def holds(value: Any, tensor: TensorVar) -> bool:
    """Return whether `value` is `tensor`, or a tuple or list with it."""
    if isinstance(value, tuple | list):
        return any(holds(each, tensor) for each in value)
    return value is tensor


def block(statements: Sequence[Statement], yields: Sequence[Value] = ()) -> Block:
    return Block(tuple(statements), tuple(yields))
