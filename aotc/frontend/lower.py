"""From the source of a HOST wrapper to one program: every function that it calls is inlined."""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from aotc.config import Config, Reference
from aotc.contract import Argument, Contract, ContractError, Direction, DynamicSymbol, Parameter
from aotc.dtypes import DTYPES
from aotc.errors import AotcError, suggestion
from aotc.frontend import signature, source
from aotc.frontend.loops import Loops
from aotc.frontend.state import Frame, block
from aotc.frontend.values import describe
from aotc.ir import scalar as ir_scalar
from aotc.ir.nodes import Program, ProgramParameter, TensorType, TensorVar, Var
from aotc.ir.scalar import Scalar, ScalarVar
from aotc.language import objects
from aotc.language.objects import Function, Plane

_FORM = "write `pl.Tensor[[dims], pl.DTYPE]`, in `pl.Out[...]` where it is written"


@dataclass(frozen=True)
class Lowered:
    """A program with its contract, the files that it came from, and what its author should know.

    `files` gives the digest of every file read, as it was read, by its name relative to the source
    folder; None for one that an import looked for and did not find.
    """

    program: Program
    contract: Contract
    files: Mapping[str, str | None]
    warnings: tuple[str, ...]


def lower(
    config: Config,
    platform: str,
    wrapper: Reference | str,
    arguments: Sequence[Argument] | None = None,
) -> Lowered:
    """Lower the HOST wrapper `module:function` of the model.

    Without `arguments` every type comes from the annotations. With them, parameters that have no
    or a bare annotation take theirs from the sample; a dimension that the kernel leaves dynamic
    stays dynamic. Raises AotcError, with file, line and column, for any mistake in the sources,
    and for sample arguments that do not fit the annotations.
    """
    module_name, _, path = str(wrapper).partition(":")
    at = wrapper.place if isinstance(wrapper, Reference) else None
    if not module_name or not path:
        raise AotcError(f"wrapper `{wrapper}` is not of the form `module:function`", place=at)
    environment = _environment(config, platform)
    folder = config.source.resolve()
    file = folder.joinpath(*module_name.split(".")).with_suffix(".py")
    if file.is_file():
        signature.check_wrapper(
            source.parse_file(file), path.split(".")[-1], config.model, environment
        )
    try:
        module, sources = source.load(
            config.source, module_name, environment, config.kernels_for(platform)
        )
        function, itself = _find(module, module_name, path)
    except AotcError as error:
        error.place = error.place or at
        raise
    lowering = Lowering(sources)
    try:
        program, parameters, returns = lowering.program(function, itself, arguments)
    except RecursionError:
        raise AotcError(f"`{wrapper}` is nested too deeply", place=at) from None
    symbols = {
        dim: config.symbols.get(dim, DynamicSymbol(dim))
        for parameter in parameters
        for dim in parameter.dims
        if isinstance(dim, str)
    }
    try:
        contract = Contract.of(parameters, symbols, config.names(platform), returns)
    except ContractError as error:
        source_file, definition = sources.function(function.python)
        error.place = error.place or source_file.place(definition)
        raise
    return Lowered(program, contract, sources.digests(), tuple(dict.fromkeys(lowering.warnings)))


def _environment(config: Config, platform: str) -> dict[str, Any]:
    """Return what stands in the globals of each module: extents, and dynamic symbols by name."""
    given = getattr(config, "environment", None)
    values: Mapping[str, Any] = config.extents if given is None else given(platform)
    return {**values, **{name: objects.Symbol(name) for name in config.symbols}}


