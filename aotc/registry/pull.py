"""Programs from a registry: into a store, or for a build that looks them up by key."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aotc.errors import AotcError
from aotc.program.key import BuildKey
from aotc.program.model import DistributedCompiledProgram, Record, UnsupportedSchemaError
from aotc.registry.reference import Reference
from aotc.registry.transport import RegistryError, Transport, UnknownReferenceError
from aotc.signing import Policy, PolicyError, check_envelopes
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
    are published together, after the last is there and, with `policy`, trusted; what is trusted
    also serves later builds of its key. `warn` is told of referrers that cannot be used. Raises
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
        if policy is not None:
            for stored in programs:
                check_envelopes(policy, stored, _envelopes(found, stored.descriptor))
        for model in models:
            publish(layout, model, programs, warn=warn)
        referrers.attach(layout, found)
        if policy is not None:
            cache = Cache(layout, warn)
            for stored in programs:
                cache.bind(stored)
    return Pulled(digest, tuple(programs), len(found), transport.received)


def fetch_program(
    reference: str,
    key: BuildKey,
    *,
    policy: Policy | None = None,
    plain_http: bool | None = None,
) -> DistributedCompiledProgram | None:
    """Return the program that a build of the canonical `key` would make, from a registry.

    None where the index of `reference` lists none of that key. What comes has the digests that
    its manifest says, the identity `key` and, with `policy`, a trusted signature. For
    `Cache.build_once`, instead of a compilation: equal keys give equal programs. Raises AotcError
    where `reference` is none; RegistryError where the registry cannot be reached or refuses (a
    build then compiles); UnknownReferenceError where there is no such tag yet; IntegrityError and
    PolicyError where what comes is not to be trusted; MissingPackageError without `oras`.
    """
    transport = Transport(Reference.parse(reference), plain_http=plain_http)
    wanted = Entry(*(key.components[each] for each in ("model", "program", "target")))
    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        remote = _Remote(transport, Path(folder), ())
        for entry, descriptor in remote.listed()[1]:
            if (entry.program, entry.target) != (wanted.program, wanted.target):
                continue
            manifest, _ = remote.manifest(descriptor)
            record, _ = remote.record(manifest, descriptor)
            if record.identity != dict(key.components) or record.model != wanted.model:
                continue
            stored = remote.program(Layout(Path(folder)), entry, descriptor)
            if policy is not None:
                found = list(remote.referrers(stored.descriptor, lambda _: None))
                check_envelopes(policy, stored, _envelopes(found, stored.descriptor))
            return DistributedCompiledProgram(
                model=stored.model,
                name=stored.program,
                target=stored.target,
                abi_version=stored.abi_version,
                contract=stored.contract_json,
                layers=stored.layers(),
                identity=record.identity,
                device_ids=record.device_ids,
            )
    return None


def fetch_or_compile(
    reference: str,
    key: BuildKey,
    compile_program: Callable[[], DistributedCompiledProgram],
    *,
    policy: Policy | None = None,
    warn: Note = lambda _: None,
) -> DistributedCompiledProgram:
    """Return the program of the canonical `key` from a registry, or else from `compile_program`.

    For `Cache.build_once`. A registry that cannot be reached, or has something that is not to be
    trusted, is told to `warn`. Raises AotcError where `reference` is none, MissingPackageError
    without `oras`, and what `compile_program` raises.
    """
    Reference.parse(reference)
    try:
        found = fetch_program(reference, key, policy=policy)
    except UnknownReferenceError:
        found = None  # the first build of all
    except (RegistryError, IntegrityError, PolicyError, NotAnArtifactError) as error:
        warn(f"{error}; compiling instead")
        found = None
    return compile_program() if found is None else found


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
