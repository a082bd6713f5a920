"""An independent check of a store, which trusts nothing that the writer wrote but `oci-layout`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from aotc.errors import AotcError
from aotc.program.model import Record
from aotc.store import artifact, oci, referrers
from aotc.store.layout import Layout
from aotc.store.oci import Descriptor, Index, Manifest


@dataclass(frozen=True)
class Problem:
    """Something wrong in a store: `where` leads to it from `index.json`."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def validate(root: Path, model: str | None = None) -> list[Problem]:
    """Check every blob that can be reached from `index.json`, or from the listing of `model`.

    A model is looked for in the stores below too, wherever one lists it. Recomputes digests, sizes
    and media types, and compares the names along the way. Returns all problems, each with what was
    declared and what was found; blobs that nothing refers to are none. Raises StoreError where
    there is no store or it cannot be read.
    """
    if model is None:
        return list(_Validator(Layout.open(root), "").store(None))
    validators = [
        _Validator(each, "" if each.root == root else f"{each.root}/")
        for each in artifact.layers(root)
    ]
    problems = [problem for each in validators for problem in each.store(model)]
    if not problems and not any(each.found for each in validators):
        problems.append(Problem(artifact.INDEX_FILE, f"model `{model}` is not listed"))
    return problems


class _Validator:
    """Walks one store; `found` tells whether it lists the model that was asked for."""

    def __init__(self, layout: Layout, prefix: str):
        self.layout = layout
        self.prefix = prefix
        self.found = False
        self.programs: set[str] = set()  # digests of the manifests that were checked
        self.layers: dict[tuple[str, int], str | None] = {}  # what was wrong with each

    def store(self, model: str | None) -> Iterator[Problem]:
        where = self.prefix + artifact.INDEX_FILE
        try:
            text = self.layout.read_file(artifact.INDEX_FILE, oci.MAX_DOCUMENT)
            index = Index() if text is None else oci.decode(text, Index, "the index")
        except AotcError as error:
            yield Problem(where, error.message)
            return
        seen: set[str] = set()
        referring = []
        for descriptor in index.manifests:
            name = descriptor.annotations.get(oci.REFERENCE_NAME)
            if referrers.subject_of(descriptor) is not None:
                referring.append(descriptor)
            elif name is None:
                yield Problem(where, f"{descriptor.digest} is listed without a model's name")
            elif name in seen:
                yield Problem(where, f"model `{name}` is listed twice")
            elif model is None or name == model:
                self.found = True
                yield from self.model(f"{where} > {name}", name, descriptor)
            seen.add(name or "")
        for descriptor in referring:
            subject = referrers.subject_of(descriptor)
            if model is None or subject in self.programs:
                try:
                    referrers.read(self.layout, descriptor)
                except AotcError as error:
                    yield Problem(f"{where} > referrer to {subject}", error.message)

    def model(self, where: str, name: str, descriptor: Descriptor) -> Iterator[Problem]:
        content = yield from self.blob(where, descriptor, oci.INDEX_TYPE)
        if content is None:
            return
        try:
            index = oci.decode(content, Index, "the index")
        except AotcError as error:
            yield Problem(where, error.message)
            return
        seen: set[artifact.Entry] = set()
        for each in index.manifests:
            try:
                entry = artifact.entry_of(name, each)
            except AotcError as error:
                yield Problem(where, error.message)
                continue
            if entry in seen:
                yield Problem(where, f"{entry} is listed twice")
            seen.add(entry)
            self.programs.add(each.digest)
            yield from self.program(f"{where} > {entry.program} {entry.target}", entry, each)

    def program(
        self, where: str, entry: artifact.Entry, descriptor: Descriptor
    ) -> Iterator[Problem]:
        content = yield from self.blob(where, descriptor, oci.MANIFEST_TYPE)
        if content is None:
            return
        try:
            manifest = oci.decode(content, Manifest, "the manifest")
        except AotcError as error:
            yield Problem(where, error.message)
            return
        yield from self.record(f"{where} > config", entry, manifest.config)
        problem = oci.check_manifest(manifest)
        if problem is not None:
            yield Problem(where, problem)
        for each in manifest.layers:
            yield from self.layer(f"{where} > layer {each.part}", each)

    def layer(self, where: str, descriptor: Descriptor) -> Iterator[Problem]:
        """Check a layer; one that many programs share is read once."""
        key = (descriptor.digest, descriptor.size)
        if key not in self.layers:
            problems = list(self.blob(where, descriptor, descriptor.media_type))
            self.layers[key] = problems[0].message if problems else None
        message = self.layers[key]
        if message is not None:
            yield Problem(where, message)

    def record(
        self, where: str, entry: artifact.Entry, descriptor: Descriptor
    ) -> Iterator[Problem]:
        content = yield from self.blob(where, descriptor, oci.CONFIG_TYPE)
        if content is None:
            return
        try:
            record = Record.decode(content)
        except (AotcError, ValueError) as error:
            yield Problem(where, str(error))
            return
        named = artifact.Entry(record.model, record.program, record.target)
        if named != entry:
            yield Problem(where, f"listed as {entry}, the record is of {named}")

    def blob(
        self, where: str, descriptor: Descriptor, media_type: str
    ) -> Generator[Problem, None, bytes | None]:
        """Return the content of a blob, or None where it cannot be had."""
        if descriptor.media_type != media_type:
            declared = descriptor.media_type
            yield Problem(where, f"media type `{declared}` was declared, expected `{media_type}`")
        document = media_type in (oci.INDEX_TYPE, oci.MANIFEST_TYPE, oci.CONFIG_TYPE)
        if document and descriptor.size > oci.MAX_DOCUMENT:
            yield Problem(where, f"{descriptor.size} bytes, expected at most {oci.MAX_DOCUMENT}")
            return None
        try:
            return self.layout.read_blob(descriptor.blob, descriptor.size)
        except AotcError as error:
            yield Problem(where, error.message)
            return None
