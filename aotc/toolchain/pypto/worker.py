"""The process that has PyPTO in it: load a wrapper with the config's names, and compile it.

A process of its own for each compilation: PyPTO keeps what it once made of a wrapper, right or
wrong, and its passes keep state.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from aotc import child, outside
from aotc.contract import Dim, Direction, Parameter
from aotc.errors import AotcError, Place
from aotc.frontend import source
from aotc.frontend.signature import check_wrapper
from aotc.program.key import text_digest
from aotc.toolchain.pypto import external, installed
from aotc.toolchain.pypto.task import Answer, Compiled, Task

# The element types of PyPTO by the names of contracts; an INDEX is never an argument.
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float": "fp32"}
# The key has the compiler that lies there, by its content.
_COMPILER_PLACE = "ASCEND_HOME_PATH"
_DIRECTIONS = {"In": Direction.IN, "Out": Direction.OUT, "InOut": Direction.INOUT}


def answer(task: Task) -> Iterator[Answer]:
    """Do the task; an error is an answer."""
    try:
        yield _Compilation(task).run()
    except AotcError as error:
        yield child.Failed.of(error)


class _Compilation:
    def __init__(self, task: Task):
        self.task = task
        self.symbols: dict[str, Any] = {}

    def run(self) -> Compiled:
        task = self.task
        language = importlib.import_module("pypto.language")
        create = language.dynamic

        def dynamic(name: str) -> Any:
            """Two dynamic dimensions of one name are one: of the host and of its kernels."""
            return self.symbols.setdefault(name, create(name))

        language.dynamic = dynamic  # type: ignore[attr-defined]
        environment = {**task.names, **{name: dynamic(name) for name in task.symbols}}
        module_name, _, function_name = task.wrapper.partition(":")
        folder = Path(task.source)
        kernels = None if task.kernels is None else Path(task.kernels)
        self._check_annotations(folder, module_name, function_name, environment)
        opened = _Opened([each for each in (kernels, folder) if each is not None])
        with outside.watch(
            folder,
            kernels,
            compiler=installed.code(),
            variables=(*installed.VARIABLES, _COMPILER_PLACE),
        ) as reads:
            module, sources = source.load(
                folder,
                module_name,
                environment,
                kernels,
                language=contextlib.nullcontext,
            )
            host = _wrapper(module, function_name)
            self._check_names(sources)
            # The modules are gone from `sys.modules`, but PyPTO looks for its decorated functions
            # in the globals of the wrapper alone.
            self._compile(host, sources)
        files = {**reads.files, **sources.digests(), **opened.digests(folder)}
        if task.stage == "binaries":
            self._binaries()
        external.take_in(Path(task.output), task.platform)
        parameters, returns = self._contract(host, sources)
        return Compiled(
            parameters,
            returns,
            files,
            opened.names(),
            list(reads.others),
        )

    def _check_annotations(
        self, folder: Path, module: str, wrapper: str, environment: Mapping[str, Any]
    ) -> None:
        """Say which name a dimension lacks: PyPTO says only which parameter it cannot infer."""
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        if file.is_file():
            check_wrapper(source.parse_file(file), wrapper, self.task.model, environment)

    def _check_names(self, sources: source.Sources) -> None:
        """A module may say again what the config says, but nothing else."""
        for file in sources.files.values():
            for node in file.tree.body:
                for name, value in _constants(node):
                    given = self.task.names.get(name)
                    if given is not None and value != given:
                        raise AotcError(
                            f"`{name}` is {value} here, and {given} in the config",
                            place=file.place(node),
                            hint="one of them is wrong: the kernels are made for their own",
                        )

    def _compile(self, host: Any, sources: source.Sources) -> None:
        task = self.task
        runner = importlib.import_module("pypto.runtime")
        distributed = importlib.import_module("pypto.ir.distributed_compiled_program")
        config = runner.RunConfig(
            platform=task.platform,
            distributed_config=distributed.DistributedConfig(
                device_ids=list(task.device_ids),
                num_sub_workers=task.sub_workers,
                runtime=task.runtime,
                aicpu_thread_num=task.threads,
            ),
            save_kernels_dir=task.output,
            dump_passes=False,
        )
        try:
            compiled = host.compile(*self._samples(), **self._scalars(host), config=config)
        except Exception as error:
            raise _diagnosis(error, sources) from error
        if not isinstance(compiled, distributed.DistributedCompiledProgram):
            raise AotcError(
                f"`{task.wrapper}` is no HOST program: PyPTO made a {type(compiled).__name__}",
                hint="decorate the wrapper with @pl.jit.host, and its kernels with @pl.jit",
            )

    def _samples(self) -> list[Any]:
        if self.task.samples is None:
            return []
        import torch

        names = {short: long for long, short in _DTYPES.items() if hasattr(torch, long)}
        return [
            torch.empty(
                each.shape, dtype=getattr(torch, names.get(each.dtype, each.dtype)), device="meta"
            )
            for each in self.task.samples
        ]

    def _scalars(self, host: Any) -> dict[str, Any]:
        """A scalar of the signature stays a parameter."""
        if self.task.samples is not None:
            return {}
        language = importlib.import_module("pypto.language")
        return {
            name: language.RUNTIME
            for name, annotation in _annotations(host).items()
            if not hasattr(annotation, "shape")
        }

    def _binaries(self) -> None:
        """Let PyPTO compile every chip program: what it finds it does not compile again."""
        device = importlib.import_module("pypto.runtime.device_runner")
        for folder in sorted(Path(self.task.output, "next_levels").iterdir()):
            try:
                device.compile_and_assemble(folder, self.task.platform)
            except Exception as error:
                raise AotcError(
                    f"the kernels of `{folder.name}` do not compile: {error}"
                ) from error

    def _contract(self, host: Any, sources: source.Sources) -> tuple[list[Parameter], list[str]]:
        """Return the parameters as annotated; raise AotcError where what came out differs."""
        meta = msgspec.json.decode(Path(self.task.output, "distributed_meta.json").read_bytes())
        file, definition = sources.function(host._func)
        place = file.place(definition)
        annotations = _annotations(host)
        if len(meta["params"]) != len(annotations):
            raise AotcError(
                f"{len(annotations)} parameters are declared, and the program has "
                f"{len(meta['params'])}",
                place=place,
            )
        parameters = []
        for (name, annotation), made in zip(annotations.items(), meta["params"], strict=True):
            direction = _DIRECTIONS[made["direction"]]
            dims = tuple(_dim(each) for each in getattr(annotation, "shape", None) or ())
            dtype = str(annotation.dtype).removeprefix("DataType.").lower()
            parameter = Parameter(name, _DTYPES.get(dtype, dtype), dims, direction)
            _check_parameter(parameter, made, place)
            parameters.append(parameter)
        outputs = [each.name for each in parameters if each.direction is Direction.OUT]
        # What PyPTO records of returns does not follow the annotation.
        returned = inspect.signature(host._func).return_annotation is not inspect.Signature.empty
        return parameters, outputs if returned else []


class _Opened:
    """Which files of the model that are no modules this process opens: kernels in C++."""

    def __init__(self, folders: Sequence[Path]):
        self.folders = [each.resolve() for each in folders]
        self.paths: dict[Path, None] = {}
        sys.addaudithook(self._audit)

    def digests(self, base: Path) -> dict[str, str]:
        """Return the digests, by names relative to `base`."""
        names = {path: Path(os.path.relpath(path, base.resolve())) for path in self.paths}
        return {name.as_posix(): text_digest(path.read_bytes()) for path, name in names.items()}

    def names(self) -> list[str]:
        """Return a line for each file: where it is in its folder, and its digest."""
        lines = []
        for path in self.paths:
            folder = next(each for each in self.folders if path.is_relative_to(each))
            name = path.relative_to(folder).as_posix()
            lines.append(f"{name} sha256:{text_digest(path.read_bytes())}")
        return sorted(lines)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        path = Path(os.path.realpath(arguments[0]))
        if path.suffix in external.SUFFIXES and any(map(path.is_relative_to, self.folders)):
            self.paths[path] = None


def _annotations(host: Any) -> dict[str, Any]:
    function = host._func
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            # As PyPTO itself does: the wrapper's own text, in its own globals.
            annotation = eval(annotation, function.__globals__)
        found[name] = annotation
    return found


def _dim(dim: Any) -> Dim:
    return dim if isinstance(dim, int) else str(dim.name)


def _check_parameter(parameter: Parameter, made: Mapping[str, Any], place: Place) -> None:
    shape = made["shape"]
    found = () if shape is None else tuple(shape)
    declared = tuple(each if isinstance(each, int) else -1 for each in parameter.dims)
    if found != declared:
        axis = next((n for n, (a, b) in enumerate(zip(found, declared, strict=False)) if a != b), 0)
        what = f"dimension {axis} of `{parameter.name}`"
        if len(found) != len(declared):
            message = f"`{parameter.name}` has {len(found)} dimensions in the program"
        elif declared[axis] == -1:
            message = f"{what}, `{parameter.dims[axis]}`, became the constant {found[axis]}"
        else:
            message = f"{what} is {found[axis]} in the program, {declared[axis]} is declared"
        raise AotcError(
            message,
            place=place,
            hint="the kernel decides: declare what it takes, or make it dynamic there",
        )
    dtype = _DTYPES.get(str(made["dtype"]).lower(), str(made["dtype"]).lower())
    if dtype != parameter.dtype:
        raise AotcError(
            f"`{parameter.name}` is {dtype} in the program, {parameter.dtype} is declared",
            place=place,
        )


def _constants(node: Any) -> Iterator[tuple[str, int | float]]:
    """Yield the names that a statement of a module gives numbers to."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        value = node.value.value
        if isinstance(value, int | float):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, value


def _wrapper(module: ModuleType, name: str) -> Any:
    host = getattr(module, name, None)
    if host is None or not hasattr(host, "compile"):
        raise AotcError(
            f"{module.__file__} has no HOST wrapper `{name}`", hint="decorate it with @pl.jit.host"
        )
    return host


_PLACE = re.compile(r'File "([^"]+)", line (\d+)|(\S+\.py):(\d+)(?::(\d+))?')


def _diagnosis(error: Exception, sources: source.Sources) -> AotcError:
    """Return what PyPTO says, with the place in the model's files that it names."""
    text = str(error).strip() or type(error).__name__
    place = None
    for found in _PLACE.finditer(f"{text}\n{''.join(traceback.format_exception(error))}"):
        path = Path(found[1] or found[3])
        if path in sources.files:
            place = Place(path, int(found[2] or found[4]), int(found[5] or 1))
            break
    hint = None
    if type(error).__name__ == "PartialCodegenError":
        hint = (
            "ptoas is not of the version that this PyPTO pins (toolchain/versions.env in its "
            "sources); without any ptoas the program is compiled as far as MLIR"
        )
    return AotcError(f"PyPTO refuses it: {text}", place=place, hint=hint)
