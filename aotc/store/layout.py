"""Blobs of an OCI image layout: written whole or not at all, checked at every read.

The layout is that of the OCI image specification 1.1, `image-layout.md`: `oci-layout` and
`blobs/sha256/HEX`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from aotc.errors import AotcError, ExitCode
from aotc.store.digest import Digest

_MARKER = b'{"imageLayoutVersion":"1.0.0"}'


class IntegrityError(AotcError):
    """Stored bytes are not what their digest says, or are not there."""

    exit_code = ExitCode.INTEGRITY


class StoreError(AotcError):
    """The store cannot be written or read: permissions, space, not a layout."""

    exit_code = ExitCode.ENVIRONMENT


class Layout:
    """An OCI image layout in one directory."""

    def __init__(self, root: Path):
        self.root = root

    @classmethod
    def create(cls, root: Path) -> Layout:
        """Open the layout at `root`, making it where there is none.

        Raises StoreError where `root` cannot be written or holds a layout of another version.
        """
        layout = cls(root)
        try:
            layout._blobs.mkdir(parents=True, exist_ok=True)
            marker = root / "oci-layout"
            if not marker.exists():
                _write_atomically(marker, _MARKER)
        except OSError as error:
            raise _store_error(f"cannot create a store in {root}", error) from None
        return cls.open(root)

    @classmethod
    def open(cls, root: Path) -> Layout:
        """Open the layout at `root`; raise StoreError where there is none of this version."""
        try:
            marker = (root / "oci-layout").read_bytes()
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
        """Store `content` and return its digest; a damaged blob in its place is replaced.

        Raises StoreError where the disk refuses; the store is then as it was.
        """
        digest = Digest.of(content)
        try:
            self.read_blob(digest)
        except IntegrityError:
            try:
                _write_atomically(self.blob_path(digest), content)
            except OSError as error:
                raise _store_error(f"cannot write to the store in {self.root}", error) from None
        return digest

    def read_blob(self, digest: Digest) -> bytes:
        """Return the blob of `digest`, its bytes checked.

        Raises IntegrityError where it is missing, not a regular file, or of another digest, and
        StoreError where it cannot be read.
        """
        path = self.blob_path(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise IntegrityError(f"blob {digest} is missing from {self.root}") from None
        except OSError as error:
            if path.is_symlink():
                raise IntegrityError(f"blob {digest} is a symbolic link") from None
            raise _store_error(f"cannot read blob {digest}", error) from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise IntegrityError(f"blob {digest} is not a regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read()
        except OSError as error:
            raise _store_error(f"cannot read blob {digest}", error) from None
        finally:
            os.close(descriptor)
        found = Digest.of(content)
        if found != digest:
            raise IntegrityError(
                f"blob {digest} is damaged: its bytes have digest {found}",
                hint="build again to replace it",
            )
        return content


def _store_error(message: str, error: OSError) -> StoreError:
    return StoreError(f"{message}: {error.strerror}")


def _write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader, or a crash, sees all of it or none."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)  # others read what a root build made
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename itself must survive a power cut
    finally:
        os.close(directory)
