"""The documents of the OCI image specification 1.1 that a store consists of, and their text."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

from aotc.errors import AotcError
from aotc.program.model import canonical_json, check_layers
from aotc.store.digest import Digest
from aotc.store.layout import IntegrityError

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.aotc.program.config.v1+json"

REFERENCE_NAME = "org.opencontainers.image.ref.name"
FILE_PATH = "org.opencontainers.image.title"  # where tools put a layer that is a file
PROGRAM_NAME = "dev.aotc.program"
# What a registry's index says besides: enough to find a program by its key, and read no other.
MODEL_NAME = "dev.aotc.model"
BUILD_KEY = "dev.aotc.key"  # the digest of the canonical key

MAX_DOCUMENT = 4 << 20  # bytes; what registries accept of a manifest


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The CPU and system that a program is for; `variant` is for instance `v3` or `v8`."""

    architecture: str
    os: str
    variant: str = ""


# One to one: the index tells the targets apart by platform alone.
PLATFORMS = {
    "x86_64_v3": Platform("amd64", "linux", "v3"),
    "x86_64_v4": Platform("amd64", "linux", "v4"),
    "x86_64_amx": Platform("amd64", "linux", "v4-amx"),
    "aarch64": Platform("arm64", "linux", "v8"),
    # An NPU, or its simulator: whatever the CPU of the host is.
    "a2a3": Platform("ascend", "linux", "a2a3"),
    "a5": Platform("ascend", "linux", "a5"),
    "a2a3sim": Platform("ascend", "linux", "a2a3sim"),
    "a5sim": Platform("ascend", "linux", "a5sim"),
}
TARGETS = {platform: target for target, platform in PLATFORMS.items()}


def platform_of(target: str) -> Platform:
    """Return the platform of `target`; raise AotcError for an unknown one."""
    if target not in PLATFORMS:
        known = ", ".join(PLATFORMS)
        raise AotcError(f"unknown target `{target}`", hint=f"known targets: {known}")
    return PLATFORMS[target]


class Descriptor(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"
):
    """A reference to a blob: what it is, its digest, and its size in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}
    platform: Platform | None = None

    def __post_init__(self) -> None:
        Digest.parse(self.digest)
        if self.size < 0:
            raise ValueError(f"negative size {self.size}")

    @property
    def part(self) -> str:
        """What part of a program it is: the path of a file, or the media type."""
        return self.annotations.get(FILE_PATH, self.media_type)

    @property
    def blob(self) -> Digest:
        """The digest, parsed."""
        return Digest.parse(self.digest)


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An image index: of the whole store (`index.json`), or of one model."""

    manifests: tuple[Descriptor, ...] = ()
    schema_version: int = 2
    media_type: str = INDEX_TYPE


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The manifest of one program for one platform."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    schema_version: int = 2
    media_type: str = MANIFEST_TYPE


Document = TypeVar("Document", Index, Manifest, Descriptor)


def describe(media_type: str, content: bytes, path: str = "") -> Descriptor:
    """Return the descriptor of `content`; a file has the `path` where it lies."""
    annotations = {FILE_PATH: path} if path else {}
    return Descriptor(media_type, str(Digest.of(content)), len(content), annotations)


def check_manifest(manifest: Manifest) -> str | None:
    """Return what is wrong with the layers of a program's manifest, or None."""
    return check_layers(
        [(each.media_type, each.annotations.get(FILE_PATH, "")) for each in manifest.layers]
    )


def encode(document: Index | Manifest | Descriptor) -> bytes:
    """Return the JSON text of `document`, equal for equal documents."""
    return canonical_json(document)


def decode(text: bytes, kind: type[Document], subject: str) -> Document:
    """Return the document of `text`; raise IntegrityError where it is not one of that `kind`.

    A field that the specification does not have, or that aotc never writes, is refused; and one
    that is there twice, of which another reader may see the other.
    """
    try:
        document = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{subject} is not valid: {error}") from None
    if isinstance(document, Index | Manifest):
        expected = INDEX_TYPE if isinstance(document, Index) else MANIFEST_TYPE
        for name, declared, wanted in (
            ("schema version", document.schema_version, 2),
            ("media type", document.media_type, expected),
        ):
            if declared != wanted:
                raise IntegrityError(f"{subject}: {name} `{declared}`, expected `{wanted}`")
    if encode(document) != text:  # as another tool writes it, or with something twice
        _refuse_duplicates(text, subject)
    return document


def _refuse_duplicates(text: bytes, subject: str) -> None:
    def check(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise IntegrityError(f"{subject} is not valid: `{name}` is there twice")

    json.loads(text, object_pairs_hook=check)
