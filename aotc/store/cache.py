"""The build cache: keys bound to the programs in a store.

Level one, `keys/inputs/KEY/DIGEST`, one file for each set of source files that a build of that key
has read: with their digests, and the manifest that came out. It hits without a front end run.
Level two, `keys/canonical/KEY`: the manifest built from that canonical IR. Whatever is wrong with
an entry, or with the program it leads to, is reported, set aside, and a miss: it is built again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from aotc.program.key import BuildKey, Difference, text_digest
from aotc.program.model import (
    DistributedCompiledProgram,
    UnsupportedSchemaError,
    canonical_json,
)
from aotc.store import oci
from aotc.store.artifact import StoredProgram, Warn, open_program, warn_log, write_program
from aotc.store.layout import IntegrityError, Layout
from aotc.store.oci import Descriptor

_INPUTS = "keys/inputs"
_CANONICAL = "keys/canonical"
_MAX_ENTRIES = 16  # sets of source files remembered for one key

# Names relative to the source root to sha256; None for a file that was looked for and absent.
Files = Mapping[str, str | None]


class _Binding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    components: dict[str, str]
    manifest: Descriptor
    files: dict[str, str | None] = {}


@dataclass(frozen=True)
class Built:
    """A program in the store, and whether it was compiled just now."""

    program: StoredProgram
    compiled: bool


class Cache:
    """The build cache of one store; `warn` is told, in one line, what was found damaged."""

    def __init__(self, layout: Layout, warn: Warn = warn_log):
        self.layout = layout
        self.warn = warn

    def lookup_inputs(self, key: BuildKey, source_root: Path) -> StoredProgram | None:
        """Return the program built from `key` and the source files as they are now, or None.

        Nothing is written but what is set aside. The payload is read and checked.
        """
        folder = f"{_INPUTS}/{key.digest}"
        current: dict[str, str | None] = {}
        for entry in self.layout.list_files(folder):
            name = f"{folder}/{entry}"
            binding = self._read_binding(name, key, entry)
            if binding is not None and _match(binding.files, source_root, current):
                stored = self._open(name, binding)
                if stored is not None:
                    return stored
        return None

    def lookup(self, key: BuildKey) -> StoredProgram | None:
        """Return the program built from the canonical `key`, its payload checked, or None."""
        name = f"{_CANONICAL}/{key.digest}"
        binding = self._read_binding(name, key)
        return None if binding is None else self._open(name, binding)

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

    def record_inputs(self, key: BuildKey, files: Files, stored: StoredProgram) -> None:
        """Bind the level-one `key`, and `files` as the front end read them, to `stored`.

        Raises StoreError where the store cannot be written, and ValueError for a file name that
        is not relative to the source root.
        """
        for each in files:
            path = PurePosixPath(each)
            if path.is_absolute() or ".." in path.parts or str(path) != each:
                raise ValueError(f"not relative to the source root: `{each}`")
        text = _encode(key, stored, files)
        folder = f"{_INPUTS}/{key.digest}"
        name = text_digest(text)
        known = self.layout.list_files(folder)
        if name not in known:
            self.layout.write_file(f"{folder}/{name}", text)
            for old in known[_MAX_ENTRIES - 1 :]:
                self.layout.remove_file(f"{folder}/{old}")

    def explain(self, key: BuildKey, source_root: Path) -> list[Difference] | None:
        """Return in what the nearest build of the program of `key` differs from one now.

        Source files are components named `file NAME`. None where it was never built; an empty
        list where it is up to date, or its program was lost or damaged.
        """
        found = []
        for folder in self.layout.list_files(_INPUTS):
            for entry in self.layout.list_files(f"{_INPUTS}/{folder}"):
                binding = self._read_binding(f"{_INPUTS}/{folder}/{entry}", None, entry)
                if binding is not None and _subject(binding.components) == _subject(key.components):
                    now = {name: _file_digest(source_root, name) for name in binding.files}
                    files = BuildKey(_as_components(now))
                    found.append(
                        key.explain(BuildKey(binding.components))
                        + files.explain(BuildKey(_as_components(binding.files)))
                    )
        return min(found, key=len, default=None)

    def _store(self, key: BuildKey, program: DistributedCompiledProgram) -> StoredProgram:
        if dict(program.identity) != dict(key.components):
            raise ValueError("the program built is not the one of the key")
        if (program.model, program.name, program.target) != _subject(key.components):
            raise ValueError("the program built does not have the names of the key")
        stored = write_program(self.layout, program)
        self.layout.write_file(f"{_CANONICAL}/{key.digest}", _encode(key, stored))
        return stored

    def _read_binding(
        self, name: str, key: BuildKey | None, digest: str | None = None
    ) -> _Binding | None:
        """Return the binding in the file `name`; one that is damaged or not of `key` is a miss."""
        try:
            text = self.layout.read_file(name, oci.MAX_DOCUMENT)
            if text is None:
                return None
            if digest is not None and text_digest(text) != digest:
                raise ValueError(f"its digest is {text_digest(text)}")
            binding = msgspec.json.decode(text, type=_Binding)
            if key is not None and binding.components != dict(key.components):
                raise ValueError("it is of another key")
        except (IntegrityError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.warn(f"{self.layout.root / name} is damaged: {error}; set aside")
            self.layout.set_aside(name)
            return None
        return binding

    def _open(self, name: str, binding: _Binding) -> StoredProgram | None:
        try:
            stored = open_program(self.layout, binding.manifest)
            bound = (stored.model, stored.program, stored.target)
            if bound != _subject(binding.components):
                raise IntegrityError(f"{name} leads to {' '.join(bound)}, not to its program")
            canonical = name.startswith(_CANONICAL)
            if canonical and stored.record.identity != binding.components:
                raise IntegrityError(f"{name} leads to a program that was built from another key")
            stored.check()
        except (IntegrityError, UnsupportedSchemaError) as error:
            self.warn(f"{error}; set aside, to be built again")
            if isinstance(error, IntegrityError) and error.blob is not None:
                self.layout.set_blob_aside(error.blob)
            self.layout.remove_file(name)
            return None
        return stored


def _encode(key: BuildKey, stored: StoredProgram, files: Files | None = None) -> bytes:
    return canonical_json(_Binding(dict(key.components), stored.descriptor, dict(files or {})))


def _subject(components: Mapping[str, str]) -> tuple[str, str, str]:
    model, program, target = (components.get(each, "") for each in ("model", "program", "target"))
    return model, program, target


def _match(files: Files, root: Path, current: dict[str, str | None]) -> bool:
    """Tell whether all `files` are as recorded; `current` remembers what was read already."""
    for name, digest in files.items():
        if name not in current:
            current[name] = _file_digest(root, name)
        if current[name] != digest:
            return False
    return True


def _file_digest(root: Path, name: str) -> str | None:
    try:
        return text_digest((root / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # Neither a digest nor absence: it matches nothing, and the front end says what is wrong.
        return f"unreadable: {error.strerror}"


def _as_components(files: Files) -> dict[str, str]:
    return {f"file {name}": digest or "absent" for name, digest in files.items()}
