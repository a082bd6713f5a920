"""Programs in a store: written as OCI manifests, published under their model's name, found again.

`index.json` lists one image index for each model, by its reference name. A model's index lists the
manifests of its programs; name and platform tell them apart. A manifest has the program's record
as its config, and its payload as layers: the object, the printed IR and the generated C, or the
files of the folder that PyPTO loads.

A store may lie on top of others, which are only read: those of `AOTC_STORE_LOWER`. What the upper
one does not list is looked for in the next. Each is complete on its own: what its `index.json`
leads to it holds itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from aotc.errors import AotcError, ExitCode, suggestion
from aotc.program.model import (
    IR_TYPE,
    OBJECT_TYPE,
    SOURCE_TYPE,
    DistributedCompiledProgram,
    Layer,
    Record,
    folder_stage,
)
from aotc.store import oci
from aotc.store.digest import Digest
from aotc.store.layout import MARKER_FILE, IntegrityError, Layout, StoreError
from aotc.store.oci import Descriptor, Index, Manifest

INDEX_FILE = "index.json"
LOWER_VARIABLE = "AOTC_STORE_LOWER"
INDEX_LOCK = "index"
LOCK_SECONDS = 60  # an update of `index.json` takes milliseconds

_ATTEMPTS = 10  # at an update that others overwrite, where a file system does not keep locks

Found = TypeVar("Found")
Warn = Callable[[str], None]
warn_log: Warn = logging.getLogger("aotc.store").warning


class NotFoundError(AotcError):
    """The store has no such model, no such program, or none for the wanted target."""


class NoBinariesError(AotcError):
    """A program cannot run without a compiler."""

    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True)
class StoredProgram:
    """A program as it was in a store; all of it has been read and checked.

    `blobs` has the bytes of its layers, of its record and of its manifest.
    """

    layout: Layout
    descriptor: Descriptor
    manifest: Manifest
    record: Record
    blobs: tuple[bytes, ...] = field(repr=False)

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.record.model

    @property
    def program(self) -> str:
        """The name of the program within its model."""
        return self.record.program

    @property
    def target(self) -> str:
        """What it runs on: a CPU level, for instance `x86_64_v3`, or an NPU platform."""
        return self.record.target

    @property
    def abi_version(self) -> int:
        """The version of the C ABI, or of the folder that PyPTO loads."""
        return self.record.abi_version

    @property
    def contract_json(self) -> bytes:
        """The JSON text of the call contract."""
        return bytes(self.record.contract)

    @property
    def built_by(self) -> str:
        """What built the program, in words."""
        return self.record.built_by

    @property
    def manifest_digest(self) -> Digest:
        """The digest of the manifest: the name of this artifact anywhere."""
        return self.descriptor.blob

    def object_bytes(self) -> bytes:
        """Return the shared object; raise NotFoundError for a program that has none."""
        return self._layer(OBJECT_TYPE)

    def ir(self) -> str:
        """Return the printed IR; raise IntegrityError where it is not text."""
        return self._text(IR_TYPE)

    def source(self) -> str:
        """Return the generated C; raise IntegrityError where it is not text."""
        return self._text(SOURCE_TYPE)

    def files(self) -> dict[str, bytes]:
        """Return the files of a program that is a folder, by path; none for one that is not."""
        return {each.path: each.content for each in self.layers() if each.path}

    def layers(self) -> tuple[Layer, ...]:
        """Return the payload."""
        return tuple(
            Layer(each.media_type, blob, each.annotations.get(oci.FILE_PATH, ""))
            for each, blob in zip(self.manifest.layers, self.blobs, strict=False)
        )

    @property
    def digests(self) -> list[Digest]:
        """The digests of `blobs`."""
        parts = (*self.manifest.layers, self.manifest.config, self.descriptor)
        return [part.blob for part in parts]

    def check(self) -> None:
        """Read it again; raise IntegrityError where any of it is damaged by now."""
        for digest, blob in zip(self.digests, self.blobs, strict=True):
            self.layout.read_blob(digest, len(blob))

    def _layer(self, media_type: str) -> bytes:
        for each in self.layers():
            if each.media_type == media_type:
                return each.content
        raise NotFoundError(
            f"`{self.program}` of `{self.model}` for {self.target} is a folder of files",
            hint="`aotc show --file PATH` prints one",
        )

    def _text(self, media_type: str) -> str:
        try:
            return self._layer(media_type).decode()
        except UnicodeDecodeError:
            raise IntegrityError(
                f"{media_type} of `{self.program}` of `{self.model}` is not UTF-8 text"
            ) from None


def require_binaries(stored: StoredProgram) -> None:
    """Raise NoBinariesError where a host that runs the program would have to compile it."""
    files = stored.files()
    stage = folder_stage(files) if files else "binaries"
    if stage != "binaries":
        made = {"pto": "MLIR", "cpp": "C++"}[stage]
        raise NoBinariesError(
            f"`{stored.program}` of `{stored.model}` for {stored.target} was compiled as far as "
            f"{made}: it has no binaries",
            hint="`aotc doctor pypto` tells which of ptoas, runtime and compiler is missing here",
        )


@dataclass(frozen=True, order=True)
class Entry:
    """A program as its model's index lists it."""

    model: str
    program: str
    target: str

    def __str__(self) -> str:
        return f"`{self.program}` of `{self.model}` for {self.target}"


