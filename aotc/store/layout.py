"""Files of an OCI image layout: written whole or not at all, blobs checked at every read.

The layout is that of the OCI image specification 1.1, `image-layout.md`: `oci-layout`,
`index.json` and `blobs/sha256/HEX`. Beside them lie `staging` (files being written), `locks`
(see `lock`), `keys` (see `cache`) and `quarantine` (what was found damaged).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from aotc.errors import AotcError, ExitCode
from aotc.store.digest import Digest
from aotc.store.lock import acquire

MARKER_FILE = "oci-layout"
MAX_BLOB = 256 << 20  # bytes; code, IR and source of one program are far smaller
LEASE = "lease-"  # how the locks of those that write a store are named

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_MAX_MARKER = 1024
_STALE_SECONDS = 3600  # no single file takes that long to write
# A file system without chmod, without fsync of folders, without rename.
_NO_MODES = {errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP}
_NO_RENAME = {errno.EXDEV, errno.ENOSYS, errno.ENOTSUP}


class IntegrityError(AotcError):
    """Stored bytes are not what their digest says, or are not there; `blob` where it is one."""

    exit_code = ExitCode.INTEGRITY

    def __init__(self, message: str, *, blob: Digest | None = None, hint: str | None = None):
        super().__init__(message, hint=hint)
        self.blob = blob


class StoreError(AotcError):
    """The store cannot be written or read: permissions, space, not a layout."""

    exit_code = ExitCode.ENVIRONMENT


class Layout:
    """An OCI image layout in one directory."""

    def __init__(self, root: Path):
        self.root = root

    @classmethod
    def create(cls, root: Path) -> Layout:
        """Open the layout at `root` to write to, making it where there is none.

        Sweeps what dead writers left. While the layout is in use, `gc` keeps all that is written
        or read through it. Raises StoreError where `root` cannot be written or holds a layout of
        another version. A layout that is there already is opened also where it is read-only.
        """
        layout = cls(root)
        try:
            if not (root / MARKER_FILE).exists():
                _make_folder(layout._blobs)
                layout._write({root / MARKER_FILE: _MARKER})
        except OSError as error:
            raise _store_error(f"cannot create a store in {root}", error) from None
        layout = cls.open(root)
        layout._sweep()
        # Who may not write here, or has no room, publishes what is missing by then all the same.
        with suppress(OSError):
            _make_folder(root / "locks")
            held = acquire(root / "locks" / f"{LEASE}{secrets.token_hex(8)}", 0)
            if held is not None:
                weakref.finalize(layout, held.release, remove=True)
        return layout

    @classmethod
    def open(cls, root: Path) -> Layout:
        """Open the layout at `root`; raise StoreError where there is none of this version."""
        try:
            marker = _read_regular(root / MARKER_FILE, _MAX_MARKER)
        except _NotRegularError as error:
            raise StoreError(f"{root / MARKER_FILE} {error}") from None
        except OSError as error:
            raise _store_error(f"no store in {root}", error) from None
        if marker != _MARKER and not _is_marker(marker):
            raise StoreError(f"{root} is not an OCI image layout of version 1.0.0")
        return cls(root)

    @property
    def _blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    def has_blob(self, digest: Digest) -> bool:
        """Tell whether there is a file for the blob of `digest`; its bytes are not checked."""
        return os.path.lexists(self.blob_path(digest))

    def blob_path(self, digest: Digest) -> Path:
        """Return where the blob of `digest` stands, or would stand."""
        return self._blobs / digest.hex

    def write_blob(self, content: bytes) -> Digest:
        """Store `content` and return its digest; see `write_blobs`."""
        return self.write_blobs([content])[0]

    def write_blobs(self, contents: Iterable[bytes]) -> list[Digest]:
        """Store all `contents` and return their digests; a damaged blob in place is replaced.

        Raises StoreError where the disk refuses. All of them are on the disk before the first
        gets its name, so the store is then as it was.
        """
        digests = []
        missing = {}
        for content in contents:
            digest = Digest.of(content)
            digests.append(digest)
            self.use_blobs([digest])
            try:
                self.read_blob(digest, len(content))
            except IntegrityError:
                missing[self.blob_path(digest)] = content
        self._try_write(missing)
        return digests

    def sync_blobs(self) -> None:
        """Make all blobs survive a power cut, also those that another process has written.

        Raises StoreError where the disk refuses.
        """
        try:
            _sync_folder(self._blobs)
        except OSError as error:
            raise _store_error(f"cannot write to the store in {self.root}", error) from None

    def use(self, name: str) -> None:
        """Note that the file `name`, relative to the root, is used now, if that can be noted."""
        with suppress(OSError):
            os.utime(self.root / name, follow_symlinks=False)

    def use_blobs(self, digests: Iterable[Digest]) -> None:
        """Note that the blobs are used now, if that can be noted."""
        for digest in digests:
            self.use(f"blobs/sha256/{digest.hex}")

    def read_blob(self, digest: Digest, size: int | None = None) -> bytes:
        """Return the blob of `digest`, its bytes checked; `size` in bytes bounds what is read.

        Raises IntegrityError where it is missing, not a regular file, of another digest or size,
        or has more than `MAX_BLOB` bytes, and StoreError where it cannot be read.
        """
        path = self.blob_path(digest)
        limit = MAX_BLOB if size is None else size
        if limit > MAX_BLOB:
            raise IntegrityError(
                f"blob {digest} has {size} bytes, expected at most {MAX_BLOB}", blob=digest
            )
        try:
            content = _read_regular(path, limit)
        except FileNotFoundError:
            raise IntegrityError(
                f"blob {digest} is missing from {self.root}",
                blob=digest,
                hint="build again to replace it",
            ) from None
        except _NotRegularError as error:
            raise IntegrityError(f"blob {digest} {error}", blob=digest) from None
        except OSError as error:
            raise _store_error(f"cannot read blob {digest}", error) from None
        if len(content) > limit or (size is not None and len(content) < size):
            found = f"more than {limit}" if len(content) > limit else str(len(content))
            problem = f"{limit} bytes were declared, it has {found}"
            if size is None:
                problem = f"it has more than {MAX_BLOB} bytes"
        elif (computed := Digest.of(content)) != digest:
            problem = f"its bytes have digest {computed}"
        else:
            return content
        raise IntegrityError(
            f"blob {digest} is damaged: {problem}", blob=digest, hint="build again to replace it"
        )

    def write_file(self, name: str, content: bytes) -> None:
        """Write the file `name`, relative to the root, in one step.

        Raises StoreError where the disk refuses; the file is then as it was.
        """
        self._try_write({self.root / name: content})

    def read_file(self, name: str, limit: int) -> bytes | None:
        """Return the content of the file `name`, relative to the root; None where there is none.

        Its bytes are not checked. Raises IntegrityError where it has more than `limit` bytes or is
        not a regular file, and StoreError where it cannot be read.
        """
        try:
            content = _read_regular(self.root / name, limit)
        except FileNotFoundError:
            return None
        except _NotRegularError as error:
            raise IntegrityError(f"{self.root / name} {error}") from None
        except OSError as error:
            raise _store_error(f"cannot read {self.root / name}", error) from None
        if len(content) > limit:
            raise IntegrityError(f"{self.root / name} has more than {limit} bytes")
        return content

    def list_files(self, folder: str) -> list[str]:
        """Return the names in `folder`, relative to the root, newest first; none where it is not.

        Raises StoreError where it cannot be read.
        """
        found = self.scan(folder)
        return sorted(found, key=lambda name: (-found[name].st_mtime_ns, name))

    def scan(self, folder: str) -> dict[str, os.stat_result]:
        """Return what is in `folder`, relative to the root, with its status; nothing where it is
        not.

        Raises StoreError where it cannot be read.
        """
        found = {}
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        found[entry.name] = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _store_error(f"cannot read {self.root / folder}", error) from None
        return found

    def remove_file(self, name: str) -> None:
        """Remove the file `name`, relative to the root, if it is there and may be removed."""
        with suppress(OSError):
            os.unlink(self.root / name)

    def set_aside(self, name: str) -> None:
        """Move the damaged file `name`, relative to the root, to `quarantine`, if possible.

        In a read-only store it stays where it is; every read refuses it there.
        """
        aside = self.root / "quarantine" / Path(name).name
        with suppress(OSError):
            _make_folder(aside.parent)
            os.replace(self.root / name, aside)

    def set_blob_aside(self, digest: Digest) -> None:
        """Move the damaged blob of `digest` to `quarantine`, if possible."""
        self.set_aside(self.blob_path(digest).relative_to(self.root).as_posix())
        aside = self.root / "quarantine" / digest.hex
        # Between the read that found it damaged and the move, another build may have repaired it.
        with suppress(OSError, _NotRegularError):
            if Digest.of(_read_regular(aside, None)) == digest:
                os.replace(aside, self.blob_path(digest))

    @contextmanager
    def lock(self, name: str, timeout: float = -1) -> Iterator[None]:
        """Hold the store-wide lock `name`; wait `timeout` seconds for it, or as long as it takes.

        It ends with the process, however that ends. Raises StoreError after `timeout`, and where
        the store cannot be written.
        """
        path = self.root / "locks" / f"{name}.lock"
        try:
            _make_folder(path.parent)
            held = acquire(path, timeout)
        except OSError as error:
            raise _store_error(f"cannot lock the store in {self.root}", error) from None
        if held is None:
            raise StoreError(
                f"another process has held the lock `{name}` of {self.root} for {timeout:g} s"
            )
        try:
            yield
        finally:
            held.release()

    def _try_write(self, files: Mapping[Path, bytes]) -> None:
        try:
            self._write(files)
        except OSError as error:
            raise _store_error(f"cannot write to the store in {self.root}", error) from None

    def _write(self, files: Mapping[Path, bytes]) -> None:
        """Write `files` so that a reader, or a crash, sees each of them whole or not at all."""
        if not files:
            return
        staging = self.root / "staging"
        _make_folder(staging)
        staged: list[str] = []
        try:
            for content in files.values():
                staged.append(os.fspath(staging / secrets.token_hex(8)))
                _write_to(staged[-1], content, os.O_EXCL)
            for name, (path, content) in zip(staged, files.items(), strict=True):
                _make_folder(path.parent)
                _move(name, path, content)
        finally:
            for name in staged:
                with suppress(OSError):
                    os.unlink(name)
        for folder in sorted({path.parent for path in files}):
            _sync_folder(folder)

    def _sweep(self) -> None:
        now = time.time()
        with suppress(OSError), os.scandir(self.root / "staging") as entries:
            for entry in entries:
                with suppress(OSError):
                    if now - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS:
                        os.unlink(entry.path)


class _NotRegularError(Exception):
    pass


def _read_regular(path: Path, limit: int | None) -> bytes:
    """Return the content of a regular file, of which at most `limit` + 1 bytes are read.

    Raises OSError, and _NotRegularError, which says what it is, for anything else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise _NotRegularError("is a symbolic link") from None
        if error.errno == errno.ESTALE:  # removed by another client of a network file system
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _NotRegularError("is not a regular file")
        # A declared size may be anything: memory is taken for what is there.
        allowed = status.st_size if limit is None else min(status.st_size, limit)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(allowed + 1)
    finally:
        os.close(descriptor)


