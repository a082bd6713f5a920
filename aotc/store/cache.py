"""The build cache: keys bound to the programs in a store.

Level one, `keys/inputs/KEY/DIGEST`, one file for each set of source files that a build of that key
has read: with their digests, and the manifest that came out. It hits without a front end run.
Level two, `keys/canonical/KEY`: the manifest built from that canonical IR. Whatever is wrong with
an entry, or with the program it leads to, is reported, set aside, and a miss: it is built again.
Stores below are looked into after the one that is written; nothing is written there or set aside.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from aotc.program.key import BuildKey, text_digest
from aotc.program.model import (
    DistributedCompiledProgram,
    UnsupportedSchemaError,
    canonical_json,
)
from aotc.store import oci
from aotc.store.artifact import (
    StoredProgram,
    Warn,
    layers,
    open_program,
    warn_log,
    write_program,
)
from aotc.store.layout import IntegrityError, Layout
from aotc.store.oci import Descriptor

INPUTS = "keys/inputs"
CANONICAL = "keys/canonical"
_MAX_ENTRIES = 16  # sets of source files remembered for one key
_MAX_TEXTS = 1 << 20  # bytes, compressed, of the source files remembered for one build
_MAX_UNPACKED = 64 << 20

# Names relative to the source root to sha256; None for a file that was looked for and absent. And
# the names of modules from elsewhere, after `MODULE`, to what `aotc.modules` says of them.
Files = Mapping[str, str | None]
MODULE = "module:"


class _Binding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    components: dict[str, str]
    manifest: Descriptor
    files: dict[str, str | None] = {}
    texts: str = ""  # of the files: JSON, compressed, in base64


@dataclass(frozen=True)
class Inputs:
    """What a build depended on: the components of its level-one key, and the files it read.

    `texts` has the text of those files that it was kept of; `manifest` is what came out.
    """

    components: Mapping[str, str]
    files: Files
    texts: Mapping[str, str]
    manifest: Descriptor


@dataclass(frozen=True)
class Built:
    """A program in the store, and whether it was compiled just now."""

    program: StoredProgram
    compiled: bool


class Cache:
    """The build cache of a store; `warn` is told, in one line, what was found damaged.

    Raises StoreError where a store below is not there.
    """

    def __init__(self, layout: Layout, warn: Warn = warn_log):
        self.layout = layout
        self.layers = [layout, *(each for each in layers(layout.root) if each.root != layout.root)]
        self.warn = warn

    def lookup_inputs(self, key: BuildKey, source_root: Path) -> StoredProgram | None:
        """Return the program built from `key` and the source files as they are now, or None.

        Nothing is written but what is set aside. The payload is read and checked.
        """
        folder = f"{INPUTS}/{key.digest}"
        current: dict[str, str | None] = {}
        for layer in self.layers:
            for entry in layer.list_files(folder):
                name = f"{folder}/{entry}"
                binding = self._read_binding(layer, name, key, entry)
                if binding is not None and _match(binding.files, source_root, current):
                    stored = self._open(layer, name, binding)
                    if stored is not None:
                        return stored
        return None

    def lookup(self, key: BuildKey) -> StoredProgram | None:
        """Return the program built from the canonical `key`, its payload checked, or None."""
        name = f"{CANONICAL}/{key.digest}"
        for layer in self.layers:
            binding = self._read_binding(layer, name, key)
            stored = None if binding is None else self._open(layer, name, binding)
            if stored is not None:
                return stored
        return None

    def build_once(self, key: BuildKey, build: Callable[[], DistributedCompiledProgram]) -> Built:
        """Return the program of the canonical `key`, built by `build` where it is not there.

        Of several processes with one key, one builds and the others wait for it. What `build`
        raises is passed on and nothing is kept: the next attempt builds again. Raises StoreError
        where the store cannot be written, before `build` is called.
        """
        stored = self.lookup(key)
        if stored is None:
            with self.layout.lock(f"build-{key.digest}"):
                stored = self.lookup(key)
                if stored is None:
                    return Built(self._store(key, build()), compiled=True)
        return Built(stored, compiled=False)

    def record_inputs(
        self,
        key: BuildKey,
        files: Files,
        stored: StoredProgram,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Bind the level-one `key`, and `files` as the front end read them, to `stored`.

        The `texts` of files, by their names, are kept so that a later difference can be shown.
        Raises StoreError where the store cannot be written, and ValueError for a file name that
        is not relative to the source root.
        """
        for each in files:
            path = PurePosixPath(each)
            if path.is_absolute() or os.path.normpath(each) != each:
                raise ValueError(f"not relative to the source root: `{each}`")
        text = _encode(key, stored, files, texts)
        folder = f"{INPUTS}/{key.digest}"
        name = text_digest(text)
        known = self.layout.list_files(folder)
        if name not in known:
            self.layout.write_file(f"{folder}/{name}", text)
            for old in known[_MAX_ENTRIES - 1 :]:
                self.layout.remove_file(f"{folder}/{old}")

    def bind(self, stored: StoredProgram) -> None:
        """Bind the canonical key that `stored` names as its identity to it, as a build would.

        For a program that somebody trusted has built. Raises StoreError where the store cannot be
        written.
        """
        key = BuildKey(stored.record.identity)
        name = f"{CANONICAL}/{key.digest}"
        text = _encode(key, stored)
        if self.layout.read_file(name, oci.MAX_DOCUMENT) != text:
            self.layout.write_file(name, text)

    def files_of(self, key: BuildKey, stored: StoredProgram) -> Files | None:
        """Return the source files of the latest build of the level-one `key` that gave `stored`."""
        folder = f"{INPUTS}/{key.digest}"
        for layer in self.layers:
            for entry in layer.list_files(folder):
                binding = self._read_binding(layer, f"{folder}/{entry}", key, entry)
                if binding is not None and binding.manifest.digest == stored.descriptor.digest:
                    return binding.files
        return None

    def inputs(self, model: str, program: str) -> Iterator[Inputs]:
        """Yield what the builds of a program that are remembered, for any target, depended on."""
        for layer in self.layers:
            for folder in layer.list_files(INPUTS):
                for entry in layer.list_files(f"{INPUTS}/{folder}"):
                    name = f"{INPUTS}/{folder}/{entry}"
                    binding = self._read_binding(layer, name, None, entry)
                    if binding and _subject(binding.components)[:2] == (model, program):
                        texts = _unpack(binding.texts)
                        yield Inputs(binding.components, binding.files, texts, binding.manifest)

    def _store(self, key: BuildKey, program: DistributedCompiledProgram) -> StoredProgram:
        if dict(program.identity) != dict(key.components):
            raise ValueError("the program built is not the one of the key")
        if (program.model, program.name, program.target) != _subject(key.components):
            raise ValueError("the program built does not have the names of the key")
        stored = write_program(self.layout, program)
        self.layout.write_file(f"{CANONICAL}/{key.digest}", _encode(key, stored))
        return stored

    def _read_binding(
        self, layer: Layout, name: str, key: BuildKey | None, digest: str | None = None
    ) -> _Binding | None:
        """Return the binding in the file `name`; one that is damaged or not of `key` is a miss."""
        try:
            text = layer.read_file(name, oci.MAX_DOCUMENT)
            if text is None:
                return None
            if digest is not None and text_digest(text) != digest:
                raise ValueError(f"its digest is {text_digest(text)}")
            binding = msgspec.json.decode(text, type=_Binding)
            if key is not None and binding.components != dict(key.components):
                raise ValueError("it is of another key")
        except (IntegrityError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            if layer is self.layout:
                self.warn(f"{layer.root / name} is damaged: {error}; set aside")
                layer.set_aside(name)
            else:
                self.warn(f"{layer.root / name} is damaged: {error}")
            return None
        return binding

    def _open(self, layer: Layout, name: str, binding: _Binding) -> StoredProgram | None:
        # What a store binds may lie in one below it.
        below = self.layers[self.layers.index(layer) :]
        holder = next((each for each in below if each.has_blob(binding.manifest.blob)), layer)
        try:
            stored = open_program(holder, binding.manifest)
            bound = (stored.model, stored.program, stored.target)
            if bound != _subject(binding.components):
                raise IntegrityError(f"{name} leads to {' '.join(bound)}, not to its program")
            canonical = name.startswith(CANONICAL)
            if canonical and stored.record.identity != binding.components:
                raise IntegrityError(f"{name} leads to a program that was built from another key")
        except (IntegrityError, UnsupportedSchemaError) as error:
            if not os.path.lexists(layer.root / name):
                return None  # `gc` has just collected it
            self.warn(f"{error}; set aside, to be built again")
            damaged = error.blob if isinstance(error, IntegrityError) else None
            if damaged is not None and holder is self.layout:
                holder.set_blob_aside(damaged)
            if layer is self.layout:
                layer.remove_file(name)
            return None
        if layer is self.layout:
            layer.use(name)
        if holder is self.layout:
            holder.use_blobs(stored.digests)
        return stored


def _encode(
    key: BuildKey,
    stored: StoredProgram,
    files: Files | None = None,
    texts: Mapping[str, str] | None = None,
) -> bytes:
    packed = (
        base64.b64encode(zlib.compress(canonical_json(dict(texts)), 6)).decode() if texts else ""
    )
    if len(packed) > _MAX_TEXTS:
        packed = ""
    return canonical_json(
        _Binding(dict(key.components), stored.descriptor, dict(files or {}), packed)
    )


def _unpack(packed: str) -> dict[str, str]:
    """Return the texts of files; none where they cannot be read: they are for show only."""
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(packed), _MAX_UNPACKED) if packed else b"{}"
        return msgspec.json.decode(content, type=dict[str, str])
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return {}


def _subject(components: Mapping[str, str]) -> tuple[str, str, str]:
    model, program, target = (components.get(each, "") for each in ("model", "program", "target"))
    return model, program, target


def _match(files: Files, root: Path, current: dict[str, str | None]) -> bool:
    """Tell whether all `files` are as recorded; `current` remembers what was read already."""
    for name, digest in files.items():
        if name not in current:
            current[name] = file_digest(root, name)
        if current[name] != digest:
            return False
    return True


def file_digest(root: Path, name: str) -> str | None:
    """Return the digest of the file `name` below `root`, None where there is none.

    Of a module from elsewhere, which has a name of its own kind, it is what that is now.
    """
    if name.startswith(MODULE):
        return _module(name.removeprefix(MODULE))
    try:
        return text_digest((root / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # Neither a digest nor absence: it matches nothing, and the front end says what is wrong.
        return f"unreadable: {error.strerror}"


def _module(name: str) -> str | None:
    from aotc.modules import UnknownModuleError, identify  # only where a model imports such

    try:
        return identify(name)
    except UnknownModuleError as error:
        return f"unreadable: {error}"