def _find(
    module: types.ModuleType, module_name: str, path: str
) -> tuple[Function, objects.Itself | None]:
    """Return the function that `path` names: `function`, `Class` or `Class.function`."""
    name, _, method = path.partition(".")
    value = vars(module).get(name)
    if isinstance(value, objects.ProgramClass):
        functions = value.functions
        entries = [
            each.name
            for each in functions.values()
            if each.plane in (Plane.HOST, Plane.ORCHESTRATION)
        ]
        chosen = method or (entries or list(functions) or [""])[-1]
        if chosen in functions:
            return functions[chosen], objects.Itself(value)
        raise AotcError(
            f"`{module_name}:{name}` has no function `{chosen}`",
            hint=suggestion(chosen, functions) or f"it has {', '.join(functions) or 'none'}",
        )
    if isinstance(value, Function) and not method:
        return value, None
    if value is not None:
        raise AotcError(
            f"`{module_name}:{path}` is not a PyPTO function",
            hint="decorate it with `@pl.jit.host`",
        )
    wrappers = [each for each, found in vars(module).items() if isinstance(found, Function)]
    hint = suggestion(path, wrappers) or f"it has {', '.join(wrappers) or 'none'}"
    raise AotcError(f"`{module_name}` has no function `{path}`", hint=hint)


