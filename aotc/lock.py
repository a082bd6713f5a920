"""`aotc.lock`, beside the model configs: what a checkout builds to, for review and for checks.

One file for all models of a folder: model, program, target; of each the digest of its canonical
build key, the components of that key, and the digest of the artifact. The components name the
compiler and the toolchain with their digests. Equal builds write equal bytes: no time, no host,
no path, no user.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from aotc.errors import AotcError, ExitCode
from aotc.program.key import BuildKey, Difference
from aotc.program.model import canonical_json
from aotc.store.artifact import StoredProgram
from aotc.store.digest import Digest

LOCK_FILE = "aotc.lock"
SCHEMA_VERSION = 1
_MAX_BYTES = 16 << 20
_NAMES = ("model", "program", "target")  # components that the place of an entry tells


class LockFileError(AotcError):
    """The lock file is not one that aotc has written."""

    exit_code = ExitCode.UNVERIFIABLE


class NotLockedError(AotcError):
    """A program is not the one that the lock file names."""

    exit_code = ExitCode.STALE


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a program builds to: the digests of its artifact and of its canonical key."""

    artifact: str
    key: str
    components: dict[str, str]  # of the key, but for the names of the program

    @staticmethod
    def of(stored: StoredProgram) -> Entry:
        """Return the entry of a program in a store."""
        identity = stored.record.identity
        components = {name: identity[name] for name in identity if name not in _NAMES}
        return Entry(str(stored.manifest_digest), BuildKey(identity).digest, components)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    models: dict[str, dict[str, dict[str, Entry]]] = {}


Program = tuple[str, str, str]  # model, program, target


def read(folder: Path) -> dict[Program, Entry]:
    """Return the entries of the lock file in `folder`, none where there is no such file.

    Raises LockFileError for one that is not of this version, not in the form that aotc writes, or
    whose keys are not those of their components.
    """
    path = folder / LOCK_FILE
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LockFileError(f"cannot read {path}: {error.strerror}") from None
    hint = "restore it, or write it again with `aotc build --lock`"
    try:
        file = msgspec.json.decode(text[:_MAX_BYTES], type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LockFileError(f"{path} is not a lock file: {error}", hint=hint) from None
    if file.schema != SCHEMA_VERSION:
        raise LockFileError(
            f"{path} has schema {file.schema}, this aotc reads {SCHEMA_VERSION}", hint=hint
        )
    found = {
        (model, program, target): entry
        for model, programs in file.models.items()
        for program, targets in programs.items()
        for target, entry in targets.items()
    }
    for names, entry in found.items():
        try:
            Digest.parse(entry.artifact)
        except ValueError as error:
            raise LockFileError(f"{path}, {' '.join(names)}: {error}", hint=hint) from None
        if key_of(names, entry).digest != entry.key:
            raise LockFileError(
                f"{path}, {' '.join(names)}: the key is not that of its components", hint=hint
            )
    if _encode(found) != text:
        raise LockFileError(f"{path} is not in the form that aotc writes", hint=hint)
    return found


def update(
    folder: Path,
    programs: Iterable[StoredProgram],
    declared: Mapping[str, Collection[str]],
) -> bool:
    """Write `programs` into the lock file in `folder`; tell whether that changed it.

    Every other entry stays, but those of programs that are not in `declared`, which has the names
    that a model's config gives. Raises LockFileError where the file is damaged and AotcError where
    it cannot be written; it is written whole or not at all.
    """
    entries = {(each.model, each.program, each.target): Entry.of(each) for each in programs}
    try:
        with _alone(folder):
            before = read(folder)
            kept = {
                (model, program, target): entry
                for (model, program, target), entry in before.items()
                if model not in declared or program in declared[model]
            }
            after = {**kept, **entries}
            if after == before:
                return False
            _replace(folder / LOCK_FILE, _encode(after))
    except OSError as error:
        raise AotcError(f"cannot write {folder / LOCK_FILE}: {error.strerror}") from None
    return True


def key_of(program: Program, entry: Entry) -> BuildKey:
    """Return the canonical key of an entry."""
    return BuildKey({**entry.components, **dict(zip(_NAMES, program, strict=True))})


def differences(entry: Entry, stored: StoredProgram) -> list[Difference]:
    """Return in what a program in a store differs from the lock's `entry` of it.

    The components of the key come first; `artifact` is the last. Where it is the only one, equal
    inputs gave different bytes.
    """
    found = Entry.of(stored)
    changed = BuildKey(found.components).explain(BuildKey(entry.components))
    if found.artifact != entry.artifact:
        changed.append(Difference("artifact", found.artifact, entry.artifact))
    return changed


def require(locked: Mapping[Program, Entry], stored: StoredProgram) -> None:
    """Raise NotLockedError, with what differs, unless `stored` is what the lock names."""
    names = (stored.model, stored.program, stored.target)
    hint = "`aotc build --lock` writes what the sources give now"
    if names not in locked:
        raise NotLockedError(f"{_words(names)} is not in {LOCK_FILE}", hint=hint)
    changed = differences(locked[names], stored)
    if changed:
        detail = "".join(
            f"\n  {each.component}: locked {each.other}, built {each.mine}" for each in changed
        )
        raise NotLockedError(f"{_words(names)} is not what {LOCK_FILE} has{detail}", hint=hint)


def _words(names: Program) -> str:
    model, program, target = names
    return f"{model}/{program} for {target}"


def _encode(entries: Mapping[Program, Entry]) -> bytes:
    models: dict[str, dict[str, dict[str, Any]]] = {}
    for (model, program, target), entry in entries.items():
        models.setdefault(model, {}).setdefault(program, {})[target] = entry
    text = canonical_json({"schema": SCHEMA_VERSION, "models": models})
    return msgspec.json.format(text, indent=2) + b"\n"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other updates of the lock file in `folder` out, if the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)
