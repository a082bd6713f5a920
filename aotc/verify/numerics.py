"""Numerics: does it compute the right thing?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from aotc import child
from aotc import config as configs
from aotc.config import Config
from aotc.contract import Contract, Direction, Parameter, from_json
from aotc.errors import AotcError
from aotc.program.model import folder_stage
from aotc.store.artifact import StoredProgram, find
from aotc.toolchain import toolchain_for
from aotc.verify import bindings
from aotc.verify.case import Alone, Case, Mismatch, Tensors, at, close, equal
from aotc.verify.check import NUMERICS, Check

if TYPE_CHECKING:
    from torch import Tensor

    from aotc.runtime import DeviceTensor, Worker

SEED = 0
_CASES = "cases"
_THREADS = (1, 2)
_MAX_BYTES = 256 << 20  # arguments of a case that the model does not make itself
_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


class Task(msgspec.Struct, tag="numerics"):
    """Run `programs` of a model, built for `target`, against their goldens."""

    model: str
    models: str
    store: str
    programs: list[str]
    target: str
    seed: int


class Progress(msgspec.Struct):
    """A case that begins, or with `check` what came of it."""

    program: str
    subject: str
    check: Check | None = None


def check(config: Config, store: Path, stored: Sequence[StoredProgram]) -> Iterator[Check]:
    """Run each program on the cases of its model, in another process, which it may crash.

    The results must be those of the golden within the tolerances of `case`, and bit for bit the
    same for one thread and two, and for a part of a batch on its own. Of a program for an NPU it is
    told why it was not run where it has no binaries, or its runtime is not here.
    """
    remaining = [each.program for each in stored]
    models = next(iter(config.programs.values())).wrapper.place.path.resolve().parent
    while remaining:
        target = stored[0].target
        task = Task(config.model, str(models), str(store.resolve()), remaining, target, SEED)
        last = Progress(remaining[0], "start")
        try:
            for last in child.run("aotc.verify", task, Progress):
                if last.check is not None:
                    yield last.check
            return
        except child.ChildError as error:
            message = f"{last.subject}: {error.message}"
            yield Check(NUMERICS, last.program, False, message, subject=last.subject)
            remaining = remaining[remaining.index(last.program) + 1 :]


def answer(task: Task) -> Iterator[Progress]:
    """Run the cases; the other side of `check`."""
    config = configs.load(task.model, Path(task.models))
    modules = _Modules(config, task.target)
    for name in task.programs:
        yield Progress(name, "start")
        try:
            if not child.has_torch():
                raise AotcError("torch cannot be imported", hint="pip install torch")
            stored = find(Path(task.store), task.model, name, task.target)
            for subject, found in _run_program(modules, stored, task.seed):
                yield Progress(name, subject, found)
        except AotcError as error:
            found = Check(NUMERICS, name, False, error.render())
            yield Progress(name, "start", found)


class _Modules:
    """The modules of the model that are not compiled, each executed once for all programs."""

    def __init__(self, config: Config, target: str):
        self.config = config
        self.platform = toolchain_for(target).platform(target)
        self._loaded: dict[str, ModuleType] = {}

    def load(self, name: str) -> ModuleType:
        """Return the module; raise AotcError where it fails."""
        from aotc.frontend import source

        if name not in self._loaded:
            environment = self.config.environment(self.platform)
            self._loaded[name], _ = source.load(
                self.config.source, name, environment, self.config.kernels_for(self.platform)
            )
        return self._loaded[name]


def _run_program(
    modules: _Modules, stored: StoredProgram, seed: int
) -> Iterator[tuple[str, Check | None]]:
    """Yield the name of each case before it runs, and then again with each check."""
    import torch

    from aotc.runtime.library import LoadError
    from aotc.runtime.loader import load_stored
    from aotc.runtime.npu import NpuProgram

    name = stored.program
    reference = modules.config.programs[name].golden
    if reference is None:
        message = "not run: the config names no golden"
        yield "golden", Check(NUMERICS, name, True, message, subject="golden")
        return
    module = modules.load(reference.module)
    golden = getattr(module, reference.function, None)
    if golden is None:
        raise AotcError(
            f"the golden `{reference}` does not exist",
            place=reference.place,
            hint=f"define `{reference.function}` in {module.__file__ or reference.module}",
        )
    contract = from_json(stored.contract_json)
    cases: Iterable[Case] = _cases(modules, name, contract, seed)
    files = stored.files()
    held = "behaviour: " if files else ""
    try:
        if files and folder_stage(files) != "binaries":
            raise LoadError("the artifact has no binaries")
        program = load_stored(stored)
    except LoadError as error:
        if not files:
            raise
        message = f"behaviour: not run: {error.message}"
        yield "golden", Check(NUMERICS, name, True, message, subject="golden")
        return
    with ExitStack() as stack, torch.inference_mode():
        workers: list[Any]
        if isinstance(program, NpuProgram):
            cases = list(cases)
            staging = max([_staging(case) for case in cases], default=0)
            workers = [stack.enter_context(program.prepare(staging=staging)), None]
        else:
            one, two = (stack.enter_context(program.prepare(threads)) for threads in _THREADS)
            workers = [one, _Packed(two, contract)]
        runner = _Runner(contract, golden, workers[0], workers[1])
        begin = time.monotonic()
        for case in cases:
            yield case.name, None
            failures = list(runner.run(case))
            seconds = time.monotonic() - begin
            for parameter, mismatch in failures:
                message = f"{held}{case.name}: `{parameter}`: {mismatch.message}"
                yield (
                    case.name,
                    Check(
                        NUMERICS,
                        name,
                        False,
                        message,
                        subject=case.name,
                        field=parameter,
                        expected=mismatch.expected,
                        found=mismatch.found,
                        seconds=seconds,
                    ),
                )
            if not failures:
                message = f"{held}{case.name}"
                passed = Check(NUMERICS, name, True, message, subject=case.name, seconds=seconds)
                yield case.name, passed
            begin = time.monotonic()


def _staging(case: Case) -> int:
    """Return the bytes that the tensors of a call take where each is aligned."""
    return sum(each.nbytes + 4096 for each in case.arguments.values())


def _cases(modules: _Modules, program: str, contract: Contract, seed: int) -> Iterator[Case]:
    file = modules.config.source / f"{_CASES}.py"
    make = None
    if file.is_file():
        make = getattr(modules.load(_CASES), f"{program}_cases", None)
    if make is not None:
        yield from make(seed)
        return
    for parameter in contract.parameters:
        if parameter.dtype not in _TORCH and parameter.direction is not Direction.OUT:
            raise AotcError(
                f"`{parameter.name}` of `{program}` is {parameter.dtype}: random values would "
                "mean nothing",
                hint=f"yield cases in a function `{program}_cases(seed)` of {file}",
            )
    yield from _random_cases(contract, seed)


def _random_cases(contract: Contract, seed: int) -> Iterator[Case]:
    """Yield random inputs at the corners of the dynamic dimensions and at one random binding."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def anything(low: int, high: int | None, step: int) -> int:
        steps = (bindings.greatest(low, high, step) - low) // step
        return low + int(torch.randint(min(steps, 63) + 1, (), generator=generator)) * step

    choices = {
        "least": bindings.least,
        "greatest": bindings.greatest,
        f"random, seed {seed}": anything,
    }
    for name, choose in choices.items():
        values = bindings.bind(contract, choose)
        shapes = [bindings.shape_of(each.dims, values) for each in contract.parameters]
        if sum(map(math.prod, shapes)) * 8 > _MAX_BYTES and choose is bindings.greatest:
            continue
        shown = ", ".join(f"{symbol} {value}" for symbol, value in values.items())
        yield Case(
            f"{name}: {shown}" if shown else name,
            {
                parameter.name: _random(shape, parameter, generator)
                for parameter, shape in zip(contract.parameters, shapes, strict=True)
            },
        )


