"""What a store holds, and the removal of what nothing needs any more.

Needed is what `index.json` leads to, what lock files name, and what the caller says. The rest is
garbage: programs that were replaced, indexes that were, what killed builds left, what was damaged.
What refers to a program, such as a signature of it, goes when that does. Garbage may go while
others read and build:

* a reader that an index has led to what is gone finds a newer index (`artifact.find`);
* a build holds a lease: what it has written or found since it began stays. And it lists nothing
  that is not there (`artifact.publish`), should the lease not have been seen;
* the index does not change meanwhile: both hold its lock.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from aotc.errors import AotcError
from aotc.program.model import canonical_json
from aotc.store import oci, referrers
from aotc.store.artifact import (
    INDEX_FILE,
    INDEX_LOCK,
    LOCK_SECONDS,
    Entry,
    entries_of,
    layers,
)
from aotc.store.cache import CANONICAL, INPUTS
from aotc.store.digest import Digest
from aotc.store.layout import LEASE, IntegrityError, Layout, StoreError
from aotc.store.lock import acquire

_BLOBS = "blobs/sha256"
_FOLDERS = ("blobs", _BLOBS, "keys", INPUTS, CANONICAL, "quarantine", "staging", "locks")
_MAX_LOCK_FILE = 16 << 20  # bytes
_MIN_PREFIX = 8  # hexadecimal digits that may stand for a digest
_DIGEST = re.compile(rb"\b([0-9a-f]{64})\b")
_ORDER = ("key", "manifest")  # what leads to others goes before them, the rest after


@dataclass(frozen=True)
class Removed:
    """A file: its name relative to the store, what it is, its size in bytes."""

    name: str
    kind: str  # key, manifest, blob, quarantine, staging or lock
    size: int
    program: str = ""  # of a manifest, where that is known


@dataclass(frozen=True)
class Swept:
    """What was removed, or would be, and how many bytes are left."""

    removed: tuple[Removed, ...]
    kept_bytes: int

    @property
    def removed_bytes(self) -> int:
        """The bytes that were freed."""
        return sum(each.size for each in self.removed)


@dataclass(frozen=True)
class Usage:
    """What takes room in a store, in bytes.

    `programs` has the size of each listed program; what several share is in each of them, and once
    in `listed`. `unlisted` is what no listed program needs: replaced programs, former indexes.
    """

    programs: dict[Entry, int]
    listed: int
    unlisted: int
    keys: int
    quarantine: int
    staging: int

    @property
    def total(self) -> int:
        """The bytes of all of it."""
        return self.listed + self.unlisted + self.keys + self.quarantine + self.staging


def usage(root: Path) -> Usage:
    """Return what takes room in the store at `root`; the bytes of blobs are not checked.

    Raises IntegrityError where an index is damaged and StoreError where there is no store.
    """
    store = _Store(Layout.open(root))
    programs = {}
    for entry, descriptor in entries_of(store.layout):
        parts = store.reach([_Reference(descriptor.digest, descriptor.media_type)], strict=False)
        programs[entry] = sum(store.size(each) for each in parts)
    listed = store.needed(())
    sizes = {digest: store.size(digest) for digest in store.blobs}
    keys = sum(each.st_size for each in store.keys().values())
    rest = {name: store.files(name) for name in ("quarantine", "staging")}
    return Usage(
        programs,
        listed=sum(size for digest, size in sizes.items() if digest in listed),
        unlisted=sum(size for digest, size in sizes.items() if digest not in listed),
        keys=keys,
        quarantine=sum(each.st_size for each in rest["quarantine"].values()),
        staging=sum(each.st_size for each in rest["staging"].values()),
    )


def collect(
    root: Path,
    *,
    keep: Collection[Digest] = (),
    max_age: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> Swept:
    """Remove from the store at `root` what neither its index nor `keep` leads to.

    With `max_age`, only what has not been used for that many seconds. With `max_bytes`, also the
    least recently used of the rest, and without `max_age` only that, until the store has no more;
    what is needed stays in any case. With `dry_run` nothing is changed. Raises IntegrityError,
    before anything is removed, where damage hides what is needed, and StoreError where the store
    cannot be written.
    """
    layout = Layout.open(root)
    with nullcontext() if dry_run else layout.lock(INDEX_LOCK, LOCK_SECONDS):
        store = _Store(layout)
        before = store.all_bytes()
        garbage = _Garbage(store, store.needed(map(_named, keep)))
        oldest_lease, locks = _locks(layout, dry_run)
        doomed = garbage.choose(oldest_lease, max_age, max_bytes, before)
        if not dry_run:
            store.unlist(garbage.unlisted)
            doomed = [each for each in doomed if _remove(layout, each, garbage.times[each.name])]
            _remove_empty_folders(layout)
    removed = (*doomed, *locks)
    return Swept(removed, before - sum(each.size for each in removed))


def digests_in(path: Path) -> set[Digest]:
    """Return every digest that the file at `path`, for instance `aotc.lock`, names.

    Raises AotcError where it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_LOCK_FILE + 1)
    except OSError as error:
        raise AotcError(f"cannot read {path}: {error.strerror}") from None
    if len(text) > _MAX_LOCK_FILE:
        raise AotcError(f"{path} has more than {_MAX_LOCK_FILE} bytes")
    return {Digest(each.decode()) for each in _DIGEST.findall(text)}


