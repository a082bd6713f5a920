"""Programs from a registry: into a store, or for a build that looks them up by key."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aotc import provenance
from aotc.errors import AotcError
from aotc.program.key import BuildKey, text_digest
from aotc.program.model import (
    IR_TYPE,
    DistributedCompiledProgram,
    Record,
    UnsupportedSchemaError,
)
from aotc.provenance import Provenance
from aotc.registry.reference import Reference
from aotc.registry.transport import RegistryError, Transport, UnknownReferenceError
from aotc.signing import Policy, check_envelopes
from aotc.store import oci, referrers
from aotc.store.artifact import Entry, NotFoundError, StoredProgram, entry_of, layers, publish
from aotc.store.cache import Cache
from aotc.store.digest import Digest
from aotc.store.layout import IntegrityError, Layout
from aotc.store.oci import Descriptor, Index, Manifest
from aotc.store.referrers import Referrer

_MAX_REFERRERS = 64  # of one program
_PULL_LOCK = "pull"

Note = Callable[[str], None]


class NotAnArtifactError(AotcError):
    """A registry has something there, but no programs of aotc."""


@dataclass(frozen=True)
class Pulled:
    """What a pull has brought: the programs, and how many bytes it had to receive for them."""

    digest: Digest
    programs: tuple[StoredProgram, ...]
    referrers: int
    received: int


def pull(
    transport: Transport,
    store: Path,
    targets: Sequence[str] | None,
    *,
    policy: Policy | None = None,
    warn: Note = lambda _: None,
) -> Pulled:
    """Bring the programs of the transport's reference into `store`, with what refers to them.

    Of each program the one for the first of `targets` that there is, or with None all. Only blobs
    that the store does not have are received; what an earlier pull has received of one counts. They
    are published together, after the last is there and, with `policy`, trusted, and serve later
    builds of their keys: also of the first one, where a statement tells the source files, with
    `policy` a trusted one. `warn` is told of referrers that cannot be used. Raises
    NotFoundError where a program is for none of `targets`, PolicyError where one is not trusted,
    RegistryError and UnknownReferenceError for what the registry refuses, IntegrityError for bytes
    that are not those of their digest, and StoreError.
    """
    layout = Layout.create(store)
    stores = [layout, *(each for each in layers(store) if each.root != store)]
    with layout.lock(_PULL_LOCK):
        remote = _Remote(transport, layout.root / "staging", stores)
        digest, listed = remote.listed()
        chosen = [
            (entry, descriptor)
            for entry, descriptor in listed
            if targets is None or entry in _wanted([each for each, _ in listed], targets)
        ]
        programs = [remote.program(layout, entry, descriptor) for entry, descriptor in chosen]
        models = {each.model for each in programs}
        if len(models) > 1:
            raise IntegrityError(f"{transport.reference} lists programs of several models")
        found = [each for stored in programs for each in remote.referrers(stored.descriptor, warn)]
        sources = {
            stored.manifest_digest: _provenance(policy, stored, found) for stored in programs
        }
        for model in models:
            publish(layout, model, programs, warn=warn)
        referrers.attach(layout, found)
        cache = Cache(layout, warn)
        for stored in programs:
            cache.bind(stored)
            _record_inputs(cache, stored, sources[stored.manifest_digest])
    return Pulled(digest, tuple(programs), len(found), transport.received)


@dataclass(frozen=True)
class RemoteCache:
    """What a registry has, as a cache for builds: the programs that its index lists, by their keys.

    It is plain data, so that it can be handed to another process. `policy` is the file of the
    policy that a program must satisfy.
    """

    reference: str
    policy: Path | None
    plain_http: bool | None
    listed: tuple[tuple[Entry, Descriptor], ...]

    @classmethod
    def open(
        cls, reference: str, *, policy: Path | None = None, plain_http: bool | None = None
    ) -> RemoteCache:
        """Read the index of `reference`, the one request that all lookups need.

        Raises AotcError where `reference` or the policy is none; RegistryError where the registry
        cannot be reached or refuses; UnknownReferenceError where there is no such tag yet;
        IntegrityError and NotAnArtifactError where it has something else; MissingPackageError
        without `oras`.
        """
        if policy is not None:
            Policy.load(policy)
        transport = Transport(Reference.parse(reference), plain_http=plain_http, retries=1)
        _, listed = listed_programs(transport)
        return cls(reference, policy, plain_http, tuple(listed))

    def fetch(self, key: BuildKey, layout: Layout) -> DistributedCompiledProgram | None:
        """Return the program that a build of the canonical `key` would make, if it is there.

        What `layout`, or a store below it, has of its blobs is not received again; nothing but
        what is half received is written. What comes has the digests that its manifest says, the
        identity `key`, the contract and the IR of that identity and, with a policy, a trusted
        signature. For `Cache.build_once`, instead of a compilation. Raises RegistryError where the
        registry refuses by now, IntegrityError and PolicyError where what comes is not to be
        trusted, and StoreError.
        """
        names = tuple(key.components[each] for each in ("model", "program", "target"))
        found = [
            (entry, descriptor)
            for entry, descriptor in self.listed
            if (entry.program, entry.target) == names[1:]
            and descriptor.annotations.get(oci.BUILD_KEY, key.digest) == key.digest
        ]
        if not found:
            return None
        reference = Reference.parse(self.reference)
        transport = Transport(reference, plain_http=self.plain_http, retries=1)
        stores = [layout, *(each for each in layers(layout.root) if each.root != layout.root)]
        with layout.lock(_PULL_LOCK):
            remote = _Remote(transport, layout.root / "staging", stores)
            for entry, descriptor in found:
                manifest, _ = remote.manifest(descriptor)
                record, _ = remote.record(manifest, descriptor)
                if record.identity == dict(key.components):
                    return self._program(remote, remote.program(layout, entry, descriptor))
                if oci.BUILD_KEY in descriptor.annotations:
                    raise IntegrityError(
                        f"{self.reference} lists {descriptor.digest} under a key that it does not "
                        f"have"
                    )
        return None

    def _program(self, remote: _Remote, stored: StoredProgram) -> DistributedCompiledProgram:
        said, record = stored.record.identity, stored.record
        bound = {
            **{name: getattr(record, name) for name in ("model", "program", "target")},
            "abi": str(record.abi_version),
            "device_ids": json.dumps(list(record.device_ids)),
            "contract": text_digest(stored.contract_json),
        }
        for each in stored.layers():
            if each.media_type == IR_TYPE:
                bound["ir"] = text_digest(each.content)
        for name, found in bound.items():
            if said[name] != found:
                raise IntegrityError(
                    f"{stored.manifest_digest} has another {name} than its key: {found}, "
                    f"expected {said[name]}"
                )
        if self.policy is not None:
            found_there = list(remote.referrers(stored.descriptor, lambda _: None))
            envelopes = _envelopes(found_there, stored.descriptor)
            check_envelopes(Policy.load(self.policy), stored, envelopes)
        return DistributedCompiledProgram(
            model=record.model,
            name=record.program,
            target=record.target,
            abi_version=record.abi_version,
            contract=stored.contract_json,
            layers=stored.layers(),
            identity=said,
            device_ids=record.device_ids,
        )


def open_cache(
    reference: str,
    *,
    policy: Path | None = None,
    plain_http: bool | None = None,
    warn: Note,
) -> RemoteCache | None:
    """Return a registry as a cache for a build, or None where it is none now, which `warn` is told.

    Raises AotcError where `reference` or the policy is none, and MissingPackageError.
    """
    try:
        return RemoteCache.open(reference, policy=policy, plain_http=plain_http)
    except (RegistryError, UnknownReferenceError, IntegrityError, NotAnArtifactError) as error:
        warn(f"{error.message}; building without it")
        return None


def fetcher(
    remote: RemoteCache | None, layout: Layout, warn: Note
) -> Callable[[BuildKey], DistributedCompiledProgram | None]:
    """Return what looks a key up in `remote`, and finds nothing where that fails.

    What was wrong, `warn` is told.
    """

    def fetch(key: BuildKey) -> DistributedCompiledProgram | None:
        try:
            return None if remote is None else remote.fetch(key, layout)
        except AotcError as error:
            warn(f"{error.message}; compiling instead")
            return None

    return fetch


def _wanted(listed: Collection[Entry], targets: Sequence[str]) -> list[Entry]:
    """Return of each listed program that for the first of `targets`; raise NotFoundError."""
    programs: dict[str, dict[str, Entry]] = {}
    for entry in listed:
        programs.setdefault(entry.program, {})[entry.target] = entry
    chosen = []
    for name, here in programs.items():
        best = next((target for target in targets if target in here), None)
        if best is None:
            raise NotFoundError(
                f"`{name}` is there for {', '.join(sorted(here))}, "
                f"wanted for {' or '.join(targets) or 'this host, which no target fits'}",
                hint="--target names another, --all-platforms brings all",
            )
        chosen.append(here[best])
    return chosen


def _provenance(
    policy: Policy | None, stored: StoredProgram, found: Sequence[Referrer]
) -> Provenance | None:
    """Return what is known of where a program comes from; raise PolicyError where not trusted."""
    if policy is not None:
        return check_envelopes(policy, stored, _envelopes(found, stored.descriptor)).provenance
    for each in found:
        of = (each.manifest.artifact_type, each.manifest.subject.digest)
        if of == (referrers.STATEMENT_TYPE, stored.descriptor.digest):
            try:
                return provenance.parse(each.content, stored)
            except provenance.StatementError:
                continue
    return None


def _record_inputs(cache: Cache, stored: StoredProgram, said: Provenance | None) -> None:
    """Bind the first key of a program's build to it, unless that could not have one."""
    # A name that leads out of the sources is for a build of this machine to follow.
    if said is None or said.outside or any(".." in name.split("/") for name in said.files):
        return
    names = (stored.model, stored.program, stored.target)
    if tuple(said.inputs.get(each) for each in ("model", "program", "target")) == names:
        with suppress(ValueError):
            cache.record_inputs(BuildKey(said.inputs), said.files, stored)