def _random(shape: tuple[int, ...], parameter: Parameter, generator: Any) -> Tensor:
    import torch

    dtype = getattr(torch, _TORCH.get(parameter.dtype, parameter.dtype))
    if parameter.dtype not in _TORCH:
        return torch.zeros(shape, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


class _Packed:
    """Calls a worker with its weights as it likes them best: packed, on the device."""

    def __init__(self, worker: Worker, contract: Contract):
        self._worker, self._parameters = worker, contract.parameters
        self._kept: dict[str, tuple[Tensor, DeviceTensor]] = {}

    def __call__(self, *arguments: Tensor) -> object:
        return self._worker(*map(self._given, self._parameters, arguments))

    def _given(self, parameter: Parameter, value: Tensor) -> object:
        if parameter.panels is None:
            return value
        name = parameter.name
        host, tensor = self._kept.get(name, (None, None))
        if host is not value:  # cases often have the same weights
            if tensor is not None:
                tensor.free()
            tensor = self._worker.alloc_tensor(value.shape, parameter.dtype, value, parameter=name)
            self._kept[name] = value, tensor
        return tensor


class _Runner:
    """Runs cases through a program, with one thread and with two, and through its golden.

    With two its weights are packed, where the program takes them so. What has no threads has no
    `two`.
    """

    def __init__(
        self,
        contract: Contract,
        golden: Callable[..., object],
        one: Callable[..., object],
        two: Callable[..., object] | None,
    ):
        self.parameters = contract.parameters
        self.written = [each for each in contract.parameters if each.direction is not Direction.IN]
        self.golden, self.one, self.two = golden, one, two

    def run(self, case: Case) -> Iterator[tuple[str, Mismatch]]:
        """Yield the mismatches of `case`, with the parameter of each."""
        found = self._call(self.one, case.arguments)
        expected = self._call(self.golden, case.arguments)
        for parameter in self.written:
            for mismatch in self._compare(case, parameter, found, expected):
                yield parameter.name, mismatch
        del expected
        if self.two is not None:
            both = self._call(self.two, case.arguments)
            for parameter in self.written:
                name = parameter.name
                for mismatch in _same_bits(both[name], found[name]):
                    given = f"{_THREADS[1]} threads and packed weights"
                    message = f"{given} give other bits: {mismatch.message}"
                    yield name, Mismatch(message, mismatch.expected, mismatch.found)
            del both
        for alone in case.alone:
            yield from self._run_alone(case, alone, found)

    def _run_alone(
        self, case: Case, alone: Alone, batch: Tensors
    ) -> Iterator[tuple[str, Mismatch]]:
        own = self._call(self.one, {**case.arguments, **alone.arguments})
        for name, (here, there) in alone.rows.items():
            for mismatch in _same_bits(own[name][here], batch[name][there]):
                message = f"{alone.name} gives other bits alone: {mismatch.message}"
                yield name, Mismatch(message, mismatch.expected, mismatch.found)

    def _call(self, function: Callable[..., object], arguments: Tensors) -> Tensors:
        """Return what is written, in memory of its own; what a call leaves out shows."""
        written = {}
        for parameter in self.written:
            written[parameter.name] = arguments[parameter.name].clone()
            if parameter.direction is Direction.OUT:
                _poison(written[parameter.name])
        everything = {**arguments, **written}
        function(*(everything[each.name] for each in self.parameters))
        return written

    def _compare(
        self, case: Case, parameter: Parameter, found: Tensors, expected: Tensors
    ) -> Iterator[Mismatch]:
        name = parameter.name
        if name in case.compare:
            yield from case.compare[name](found, expected)
            return
        actual, wanted = found[name], expected[name]
        if parameter.direction is Direction.INOUT and actual.dim():
            before = case.arguments[name]
            changed = (_bits(wanted) != _bits(before)).flatten(1).any(-1)
            for mismatch in _same_bits(actual[~changed], before[~changed]):
                message = f"written where the golden writes nothing: {mismatch.message}"
                yield Mismatch(message, mismatch.expected, mismatch.found)
            actual, wanted = actual[changed], wanted[changed]
        if actual.is_floating_point():
            yield from close(actual, wanted, case.tolerance)
        else:
            yield from equal(actual, wanted)


def _poison(tensor: Tensor) -> None:
    import torch

    if tensor.is_floating_point():
        tensor.fill_(math.nan)
    elif tensor.dtype is not torch.bool:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def _bits(tensor: Tensor) -> Tensor:
    import torch

    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(sizes[tensor.element_size()])


def _same_bits(actual: Tensor, expected: Tensor) -> Iterator[Mismatch]:
    differs = _bits(actual) != _bits(expected)
    if bool(differs.any()):
        count = int(differs.sum())
        yield at(f"{count} of {differs.numel()} elements differ", differs, actual, expected)
