"""`DistributedCompiledProgram`, and the record of it that is stored."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aotc.errors import AotcError, ExitCode

# The version of the stored record, apart from the version of the call ABI.
# 1: model, program, target, abi_version, device_ids, contract, identity.
SCHEMA_VERSION = 1

# What the layers of a program are. Machine code for a CPU has these three, in this order:
OBJECT_TYPE = "application/vnd.aotc.object.v1"
IR_TYPE = "application/vnd.aotc.ir.v1+text"
SOURCE_TYPE = "application/vnd.aotc.source.v1+c"
# What PyPTO makes is a folder: each of its files is a layer, which says where it lies.
FILE_TYPE = "application/vnd.aotc.file.v1"


# Names as every file system takes them; a shell, too.
_FILE_PATH = re.compile(r"[A-Za-z0-9_.+=@/-]{1,512}")


class UnsupportedSchemaError(AotcError):
    """A stored record has a schema version that this aotc does not read."""

    exit_code = ExitCode.ENVIRONMENT


def canonical_json(value: Any) -> bytes:
    """Return the one JSON text of `value`: keys sorted, no whitespace.

    Raises TypeError for what is not plain data: a path, for instance, belongs in no record.
    """
    return msgspec.json.encode(value, order="sorted")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is stored of a program beside its payload: `contract` is the contract's own JSON text.

    It names its model and program, so that no two programs share one even where their code is
    the same. `device_ids` has one id for each rank.
    """

    schema: int
    model: str
    program: str
    target: str
    abi_version: int
    device_ids: tuple[int, ...]
    contract: msgspec.Raw
    identity: dict[str, str]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.device_ids)

    @property
    def built_by(self) -> str:
        """What built the program, in words."""
        return built_by(self.identity)

    def encode(self) -> bytes:
        """Return the JSON text of the record, equal for equal records."""
        return canonical_json(self)

    @staticmethod
    def decode(text: bytes) -> Record:
        """Return the record that `encode` wrote.

        Raises ValueError where `text` is not exactly what `encode` writes, and
        UnsupportedSchemaError for another schema version.
        """
        try:
            version = msgspec.json.decode(text, type=_Version)
            if version.schema != SCHEMA_VERSION:
                raise UnsupportedSchemaError(
                    f"the record of `{version.program}` has schema {version.schema}, "
                    f"built by {built_by(version.identity)}; this aotc reads schema "
                    f"{SCHEMA_VERSION}",
                    hint="upgrade aotc, or build the program again with this one",
                )
            record = msgspec.json.decode(text, type=Record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"not a program record: {error}") from None
        # Also refuses a key that is there twice, of which a reader sees only one.
        if record.encode() != text:
            raise ValueError("not a program record: not in canonical form")
        return record


class _Version(msgspec.Struct):
    """The part of a record that every schema version has."""

    schema: int
    program: str = "?"
    identity: dict[str, str] = {}


def built_by(identity: Mapping[str, str]) -> str:
    """Return the words for what built a program of `identity`."""
    return f"aotc {identity.get('aotc', '?')} with {identity.get('toolchain', '?')}"


@dataclass(frozen=True)
class Layer:
    """A part of a program's payload: `path` is where it lies in a folder, for a `FILE_TYPE`."""

    media_type: str
    content: bytes = field(repr=False)
    path: str = ""


def machine_code(shared_object: bytes, ir: str, source: str) -> tuple[Layer, ...]:
    """Return the layers of a program for a CPU: object, printed IR, and the C generated from it."""
    return (
        Layer(OBJECT_TYPE, shared_object),
        Layer(IR_TYPE, ir.encode()),
        Layer(SOURCE_TYPE, source.encode()),
    )


def check_layers(layers: Sequence[tuple[str, str]]) -> str | None:
    """Return what is wrong with these layers of one program, each a media type and a path.

    They are the three of a CPU, or the files of a folder: at least one, in the order of their
    paths, which lead to different places inside that folder and nowhere else.
    """
    types = tuple(media_type for media_type, _ in layers)
    if FILE_TYPE not in types:
        wanted = (OBJECT_TYPE, IR_TYPE, SOURCE_TYPE)
        return None if types == wanted else f"layers {types}, expected {wanted}"
    if set(types) != {FILE_TYPE}:
        return f"layers {tuple(sorted(set(types)))}, expected {FILE_TYPE} alone"
    paths = [path for _, path in layers]
    if paths != sorted(set(paths)):
        return "its files are not in the order of their paths, each once"
    for path in paths:
        parts = path.split("/")
        if not _FILE_PATH.fullmatch(path) or not {"", ".", ".."}.isdisjoint(parts):
            return f"a file lies at {path!r}, which is no place in a folder"
    folders = {
        "/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 1)
    }
    for path in paths:
        if path in folders:
            return f"`{path}` is both a file and a folder"
    return None


def folder_stage(paths: Collection[str]) -> str:
    """Return how far the files of a folder have been compiled: `pto`, `cpp` or `binaries`.

    A folder runs without a compiler where every chip program has its binaries.
    """
    chips = {path.split("/")[1] for path in paths if path.startswith("next_levels/")}
    stage = "pto"
    for name, marker in (("cpp", "kernel_config.py"), ("binaries", "cache/binary_context.json")):
        if chips and all(f"next_levels/{chip}/{marker}" in paths for chip in chips):
            stage = name
    return stage


@dataclass(frozen=True)
class DistributedCompiledProgram:
    """A compiled program: what the store keeps and the loader runs.

    `contract` is the JSON text of its call contract. `target` is a CPU level (for instance
    `x86_64_v3`) or an NPU platform (`a2a3`); `layers` has what runs there, see `check_layers`.
    `abi_version` is that of the C ABI, or of the folder that PyPTO loads. `identity` has every
    component of the canonical build key (`aotc.program.key.canonical_key`): equal identities mean
    equal programs. `device_ids` has one id for each rank.

    Raises ValueError where `contract` is not a JSON object without surrounding whitespace, the
    layers are none of a program, or no device is named.
    """

    model: str
    name: str
    target: str
    abi_version: int
    contract: bytes = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    identity: Mapping[str, str] = field(repr=False)
    device_ids: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not self.device_ids:
            raise ValueError("a program has at least one rank")
        # Embedded as it is, so anything but one JSON object would end up in the wrong place.
        if self.contract[:1] + self.contract[-1:] != b"{}":
            raise ValueError("the contract is not a JSON object")
        if bytes(Record.decode(self.record().encode()).contract) != self.contract:
            raise ValueError("the contract is not one JSON value")
        problem = check_layers([(each.media_type, each.path) for each in self.layers])
        if problem is not None:
            raise ValueError(problem)

    def content(self, media_type: str) -> bytes:
        """Return the layer of that type; raise KeyError where there is none."""
        return {each.media_type: each.content for each in self.layers}[media_type]

    def record(self) -> Record:
        """Return the record to store."""
        return Record(
            schema=SCHEMA_VERSION,
            model=self.model,
            program=self.name,
            target=self.target,
            abi_version=self.abi_version,
            device_ids=self.device_ids,
            contract=msgspec.Raw(self.contract),
            identity=dict(self.identity),
        )