def write_program(layout: Layout, program: DistributedCompiledProgram) -> StoredProgram:
    """Store `program`, without publishing it; equal programs give equal bytes and digests.

    Raises StoreError where the disk refuses, and AotcError for an unknown target.
    """
    oci.platform_of(program.target)
    record = program.record()
    config = record.encode()
    manifest = Manifest(
        oci.describe(oci.CONFIG_TYPE, config),
        tuple(oci.describe(each.media_type, each.content, each.path) for each in program.layers),
    )
    text = oci.encode(manifest)
    blobs = (*(each.content for each in program.layers), config, text)
    layout.write_blobs(blobs)
    return StoredProgram(layout, oci.describe(oci.MANIFEST_TYPE, text), manifest, record, blobs)


def open_program(layout: Layout, descriptor: Descriptor) -> StoredProgram:
    """Read the program of a manifest, all of it, from `layout` alone.

    Raises IntegrityError where any of it is damaged, and UnsupportedSchemaError for a record of
    another schema version.
    """
    subject = f"manifest {descriptor.digest}"
    text = _read(layout, descriptor, oci.MANIFEST_TYPE)
    manifest = oci.decode(text, Manifest, subject)
    problem = oci.check_manifest(manifest)
    if problem is not None:
        raise IntegrityError(f"{subject}: {problem}")
    config = _read(layout, manifest.config, oci.CONFIG_TYPE)
    try:
        record = Record.decode(config)
    except ValueError as error:
        raise IntegrityError(f"{subject}: {error}", blob=manifest.config.blob) from None
    payload = [layout.read_blob(layer.blob, layer.size) for layer in manifest.layers]
    return StoredProgram(layout, descriptor, manifest, record, (*payload, config, text))


def publish(
    layout: Layout,
    model: str,
    programs: Sequence[StoredProgram],
    *,
    declared: Collection[str] | None = None,
    warn: Warn = warn_log,
) -> Digest:
    """List `programs` under `model`, all of them at one point; return the digest of its index.

    They replace what is listed of the same name and target. Everything else stays, but programs
    not in `declared`, the names that the model has now. One that was found in a store below, which
    lists it, is left to that. Where all is listed already nothing is written. Raises StoreError
    where the store cannot be written.
    """
    if any(each.model != model for each in programs):
        raise ValueError(f"a program of another model cannot be published under `{model}`")
    below = [each for each in programs if _is_listed_below(layout, each)]
    programs = [each for each in programs if each not in below]
    hidden = {Entry(model, each.program, each.target) for each in below}

    def merged() -> tuple[bytes, bytes]:
        return _merged(layout, model, programs, hidden, declared)

    # A store that is up to date may be read-only.
    with suppress(IntegrityError):
        text, top = merged()
        if layout.read_file(INDEX_FILE, oci.MAX_DOCUMENT) == top:
            return Digest.of(text)
        if below and not programs and not _lists(layout, model):
            return Digest.of(text)
    for _ in range(_ATTEMPTS):
        with layout.lock(INDEX_LOCK, LOCK_SECONDS):
            _set_damage_aside(layout, model, warn)
            text, top = merged()
            # Also what `gc` has taken since it was built or found: what is listed is there.
            layout.write_blobs([*(blob for each in programs for blob in each.blobs), text])
            layout.sync_blobs()
            layout.write_file(INDEX_FILE, top)
            if layout.read_file(INDEX_FILE, oci.MAX_DOCUMENT) == top:
                return Digest.of(text)
    raise StoreError(
        f"others keep overwriting {layout.root / INDEX_FILE}",
        hint="its file system does not keep locks: build on one machine at a time",
    )


