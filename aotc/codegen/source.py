"""The complete C text of a program: library, workspace plan, barriers and entry points."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from aotc.codegen import ctext
from aotc.codegen.generator import Generated, Item, Region, generate_items
from aotc.codegen.nests import indent
from aotc.codegen.storage import Arena, Buffer
from aotc.dtypes import DType
from aotc.ir.nodes import Program, TensorVar

_LIBRARY = ("core", "math", "vector", "pool")


def generate(program: Program, symbols: Sequence[str]) -> str:
    """Return freestanding C for `program`.

    `symbols` gives the order in which a call passes the values of the dynamic dimensions.
    Raises AotcError for a program that this target cannot run, with its place.
    """
    generated = generate_items(program)
    shared, private = Arena(), Arena()
    shared.place(generated.shared)
    private.place(generated.private)
    declared = [
        f"const int64_t {ctext.identifier(name)} = symbols[{position}];"
        for position, name in enumerate(symbols)
    ]
    scratch = "AOTC_MATMUL_SCRATCH" if generated.element_types else "0"
    sizes = [
        f"const int64_t shared_bytes = {ctext.scalar(shared.total())};",
        f"const int64_t private_bytes = {scratch} + {ctext.scalar(private.total())};",
    ]
    lines = [
        *_library(generated.element_types),
        f"// Program `{program.name}`.",
        "",
        "AOTC_EXPORT int64_t aotc_workspace_bytes(const int64_t *symbols, int32_t threads) {",
        *indent([*declared, *sizes, "return shared_bytes + threads * private_bytes;"]),
        "}",
        "",
        "AOTC_EXPORT void aotc_run(const aotc_call *call, int32_t thread) {",
        *indent(["const int64_t *const symbols = call->symbols;", *declared, *sizes]),
        *indent(_pointers(program, generated, shared, private)),
        *indent(_Printer().body(generated.items)),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _library(element_types: set[tuple[DType, DType]]) -> list[str]:
    folder = resources.files("aotc")
    texts = [(folder / "runtime" / "include" / "aotc_abi.h").read_text(encoding="utf-8")]
    for name in _LIBRARY:
        texts.append((folder / "codegen" / "library" / f"{name}.h").read_text(encoding="utf-8"))
    for left, right in sorted(element_types, key=str):
        name = "matmul" if left.is_float else "matmul_integer"
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


def _pointers(program: Program, generated: Generated, shared: Arena, private: Arena) -> list[str]:
    lines = ["const int64_t threads = call->threads;"]
    for position, parameter in enumerate(program.parameters):
        name, variable = ctext.identifier(parameter.name), parameter.variable
        argument = f"call->arguments[{position}]"
        if isinstance(variable, TensorVar):
            lines.append(f"{variable.dtype.c_type} *const {name} = {argument};")
        else:
            c_type = variable.dtype.c_type
            value = f"*(const {c_type} *){argument}"
            lines.append(f"const {ctext.value_type(variable.dtype)} {name} = {value};")
    lines += [
        "char *const shared_memory = call->workspace;",
        "char *const private_memory = shared_memory + shared_bytes + thread * private_bytes;",
        "void *const matmul_scratch = private_memory;",
    ]
    scratch = "AOTC_MATMUL_SCRATCH" if generated.element_types else "0"
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
    """Prints regions in order, with a barrier wherever threads may meet in the same storage.

    Storage is a parameter or a slot of the workspace; `read` and `written` hold what the threads
    have touched since the last barrier.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()

    def body(self, items: Sequence[Item]) -> list[str]:
        lines: list[str] = []
        for item in items:
            if isinstance(item, Region):
                lines += self._region(item)
            elif item.loops:
                lines += self._loop(item.arms[0])
            else:
                lines += self._branch(item.arms)
        return lines

    def _region(self, region: Region) -> list[str]:
        reads, writes = _storage(region.reads), _storage(region.writes)
        lines = list(region.lines)
        if self.written & (reads | writes) or self.read & writes:
            lines.insert(0, "aotc_barrier(call, thread);")
            self.read, self.written = set(), set()
        self.read |= reads
        self.written |= writes
        return lines

    def _loop(self, arm: tuple[str, list[Item]]) -> list[str]:
        head, items = arm
        # An iteration follows the code before the loop or another iteration.
        for region in _regions(items):
            self.read |= _storage(region.reads)
            self.written |= _storage(region.writes)
        return [f"{head} {{", *indent(self.body(items)), "}"]

    def _branch(self, arms: Sequence[tuple[str, list[Item]]]) -> list[str]:
        entry = set(self.read), set(self.written)
        after = entry if len(arms) == 1 else (set(), set())
        lines: list[str] = []
        for head, items in arms:
            self.read, self.written = set(entry[0]), set(entry[1])
            lines += [f"{head} {{", *indent(self.body(items)), "}"]
            after = (after[0] | self.read, after[1] | self.written)
        self.read, self.written = after
        return lines


def _storage(buffers: set[Buffer]) -> set[str]:
    return {
        each.name if each.slot is None else f"slot {each.slot}"
        for each in buffers
        if not each.private
    }


def _regions(items: Sequence[Item]) -> list[Region]:
    found: list[Region] = []
    for item in items:
        if isinstance(item, Region):
            found.append(item)
        else:
            for _, inner in item.arms:
                found += _regions(inner)
    return found
