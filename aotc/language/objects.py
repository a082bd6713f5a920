"""What the names of `pypto.language` are at load time: records, with no behaviour of their own.

Decorators record the Python function, annotations record their parts, and everything that only
means something inside a decorated body (`pl.add`, `pl.range`) is a name that refuses to be called.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aotc.contract import Direction
from aotc.dtypes import DType
from aotc.errors import AotcError


class Plane(Enum):
    """Where a function's body runs; decides which operators may stand in it."""

    HOST = "jit.host"
    ORCHESTRATION = "jit"
    INCORE = "jit.incore"
    INLINE = "jit.inline"  # the caller's plane
    OPAQUE = "jit.opaque"  # the control plane, as a function of its own
    FUNCTION = "function"  # `@pl.function` without a type: the plane of its use


@dataclass(frozen=True, eq=False)
class Function:
    """A decorated function: the Python function as it was recorded, never run."""

    plane: Plane
    python: types.FunctionType
    # The local names of the Python functions around the definition, which annotations may use.
    enclosing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.python.__name__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise AotcError(
            f"`{self.name}` is a PyPTO function: it can be called in a PyPTO function only",
            hint="aotc parses its body and never runs it",
        )


@dataclass(frozen=True, eq=False)
class ProgramClass:
    """A class under `@pl.program`: its functions by name."""

    name: str
    functions: Mapping[str, Function]


@dataclass(frozen=True, eq=False)
class Method:
    """A function of a program class, read as `self.NAME`."""

    program: ProgramClass
    function: Function


@dataclass(frozen=True, eq=False)
class Itself:
    """The value of `self` in a program class."""

    program: ProgramClass


