"""Where a program comes from: an in-toto statement with SLSA v1 provenance.

The statement names the program's manifest by digest, and says what went in: the source files as
they were read, the components of both build keys, and the toolchain. It has no time, host, user or
path in it: equal builds state equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from aotc.errors import AotcError, ExitCode
from aotc.program.key import BuildKey
from aotc.program.model import canonical_json
from aotc.store import referrers
from aotc.store.artifact import StoredProgram
from aotc.store.cache import Cache, Files
from aotc.store.referrers import Referrer

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://aotc.dev/build/v1"
BUILDER = "https://aotc.dev/aotc"


class NoProvenanceError(AotcError):
    """The store has no provenance of a program."""


class StatementError(AotcError):
    """A statement is not one of aotc's provenance of the program that it is listed for."""

    exit_code = ExitCode.INTEGRITY


class _Subject(msgspec.Struct, frozen=True):
    name: str
    digest: dict[str, str]


class _BuildDefinition(msgspec.Struct, frozen=True, rename="camel"):
    build_type: str
    external_parameters: dict[str, Any]
    internal_parameters: dict[str, Any]
    resolved_dependencies: tuple[dict[str, Any], ...]


class _Predicate(msgspec.Struct, frozen=True, rename="camel"):
    build_definition: _BuildDefinition
    run_details: dict[str, Any]


class _Statement(msgspec.Struct, frozen=True, rename="camel"):
    type: str = msgspec.field(name="_type")
    subject: tuple[_Subject, ...]
    predicate_type: str
    predicate: _Predicate


@dataclass(frozen=True)
class Provenance:
    """What went into a program: source files to sha256 (None: looked for, absent), key components.

    `inputs` are the components of the level-one key, `identity` those of the canonical one.
    """

    files: Files
    inputs: Mapping[str, str]
    identity: Mapping[str, str]


def statement(stored: StoredProgram, key: BuildKey, files: Files) -> bytes:
    """Return the JSON text of the statement on `stored`, equal for equal builds.

    `key` is the level-one key of its build, `files` what the front end read, as
    `Cache.record_inputs` takes them.
    """
    identity = stored.record.identity
    sources = [
        {"name": name, "digest": {"sha256": digest}}
        for name, digest in sorted(files.items())
        if digest is not None
    ]
    absent = sorted(name for name, digest in files.items() if digest is None)
    made = _Statement(
        STATEMENT,
        (_Subject(_name(stored), {"sha256": stored.manifest_digest.hex}),),
        PREDICATE,
        _Predicate(
            _BuildDefinition(
                BUILD_TYPE,
                {"model": stored.model, "program": stored.program, "target": stored.target},
                {"identity": identity, "inputs": dict(key.components), "absent": absent},
                (*sources, {"name": "toolchain", "annotations": {"id": identity["toolchain"]}}),
            ),
            {"builder": {"id": BUILDER, "version": {"aotc": identity["aotc"]}}},
        ),
    )
    return canonical_json(made)


def parse(text: bytes, stored: StoredProgram) -> Provenance:
    """Return what a statement says of `stored`.

    Raises StatementError where it is not a statement of provenance, is on another program, or does
    not have the identity that the program itself has.
    """
    try:
        said = msgspec.json.decode(text, type=_Statement)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StatementError(f"not an in-toto statement: {error}") from None
    definition = said.predicate.build_definition
    for what, found, expected in (
        ("type", said.type, STATEMENT),
        ("predicate type", said.predicate_type, PREDICATE),
        ("build type", definition.build_type, BUILD_TYPE),
    ):
        if found != expected:
            raise StatementError(f"the statement has {what} `{found}`, expected `{expected}`")
    mine = {"sha256": stored.manifest_digest.hex}
    if [each.digest for each in said.subject] != [mine]:
        raise StatementError(f"the statement is not on {stored.manifest_digest}")
    identity = definition.internal_parameters.get("identity")
    if identity != stored.record.identity:
        raise StatementError(f"the statement on {_name(stored)} has another identity than it")
    files = {
        each["name"]: each["digest"]["sha256"]
        for each in definition.resolved_dependencies
        if "digest" in each
    }
    files |= dict.fromkeys(definition.internal_parameters.get("absent", ()))
    inputs = definition.internal_parameters.get("inputs", {})
    return Provenance(files, inputs, identity)


def record(cache: Cache, built: Iterable[tuple[StoredProgram, BuildKey, Files | None]]) -> None:
    """Keep the statement of each program of a build beside it, after it is published.

    Of each: its level-one key, and the files that its build read, None where it was up to date.
    Then a statement that is there is kept, and one that was lost is made again from what the cache
    remembers. Where all are there nothing is written. Raises StoreError where the store cannot be
    written, and IntegrityError where its index is damaged.
    """
    stated = referrers.subjects(cache.layout)
    made = []
    for stored, key, files in built:
        if stored.layout.root != cache.layout.root:
            continue  # a store below lists it, and has its statement
        if files is None and stored.descriptor.digest not in stated:
            files = cache.files_of(key, stored)
        if files is not None:
            text = statement(stored, key, files)
            made.append(referrers.make(referrers.STATEMENT_TYPE, text, stored.descriptor))
    referrers.attach(cache.layout, made)


def statements(stored: StoredProgram) -> Iterator[Referrer]:
    """Yield the statements on `stored` in its store; raise IntegrityError for a damaged one."""
    for each in referrers.find(stored.layout, stored.descriptor):
        if each.manifest.artifact_type == referrers.STATEMENT_TYPE:
            yield each


def find(stored: StoredProgram) -> Referrer:
    """Return the statement on `stored`; raise NoProvenanceError where the store has none."""
    for each in statements(stored):
        return each
    raise NoProvenanceError(
        f"{_name(stored)} for {stored.target} has no provenance in {stored.layout.root}",
        hint=f"`aotc build {stored.model} --target {stored.target}` records it",
    )


def _name(stored: StoredProgram) -> str:
    return f"{stored.model}/{stored.program}"
