"""Programs from a store to a registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aotc.errors import AotcError
from aotc.program.model import canonical_json
from aotc.registry.pull import listed_referrers
from aotc.registry.transport import CHUNK, Transport
from aotc.store import oci, referrers
from aotc.store.artifact import NotFoundError, StoredProgram, find, list_programs
from aotc.store.digest import Digest
from aotc.store.oci import Descriptor, Index
from aotc.store.referrers import Referrer


@dataclass(frozen=True)
class Pushed:
    """What a push has brought: the digest of the model's index, and the bytes it had to send."""

    digest: Digest
    programs: tuple[StoredProgram, ...]
    referrers: int
    sent: int


def push(
    transport: Transport,
    store: Path,
    model: str,
    targets: Sequence[str] | None = None,
    *,
    chunk: int = CHUNK,
    done: Callable[[StoredProgram], None] = lambda _: None,
) -> Pushed:
    """Bring the programs of `model` for `targets`, or all, to the transport's reference.

    Also what refers to them. Only blobs that the registry does not have are sent, each in requests
    of at most `chunk` bytes, and the tag is set last: nobody sees half of it. Raises NotFoundError
    where the store has no such programs, IntegrityError for a damaged one, before anything is
    sent, AotcError where the reference has a digest that is not that of the model, and
    RegistryError for what the registry refuses.
    """
    programs = [
        find(store, each.model, each.program, each.target)
        for each in list_programs(store)
        if each.model == model and (targets is None or each.target in targets)
    ]
    if not programs:
        wanted = "" if targets is None else f" for {' or '.join(targets)}"
        raise NotFoundError(f"no programs of `{model}`{wanted} in the store in {store}")
    text = oci.encode(Index(tuple(_listed(each) for each in programs)))
    digest = Digest.of(text)
    reference = transport.reference
    if reference.digest not in (None, digest):
        raise AotcError(
            f"{reference} is not what would be pushed, which has digest {digest}",
            hint="push to a tag",
        )
    attached = [(each, list(referrers.find(each.layout, each.descriptor))) for each in programs]
    for stored, found in attached:
        # Where a registry has a manifest, it has all that this leads to.
        if not transport.has_manifest(stored.manifest_digest):
            parts = [*stored.manifest.layers, stored.manifest.config]
            for descriptor, content in zip(parts, stored.blobs[:-1], strict=True):
                _send(transport, descriptor, content, chunk)
            name = str(stored.manifest_digest)
            transport.put_manifest(name, stored.blobs[-1], oci.MANIFEST_TYPE)
        _push_referrers(transport, stored.descriptor, found)
        done(stored)
    transport.put_manifest(reference.name, text, oci.INDEX_TYPE)
    count = sum(len(found) for _, found in attached)
    return Pushed(digest, tuple(programs), count, transport.sent)


def _listed(stored: StoredProgram) -> Descriptor:
    return Descriptor(
        oci.MANIFEST_TYPE,
        stored.descriptor.digest,
        stored.descriptor.size,
        {oci.PROGRAM_NAME: stored.program},
        oci.platform_of(stored.target),
    )


def _send(transport: Transport, descriptor: Descriptor, content: bytes, chunk: int = CHUNK) -> None:
    if not transport.has_blob(descriptor.blob):
        transport.put_blob(descriptor, content, chunk)


def _push_referrers(transport: Transport, subject: Descriptor, found: Sequence[Referrer]) -> None:
    """Send what refers to a program; list it under a tag where the registry does not itself."""
    if not found:
        return
    text, kept_by_registry = transport.referrers(subject.blob)
    there = {each.digest for each in listed_referrers(text or b"{}")}
    new = [each for each in found if each.descriptor.digest not in there]
    for each in new:
        _send(transport, each.manifest.config, referrers.EMPTY)
        _send(transport, each.manifest.layers[0], each.content)
        transport.put_manifest(each.descriptor.digest, each.text, oci.MANIFEST_TYPE)
    if new and not kept_by_registry:
        listed = _merged(text, new)
        transport.put_manifest(f"sha256-{subject.blob.hex}", listed, oci.INDEX_TYPE)


def _merged(text: bytes | None, found: Sequence[Referrer]) -> bytes:
    """Return the index of referrers with `found` in it, and with all that others have listed."""
    try:
        index = {} if text is None else msgspec.json.decode(text, type=dict)
        others = list(index.get("manifests") or [])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        others = []
    ours = [
        {
            "mediaType": oci.MANIFEST_TYPE,
            "digest": each.descriptor.digest,
            "size": each.descriptor.size,
            "artifactType": each.manifest.artifact_type,
        }
        for each in found
    ]
    digests = {each["digest"] for each in ours}
    kept = [each for each in others if isinstance(each, dict) and each.get("digest") not in digests]
    manifests = sorted([*kept, *ours], key=lambda each: str(each.get("digest")))
    return canonical_json({"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": manifests})