class Lowering(Loops):
    """Lowers one entry function."""

    def program(
        self,
        function: Function,
        itself: objects.Itself | None,
        arguments: Sequence[Argument] | None,
    ) -> tuple[Program, list[Parameter], list[str]]:
        """Return the program, the contract's parameters and the names of the returned ones."""
        frame, definition = self.enter(function)
        self.frames.append(frame)
        nodes = [*definition.args.posonlyargs, *definition.args.args]
        if itself is not None and nodes:
            frame.names[nodes[0].arg] = itself
            nodes = nodes[1:]
        if definition.args.kwonlyargs:
            extra = definition.args.kwonlyargs[0]
            self.fail(extra, f"wrapper `{function.name}`: `{extra.arg}` is not a positional "
                      "parameter")  # fmt: skip
        constants = self._constants(function, frame, nodes)
        runtime = [each for each in nodes if each.arg not in constants]
        frame.names.update(constants)
        if arguments is not None and len(arguments) != len(runtime):
            raise AotcError(
                f"wrapper `{function.name}` takes {len(runtime)} arguments, got {len(arguments)}"
            )
        inferred = _Inference(self, frame, itself).dims(definition) if arguments else {}
        parameters: list[Parameter] = []
        for position, node in enumerate(runtime):
            argument = arguments[position] if arguments is not None else None
            parameter = self._parameter(node, argument, inferred.get(node.arg, {}))
            parameters.append(parameter)
        # Symbols keep their names, and a parameter is named as in the source.
        for name in [each.name for each in parameters]:
            self.taken[name] = 1
        for each in parameters:
            for dim in each.dims:
                if isinstance(dim, str):
                    self.taken[dim] = 1
        variables = [
            self._variable(frame, node, each)
            for each, node in zip(parameters, runtime, strict=True)
        ]
        if itself is not None:
            # Programs in class form leave the directions of their entry to the compiler.
            frame.read_only.clear()
            tensors = [each for each in variables if isinstance(each, TensorVar)]
            frame.outputs = {each.name: each for each in tensors}
        self.in_core = int(function.plane in (Plane.INCORE, Plane.FUNCTION, Plane.INLINE))
        self.body(definition.body, frozenset())
        yields, returns = self._returns(frame, definition)
        self._check_written(frame, runtime, parameters)
        parameters = [
            msgspec.structs.replace(each, direction=Direction.INOUT)
            if each.direction is Direction.IN and self._is_written(variable)
            else each
            for each, variable in zip(parameters, variables, strict=True)
        ]
        declared = tuple(
            ProgramParameter(variable, each.direction)
            for each, variable in zip(parameters, variables, strict=True)
        )
        return Program(function.name, declared, block(self.statements, yields)), parameters, returns

    def _is_written(self, variable: Var) -> bool:
        return isinstance(variable, TensorVar) and self.current[variable] is not variable

    def _constants(
        self, function: Function, frame: Frame, nodes: Sequence[ast.arg]
    ) -> dict[str, Any]:
        """Return the parameters that a default value specializes."""
        defaults = function.python.__defaults__ or ()
        found = {}
        for node, value in zip(nodes[::-1], defaults[::-1], strict=False):
            if value is not objects.RUNTIME:
                found[node.arg] = value
        return found

    def _parameter(
        self, node: ast.arg, argument: Argument | None, inferred: Mapping[int, str]
    ) -> Parameter:
        annotation, direction = self.annotation(self.frame, node)
        subject = f"wrapper `{self.frame.function.name}`, parameter `{node.arg}`"
        at = node.annotation or node
        if isinstance(annotation, objects.ScalarAnnotation) and annotation.dtype is not None:
            if argument is not None and argument.dtype != annotation.dtype.name:
                self.fail(at, f"{subject}: expected dtype {annotation.dtype}, got "
                          f"{argument.dtype} in the sample")  # fmt: skip
            return Parameter(node.arg, annotation.dtype.name, (), direction)
        if isinstance(annotation, objects.TensorAnnotation):
            dims = tuple(
                dim.name if isinstance(dim, objects.Symbol) else dim
                for dim in annotation.dims or ()
            )
            for axis, dim in enumerate(dims):
                if isinstance(dim, bool) or not isinstance(dim, int | str):
                    self.fail(at, f"{subject}, dimension {axis}: `{dim}` is not an extent")
            assert annotation.dtype is not None
            parameter = Parameter(node.arg, annotation.dtype.name, dims, direction)
            if argument is not None:
                self._check_sample(at, subject, parameter, argument)
            return parameter
        if annotation is not None and not isinstance(annotation, objects.Container):
            self.fail(
                at, f"{subject}: `{ast.unparse(at)}` is not supported in a HOST wrapper", _FORM
            )
        if argument is None:
            what = "no annotation" if annotation is None else "a bare `pl.Tensor` has no shape"
            inner = at.slice if isinstance(at, ast.Subscript) else at
            self.fail(inner, f"{subject}: {what}", _FORM)
        if annotation is None and direction is Direction.IN and argument.dtype not in DTYPES:
            self.fail(at, f"{subject}: unknown dtype `{argument.dtype}` in the sample")
        mixed = tuple(inferred.get(axis, extent) for axis, extent in enumerate(argument.shape))
        return Parameter(node.arg, argument.dtype, mixed, direction)

    def _check_sample(
        self, node: ast.AST, subject: str, parameter: Parameter, argument: Argument
    ) -> None:
        if argument.dtype != parameter.dtype:
            self.fail(
                node, f"{subject}: expected dtype {parameter.dtype}, got {argument.dtype} in the "
                "sample"
            )  # fmt: skip
        if len(argument.shape) != len(parameter.dims):
            self.fail(
                node,
                f"{subject}: expected {len(parameter.dims)} dimensions, got "
                f"{len(argument.shape)} in the sample",
            )
        for axis, (dim, extent) in enumerate(zip(parameter.dims, argument.shape, strict=True)):
            if isinstance(dim, int) and dim != extent:
                self.fail(
                    node, f"{subject}, dimension {axis}: expected {dim}, got {extent} in the sample"
                )

    def _variable(self, frame: Frame, node: ast.arg, parameter: Parameter) -> Var:
        dtype = DTYPES[parameter.dtype]
        annotation, _ = self.annotation(frame, node)
        if isinstance(annotation, objects.ScalarAnnotation):
            scalar = ScalarVar(parameter.name, dtype)
            frame.names[node.arg] = scalar
            return scalar
        shape: list[Scalar] = [
            ir_scalar.Symbol(dim) if isinstance(dim, str) else ir_scalar.index(dim)
            for dim in parameter.dims
        ]
        tensor = TensorVar(parameter.name, TensorType(dtype, tuple(shape)))
        self.root[tensor] = self.current[tensor] = tensor
        frame.names[node.arg] = tensor
        for axis, dim in enumerate(parameter.dims):
            if isinstance(dim, str):
                where = f"`{parameter.name}` dimension {axis}"
                frame.symbols.setdefault(dim, (ir_scalar.Symbol(dim), where))
        if parameter.direction is Direction.IN:
            frame.read_only[tensor] = (
                f"`{parameter.name}` is an In parameter of wrapper `{frame.function.name}`, and "
                "is written here"
            )
        else:
            frame.outputs[node.arg] = tensor
        return tensor

    def _returns(
        self, frame: Frame, definition: ast.FunctionDef
    ) -> tuple[list[TensorVar], list[str]]:
        """Return the final states of what the wrapper returns, and the parameters they are of."""
        place = _return_node(definition)
        outputs = {root: root.name for root in frame.outputs.values()}
        yields: list[TensorVar] = []
        for value in frame.returned or ():
            if not isinstance(value, TensorVar) or self.root[value] not in outputs:
                shown = describe(value)
                self.fail(
                    place,
                    f"wrapper `{frame.function.name}` returns {shown}, which is no Out or InOut "
                    "parameter",
                    hint="write it to an Out parameter: `out[:] = ...`",
                )
            yields.append(value)
        return yields, [outputs[self.root[each]] for each in yields]

    def _check_written(
        self, frame: Frame, nodes: Sequence[ast.arg], parameters: Sequence[Parameter]
    ) -> None:
        for node, parameter in zip(nodes, parameters, strict=True):
            root = frame.outputs.get(node.arg)
            if parameter.direction is Direction.OUT and root and self.current[root] is root:
                self.fail(
                    node,
                    f"wrapper `{frame.function.name}`: the Out parameter `{node.arg}` is never "
                    "written",
                    hint="write it, or drop it",
                )