def _envelopes(found: Sequence[Referrer], subject: Descriptor) -> list[bytes]:
    return [
        each.content
        for each in found
        if each.manifest.artifact_type == referrers.ENVELOPE_TYPE
        and each.manifest.subject.digest == subject.digest
    ]


class _Listed(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of an index of referrers, which other tools write too."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""


class _Referrers(msgspec.Struct, frozen=True):
    manifests: tuple[_Listed, ...] = ()


def listed_programs(transport: Transport) -> tuple[Digest, list[tuple[Entry, Descriptor]]]:
    """Return the digest of what the transport's reference names, and the programs that it lists.

    Raises UnknownReferenceError where there is none, NotAnArtifactError where it is something
    else, IntegrityError and RegistryError.
    """
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        return _Remote(transport, Path(folder), ()).listed()


class _Remote:
    """What a registry has: each text once, from `stores` where one of them has it."""

    def __init__(self, transport: Transport, staging: Path, stores: Sequence[Layout]):
        self.transport = transport
        self.staging = staging
        self.stores = stores
        self._manifests: dict[str, tuple[Manifest, bytes]] = {}
        self._records: dict[str, tuple[Record, bytes]] = {}

    def listed(self) -> tuple[Digest, list[tuple[Entry, Descriptor]]]:
        """Return the digest of what the reference names, and the programs that it leads to.

        The model that entries name is the reference; a record tells which it is.
        """
        reference = self.transport.reference
        text, media_type = self.transport.manifest(reference.name)
        digest = Digest.of(text)
        try:
            if media_type == oci.MANIFEST_TYPE:
                return digest, [self._single(text)]
            index = oci.decode(text, Index, "its index")
            listed = [(entry_of(str(reference), each), each) for each in index.manifests]
        except IntegrityError as error:
            raise NotAnArtifactError(
                f"{reference} is not a model of aotc: {error.message}",
                hint="`aotc push MODEL REF` makes one",
            ) from None
        if len({entry for entry, _ in listed}) < len(listed):
            raise IntegrityError(f"{reference} lists a program twice")
        return digest, sorted(listed, key=lambda each: each[0])

    def _single(self, text: bytes) -> tuple[Entry, Descriptor]:
        manifest = _decode(text, "its manifest")
        descriptor = oci.describe(oci.MANIFEST_TYPE, text)
        self._manifests[descriptor.digest] = (manifest, text)
        record, _ = self.record(manifest, descriptor)
        platform = oci.platform_of(record.target)
        named = Descriptor(
            oci.MANIFEST_TYPE,
            descriptor.digest,
            descriptor.size,
            {oci.PROGRAM_NAME: record.program},
            platform,
        )
        return Entry(str(self.transport.reference), record.program, record.target), named

    def program(self, layout: Layout, entry: Entry, descriptor: Descriptor) -> StoredProgram:
        """Return a program, all of it received and checked, as one of `layout`."""
        manifest, text = self.manifest(descriptor)
        record, config = self.record(manifest, descriptor)
        if (record.program, record.target) != (entry.program, entry.target):
            raise IntegrityError(
                f"{self.transport.reference} lists `{entry.program}` for {entry.target}, "
                f"its record is of `{record.program}` for {record.target}"
            )
        payload = [self.blob(layer) for layer in manifest.layers]
        plain = oci.describe(oci.MANIFEST_TYPE, text)
        return StoredProgram(layout, plain, manifest, record, (*payload, config, text))

    def manifest(self, descriptor: Descriptor) -> tuple[Manifest, bytes]:
        """Return the manifest of a program, and its text."""
        if descriptor.digest not in self._manifests:
            text = self._text(descriptor)
            self._manifests[descriptor.digest] = (_decode(text, descriptor.digest), text)
        return self._manifests[descriptor.digest]

    def record(self, manifest: Manifest, descriptor: Descriptor) -> tuple[Record, bytes]:
        """Return the record of a program, and its text."""
        config = manifest.config
        if config.digest not in self._records:
            if config.size > oci.MAX_DOCUMENT:
                raise IntegrityError(f"the record of {descriptor.digest} has {config.size} bytes")
            text = self.blob(config)
            try:
                self._records[config.digest] = (Record.decode(text), text)
            except UnsupportedSchemaError:
                raise
            except ValueError as error:
                raise IntegrityError(f"manifest {descriptor.digest}: {error}") from None
        return self._records[config.digest]

    def referrers(self, subject: Descriptor, warn: Note) -> Iterator[Referrer]:
        """Yield the statements and signatures that refer to a program."""
        text, _ = self.transport.referrers(subject.blob)
        if text is None:
            return
        for each in listed_referrers(text)[:_MAX_REFERRERS]:
            try:
                content = self._text(Descriptor(oci.MANIFEST_TYPE, each.digest, each.size))
                manifest = referrers.decode(content, f"referrer {each.digest}")
                if manifest.subject.digest != subject.digest:
                    raise IntegrityError(f"referrer {each.digest} is of another program")
                layer = self.blob(manifest.layers[0])
            except (IntegrityError, ValueError) as error:
                # Whatever it is, nothing is trusted for its sake.
                warn(f"{error}; left out")
            else:
                yield Referrer(manifest, content, layer)

    def blob(self, descriptor: Descriptor) -> bytes:
        """Return a blob."""
        for each in self.stores:
            try:
                return each.read_blob(descriptor.blob, descriptor.size)
            except IntegrityError:
                continue
        self.staging.mkdir(parents=True, exist_ok=True)
        return self.transport.get_blob(descriptor, self.staging / f"pull-{descriptor.blob.hex}")

    def _text(self, descriptor: Descriptor) -> bytes:
        if descriptor.media_type != oci.MANIFEST_TYPE:
            raise IntegrityError(
                f"{descriptor.digest} has media type `{descriptor.media_type}`, "
                f"expected `{oci.MANIFEST_TYPE}`"
            )
        for each in self.stores:
            try:
                return each.read_blob(descriptor.blob, min(descriptor.size, oci.MAX_DOCUMENT))
            except IntegrityError:
                continue
        text, _ = self.transport.manifest(descriptor.digest)
        if len(text) != descriptor.size:
            raise IntegrityError(
                f"manifest {descriptor.digest} has {len(text)} bytes, "
                f"{descriptor.size} were declared"
            )
        return text


def listed_referrers(text: bytes) -> list[_Listed]:
    """Return the statements and signatures that an index of referrers lists."""
    try:
        index = msgspec.json.decode(text, type=_Referrers)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    return [each for each in index.manifests if each.artifact_type in referrers.TYPES]


def _decode(text: bytes, subject: str) -> Manifest:
    manifest = oci.decode(text, Manifest, subject)
    if manifest.config.media_type != oci.CONFIG_TYPE:
        raise IntegrityError(f"{subject} has config `{manifest.config.media_type}`")
    problem = oci.check_manifest(manifest)
    if problem is not None:
        raise IntegrityError(f"{subject}: {problem}")
    return manifest
