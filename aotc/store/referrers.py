"""What refers to a program: its provenance, and signatures of it.

A referrer is an OCI manifest of one layer whose `subject` is the program's manifest. It is listed
in `index.json` without a name, as other tools of the OCI layout list and find them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from aotc.program.model import canonical_json
from aotc.store import oci
from aotc.store.artifact import INDEX_FILE, read_top_index
from aotc.store.digest import Digest
from aotc.store.layout import IntegrityError, Layout
from aotc.store.oci import Descriptor, Index

STATEMENT_TYPE = "application/vnd.in-toto+json"
ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
TYPES = (STATEMENT_TYPE, ENVELOPE_TYPE)

EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = b"{}"  # the config that the specification gives to an artifact without one

SUBJECT = "dev.aotc.subject"
_LOCK_SECONDS = 60


class ReferrerManifest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """The manifest of a referrer, of one layer; its artifact type is that of the layer."""

    artifact_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor
    schema_version: int = msgspec.field(default_factory=lambda: 2)
    media_type: str = msgspec.field(default_factory=lambda: oci.MANIFEST_TYPE)
    annotations: dict[str, str] = {}


@dataclass(frozen=True)
class Referrer:
    """A referrer: its manifest, and the text of both its manifest and its layer."""

    manifest: ReferrerManifest
    text: bytes
    content: bytes

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor that lists it in `index.json`."""
        return Descriptor(
            oci.MANIFEST_TYPE,
            str(Digest.of(self.text)),
            len(self.text),
            {SUBJECT: self.manifest.subject.digest},
        )


def make(kind: str, content: bytes, subject: Descriptor) -> Referrer:
    """Return the referrer of `kind`, one of TYPES, to the program of the descriptor `subject`."""
    manifest = ReferrerManifest(
        kind,
        oci.describe(EMPTY_TYPE, EMPTY),
        (oci.describe(kind, content),),
        Descriptor(subject.media_type, subject.digest, subject.size),
    )
    return Referrer(manifest, canonical_json(manifest), content)


