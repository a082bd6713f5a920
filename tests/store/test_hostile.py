"""Layouts made to do harm are refused, with a clear error and in little memory."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_programs import build_program

from aotc.errors import AotcError
from aotc.store import oci
from aotc.store.artifact import find, list_programs, publish, write_program
from aotc.store.digest import Digest
from aotc.store.gc import collect, usage
from aotc.store.layout import Layout
from aotc.store.validate import validate

MEMORY = 400 << 20  # bytes that a reader may take on top of what the tests have
LEVELS = ("top", "model", "manifest", "record")
Change = Callable[[dict[str, Any]], Any]


class Store:
    """A sound store of one program, with its documents from `index.json` down."""

    def __init__(self, root: Path):
        self.layout = Layout.create(root)
        self.root = root
        publish(self.layout, "tiny", [write_program(self.layout, build_program())])
        top = json.loads((root / "index.json").read_bytes())
        model = self.load(top["manifests"][0])
        manifest = self.load(model["manifests"][0])
        record = self.load(manifest["config"])
        self.documents = dict(zip(LEVELS, (top, model, manifest, record), strict=True))

    def load(self, reference: dict[str, Any]) -> Any:
        return json.loads(self.layout.read_blob(Digest.parse(reference["digest"])))

    def replace(self, level: str, text: bytes) -> None:
        """Make `text` the document of `level`; digests and sizes on the way to it are right."""
        for upper in reversed(LEVELS[: LEVELS.index(level)]):
            document = self.documents[upper]
            digest = self.layout.write_blob(text)
            reference = document["config"] if upper == "manifest" else document["manifests"][0]
            reference.update(digest=str(digest), size=len(text))
            text = encode(document)
        (self.root / "index.json").write_bytes(text)

    def layer(self) -> Path:
        digest = self.documents["manifest"]["layers"][0]["digest"]
        return self.layout.blob_path(Digest.parse(digest))


def encode(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def refused(store: Store, in_child: Callable[..., Any]) -> Callable[[], list[str]]:
    """Return a function that has each reader look at the store, in little memory."""

    def body() -> list[str]:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        messages = []
        try:
            messages += [str(each) for each in validate(store.root)]
        except AotcError as error:
            messages.append(error.message)
        assert messages, "validate found nothing"
        try:
            find(store.root, "tiny", "decode")
        except AotcError as error:
            messages.append(error.message)
        else:
            raise AssertionError("found")
        readers: list[Callable[[], Any]] = [
            lambda: list_programs(store.root),
            lambda: collect(store.root, dry_run=True),
            lambda: usage(store.root),
        ]
        for read in readers:
            try:
                read()
            except AotcError as error:
                messages.append(error.message)
        # One line each, and not the whole of what was refused.
        assert all("\n" not in each and len(each) < 1000 for each in messages), messages
        return messages

    return lambda: in_child(body)


def reference(store: Store, level: str) -> dict[str, Any]:
    document = store.documents[level]
    found = document["layers"][0] if level == "manifest" else document["manifests"][0]
    assert isinstance(found, dict)
    return found


REFERENCES: list[tuple[str, Any]] = [
    ("digest", "sha256:../../../../etc/passwd"),
    ("digest", "sha256:/etc/passwd"),
    ("digest", "/etc/passwd"),
    ("digest", "../../../etc/passwd"),
    ("digest", "sha512:" + "0" * 128),
    ("digest", "md5:" + "0" * 32),
    ("digest", "sha256:" + "0" * 63 + "\0"),
    ("digest", "sha256:" + "A" * 64),
    ("digest", ""),
    ("digest", None),
    ("size", -1),
    ("size", 0),
    ("size", 1 << 40),
    ("size", (1 << 63) - 1),
    ("size", 1 << 64),
    ("size", 1e300),
    ("size", "1"),
    ("mediaType", "text/plain"),
    ("mediaType", "application/vnd.docker.distribution.manifest.v2+json"),
    ("mediaType", None),
    ("urls", ["http://localhost/"]),
    ("data", "AAAA"),
]


@pytest.mark.parametrize("level", ["top", "model", "manifest"])
@pytest.mark.parametrize(("name", "value"), REFERENCES)
def test_a_hostile_reference(
    store: Store, refused: Callable[[], list[str]], level: str, name: str, value: Any
) -> None:
    reference(store, level)[name] = value
    store.replace(level, encode(store.documents[level]))
    assert refused()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 1000,
        b"\xff\xfe{}",
        b"null",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"manifests":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b" " * (5 << 20),
        b'"' + b"x" * (3 << 20) + b'"',
    ],
)
def test_a_hostile_text(
    store: Store, refused: Callable[[], list[str]], level: str, text: bytes
) -> None:
    store.replace(level, text)
    assert refused()


@pytest.mark.parametrize("level", LEVELS)
def test_a_name_that_is_there_twice(
    store: Store, refused: Callable[[], list[str]], level: str
) -> None:
    """Of which one reader would take the first, and another the last."""
    text = encode(store.documents[level])
    name, value = next(iter(sorted(store.documents[level].items())))
    store.replace(level, b"{" + encode({name: value})[1:-1] + b"," + text[1:])
    assert any("twice" in each or "canonical" in each for each in refused())


@pytest.mark.parametrize("level", ["top", "model"])
def test_a_cyclic_index(store: Store, refused: Callable[[], list[str]], level: str) -> None:
    """An index in the place of a manifest; one in itself cannot be written, only claimed."""
    upper = encode(store.documents["top"])
    digest = store.layout.write_blob(upper)
    claimed = {"mediaType": oci.INDEX_TYPE, "digest": str(digest), "size": len(upper)}
    entry = store.documents[level]["manifests"][0]
    entry.update(claimed)
    store.replace(level, encode(store.documents[level]))
    assert refused()


def test_an_index_of_very_many(store: Store, refused: Callable[[], list[str]]) -> None:
    entry = store.documents["model"]["manifests"][0]
    many = []
    for index in range(14_000):
        name = {"dev.aotc.program": f"p{index}"}
        many.append({**entry, "annotations": name})
    text = encode({**store.documents["model"], "manifests": many})
    assert len(text) < oci.MAX_DOCUMENT
    store.replace("model", text)
    assert refused()


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "layer", "manifest"])
@pytest.mark.parametrize("kind", ["link", "loop", "directory", "pipe", "sparse", "device"])
def test_what_is_no_file(
    store: Store, refused: Callable[[], list[str]], tmp_path: Path, name: str, kind: str
) -> None:
    digest = store.documents["model"]["manifests"][0]["digest"]
    path = {
        "layer": store.layer(),
        "manifest": store.layout.blob_path(Digest.parse(digest)),
    }.get(name, store.root / name)
    content = path.read_bytes()
    path.unlink()
    match kind:
        case "link":
            (tmp_path / "outside").write_bytes(content)
            path.symlink_to(tmp_path / "outside")
        case "loop":
            path.symlink_to(path)
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "sparse":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "device":
            path.symlink_to("/dev/zero")
    assert refused()


def test_a_huge_layer_that_says_so(store: Store, refused: Callable[[], list[str]]) -> None:
    with store.layer().open("wb") as file:
        file.truncate(1 << 40)
    reference(store, "manifest")["size"] = 1 << 40
    store.replace("manifest", encode(store.documents["manifest"]))
    assert any("expected at most 268435456" in each for each in refused())


@pytest.mark.parametrize("model", ["../../x", "/etc/passwd", "a\0b", "x" * 100_000, "\u202e"])
def test_a_model_of_any_name_leads_nowhere(store: Store, model: str) -> None:
    """No path is made of a name."""
    annotations = store.documents["top"]["manifests"][0]["annotations"]
    annotations[oci.REFERENCE_NAME] = model
    store.replace("top", encode(store.documents["top"]))
    assert validate(store.root) != []
    with pytest.raises(AotcError):
        find(store.root, "tiny", "decode")
