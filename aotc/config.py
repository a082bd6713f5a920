"""Model configs: read `models/NAME.yaml`, validate it strictly, resolve every extent.

`ModelFile` is the one description of the file format; validation and the JSON Schema for editors
both come from it.
"""

from __future__ import annotations

import graphlib
import keyword
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from aotc import expression
from aotc.contract import DynamicSymbol
from aotc.document import Document, KeyPath
from aotc.errors import AotcError, Place, suggestion

Value = int | str
Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", title="name")]
ReferenceText = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$",
        title="`module:function` reference",
        description="A function of a module in the source folder.",
    ),
]
Platform = Literal["cpu", "a2a3", "a5", "a2a3sim", "a5sim"]
Device = Literal["cpu", "a2a3", "a5"]

PLATFORMS: tuple[str, ...] = get_args(Platform)


class SymbolFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Constraints of one dynamic dimension; each an integer or an expression."""

    min: Annotated[Value | None, Meta(description="Least size, inclusive.")] = None
    max: Annotated[Value | None, Meta(description="Greatest size, inclusive.")] = None
    multiple_of: Annotated[Value | None, Meta(description="What divides the size.")] = None
    equals: Annotated[
        Value | None, Meta(description="The size itself, by other dimensions and extents.")
    ] = None


class ProgramFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One program: a HOST wrapper, and what it must compute."""

    wrapper: Annotated[ReferenceText, Meta(description="The HOST wrapper, `module:function`.")]
    on: Annotated[
        dict[Device, ReferenceText],
        Meta(
            description="The wrapper on a device whose kernels take other parameters. A simulator "
            "takes that of its device."
        ),
    ] = {}
    golden: Annotated[
        ReferenceText | None,
        Meta(description="Its torch reference with the same parameters, `module:function`."),
    ] = None


class DistributedFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where the ranks of a program run."""

    device_ids: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(
            min_length=1,
            extra_json_schema={"uniqueItems": True},
            description="Device of each rank, in the order of the ranks.",
        ),
    ] = (0,)
    runtime: Annotated[
        Literal["tensormap_and_ringbuffer", "host_build_graph"],
        Meta(description="How an NPU's runtime builds the graph of tasks."),
    ] = "tensormap_and_ringbuffer"
    sub_workers: Annotated[
        int, Meta(ge=0, description="Least number of host workers a rank; an NPU's runtime.")
    ] = 0
    aicpu_threads: Annotated[
        int,
        Meta(ge=0, description="AICPU threads of an NPU; 0 leaves it to the platform."),
    ] = 0


class ModelFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The top level of a model config."""

    schema: Annotated[int, Meta(ge=1, le=1, description="Version of this format.")]
    model: Annotated[str, Meta(description="Name of the model, and of the file without `.yaml`.")]
    source: Annotated[
        str, Meta(description="Folder beside the file, with wrappers, kernels and golden.")
    ]
    extents: Annotated[
        dict[Name, Value],
        Meta(
            description="Static sizes: integers, or expressions over each other with "
            "`+ - * // %`, min, max, round_up and cdiv."
        ),
    ] = {}
    kernels: Annotated[
        dict[Device, str],
        Meta(
            description="Folder, relative to the file, of the kernels for a device: what modules "
            "import by a bare name is looked for there before the source folder. A simulator takes "
            "those of its device."
        ),
    ] = {}
    dynamic: Annotated[
        dict[Name, SymbolFields],
        Meta(description="Dimensions known at a call only, with the constraints checked then."),
    ] = {}
    tiling: Annotated[
        dict[Device, dict[Name, Value]],
        Meta(
            description="Extents that differ between devices; every device has the same names. "
            "A simulator takes those of its device."
        ),
    ] = {}
    hyperparameters: Annotated[
        dict[Name, float | bool],
        Meta(description="Facts of the model that are no sizes: numbers, true or false."),
    ] = {}
    programs: Annotated[
        dict[Name, ProgramFields], Meta(description="What to compile, by name.")
    ] = {}
    targets: Annotated[
        tuple[Platform, ...],
        Meta(
            min_length=1,
            extra_json_schema={"uniqueItems": True},
            description="Platforms to compile for.",
        ),
    ] = ("cpu",)
    distributed: Annotated[DistributedFields, Meta(description="Ranks and their devices.")] = (
        DistributedFields()
    )


@dataclass(frozen=True)
class Reference:
    """A function of a module in the source folder, and where the config names it."""

    module: str  # dotted, relative to the source folder
    function: str
    place: Place = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