def decode(text: bytes, subject: str) -> ReferrerManifest:
    """Return the manifest of `text`; raise IntegrityError where it is none of a referrer."""
    try:
        manifest = msgspec.json.decode(text, type=ReferrerManifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{subject} is not valid: {error}") from None
    kinds = tuple(layer.media_type for layer in manifest.layers)
    if kinds != (manifest.artifact_type,) or manifest.artifact_type not in TYPES:
        raise IntegrityError(f"{subject}: `{manifest.artifact_type}` with layers {kinds}")
    if manifest.layers[0].size > oci.MAX_DOCUMENT:
        raise IntegrityError(
            f"{subject}: {manifest.layers[0].size} bytes, expected at most {oci.MAX_DOCUMENT}"
        )
    if (manifest.config.media_type, manifest.config.digest) != _EMPTY_CONFIG:
        raise IntegrityError(f"{subject}: the config is not empty")
    if (manifest.schema_version, manifest.media_type) != (2, oci.MANIFEST_TYPE):
        raise IntegrityError(f"{subject} is no OCI image manifest of schema version 2")
    return manifest


_EMPTY_DIGEST = Digest.of(EMPTY)
_EMPTY_CONFIG = (EMPTY_TYPE, str(_EMPTY_DIGEST))


@dataclass(frozen=True)
class State:
    """What refers to some programs: those with a statement, and what is damaged of all.

    `damaged` is by the digest that lists it; `subjects` says which program that is of.
    """

    stated: frozenset[str]
    damaged: Mapping[str, IntegrityError]
    subjects: Mapping[str, str]


def examine(layout: Layout, programs: Collection[str]) -> State:
    """Read all that refers to `programs`, by the digests of their manifests.

    Raises IntegrityError where `index.json` is damaged.
    """
    stated: set[str] = set()
    damaged: dict[str, IntegrityError] = {}
    subjects: dict[str, str] = {}
    for each in read_top_index(layout).manifests:
        subject = subject_of(each)
        if subject is None or subject not in programs:
            continue
        try:
            if read(layout, each).manifest.artifact_type == STATEMENT_TYPE:
                stated.add(subject)
        except IntegrityError as error:
            damaged[each.digest] = error
            subjects[each.digest] = subject
    return State(frozenset(stated), damaged, subjects)


def attach(
    layout: Layout,
    added: Iterable[Referrer],
    damaged: Mapping[str, IntegrityError] = MappingProxyType({}),
) -> int:
    """List `added` in the store, all of them at one point; return how many were not there yet.

    A program has one statement: a new one replaces it. What is `damaged`, by its digest, is set
    aside and no longer listed, unless it is added again. Where all is listed already nothing is
    written. Raises StoreError where the store cannot be written.
    """
    wanted = list(added)
    listed = {each.digest for each in read_top_index(layout).manifests} - damaged.keys()
    if not damaged and all(each.descriptor.digest in listed for each in wanted):
        return 0
    with layout.lock("index", _LOCK_SECONDS):
        for error in damaged.values():
            if error.blob == _EMPTY_DIGEST:
                layout.write_blob(EMPTY)  # all referrers have it
            elif error.blob is not None:
                layout.set_blob_aside(error.blob)
        top = [
            each
            for each in read_top_index(layout).manifests
            if each.digest not in damaged or _is_sound(layout, each)
        ]
        listed = {each.digest for each in top}
        new = [each for each in wanted if each.descriptor.digest not in listed]
        stated = [each for each in new if each.manifest.artifact_type == STATEMENT_TYPE]
        replaced = _statements(layout, top, {each.manifest.subject.digest for each in stated})
        layout.write_blobs([EMPTY, *(part for each in new for part in (each.content, each.text))])
        kept = [each for each in top if each.digest not in replaced]
        entries = sorted(
            [*kept, *(each.descriptor for each in new)],
            key=lambda each: (each.annotations.get(oci.REFERENCE_NAME, ""), each.digest),
        )
        layout.write_file(INDEX_FILE, oci.encode(Index(tuple(entries))))
    return len(new)


def _is_sound(layout: Layout, descriptor: Descriptor) -> bool:
    """Tell whether what was found damaged has been repaired by now."""
    try:
        read(layout, descriptor)
    except IntegrityError:
        return False
    return True


def subject_of(descriptor: Descriptor) -> str | None:
    """Return the digest that an entry of `index.json` refers to; None where it is no referrer."""
    if oci.REFERENCE_NAME in descriptor.annotations:
        return None
    return descriptor.annotations.get(SUBJECT)


def read(layout: Layout, descriptor: Descriptor) -> Referrer:
    """Return the referrer that `index.json` lists; raise IntegrityError where it is damaged."""
    subject = f"referrer {descriptor.digest}"
    if descriptor.media_type != oci.MANIFEST_TYPE or descriptor.size > oci.MAX_DOCUMENT:
        raise IntegrityError(f"{subject} is not a manifest of {oci.MAX_DOCUMENT} bytes at most")
    text = layout.read_blob(descriptor.blob, descriptor.size)
    manifest = decode(text, subject)
    if manifest.subject.digest != subject_of(descriptor):
        raise IntegrityError(f"{subject} refers to {manifest.subject.digest}, not as it is listed")
    layout.read_blob(manifest.config.blob, manifest.config.size)
    layer = manifest.layers[0]
    return Referrer(manifest, text, layout.read_blob(layer.blob, layer.size))


def find(layout: Layout, subject: Descriptor) -> Iterator[Referrer]:
    """Yield what refers to the program of the descriptor `subject`, in the order of its digests.

    Raises IntegrityError where it, or `index.json`, is damaged.
    """
    for each in read_top_index(layout).manifests:
        if subject_of(each) == subject.digest:
            yield read(layout, each)


def _statements(layout: Layout, top: Iterable[Descriptor], subjects: Collection[str]) -> set[str]:
    """Return the digests of the statements about `subjects`, and of what is damaged of them."""
    found = set()
    for each in top:
        if subject_of(each) in subjects:
            try:
                kind = read(layout, each).manifest.artifact_type
            except IntegrityError:
                kind = STATEMENT_TYPE
            if kind == STATEMENT_TYPE:
                found.add(each.digest)
    return found
