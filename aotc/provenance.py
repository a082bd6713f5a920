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
from aotc.store.cache import MODULE, Cache, Files
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


class _Dependency(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    digest: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Internal(msgspec.Struct, frozen=True, omit_defaults=True):
    identity: dict[str, str]
    inputs: dict[str, str]
    absent: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


class _BuildDefinition(msgspec.Struct, frozen=True, rename="camel"):
    build_type: str
    external_parameters: dict[str, Any]
    internal_parameters: _Internal
    resolved_dependencies: tuple[_Dependency, ...]


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

    `inputs` are the components of the level-one key, `identity` those of the canonical one;
    `outside` says what no key has.
    """

    files: Files
    inputs: Mapping[str, str]
    identity: Mapping[str, str]
    outside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Build:
    """How a program was brought up to date: its level-one key, and the files that were read.

    `files` is None where none were; `outside` is what else it came from, in words. `compiled`
    where its statement is about this build, not about an earlier one.
    """

    stored: StoredProgram
    key: BuildKey
    files: Files | None
    outside: tuple[str, ...] = ()
    compiled: bool = True


def statement(
    stored: StoredProgram, key: BuildKey, files: Files, outside: Iterable[str] = ()
) -> bytes:
    """Return the JSON text of the statement on `stored`, equal for equal builds.

    `key` is the level-one key of its build, `files` what the front end read, as
    `Cache.record_inputs` takes them, and `outside` what else it may have come from.
    """
    identity = stored.record.identity
    sources = [
        _dependency(name, digest) for name, digest in sorted(files.items()) if digest is not None
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
                _Internal(identity, dict(key.components), tuple(absent), tuple(outside)),
                (*sources, _Dependency("toolchain", {}, {"id": identity["toolchain"]})),
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
    internal = definition.internal_parameters
    if internal.identity != stored.record.identity:
        raise StatementError(f"the statement on {_name(stored)} has another identity than it")
    files: dict[str, str | None] = {
        each.name: _digest_of(each)
        for each in definition.resolved_dependencies
        if "sha256" in each.digest
    }
    files |= dict.fromkeys(internal.absent)
    return Provenance(files, internal.inputs, internal.identity, internal.outside)


def _dependency(name: str, digest: str) -> _Dependency:
    """Return a file, or a module from elsewhere, of which the digest follows what it is."""
    what, _, sha256 = digest.rpartition(" sha256:")
    if name.startswith(MODULE):
        return _Dependency(name, {"sha256": sha256}, {"id": what})
    return _Dependency(name, {"sha256": digest})


def _digest_of(dependency: _Dependency) -> str:
    sha256 = dependency.digest["sha256"]
    if dependency.name.startswith(MODULE):
        return f"{dependency.annotations.get('id', '')} sha256:{sha256}"
    return sha256


def record(cache: Cache, builds: Iterable[Build]) -> None:
    """Keep the statement of each program of a build beside it, after it is published.

    One that is there is kept where the program was up to date. One that was lost is made again,
    from what the cache remembers where no files were read. What refers to the programs and is
    damaged is reported and set aside, also a signature. Where all is sound nothing is written.
    Raises StoreError where the store cannot be written, and IntegrityError where its index is
    damaged.
    """
    # A store below has the statements of what it lists.
    mine = [each for each in builds if each.stored.layout.root == cache.layout.root]
    names = {each.stored.descriptor.digest: _name(each.stored) for each in mine}
    state = referrers.examine(cache.layout, names)
    for digest, error in state.damaged.items():
        name = names[state.subjects[digest]]
        cache.warn(f"{error.message}: a statement or signature on {name}, set aside")
    made = []
    for each in mine:
        files = each.files
        if not each.compiled and each.stored.descriptor.digest in state.stated:
            continue
        if files is None:
            files = cache.files_of(each.key, each.stored)
        if files is not None:
            text = statement(each.stored, each.key, files, each.outside)
            made.append(referrers.make(referrers.STATEMENT_TYPE, text, each.stored.descriptor))
    referrers.attach(cache.layout, made, state.damaged)


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
