"""The complete C text of a program: library, workspace plan, barriers and entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from aotc.codegen import ctext
from aotc.codegen.barriers import Item, Region, barriers, keep_apart
from aotc.codegen.generator import Generated, generate_items, packed_name
from aotc.codegen.nests import indent
from aotc.codegen.storage import Arena, Buffer
from aotc.contract import Contract
from aotc.dtypes import BF16
from aotc.ir.nodes import Program, TensorVar

_LIBRARY = ("core", "math", "vector", "pool", "shares", "pack")
# What the events of a profile build are of, besides regions.
CALL, BARRIER = 0, 1


def generate(program: Program, contract: Contract) -> str:
    """Return freestanding C for `program`, called as `contract` says.

    Raises AotcError for a program that this target cannot run, with its place.
    """
    return _generate(program, contract, None)


@dataclass(frozen=True)
class Profiled:
    """C that records when each thread runs what, and the names of what it records, by number."""

    source: str
    regions: tuple[str, ...]


def generate_profiled(program: Program, contract: Contract) -> Profiled:
    """Return `program` as `generate` does, but recording events (`library/profile.h`).

    It takes one parameter more, int64 [threads, words], and two symbols, these extents.
    """
    regions = ["call", "barrier"]
    source = _generate(program, contract, regions)
    return Profiled(source, tuple(regions))


def _generate(program: Program, contract: Contract, regions: list[str] | None) -> str:
    profiled = regions is not None
    symbols = [each.name for each in contract.symbols]
    panels = contract.panels()
    generated = generate_items(program, panels, counting=profiled)
    keep_apart(generated.items, generated.shared)
    shared, private = Arena(), Arena()
    shared.place(generated.shared)
    private.place(generated.private)
    waits = barriers(generated.items, _place)
    declared = [
        f"const int64_t {ctext.identifier(name)} = symbols[{position}];"
        for position, name in enumerate(symbols)
    ]
    scratch = _scratch(generated, panels)
    sizes = [
        f"const int64_t shared_bytes = {ctext.scalar(shared.total())};",
        f"const int64_t private_bytes = {scratch} + {ctext.scalar(private.total())};",
    ]
    lines = [
        *_library(generated, panels, profiled),
        f"// Program `{program.name}`.",
        "",
        "AOTC_EXPORT int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {",
        *indent([*declared, *sizes, "return shared_bytes + threads * private_bytes;"]),
        "}",
        "",
        "AOTC_EXPORT void aotc_run(const aotc_call *call, int32_t thread) {",
        *indent(["const int64_t *const symbols = call->symbols;", *declared, *sizes]),
        *indent(_pointers(program, generated, panels, shared, private)),
        *indent(_profiled_start(len(program.parameters), len(symbols)) if profiled else []),
        *indent(_Printer(waits, regions).body(generated.items)),
        *indent(_PROFILED_END if profiled else []),
        "}",
    ]
    return "\n".join(lines) + "\n"


_PROFILED_END = [
    "aotc_profile_begin(&profile);",
    "profile.begin = started;",
    f"aotc_profile_end(&profile, {CALL});",
]


def _profiled_start(parameters: int, symbols: int) -> list[str]:
    return [
        f"int64_t *const events = call->arguments[{parameters}];",
        f"aotc_profile profile = aotc_profile_start(events, symbols[{symbols + 1}], thread);",
        "const int64_t started = (int64_t)aotc_ticks();",
    ]


def _scratch(generated: Generated, panels: Mapping[str, int]) -> str:
    if panels:
        return "AOTC_PANEL_SCRATCH"
    return "AOTC_MATMUL_SCRATCH" if generated.element_types else "0"


def _library(generated: Generated, panels: Mapping[str, int], profiled: bool) -> list[str]:
    folder = resources.files("aotc")
    texts = [(folder / "runtime" / "include" / "aotc_abi.h").read_text(encoding="utf-8")]
    more = ("profile",) * profiled + ("panels",) * bool(panels)
    for name in (*_LIBRARY, *more):
        texts.append((folder / "codegen" / "library" / f"{name}.h").read_text(encoding="utf-8"))
    for types in sorted(generated.element_types, key=str):
        left, right = types
        names = ["matmul" if left.is_float else "matmul_integer"]
        names += ["matmul_batch"] if types in generated.batch_types else []
        names += ["matmul_tiles"] if types == (BF16, BF16) else []
        for name in names:
            text = (folder / "codegen" / "library" / f"{name}.h").read_text(encoding="utf-8")
            for token, value in (
                ("LEFT_TYPE", left.c_type),
                ("RIGHT_TYPE", right.c_type),
                ("LEFT", left.name),
                ("RIGHT", right.name),
            ):
                text = text.replace(token, value)
            texts.append(text)
    return texts


def _pointers(
    program: Program,
    generated: Generated,
    panels: Mapping[str, int],
    shared: Arena,
    private: Arena,
) -> list[str]:
    lines = ["const int64_t threads = call->threads;"]
    for position, parameter in enumerate(program.parameters):
        name, variable = ctext.identifier(parameter.name), parameter.variable
        argument = f"call->arguments[{position}]"
        if isinstance(variable, TensorVar):
            lines.append(f"{variable.dtype.c_type} *const {name} = {argument};")
            if parameter.name in panels:
                given = f"call->packed && call->packed[{position}]"
                lines.append(f"const int {packed_name(parameter.name)} = {given};")
        else:
            c_type = variable.dtype.c_type
            value = f"*(const {c_type} *){argument}"
            lines.append(f"const {ctext.value_type(variable.dtype)} {name} = {value};")
    lines += [
        "char *const shared_memory = call->workspace;",
        "char *const private_memory = shared_memory + shared_bytes + thread * private_bytes;",
        "void *const matmul_scratch = private_memory;",
    ]
    scratch = _scratch(generated, panels)
    for memory, arena, buffers, start in (
        ("shared", shared, generated.shared, "0"),
        ("private", private, generated.private, scratch),
    ):
        for slot, size in enumerate(arena.slots):
            before = f"{memory}_{slot - 1}_end" if slot else start
            lines.append(f"const int64_t {memory}_{slot}_end = {before} + {ctext.scalar(size)};")
        lines += [_pointer(memory, start, each) for each in buffers]
    return lines


def _pointer(memory: str, start: str, buffer: Buffer) -> str:
    assert buffer.slot is not None
    offset = f"{memory}_{buffer.slot - 1}_end" if buffer.slot else start
    c_type, name = buffer.dtype.c_type, ctext.identifier(buffer.name)
    return f"{c_type} *const {name} = ({c_type} *)({memory}_memory + {offset});"


class _Printer:
    """Prints regions in order, with a barrier before each of `barriers`.

    With `regions`, to which names are added, it also prints what records the time of each.
    """

    def __init__(self, barriers: set[Region], regions: list[str] | None) -> None:
        self.barriers = barriers
        self.regions = regions

    def body(self, items: Sequence[Item]) -> list[str]:
        lines: list[str] = []
        for item in items:
            if isinstance(item, Region):
                lines += self._region(item)
                continue
            for head, inner in item.arms:
                lines += [f"{head} {{", *indent(self.body(inner)), "}"]
        return lines

    def _region(self, region: Region) -> list[str]:
        before = self._barrier() if region in self.barriers else []
        return [*before, *self._recorded(region)]

    def _barrier(self) -> list[str]:
        wait = "aotc_barrier(call, thread);"
        if self.regions is None:
            return [wait]
        end = f"aotc_profile_end(&profile, {BARRIER});"
        return ["aotc_profile_begin(&profile);", wait, end]

    def _recorded(self, region: Region) -> list[str]:
        """Return the lines of the region; what has no name of its own takes no time to speak of."""
        if self.regions is None or not (name := _name(region)):
            return list(region.lines)
        self.regions.append(name)
        end = f"aotc_profile_end(&profile, {len(self.regions) - 1});"
        return ["aotc_profile_begin(&profile);", *region.lines, end]


def _place(buffer: Buffer) -> str:
    """Return the name of the storage that `buffer` stands in, perhaps not alone."""
    return buffer.name if buffer.slot is None else f"slot {buffer.slot}"


def _name(region: Region) -> str:
    """Return the statement that a region begins with, and the parameters that it touches."""
    texts = [line.strip() for line in region.lines]
    text = next((each.removeprefix("// ") for each in texts if each.startswith("// ")), "")
    touched = sorted(
        {each.name for each in {**region.reads, **region.writes} if each.elements is None}
    )
    return f"{text}  [{', '.join(touched)}]" if text and touched else text