def resolve(root: Path, text: str) -> Digest:
    """Return the digest of the one blob in the store at `root` that `text` stands for.

    `text` is a digest, its digits, or at least 8 of the first of them. Raises AotcError where
    there is no such blob or several.
    """
    digits = text.removeprefix("sha256:")
    if len(digits) < _MIN_PREFIX:
        raise AotcError(f"`{text}` is too short for a digest", hint=f"{_MIN_PREFIX} digits or more")
    found = [each for each in _Store(Layout.open(root)).blobs if each.hex.startswith(digits)]
    if len(found) != 1:
        count = "several blobs" if found else "no blob"
        raise AotcError(f"{count} `{text}` in the store in {root}", hint="`aotc ls` lists them")
    return found[0]


class _Reference(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    media_type: str = ""
    annotations: dict[str, str] = {}

    @property
    def refers_to(self) -> str | None:
        """The digest of what it lives as long as, for an entry of `index.json` that has such."""
        named = oci.REFERENCE_NAME in self.annotations
        return None if named else self.annotations.get(referrers.SUBJECT)


class _Document(msgspec.Struct, frozen=True):
    """What leads on from an index or a manifest, whoever wrote it."""

    manifests: tuple[_Reference, ...] = ()
    config: _Reference | None = None
    layers: tuple[_Reference, ...] = ()
    blobs: tuple[_Reference, ...] = ()
    subject: _Reference | None = None

    def references(self) -> list[_Reference]:
        one = [each for each in (self.config, self.subject) if each is not None]
        return [*self.manifests, *one, *self.layers, *self.blobs]


class _Binding(msgspec.Struct, frozen=True):
    manifest: _Reference
    components: dict[str, str] = {}


def _named(digest: Digest) -> _Reference:
    return _Reference(str(digest))


class _Store:
    """The files of a store, as they are; raises StoreError where a folder leads out of it."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.layers = layers(layout.root)
        for name in _FOLDERS:
            if os.path.islink(layout.root / name):
                raise StoreError(f"{layout.root / name} is a symbolic link", hint="remove it")
        self.blobs: dict[Digest, os.stat_result] = {}
        for name, status in layout.scan(_BLOBS).items():
            with suppress(ValueError):  # a name that is no digest is not ours
                self.blobs[Digest(name)] = status

    def size(self, digest: Digest) -> int:
        return self.blobs[digest].st_size if digest in self.blobs else 0

    def files(self, folder: str) -> dict[str, os.stat_result]:
        """Return the files in `folder` by their names relative to the store."""
        found = self.layout.scan(folder).items()
        return {f"{folder}/{name}": each for name, each in found if not stat.S_ISDIR(each.st_mode)}

    def keys(self) -> dict[str, os.stat_result]:
        folders = [CANONICAL]
        for name, status in self.layout.scan(INPUTS).items():
            if stat.S_ISDIR(status.st_mode):
                folders.append(f"{INPUTS}/{name}")
        return {name: each for folder in folders for name, each in self.files(folder).items()}

    def all_bytes(self) -> int:
        others = [self.keys(), self.files("quarantine"), self.files("staging")]
        return sum(
            each.st_size
            for each in (*self.blobs.values(), *(each for name in others for each in name.values()))
        )

    def is_anywhere(self, digest: Digest) -> bool:
        """Tell whether this store or one below it has the blob."""
        return any(each.has_blob(digest) for each in self.layers)

    def listed(self) -> list[_Reference]:
        """Return what `index.json` lists; raise IntegrityError where it is damaged."""
        text = self.layout.read_file(INDEX_FILE, oci.MAX_DOCUMENT)
        return [] if text is None else _parse(text, INDEX_FILE).references()

    def unlist(self, digests: Collection[str]) -> None:
        """Take the entries of `digests` out of `index.json`; the caller holds its lock."""
        if digests:
            text = self.layout.read_file(INDEX_FILE, oci.MAX_DOCUMENT)
            index = msgspec.json.decode(text or b"{}")
            kept = [each for each in index["manifests"] if each["digest"] not in digests]
            self.layout.write_file(INDEX_FILE, canonical_json({**index, "manifests": kept}))

    def needed(self, keep: Iterable[_Reference]) -> set[Digest]:
        """Return what `index.json` and `keep` lead to, and what refers to any of that.

        Raises IntegrityError where damage hides it.
        """
        listed = self.listed()
        needed = self.reach([*(each for each in listed if each.refers_to is None), *keep])
        names = {str(each) for each in needed}
        return needed | self.reach(
            [each for each in listed if each.refers_to in names], strict=False
        )

    def reach(self, roots: Iterable[_Reference], *, strict: bool = True) -> set[Digest]:
        """Return all that `roots` lead to, whether it is there or not.

        Raises IntegrityError where an index or a manifest on the way is damaged, if `strict`.
        """
        seen: set[Digest] = set()
        pending = list(roots)
        while pending:
            each = pending.pop()
            try:
                digest = Digest.parse(each.digest)
            except ValueError:
                continue  # nothing in this store has such a name
            if digest not in seen:
                seen.add(digest)
                must = strict and each.media_type in (oci.INDEX_TYPE, oci.MANIFEST_TYPE)
                if must or each.media_type == "" or each.media_type.endswith("+json"):
                    pending += self._read(digest, must)
        return seen

    def _read(self, digest: Digest, must: bool) -> list[_Reference]:
        try:
            if self.size(digest) > oci.MAX_DOCUMENT:
                raise IntegrityError(f"{digest} has more than {oci.MAX_DOCUMENT} bytes")
            return _parse(self.layout.read_blob(digest), str(digest)).references()
        except IntegrityError as error:
            if not must:
                return []
            hint = "nothing was removed: build again to repair it"
            raise IntegrityError(error.message, blob=error.blob, hint=hint) from None


def _parse(text: bytes, subject: str) -> _Document:
    try:
        return msgspec.json.decode(text, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"{subject} is not valid: {error}") from None


@dataclass
class _Candidate:
    """What goes together: when it was last used, the files of its own, the blobs it leads to."""

    used: float
    files: list[Removed] = field(default_factory=list)
    blobs: set[Digest] = field(default_factory=set)
    referrers: set[str] = field(default_factory=set)  # digests of entries of `index.json`


class _Garbage:
    """What is not `needed` in a store.

    `times` has when each of its files was last changed, `unlisted` the digests of the referrers
    whose programs are chosen to go.
    """

    def __init__(self, store: _Store, needed: set[Digest]):
        self.store = store
        self.times: dict[str, float] = {}
        self.candidates: list[_Candidate] = []
        self.unlisted: set[str] = set()
        programs = self._programs(needed)
        # A blob goes when the last of those that lead to it does.
        self.users = Counter(digest for each in programs for digest in each.blobs)
        for digest in store.blobs:
            if digest not in needed and digest not in self.users:
                self._add([self._blob(digest, "blob")])
        for kind in ("quarantine", "staging"):
            for name, status in store.files(kind).items():
                self._add([self._file(name, kind, status)])

    def choose(
        self, oldest_lease: float, max_age: float | None, max_bytes: int | None, total: int
    ) -> list[Removed]:
        """Return what is to go, in the order in which it may."""
        expired = time.time() - (max_age or 0)
        if max_age is None and max_bytes is not None:
            expired = -float("inf")

        def may_go(used: float) -> bool:
            over = max_bytes is not None and total > max_bytes
            return used < oldest_lease and (used <= expired or over)

        chosen: list[Removed] = []
        for each in sorted(self.candidates, key=lambda each: each.used):
            if may_go(each.used):
                # A build may have found one of its blobs anew, for another program.
                blobs = [blob for blob in self._last(each) if may_go(self.times[blob.name])]
                chosen += each.files + blobs
                self.unlisted |= each.referrers
                total -= sum(file.size for file in each.files + blobs)
        return sorted(chosen, key=_rank)

    def _programs(self, needed: set[Digest]) -> list[_Candidate]:
        """Add what the build cache leads to, with the keys that do, and what referrers refer to."""
        programs: dict[Digest, _Candidate] = {}

        def program(digest: Digest, words: str) -> _Candidate:
            if digest not in programs:
                programs[digest] = self._add([self._blob(digest, "manifest", words)])
                self._lead(programs[digest], str(digest), needed)
            return programs[digest]

        for name, status in self.store.keys().items():
            binding = self._binding(name)
            digest = None if binding is None else Digest.parse(binding.manifest.digest)
            file = self._file(name, "key", status)
            if binding is None or digest is None or not self.store.is_anywhere(digest):
                self._add([file])
            elif digest in self.store.blobs and digest not in needed:
                parts = (binding.components.get(each, "?") for each in Entry.__annotations__)
                found = program(digest, str(Entry(*parts)))
                found.files.append(file)
                found.used = max(found.used, status.st_mtime)
        for each in self.store.listed():
            with suppress(ValueError):
                subject = Digest.parse(each.refers_to or "")
                if subject in self.store.blobs and subject not in needed:
                    found = program(subject, str(subject))
                    found.referrers.add(each.digest)
                    self._lead(found, each.digest, needed)
                elif not self.store.is_anywhere(subject):
                    self.unlisted.add(each.digest)
        for digest, candidate in programs.items():
            candidate.blobs -= set(programs)
            needed.add(digest)  # it is a candidate of its own already
        return list(programs.values())

    def _lead(self, candidate: _Candidate, digest: str, needed: set[Digest]) -> None:
        """Add to a candidate what the manifest of `digest` leads to."""
        parts = self.store.reach([_Reference(digest)], strict=False)
        candidate.blobs |= {each for each in parts if each in self.store.blobs} - needed

    def _binding(self, name: str) -> _Binding | None:
        try:
            text = self.store.layout.read_file(name, oci.MAX_DOCUMENT)
            binding = msgspec.json.decode(text or b"", type=_Binding)
            Digest.parse(binding.manifest.digest)
        except (IntegrityError, msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return binding

    def _last(self, candidate: _Candidate) -> Iterator[Removed]:
        """Return the blobs that only `candidate`, which goes now, still leads to."""
        for digest in sorted(candidate.blobs):
            self.users[digest] -= 1
            if self.users[digest] == 0:
                yield self._blob(digest, "blob")

    def _add(self, files: list[Removed]) -> _Candidate:
        candidate = _Candidate(max(self.times[each.name] for each in files), files)
        self.candidates.append(candidate)
        return candidate

    def _blob(self, digest: Digest, kind: str, program: str = "") -> Removed:
        return self._file(f"{_BLOBS}/{digest.hex}", kind, self.store.blobs[digest], program)

    def _file(self, name: str, kind: str, status: os.stat_result, program: str = "") -> Removed:
        self.times[name] = status.st_mtime
        return Removed(name, kind, status.st_size, program)


def _rank(file: Removed) -> int:
    return _ORDER.index(file.kind) if file.kind in _ORDER else len(_ORDER)


def _locks(layout: Layout, dry_run: bool) -> tuple[float, list[Removed]]:
    """Return when the oldest lease that is held began, and remove the locks that nobody holds."""
    oldest = float("inf")
    removed = []
    for name, status in layout.scan("locks").items():
        if name == f"{INDEX_LOCK}.lock" or not stat.S_ISREG(status.st_mode) or ".owner" in name:
            continue
        held = None
        with suppress(OSError):
            held = acquire(layout.root / "locks" / name, 0)
        if held is not None:
            held.release(remove=not dry_run)
            removed.append(Removed(f"locks/{name}", "lock", 0))
        elif name.startswith(LEASE):
            oldest = min(oldest, status.st_mtime)
    return oldest, removed


def _remove(layout: Layout, file: Removed, time_seen: float) -> bool:
    """Remove a file, unless it has been used since it was looked at; tell whether it is gone."""
    path = layout.root / file.name
    try:
        if path.lstat().st_mtime != time_seen:
            return False
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"cannot remove {path}: {error.strerror}",
            hint="collect as the user who may write the store",
        ) from None
    return True


def _remove_empty_folders(layout: Layout) -> None:
    for name in layout.scan(INPUTS):
        with suppress(OSError):
            os.rmdir(layout.root / INPUTS / name)