def _is_marker(text: bytes) -> bool:
    """Tell whether another tool has written the marker, in its own way."""
    try:
        content = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return bool(content == msgspec.json.decode(_MARKER))


def _write_to(path: str, content: bytes, how: int) -> None:
    """Write a file down to the disk; `how` is O_EXCL for a new one, or O_TRUNC."""
    flags = os.O_WRONLY | os.O_CREAT | how | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(content)
        file.flush()
        try:
            os.fchmod(file.fileno(), 0o644)  # others read what a root build made
        except OSError as error:
            if error.errno not in _NO_MODES:
                raise
        os.fsync(file.fileno())


def _move(staged: str, path: Path, content: bytes) -> None:
    """Give the file `staged`, which has `content`, the name `path`.

    Where the file system has no rename the file is written in place: a reader may then see the
    half of it, and refuses that.
    """
    try:
        try:
            os.replace(staged, path)
        except FileNotFoundError:
            # `gc` has removed the folder while it was empty.
            _make_folder(path.parent)
            os.replace(staged, path)
    except OSError as error:
        if _has(path, content):
            # A network file system repeats what got no answer, and then fails on what it has done.
            return
        if error.errno not in _NO_RENAME:
            raise
        _write_to(os.fspath(path), content, os.O_TRUNC)


def _has(path: Path, content: bytes) -> bool:
    try:
        return _read_regular(path, len(content)) == content
    except (OSError, _NotRegularError):
        return False


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it so that others can read them and they survive a cut."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    with suppress(OSError):
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o055)
    with suppress(PermissionError):  # a folder that may be entered but not listed
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the renames into `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot, and rename synchronously.
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _store_error(message: str, error: OSError) -> StoreError:
    return StoreError(f"{message}: {error.strerror}", hint=_hint(error))


def _hint(error: Exception) -> str | None:
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return "make room, or choose another store"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return "choose a store that this user may write"
    return None
