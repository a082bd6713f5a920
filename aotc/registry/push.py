"""Programs from a store to a registry.

A tag leads to an index, which lists each program with its name, platform, model and build key. A
push adds to it: machines that have built a part each push to one tag.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aotc.errors import AotcError
from aotc.program.key import BuildKey
from aotc.program.model import canonical_json
from aotc.registry.pull import NotAnArtifactError, listed_programs, listed_referrers
from aotc.registry.transport import CHUNK, RegistryError, Transport, UnknownReferenceError
from aotc.store import oci, referrers
from aotc.store.artifact import NotFoundError, StoredProgram, find, list_programs
from aotc.store.digest import Digest
from aotc.store.oci import Descriptor, Index
from aotc.store.referrers import Referrer

_ATTEMPTS = 8  # at a tag that others change meanwhile


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
    replace: bool = False,
    chunk: int = CHUNK,
    done: Callable[[StoredProgram], None] = lambda _: None,
) -> Pushed:
    """Bring the programs of `model` for `targets`, or all, to the transport's reference.

    Also what refers to them. Only blobs that the registry does not have are sent, each in requests
    of at most `chunk` bytes, and the tag is set last: nobody sees half of it. What the tag lists
    besides stays, unless `replace`. Raises NotFoundError where the store has no such programs,
    IntegrityError for a damaged one, before anything is sent, AotcError where the reference has a
    digest that is not that of the model, or the tag is of something else, and RegistryError for
    what the registry refuses.
    """
    programs = [
        find(store, each.model, each.program, each.target)
        for each in list_programs(store)
        if each.model == model and (targets is None or each.target in targets)
    ]
    if not programs:
        wanted = "" if targets is None else f" for {' or '.join(targets)}"
        raise NotFoundError(f"no programs of `{model}`{wanted} in the store in {store}")
    reference = transport.reference
    listed = {(each.program, each.target): _listed(each) for each in programs}
    text = _index(listed)
    if reference.digest not in (None, Digest.of(text)):
        raise AotcError(
            f"{reference} is not what would be pushed, which has digest {Digest.of(text)}",
            hint="push to a tag",
        )
    adds = reference.digest is None and not replace
    if adds:
        _others(transport, model)  # what cannot be added to is refused before anything is sent
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
    if adds:
        text = _add(transport, model, listed)
    else:
        transport.put_manifest(reference.name, text, oci.INDEX_TYPE)
    count = sum(len(found) for _, found in attached)
    return Pushed(Digest.of(text), tuple(programs), count, transport.sent)


_Programs = dict[tuple[str, str], Descriptor]  # by name and target


def _listed(stored: StoredProgram) -> Descriptor:
    return Descriptor(
        oci.MANIFEST_TYPE,
        stored.descriptor.digest,
        stored.descriptor.size,
        {
            oci.PROGRAM_NAME: stored.program,
            oci.MODEL_NAME: stored.model,
            oci.BUILD_KEY: BuildKey(stored.record.identity).digest,
        },
        oci.platform_of(stored.target),
    )


def _index(programs: _Programs) -> bytes:
    return oci.encode(Index(tuple(programs[each] for each in sorted(programs))))


def _add(transport: Transport, model: str, programs: _Programs) -> bytes:
    """List `programs` under the tag with what it lists already; return the text of the index.

    A registry has no way to change a tag only where it is still what was read. So this looks
    again, a little later than another push can take between its reading and its writing.
    """
    for _ in range(_ATTEMPTS):
        before, others = _others(transport, model)
        text = _index({**others, **programs})
        if Digest.of(text) == before:
            return text
        transport.put_manifest(transport.reference.name, text, oci.INDEX_TYPE)
        time.sleep(transport.backoff * (1 + random.random()))
    raise RegistryError(
        f"others keep changing {transport.reference}", hint="push to it from one machine at a time"
    )


def _others(transport: Transport, model: str) -> tuple[Digest | None, _Programs]:
    """Return what the tag leads to and lists; raise AotcError where that is not of `model`."""
    try:
        digest, listed = listed_programs(transport)
    except UnknownReferenceError:
        return None, {}
    except NotAnArtifactError as error:
        error.hint = "--replace overwrites it"
        raise
    for _, descriptor in listed:
        other = descriptor.annotations.get(oci.MODEL_NAME, model)
        if other != model:
            raise AotcError(
                f"{transport.reference} has programs of `{other}`",
                hint="push to another tag, or overwrite it with --replace",
            )
    return digest, {(entry.program, entry.target): descriptor for entry, descriptor in listed}


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