@dataclass(frozen=True)
class ProgramSource:
    """The functions of one program: its HOST wrapper, and its golden where it has one.

    `on` has the wrappers of devices that need another.
    """

    wrapper: Reference
    golden: Reference | None
    on: Mapping[str, Reference] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """A resolved model config: every static extent an integer, every symbol checked."""

    model: str
    source: Path
    kernels: Mapping[str, Path]  # by device: cpu, a2a3, a5
    extents: Mapping[str, int]
    symbols: Mapping[str, DynamicSymbol]
    tiling: Mapping[str, Mapping[str, int]]  # by device: cpu, a2a3, a5
    hyperparameters: Mapping[str, float | bool]
    programs: Mapping[str, ProgramSource]
    targets: tuple[str, ...]
    device_ids: tuple[int, ...]
    runtime: str
    sub_workers: int
    aicpu_threads: int

    def wrapper(self, program: str, platform: str) -> Reference:
        """Return the HOST wrapper of `program` on `platform`; raise KeyError for no program."""
        source = self.programs[program]
        return source.on.get(_device(platform), source.wrapper)

    def kernels_for(self, platform: str) -> Path | None:
        """Return the folder of the kernels for `platform`; None for the source folder itself."""
        return self.kernels.get(_device(platform))

    def names(self, platform: str) -> dict[str, int]:
        """Return the extents on `platform`, its tiling included.

        Raises AotcError for an unknown platform, and for one that the config has no tiling for.
        """
        if platform not in PLATFORMS:
            hint = suggestion(platform, PLATFORMS) or f"platforms: {', '.join(PLATFORMS)}"
            raise AotcError(f"unknown platform `{platform}`", hint=hint)
        if not self.tiling:
            return dict(self.extents)
        device = _device(platform)
        if device not in self.tiling:
            raise AotcError(
                f"`{self.model}` has no tiling for `{platform}`",
                hint=f"add `{device}` under `tiling`",
            )
        return {**self.extents, **self.tiling[device]}

    def environment(self, platform: str) -> dict[str, int | float | bool]:
        """Return all names given to the model's modules on `platform`, but dynamic symbols.

        Raises AotcError as `names` does.
        """
        return {**self.names(platform), **self.hyperparameters}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a model config."""
    return msgspec.json.schema(ModelFile)


def available_models(directory: Path) -> list[str]:
    """Return the names of the models in `directory`, sorted."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def load(model: str, directory: Path) -> Config:
    """Read and resolve `directory/model.yaml`.

    Raises AotcError, with file and line, for an unknown model, for text that is not YAML, for an
    unknown key or a wrong type, and for an expression that has no value.
    """
    names = available_models(directory)
    if model not in names:
        hint = suggestion(model, names) or f"models in {directory}: {', '.join(names) or 'none'}"
        raise AotcError(f"unknown model `{model}`", hint=hint)
    return _Resolver(directory / f"{model}.yaml").config()


def _device(platform: str) -> str:
    return platform.removesuffix("sim")