@dataclass(frozen=True)
class Symbol:
    """`pl.dynamic("NAME")`: a dimension that is known at run time only."""

    name: str

    def __repr__(self) -> str:
        return self.name

    def _refuse(self, *_: Any) -> Any:
        raise AotcError(
            f"`{self.name}` is a dynamic dimension: it has no value while the module is loaded",
            hint="compute with it in a PyPTO function, or give the config a symbol with `equals`",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __truediv__ = __rtruediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __int__ = __index__ = __neg__ = _refuse


class RuntimeScalar:
    """`pl.RUNTIME`: the scalar parameter is given at each call."""

    def __repr__(self) -> str:
        return "pl.RUNTIME"


RUNTIME = RuntimeScalar()


class TaskIdType:
    """`pl.TASK_ID`: the element type of task handles."""

    def __repr__(self) -> str:
        return "pl.TASK_ID"


TASK_ID = TaskIdType()


@dataclass(frozen=True)
class TensorAnnotation:
    """`pl.Tensor[[dims], dtype]` or `pl.Tile[...]`; `dims` and `dtype` are None where bare."""

    dims: tuple[Any, ...] | None
    dtype: DType | None
    container: str = "Tensor"


@dataclass(frozen=True)
class ScalarAnnotation:
    """`pl.Scalar[dtype]`, or a task handle where `dtype` is None."""

    dtype: DType | None


@dataclass(frozen=True)
class DirectedAnnotation:
    """`pl.Out[...]` or `pl.InOut[...]`."""

    direction: Direction
    inner: Any


@dataclass(frozen=True)
class TupleAnnotation:
    """`pl.Tuple[...]`, only ever a return type."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Container:
    """`pl.Tensor` or `pl.Tile`: bare as an annotation, or subscripted."""

    name: str

    def __getitem__(self, parts: Any) -> TensorAnnotation:
        form = f"write `pl.{self.name}[[dims], pl.DTYPE]`"
        if not isinstance(parts, tuple) or len(parts) < 2 or not isinstance(parts[0], list | tuple):
            raise AotcError(f"`pl.{self.name}[...]` takes a list of dims and a dtype", hint=form)
        dims, dtype = parts[:2]
        if len(parts) > 2 and self.name == "Tensor":
            raise AotcError(
                "layouts and views in a `pl.Tensor` annotation are not supported yet",
                hint="give the row-major shape; use `pl.transpose`, `a_trans` or `b_trans`",
            )
        if not isinstance(dtype, DType):
            raise AotcError(f"`pl.{self.name}[...]`: {dtype!r} is not a dtype", hint=form)
        return TensorAnnotation(tuple(dims), dtype, self.name)


class _ScalarForm:
    def __getitem__(self, dtype: Any) -> ScalarAnnotation:
        if dtype is TASK_ID:
            return ScalarAnnotation(None)
        if not isinstance(dtype, DType):
            raise AotcError(
                f"`pl.Scalar[...]`: {dtype!r} is not a dtype", hint="write `pl.Scalar[pl.DTYPE]`"
            )
        return ScalarAnnotation(dtype)


@dataclass(frozen=True)
class _DirectedForm:
    direction: Direction

    def __getitem__(self, inner: Any) -> DirectedAnnotation:
        return DirectedAnnotation(self.direction, inner)


class _TupleForm:
    def __getitem__(self, items: Any) -> TupleAnnotation:
        return TupleAnnotation(items if isinstance(items, tuple) else (items,))


TENSOR, TILE = Container("Tensor"), Container("Tile")
SCALAR, TUPLE = _ScalarForm(), _TupleForm()
OUT, INOUT = _DirectedForm(Direction.OUT), _DirectedForm(Direction.INOUT)


@dataclass(frozen=True)
class Word:
    """A name below `pl` that means something inside a decorated body only: its dotted path."""

    path: str

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise AotcError(
            f"`pl.{self.path}` can be used in the body of a PyPTO function only",
            hint="decorate the function with `@pl.jit` or one of its variants",
        )


@dataclass(frozen=True)
class Decorator:
    """`pl.jit` and its kind: used bare, or called with options first."""

    plane: Plane
    variants: Mapping[str, Decorator] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Decorator:
        variants: Mapping[str, Decorator] = object.__getattribute__(self, "variants")
        if name in variants:
            return variants[name]
        if name.startswith("__"):
            raise AttributeError(name)
        hint = "the variants are `host`, `incore`, `inline` and `opaque`"
        if name == "extern":
            hint = "kernels in C++ are not part of a cpu program; write the kernel in PyPTO"
        raise AotcError(f"`pl.{self.plane.value}.{name}` is not supported", hint=hint)

    def __call__(self, function: Any = None, **options: Any) -> Any:
        if function is None:
            plane = self.plane
            if plane is Plane.FUNCTION:
                plane = _function_plane(options)
            return lambda given: _record(plane, given)
        return _record(self.plane, function)


def _record(plane: Plane, given: Any) -> Function:
    if not isinstance(given, types.FunctionType):
        raise AotcError(f"`@pl.{plane.value}` decorates a function", hint="not a class or a call")
    return Function(plane, given, _enclosing_names(given))


def _enclosing_names(python: types.FunctionType) -> dict[str, Any]:
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == python.__code__.co_filename:
            if code.co_name == "<module>":
                break
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _function_plane(options: Mapping[str, Any]) -> Plane:
    """Return the plane of `@pl.function(type=..., level=..., role=...)`."""
    if getattr(options.get("level"), "name", "") == "HOST":
        return Plane.HOST
    name = getattr(options.get("type"), "name", "Opaque")
    planes = {
        "Orchestration": Plane.ORCHESTRATION,
        "Inline": Plane.INLINE,
        "Opaque": Plane.FUNCTION,
    }
    return planes.get(name, Plane.INCORE)


def program(given: Any = None, **options: Any) -> Any:
    """Record a class of `@pl.function` methods."""
    if given is None:
        return program
    functions = {name: each for name, each in vars(given).items() if isinstance(each, Function)}
    return ProgramClass(given.__name__, functions)


JIT = Decorator(
    Plane.ORCHESTRATION,
    {
        "host": Decorator(Plane.HOST),
        "incore": Decorator(Plane.INCORE),
        "inline": Decorator(Plane.INLINE),
        "opaque": Decorator(Plane.OPAQUE),
    },
)
FUNCTION = Decorator(Plane.FUNCTION)
INLINE = Decorator(Plane.INLINE)

Lookup = Callable[[str], Any]


class Namespace:
    """`pl.tensor`, `pl.tile`, ...: reads every name through `lookup`, by its dotted path."""

    def __init__(self, path: str, lookup: Lookup):
        self._path = path
        self._lookup = lookup

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._lookup(f"{self._path}.{name}")