def find(
    root: Path, model: str, program: str, target: str | Sequence[str] | None = None
) -> StoredProgram:
    """Find `program` of `model` in the store at `root`, or below it; read and check all of it.

    `target` is the wanted one, or several with the best first; without it the only one there is.
    Nothing is written or locked, and `gc` may run meanwhile. Raises NotFoundError, which says what
    there is, IntegrityError for a damaged store and StoreError where there is none.
    """
    return _reading(root, lambda stores: _find(root, stores, model, program, target))


def list_programs(root: Path) -> list[Entry]:
    """Return what the store at `root` lists, and those below it, sorted; no program is read.

    Raises IntegrityError for a damaged index and StoreError where there is no store.
    """
    return _reading(root, lambda stores: sorted(_listed(stores)))


def layers(root: Path) -> list[Layout]:
    """Open the store at `root` and those below it, the first to look in first.

    Where there are some below, that at `root` need not be there yet. Raises StoreError for one
    that is not there or not a store.
    """
    lower = [Layout.open(each) for each in lower_roots() if each != root]
    if lower and not os.path.lexists(root / MARKER_FILE):
        return lower
    return [Layout.open(root), *lower]


def lower_roots() -> list[Path]:
    """Return the folders of `AOTC_STORE_LOWER`, separated as those of PATH are."""
    return [Path(each) for each in os.environ.get(LOWER_VARIABLE, "").split(os.pathsep) if each]


def read_top_index(layout: Layout) -> Index:
    """Return `index.json`, empty where there is none yet; raise IntegrityError where damaged."""
    text = layout.read_file(INDEX_FILE, oci.MAX_DOCUMENT)
    return Index() if text is None else oci.decode(text, Index, f"{layout.root / INDEX_FILE}")


def read_model_index(layout: Layout, descriptor: Descriptor) -> Index:
    """Return the index of a model; raise IntegrityError where it is damaged."""
    content = _read(layout, descriptor, oci.INDEX_TYPE)
    return oci.decode(content, Index, f"index {descriptor.digest}")


def entry_of(model: str, descriptor: Descriptor) -> Entry:
    """Return what `descriptor` lists; raise IntegrityError where it does not say."""
    name = descriptor.annotations.get(oci.PROGRAM_NAME)
    if name is None or descriptor.platform is None:
        raise IntegrityError(f"the index of `{model}` lists {descriptor.digest} without a name")
    target = oci.TARGETS.get(descriptor.platform)
    if target is None:
        raise IntegrityError(f"`{name}` of `{model}` is for an unknown platform")
    return Entry(model, name, target)


def _read(layout: Layout, descriptor: Descriptor, media_type: str) -> bytes:
    if descriptor.media_type != media_type:
        raise IntegrityError(
            f"blob {descriptor.digest} has media type `{descriptor.media_type}`, "
            f"expected `{media_type}`"
        )
    if descriptor.size > oci.MAX_DOCUMENT:
        raise IntegrityError(
            f"blob {descriptor.digest} has {descriptor.size} bytes, "
            f"expected at most {oci.MAX_DOCUMENT}"
        )
    return layout.read_blob(descriptor.blob, descriptor.size)


def _models(layout: Layout) -> list[tuple[str, Descriptor]]:
    """Return the models that `index.json` lists; what another tool has put there has no name."""
    named = [
        (each.annotations.get(oci.REFERENCE_NAME, ""), each)
        for each in read_top_index(layout).manifests
    ]
    return [(name, each) for name, each in named if name]


def entries_of(layout: Layout, model: str | None = None) -> Iterable[tuple[Entry, Descriptor]]:
    for name, index in _models(layout):
        if model is None or name == model:
            for descriptor in read_model_index(layout, index).manifests:
                yield entry_of(name, descriptor), descriptor


def _reading(root: Path, read: Callable[[list[Layout]], Found]) -> Found:
    """Return what `read` gives; repeat it where the index has changed under it.

    What an index leads to is there, and stays for as long as it is the index. So what is missing,
    or half written where a file system has no rename, is a fault only where it is that twice.
    """
    stores = layers(root)
    seen = None
    while True:
        try:
            return read(stores)
        except IntegrityError:
            before, seen = seen, [_index_text(each) for each in stores]
            if seen == before:
                raise


def _index_text(layout: Layout) -> bytes | None:
    try:
        return layout.read_file(INDEX_FILE, oci.MAX_DOCUMENT)
    except IntegrityError:
        return None


