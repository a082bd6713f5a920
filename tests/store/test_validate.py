"""Every damaged byte that can be reached is found by `validate` and refused by a reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotc.errors import AotcError, ExitCode
from aotc.store import oci
from aotc.store.artifact import INDEX_FILE, find, publish, write_program
from aotc.store.digest import Digest
from aotc.store.layout import IntegrityError, Layout, StoreError
from aotc.store.oci import Descriptor, Index, Manifest
from aotc.store.validate import validate

Make = Callable[..., Any]


@pytest.fixture
def layout(tmp_path: Path, make_program: Make) -> Layout:
    layout = Layout.create(tmp_path / "store")
    programs = [write_program(layout, make_program("tiny", name)) for name in ("decode", "prefill")]
    publish(layout, "tiny", programs)
    return layout


def read_everything(layout: Layout) -> None:
    """Read what a loader reads; with the text too."""
    for name in ("decode", "prefill"):
        stored = find(layout.root, "tiny", name)
        stored.object_bytes()
        stored.ir()
        stored.source()


def files(layout: Layout) -> list[Path]:
    return [layout.root / INDEX_FILE, *sorted((layout.root / "blobs/sha256").iterdir())]


def test_a_sound_store_has_no_problem(layout: Layout) -> None:
    assert validate(layout.root) == []
    assert validate(layout.root, "tiny") == []
    read_everything(layout)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_bit_is_found(layout: Layout, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(layout)))
    sound = path.read_bytes()
    position = data.draw(st.integers(0, len(sound) - 1))
    damaged = bytearray(sound)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(damaged)
        assert validate(layout.root) != []
        with pytest.raises(AotcError) as caught:
            read_everything(layout)
        # A changed name in `index.json` can only be seen as a model that is not there.
        expected = {ExitCode.INTEGRITY} | ({ExitCode.INPUT} if path.name == INDEX_FILE else set())
        assert caught.value.exit_code in expected
    finally:
        path.write_bytes(sound)


def test_every_byte_of_every_file_is_covered(layout: Layout) -> None:
    for path in files(layout):
        sound = path.read_bytes()
        for position in range(len(sound)):
            damaged = bytearray(sound)
            damaged[position] ^= 1
            path.write_bytes(damaged)
            assert validate(layout.root) != [], f"{path.name} byte {position}"
        path.write_bytes(sound)
    assert validate(layout.root) == []


@pytest.mark.parametrize("change", ["missing", "empty", "short", "long", "directory", "link"])
def test_what_is_not_the_blob_is_found(layout: Layout, tmp_path: Path, change: str) -> None:
    digest = find(layout.root, "tiny", "decode").manifest.layers[0].blob
    path = layout.blob_path(digest)
    content = path.read_bytes()
    path.unlink()
    match change:
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_bytes(content[:-1])
        case "long":
            path.write_bytes(content + b"\0")
        case "directory":
            path.mkdir()
        case "link":
            (tmp_path / "target").write_bytes(content)
            path.symlink_to(tmp_path / "target")
    # Both programs share the object.
    problems = validate(layout.root)
    assert [str(digest) in each.message for each in problems] == [True, True]
    assert problems[0].where == (
        "index.json > tiny > decode x86_64_v3 > layer application/vnd.aotc.object.v1"
    )
    with pytest.raises(IntegrityError):
        find(layout.root, "tiny", "decode").object_bytes()


def test_all_problems_are_reported(layout: Layout) -> None:
    damaged = 0
    for layer in find(layout.root, "tiny", "decode").manifest.layers:
        layout.blob_path(layer.blob).write_bytes(b"?" * layer.size)
        damaged += 1
    problems = validate(layout.root)
    assert len(problems) == 2 * damaged
    for each in problems:
        found = Digest.of(b"?" * len(layout.read_file(f"blobs/sha256/{named(each.message)}", 9999)))
        assert str(found) in each.message


def named(message: str) -> str:
    return message.split("sha256:", 1)[1][:64]


def relist(layout: Layout, manifests: tuple[Descriptor, ...]) -> None:
    """List `manifests` as those of the model, with digests that are right."""
    text = oci.encode(Index(manifests))
    layout.write_blob(text)
    named = Descriptor(
        oci.INDEX_TYPE, str(Digest.of(text)), len(text), {oci.REFERENCE_NAME: "tiny"}
    )
    layout.write_file(INDEX_FILE, oci.encode(Index((named,))))


def listed(layout: Layout) -> tuple[Descriptor, ...]:
    (top,) = oci.decode((layout.root / INDEX_FILE).read_bytes(), Index, "index").manifests
    return oci.decode(layout.read_blob(top.blob), Index, "index").manifests


def replaced(descriptor: Descriptor, **changes: Any) -> Descriptor:
    fields = {name: getattr(descriptor, name) for name in Descriptor.__struct_fields__}
    return Descriptor(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"annotations": {oci.PROGRAM_NAME: "other"}}, "the record is of `decode` of `tiny`"),
        ({"platform": oci.PLATFORMS["aarch64"]}, "the record is of `decode` of `tiny` for x86_64"),
        ({"platform": None}, "without a name"),
        ({"annotations": {}}, "without a name"),
        ({"platform": oci.Platform("amd64", "linux", "v9")}, "unknown platform"),
        ({"media_type": oci.INDEX_TYPE}, "media type"),
        ({"size": 1}, "1 bytes were declared"),
        ({"size": 2**62}, "expected at most"),
    ],
)
def test_consistent_digests_do_not_hide_a_wrong_listing(
    layout: Layout, changes: dict[str, Any], message: str
) -> None:
    first, second = listed(layout)
    relist(layout, (replaced(first, **changes), second))
    problems = validate(layout.root)
    assert any(message in each.message for each in problems)
    with pytest.raises(AotcError):
        read_everything(layout)


def test_a_program_listed_twice_is_found(layout: Layout) -> None:
    first, second = listed(layout)
    relist(layout, (first, first, second))
    assert [each.message for each in validate(layout.root)] == [
        "`decode` of `tiny` for x86_64_v3 is listed twice"
    ]


@pytest.mark.parametrize("change", ["order", "missing", "type", "record"])
def test_a_manifest_of_another_shape_is_refused(layout: Layout, change: str) -> None:
    first, second = listed(layout)
    manifest = oci.decode(layout.read_blob(first.blob), Manifest, "manifest")
    config, layers = manifest.config, manifest.layers
    match change:
        case "order":
            layers = layers[::-1]
        case "missing":
            layers = layers[:2]
        case "type":
            layers = (replaced(layers[0], media_type="text/plain"), *layers[1:])
        case "record":
            text = layout.read_blob(config.blob)
            text = text.replace(b'"schema":1', b'"schema":1,"schema":1')
            layout.write_blob(text)
            config = oci.describe(oci.CONFIG_TYPE, text)
    text = oci.encode(Manifest(config, layers))
    layout.write_blob(text)
    relist(layout, (replaced(first, digest=str(Digest.of(text)), size=len(text)), second))
    assert len(validate(layout.root)) == 1
    with pytest.raises(IntegrityError):
        find(layout.root, "tiny", "decode")
    find(layout.root, "tiny", "prefill").object_bytes()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"schemaVersion":2,"manifests":' + b"[" * 100_000,
        b'{"schemaVersion":1,"manifests":[]}',
        b'{"schemaVersion":2,"mediaType":"text/plain","manifests":[]}',
        b'{"schemaVersion":2,"manifests":[],"unknown":1}',
        b" " * (oci.MAX_DOCUMENT + 1),
        json.dumps(
            {
                "manifests": [
                    {"mediaType": oci.INDEX_TYPE, "digest": "sha512:" + "0" * 128, "size": 1}
                ]
            }
        ).encode(),
        json.dumps(
            {"manifests": [{"mediaType": oci.INDEX_TYPE, "digest": "sha256:../../x", "size": 1}]}
        ).encode(),
        json.dumps(
            {
                "manifests": [
                    {"mediaType": oci.INDEX_TYPE, "digest": "sha256:" + "0" * 64, "size": -1}
                ]
            }
        ).encode(),
    ],
)
def test_a_hostile_index_is_refused(layout: Layout, text: bytes) -> None:
    (layout.root / INDEX_FILE).write_bytes(text)
    assert len(validate(layout.root)) == 1
    with pytest.raises(IntegrityError):
        find(layout.root, "tiny", "decode")


def test_an_unlisted_model_is_a_problem_when_asked_for(layout: Layout) -> None:
    assert [each.message for each in validate(layout.root, "other")] == [
        "model `other` is not listed"
    ]


def test_an_unreferenced_blob_is_none(layout: Layout) -> None:
    layout.write_blob(b"nobody refers to this")
    assert validate(layout.root) == []


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store in"):
        validate(tmp_path)
