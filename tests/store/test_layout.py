"""A blob is read back whole or refused; a write leaves all of it or nothing."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.errors import ExitCode
from aotc.store.digest import Digest
from aotc.store.layout import IntegrityError, Layout, StoreError

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout.create(tmp_path / "store")


@pytest.mark.parametrize("content", [b"", b"x", CONTENT])
def test_round_trip(layout: Layout, content: bytes) -> None:
    digest = layout.write_blob(content)
    assert Layout.open(layout.root).read_blob(digest) == content


def test_sha256_of_known_vectors() -> None:
    # FIPS 180-2, appendix B.1.
    expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert str(Digest.of(b"abc")) == expected
    assert Digest.parse(expected) == Digest.of(b"abc")


@given(st.text(max_size=80))
def test_only_sha256_parses(text: str) -> None:
    with pytest.raises(ValueError, match="not a sha256 digest"):
        Digest.parse(text)


@pytest.mark.parametrize(
    "text",
    ["sha256:../../etc/passwd", "sha512:" + "0" * 128, "sha256:" + "A" * 64, "sha256:" + "0" * 63],
)
def test_hostile_digests_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a sha256 digest"):
        Digest.parse(text)


def test_every_flipped_byte_is_found(layout: Layout) -> None:
    digest = layout.write_blob(CONTENT)
    path = layout.blob_path(digest)
    for index in range(len(CONTENT)):
        damaged = bytearray(CONTENT)
        damaged[index] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError) as caught:
            layout.read_blob(digest)
        assert caught.value.exit_code == ExitCode.INTEGRITY


def test_writing_again_repairs(layout: Layout) -> None:
    digest = layout.write_blob(CONTENT)
    layout.blob_path(digest).write_bytes(CONTENT[:-1])
    assert layout.write_blob(CONTENT) == digest
    assert layout.read_blob(digest) == CONTENT


@pytest.mark.parametrize("kind", ["missing", "link", "directory", "pipe"])
def test_what_is_not_a_blob_is_refused(layout: Layout, tmp_path: Path, kind: str) -> None:
    digest = Digest.of(CONTENT)
    path = layout.blob_path(digest)
    if kind == "link":
        (tmp_path / "target").write_bytes(CONTENT)
        path.symlink_to(tmp_path / "target")
    elif kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(IntegrityError):
        layout.read_blob(digest)


@pytest.mark.parametrize("call", ["fsync", "fchmod", "replace"])
def test_a_full_disk_leaves_the_store_as_it_was(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = sorted(layout.root.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StoreError, match="No space left on device"):
            layout.write_blob(CONTENT)
    assert sorted(layout.root.rglob("*")) == before
    layout.write_blob(CONTENT)


def test_another_directory_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store in"):
        Layout.open(tmp_path)
    (tmp_path / "oci-layout").write_text("{}")
    with pytest.raises(StoreError, match="not an OCI image layout"):
        Layout.create(tmp_path)