def _find(
    root: Path,
    stores: Sequence[Layout],
    model: str,
    program: str,
    target: str | Sequence[str] | None,
) -> StoredProgram:
    entries = _listed(stores, model)
    if not entries:
        known = {name for each in stores for name, _ in _models(each)}
        _refuse("model", model, known, f"the store in {root}")
    here = {entry.target: entry for entry in entries if entry.program == program}
    if not here:
        _refuse("program", program, {entry.program for entry in entries}, f"`{model}`")
    entry = here[_choose(model, program, list(here), target)]
    stored = open_program(*entries[entry])
    named = Entry(stored.model, stored.program, stored.target)
    if named != entry:
        raise IntegrityError(f"the index lists {entry}, its record is of {named}")
    return stored


def _listed(
    stores: Sequence[Layout], model: str | None = None
) -> dict[Entry, tuple[Layout, Descriptor]]:
    """Return what the stores list, and which of them is the first to do so."""
    found: dict[Entry, tuple[Layout, Descriptor]] = {}
    for layout in stores:
        for entry, descriptor in dict(entries_of(layout, model)).items():
            found.setdefault(entry, (layout, descriptor))
    return found


def _lists(layout: Layout, model: str) -> bool:
    return any(name == model for name, _ in _models(layout))


def _is_listed_below(layout: Layout, stored: StoredProgram) -> bool:
    if stored.layout.root == layout.root:
        return False
    entry = Entry(stored.model, stored.program, stored.target)
    stores = [each for each in layers(layout.root) if each.root != layout.root]
    first = _listed(stores, stored.model).get(entry)
    return first is not None and first[1].digest == stored.descriptor.digest


def _refuse(kind: str, name: str, known: Collection[str], where: str) -> NoReturn:
    hint = suggestion(name, known) or f"{kind}s in {where}: {', '.join(sorted(known)) or 'none'}"
    raise NotFoundError(f"no {kind} `{name}` in {where}", hint=hint)


def _choose(
    model: str, program: str, here: Sequence[str], target: str | Sequence[str] | None
) -> str:
    wanted = [target] if isinstance(target, str) else target
    there = ", ".join(sorted(here))
    if wanted is None:
        if len(here) == 1:
            return here[0]
        raise NotFoundError(
            f"`{program}` of `{model}` is there for several targets: {there}", hint="name one"
        )
    for each in wanted:
        if each in here:
            return each
    raise NotFoundError(
        f"`{program}` of `{model}` is there for {there}, wanted for {' or '.join(wanted)}",
        hint=f"build it for {wanted[0]}" if wanted else "no known target runs here",
    )


def _set_damage_aside(layout: Layout, model: str, warn: Warn) -> None:
    """Report and set aside a damaged index: what it listed comes back with the next build.

    The caller holds the lock of the index.
    """
    try:
        top = read_top_index(layout)
    except IntegrityError as error:
        warn(f"{error}; set aside")
        layout.set_aside(INDEX_FILE)
        return
    kept = []
    for each in top.manifests:
        if each.annotations.get(oci.REFERENCE_NAME) == model:
            try:
                for descriptor in read_model_index(layout, each).manifests:
                    entry_of(model, descriptor)
            except IntegrityError as error:
                warn(f"{error}; set aside")
                layout.set_blob_aside(each.blob)
                continue
        kept.append(each)
    if len(kept) < len(top.manifests):
        layout.write_file(INDEX_FILE, oci.encode(Index(tuple(kept))))


def _merged(
    layout: Layout,
    model: str,
    programs: Sequence[StoredProgram],
    hidden: Collection[Entry],
    declared: Collection[str] | None,
) -> tuple[bytes, bytes]:
    """Return the texts of the model's index and of `index.json` with `programs` listed.

    What is `hidden` is not listed: a store below lists what is wanted.
    """
    listed = {
        entry: descriptor
        for entry, descriptor in entries_of(layout, model)
        if entry not in hidden and (declared is None or entry.program in declared)
    }
    for stored in programs:
        listed[Entry(model, stored.program, stored.target)] = Descriptor(
            oci.MANIFEST_TYPE,
            stored.descriptor.digest,
            stored.descriptor.size,
            {oci.PROGRAM_NAME: stored.program},
            oci.platform_of(stored.target),
        )
    text = oci.encode(Index(tuple(listed[entry] for entry in sorted(listed))))
    named = Descriptor(oci.INDEX_TYPE, str(Digest.of(text)), len(text), {oci.REFERENCE_NAME: model})
    others = [
        each
        for each in read_top_index(layout).manifests
        if each.annotations.get(oci.REFERENCE_NAME) != model
    ]
    top = sorted(
        [*others, named],
        key=lambda each: (each.annotations.get(oci.REFERENCE_NAME, ""), each.digest),
    )
    return text, oci.encode(Index(tuple(top)))
