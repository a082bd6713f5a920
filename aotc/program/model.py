"""`DistributedCompiledProgram`, and the record of it that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aotc.errors import AotcError, ExitCode

# The version of the stored record, apart from the version of the call ABI.
# 1: model, program, target, abi_version, device_ids, contract, identity.
SCHEMA_VERSION = 1


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
class DistributedCompiledProgram:
    """A compiled program: what the store keeps and the loader runs.

    `contract` is the JSON text of its call contract; `object` is a shared object for `target`
    (for instance `x86_64_v3`) that follows version `abi_version` of the C ABI; `ir` is the printed
    IR and `source` the generated C that it came from. `identity` has every component of the
    canonical build key (`aotc.program.key.canonical_key`): equal identities mean equal programs.
    `device_ids` has one id for each rank.

    Raises ValueError where `contract` is not a JSON object without surrounding whitespace, or no
    device is named.
    """

    model: str
    name: str
    target: str
    abi_version: int
    contract: bytes = field(repr=False)
    object: bytes = field(repr=False)
    ir: str = field(repr=False)
    source: str = field(repr=False)
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