class _Inference:
    """Finds the dimensions of a wrapper's parameters that its kernels leave dynamic."""

    def __init__(self, lowering: Lowering, frame: Frame, itself: objects.Itself | None):
        self.lowering = lowering
        self.frame = frame
        self.itself = itself

    def dims(self, definition: ast.FunctionDef) -> dict[str, dict[int, str]]:
        """Return, by parameter, the dynamic name of each dimension that has one."""
        return self._of(self.frame, definition, 0)

    def _of(
        self, frame: Frame, definition: ast.FunctionDef, depth: int
    ) -> dict[str, dict[int, str]]:
        found: dict[str, dict[int, str]] = {}
        if depth > 8:
            return found
        for node in ast.walk(definition):
            if not isinstance(node, ast.Call):
                continue
            self._bind_dynamic(frame, node, found)
            callee = self._callee(frame, node)
            if callee is None:
                continue
            inner, inner_definition = self.lowering.enter(callee)
            nodes = [*inner_definition.args.posonlyargs, *inner_definition.args.args]
            if nodes and nodes[0].arg == "self":
                inner.names["self"] = self.itself
                nodes = nodes[1:]
            below = self._of(inner, inner_definition, depth + 1)
            passed = dict(zip((each.arg for each in nodes), node.args, strict=False))
            passed |= {each.arg: each.value for each in node.keywords if each.arg}
            for parameter in nodes:
                argument = passed.get(parameter.arg)
                if isinstance(argument, ast.Name):
                    dims = {**below.get(parameter.arg, {}), **self._declared(inner, parameter)}
                    found.setdefault(argument.id, {}).update(dims)
        return found

    def _declared(self, frame: Frame, parameter: ast.arg) -> dict[int, str]:
        annotation, _ = self.lowering.annotation(frame, parameter)
        if not isinstance(annotation, objects.TensorAnnotation):
            return {}
        dims = enumerate(annotation.dims or ())
        return {axis: dim.name for axis, dim in dims if isinstance(dim, objects.Symbol)}

    def _resolve(self, frame: Frame, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return frame.names.get(name, frame.globals.get(name))
            case ast.Attribute(value=value, attr=name):
                base = self._resolve(frame, value)
                if isinstance(base, objects.Itself):
                    return base.program.functions.get(name)
                if isinstance(base, types.ModuleType):
                    return vars(base).get(name)
        return None

    def _callee(self, frame: Frame, node: ast.Call) -> Function | None:
        value = self._resolve(frame, node.func)
        return value if isinstance(value, Function) else None

    def _bind_dynamic(self, frame: Frame, node: ast.Call, found: dict[str, dict[int, str]]) -> None:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="bind_dynamic"),
                args=[ast.Constant(value=int() as axis), symbol],
            ):
                value = self._resolve(frame, symbol)
                if isinstance(value, objects.Symbol):
                    found.setdefault(name, {})[axis] = value.name


def _return_node(definition: ast.FunctionDef) -> ast.AST:
    returns = [each for each in ast.walk(definition) if isinstance(each, ast.Return)]
    return returns[-1] if returns else definition