class _Resolver:
    """Makes one file a Config."""

    def __init__(self, path: Path):
        self.document = Document(path)
        self.file = self.document.convert(ModelFile)

    def config(self) -> Config:
        self._check_model()
        self._check_names()
        self._check_unique(self.file.targets, ("targets",))
        self._check_unique(self.file.distributed.device_ids, ("distributed", "device_ids"))
        self._check_finite()
        self._check_tiling()
        file = self.file
        extents = self._evaluate(file.extents, ("extents",), {})
        return Config(
            model=file.model,
            source=self.document.path.parent / file.source,
            kernels={
                device: self.document.path.parent / folder
                for device, folder in file.kernels.items()
            },
            extents=extents,
            symbols=self._symbols(extents),
            tiling={
                device: self._evaluate(values, ("tiling", device), extents)
                for device, values in file.tiling.items()
            },
            hyperparameters=file.hyperparameters,
            programs={name: self._program(name) for name in file.programs},
            targets=file.targets,
            device_ids=file.distributed.device_ids,
            runtime=file.distributed.runtime,
            sub_workers=file.distributed.sub_workers,
            aicpu_threads=file.distributed.aicpu_threads,
        )

    def _check_model(self) -> None:
        name, path = self.file.model, self.document.path
        if name == path.stem:
            return
        raise AotcError(
            f"model `{name}` in a file named `{path.name}`",
            place=self.document.values[("model",)],
            hint=f"name the file `{name}.yaml`, or the model `{path.stem}`",
        )

    def _check_names(self) -> None:
        """A name injected into the model's modules has one meaning, and can be written there."""
        file = self.file
        sections: list[tuple[str, KeyPath, Iterable[str]]] = [
            ("a static extent", ("extents",), file.extents),
            ("a dynamic symbol", ("dynamic",), file.dynamic),
            *(("a tile extent", ("tiling", each), file.tiling[each]) for each in file.tiling),
            ("a hyperparameter", ("hyperparameters",), file.hyperparameters),
        ]
        meaning: dict[str, str] = {}
        for kind, where, names in sections:
            for name in names:
                place = self.document.keys[(*where, name)]
                if keyword.iskeyword(name) or name in expression.FUNCTIONS:
                    raise AotcError(
                        f"`{name}` is reserved", place=place, hint="choose another name"
                    )
                if meaning.setdefault(name, kind) != kind:
                    raise AotcError(f"`{name}` is both {meaning[name]} and {kind}", place=place)

    def _check_unique(self, items: Sequence[Hashable], where: KeyPath) -> None:
        for index, item in enumerate(items):
            if item in items[:index]:
                raise AotcError(
                    f"`{'.'.join(where)}`: `{item}` is listed twice",
                    place=self.document.values[(*where, str(index))],
                )

    def _check_finite(self) -> None:
        for name, value in self.file.hyperparameters.items():
            if not math.isfinite(value):
                place = self.document.values[("hyperparameters", name)]
                raise AotcError(f"hyperparameter `{name}` is not finite: {value}", place=place)

    def _check_tiling(self) -> None:
        tiling = self.file.tiling
        if not tiling:
            return
        for index, target in enumerate(self.file.targets):
            if _device(target) not in tiling:
                raise AotcError(
                    f"target `{target}` has no tiling",
                    # Without a list of targets, cpu is the one.
                    place=self.document.values.get(
                        ("targets", str(index)), self.document.keys[("tiling",)]
                    ),
                    hint=f"add `{_device(target)}` under `tiling`",
                )
        for device, values in tiling.items():
            for other, names in tiling.items():
                missing = [name for name in names if name not in values]
                if missing:
                    raise AotcError(
                        f"the tiling of `{device}` lacks `{missing[0]}`, which `{other}` has",
                        place=self.document.keys[("tiling", device)],
                        hint="every device has the same names",
                    )

    def _expression(self, value: Value, where: KeyPath) -> expression.Expression:
        try:
            return expression.parse(str(value))
        # A ValueError is an ExpressionError, or Python's limit on the digits of an integer.
        except ValueError as error:
            raise AotcError(str(error), place=self.document.values[where]) from None

    def _evaluate(
        self, values: Mapping[str, Value], section: KeyPath, given: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the extents of one section; they may use `given` and, in any order, each other."""
        parsed = {name: self._expression(value, (*section, name)) for name, value in values.items()}
        places = {name: self.document.values[(*section, name)] for name in values}
        for name, each in parsed.items():
            self._check_known(each, [*given, *parsed], places[name])
        uses = {name: [n for n in each.names if n in parsed] for name, each in parsed.items()}
        try:
            order = list(graphlib.TopologicalSorter(uses).static_order())
        except graphlib.CycleError as error:
            cycle = error.args[1][::-1]
            raise AotcError(
                f"extents form a cycle: {' -> '.join(cycle)}", place=places[cycle[0]]
            ) from None
        resolved = dict(given)
        for name in order:
            try:
                resolved[name] = parsed[name].evaluate(resolved)
            except expression.ExpressionError as error:
                raise AotcError(f"extent `{name}`: {error}", place=places[name]) from None
            if resolved[name] < 0:
                raise AotcError(
                    f"extent `{name}` is negative: {resolved[name]}", place=places[name]
                )
        return {name: resolved[name] for name in parsed}

    def _symbols(self, extents: Mapping[str, int]) -> dict[str, DynamicSymbol]:
        known = [*extents, *self.file.dynamic]
        symbols: dict[str, DynamicSymbol] = {}
        for name, fields in self.file.dynamic.items():
            parsed: dict[str, expression.Expression] = {}
            for key in SymbolFields.__struct_fields__:
                value = getattr(fields, key)
                if value is None:
                    continue
                where = ("dynamic", name, key)
                parsed[key] = self._expression(value, where)
                self._check_known(parsed[key], known, self.document.values[where])
            symbols[name] = DynamicSymbol(
                name,
                parsed.get("min"),
                parsed.get("max"),
                parsed.get("multiple_of"),
                parsed.get("equals"),
            )
        return symbols

    def _program(self, name: str) -> ProgramSource:
        fields = self.file.programs[name]
        golden = fields.golden
        return ProgramSource(
            wrapper=self._reference(fields.wrapper, ("programs", name, "wrapper")),
            golden=None
            if golden is None
            else self._reference(golden, ("programs", name, "golden")),
            on={
                device: self._reference(text, ("programs", name, "on", device))
                for device, text in fields.on.items()
            },
        )

    def _reference(self, text: str, where: KeyPath) -> Reference:
        module, _, function = text.partition(":")
        return Reference(module, function, self.document.values[where])

    @staticmethod
    def _check_known(used: expression.Expression, known: Sequence[str], place: Place) -> None:
        for name in used.names:
            if name not in known:
                hint = suggestion(name, known) or "define it under `extents`"
                raise AotcError(f"unknown name `{name}`", place=place, hint=hint)
