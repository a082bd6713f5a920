"""Files of an OCI image layout: written whole or not at all, blobs checked at every read.

The layout is that of the OCI image specification 1.1, `image-layout.md`: `oci-layout`,
`index.json` and `blobs/sha256/HEX`. Beside them lie `staging` (files being written), `locks`
(empty files; only a lock that the system holds on one counts), `keys` (see `cache`) and
`quarantine` (what was found damaged).
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from aotc.errors import AotcError, ExitCode
from aotc.store.digest import Digest

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'
_STALE_SECONDS = 3600  # no single file takes that long to write


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
        """Open the layout at `root`, making it where there is none; sweep what dead writers left.

        Raises StoreError where `root` cannot be written or holds a layout of another version. A
        layout that is there already is opened also where it is read-only.
        """
        layout = cls(root)
        try:
            if not (root / "oci-layout").exists():
                layout._blobs.mkdir(parents=True, exist_ok=True)
                layout._write({root / "oci-layout": _MARKER})
        except OSError as error:
            raise _store_error(f"cannot create a store in {root}", error) from None
        layout = cls.open(root)
        layout._sweep()
        return layout

    @classmethod
    def open(cls, root: Path) -> Layout:
        """Open the layout at `root`; raise StoreError where there is none of this version."""
        try:
            marker = _read_regular(root / "oci-layout", len(_MARKER))
        except _NotRegularError as error:
            raise StoreError(f"{root / 'oci-layout'} {error}") from None
        except OSError as error:
            raise _store_error(f"no store in {root}", error) from None
        if marker != _MARKER:
            raise StoreError(f"{root} is not an OCI image layout of version 1.0.0")
        return cls(root)

    @property
    def _blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

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
            try:
                self.read_blob(digest, len(content))
            except IntegrityError:
                missing[self.blob_path(digest)] = content
        self._try_write(missing)
        return digests

    def read_blob(self, digest: Digest, size: int | None = None) -> bytes:
        """Return the blob of `digest`, its bytes checked; `size` in bytes bounds what is read.

        Raises IntegrityError where it is missing, not a regular file, or of another digest or
        size, and StoreError where it cannot be read.
        """
        path = self.blob_path(digest)
        try:
            content = _read_regular(path, size)
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
        if size is not None and len(content) != size:
            found = f"more than {size}" if len(content) > size else str(len(content))
            problem = f"{size} bytes were declared, it has {found}"
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
        try:
            with os.scandir(self.root / folder) as entries:
                found = [
                    (entry.stat(follow_symlinks=False).st_mtime_ns, entry) for entry in entries
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _store_error(f"cannot read {self.root / folder}", error) from None
        return [entry.name for _, entry in sorted(found, key=lambda each: (-each[0], each[1].name))]

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
            aside.parent.mkdir(exist_ok=True)
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

        The system gives it up when the process ends, however it ends. Raises StoreError after
        `timeout`, and where the store cannot be written or its file system has no locks.
        """
        import filelock  # only a build takes a lock

        path = self.root / "locks" / f"{name}.lock"
        try:
            path.parent.mkdir(exist_ok=True)
            held = filelock.FileLock(path)
            held.acquire(timeout=timeout)
        except filelock.Timeout:
            raise StoreError(
                f"another process has held the lock `{name}` of {self.root} for {timeout:g} s"
            ) from None
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise StoreError(
                f"cannot lock the store in {self.root}: {reason}", hint=_hint(error)
            ) from None
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
        staging.mkdir(exist_ok=True)
        staged: list[str] = []
        try:
            for path, content in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor, name = tempfile.mkstemp(dir=staging)
                staged.append(name)
                with open(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)  # others read what a root build made
                    os.fsync(file.fileno())
            for name, path in zip(staged, files, strict=True):
                os.replace(name, path)
        except BaseException:
            for name in staged:
                with suppress(OSError):
                    os.unlink(name)
            raise
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
    except OSError:
        if path.is_symlink():
            raise _NotRegularError("is a symbolic link") from None
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


def _sync_folder(folder: Path) -> None:
    """Make the renames into `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot, and rename synchronously.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
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
