"""From a store through a real registry into another store: the same digests, nothing twice."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from registry_server import get
from tiny_programs import build_key

from aotc import provenance
from aotc.errors import AotcError
from aotc.program.key import BuildKey
from aotc.registry import Reference, Transport, fetch_program, pull, push
from aotc.registry.pull import NotAnArtifactError
from aotc.registry.transport import UnknownReferenceError
from aotc.store import oci
from aotc.store.artifact import NotFoundError, find, list_programs, publish
from aotc.store.digest import Digest
from aotc.store.layout import Layout
from aotc.store.validate import validate

pytest.importorskip("oras")


def to(reference: str) -> Transport:
    return Transport(Reference.parse(reference), backoff=0.01)


def test_there_and_back(make_store, reference: str, tmp_path: Path) -> None:
    store = make_store()
    pushed = push(to(reference), store, "tiny")
    assert (len(pushed.programs), pushed.referrers) == (4, 4)
    back = tmp_path / "back"
    pulled = pull(to(reference), back, None)
    assert pulled.digest == pushed.digest
    assert validate(back) == []
    assert list_programs(back) == list_programs(store)
    # All of it: the model's index, and the statements, have the same digests too.
    assert (back / "index.json").read_bytes() == (store / "index.json").read_bytes()
    for entry in list_programs(store):
        ours, theirs = (
            find(each, entry.model, entry.program, entry.target) for each in (store, back)
        )
        assert theirs.blobs == ours.blobs
        assert provenance.find(theirs) == provenance.find(ours)


def test_only_what_is_missing_moves(make_store, reference: str, tmp_path: Path) -> None:
    store = make_store()
    assert push(to(reference), store, "tiny").sent > 0
    assert push(to(reference), store, "tiny").sent == 0
    back = tmp_path / "back"
    assert pull(to(reference), back, None).received > 0
    before = {path: path.stat().st_mtime_ns for path in back.rglob("index.json")}
    assert pull(to(reference), back, None).received == 0
    assert {path: path.stat().st_mtime_ns for path in back.rglob("index.json")} == before
    # One program changes: its object, its record and its statement move, and nothing else.
    other = make_store("other", b"new code of ", ("aarch64",))
    sent = push(to(reference), other, "tiny").sent
    moved = {each.blobs[0] for each in push(to(reference), other, "tiny").programs}
    assert 0 < sent < sum(map(len, moved)) + 2 * 2 * 4096


def test_the_wanted_platform_only(make_store, reference: str, tmp_path: Path) -> None:
    store = make_store(targets=("x86_64_v3", "x86_64_v4", "aarch64"))
    push(to(reference), store, "tiny")
    back = tmp_path / "back"
    pulled = pull(to(reference), back, ["x86_64_v4", "x86_64_v3"])
    assert [each.target for each in pulled.programs] == ["x86_64_v4"] * 2
    assert {each.target for each in list_programs(back)} == {"x86_64_v4"}
    # Another one beside it: both are there then.
    pull(to(reference), back, ["aarch64"])
    assert {each.target for each in list_programs(back)} == {"x86_64_v4", "aarch64"}
    assert validate(back) == []


def test_no_wanted_platform(make_store, reference: str, tmp_path: Path) -> None:
    push(to(reference), make_store(), "tiny", ["aarch64"])
    with pytest.raises(NotFoundError, match="is there for aarch64, wanted for x86_64_v3") as caught:
        pull(to(reference), tmp_path / "back", ["x86_64_v3"])
    assert "--all-platforms" in str(caught.value.hint)
    assert list_programs(tmp_path / "back") == []


def test_by_digest(make_store, reference: str, tmp_path: Path) -> None:
    store = make_store()
    pushed = push(to(reference), store, "tiny")
    # The tag moves on; what was named by its digest stays what it was.
    push(to(reference), make_store("other", b"other code of "), "tiny")
    pinned = Reference.parse(reference).at(pushed.digest)
    back = tmp_path / "back"
    assert pull(to(str(pinned)), back, None).digest == pushed.digest
    assert (back / "index.json").read_bytes() == (store / "index.json").read_bytes()


def test_one_program_by_the_digest_of_its_manifest(
    make_store, reference: str, tmp_path: Path
) -> None:
    store = make_store()
    push(to(reference), store, "tiny")
    wanted = find(store, "tiny", "prefill", "aarch64")
    place = Reference.parse(reference).at(wanted.manifest_digest)
    (stored,) = pull(to(str(place)), tmp_path / "back", ["aarch64"]).programs
    assert stored.blobs == wanted.blobs
    assert [str(each) for each in list_programs(tmp_path / "back")] == [
        "`prefill` of `tiny` for aarch64"
    ]


def test_a_push_to_another_digest_is_refused(make_store, reference: str) -> None:
    other = Reference.parse(reference).at(Digest.of(b""))
    with pytest.raises(AotcError, match="is not what would be pushed"):
        push(to(str(other)), make_store(), "tiny")


def test_nothing_to_push(make_store, reference: str) -> None:
    store = make_store(targets=("aarch64",))
    with pytest.raises(NotFoundError, match="no programs of `other` in the store"):
        push(to(reference), store, "other")
    with pytest.raises(NotFoundError, match="no programs of `tiny` for x86_64_v3 in the store"):
        push(to(reference), store, "tiny", ["x86_64_v3"])


def test_a_damaged_store_pushes_nothing(make_store, reference: str) -> None:
    store = make_store()
    stored = find(store, "tiny", "prefill", "aarch64")
    stored.layout.blob_path(stored.digests[0]).write_bytes(b"damaged")
    with pytest.raises(AotcError, match="is damaged"):
        push(to(reference), store, "tiny")
    with pytest.raises(UnknownReferenceError):
        to(reference).manifest("v1")
    assert not to(reference).has_blob(find(store, "tiny", "decode", "aarch64").digests[0])


@pytest.mark.parametrize("chunk", [1, 7, 8, 1 << 20])
def test_uploads_in_pieces(make_store, reference: str, chunk: int, tmp_path: Path) -> None:
    transport = to(reference)
    for content in (b"", b"x", b"12345678", b"123456789"):
        descriptor = oci.describe("text/plain", content)
        transport.put_blob(descriptor, content, chunk)
        assert transport.get_blob(descriptor, tmp_path / "partial") == content
        assert not (tmp_path / "partial").exists()


def test_referrers_are_listed_for_other_tools(make_store, reference: str) -> None:
    store = make_store(targets=("aarch64",))
    push(to(reference), store, "tiny")
    place = Reference.parse(reference)
    stored = find(store, "tiny", "decode", "aarch64")
    # This registry has no API for them: the specification's tag stands in for it.
    url = f"http://{place.host}/v2/{place.repository}/manifests/sha256-{stored.manifest_digest.hex}"
    index = json.loads(get(url, oci.INDEX_TYPE))
    (listed,) = index["manifests"]
    assert listed["artifactType"] == "application/vnd.in-toto+json"
    assert listed["digest"] == provenance.find(stored).descriptor.digest


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo: apt-get install skopeo")
def test_another_client_reads_what_was_pushed(make_store, reference: str, tmp_path: Path) -> None:
    store = make_store()
    pushed = push(to(reference), store, "tiny")
    command = ["skopeo", "--insecure-policy", "copy", "--all", "--src-tls-verify=false"]
    copy = tmp_path / "copy"
    subprocess.run(
        [*command, f"docker://{reference}", f"oci:{copy}:tiny"], check=True, capture_output=True
    )
    assert validate(copy) == []
    (index,) = json.loads((copy / "index.json").read_bytes())["manifests"]
    assert index["digest"] == str(pushed.digest)


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="no skopeo: apt-get install skopeo")
def test_what_another_client_has_pushed_is_pulled(
    make_store, reference: str, tmp_path: Path
) -> None:
    store = make_store()
    command = ["skopeo", "--insecure-policy", "copy", "--all", "--dest-tls-verify=false"]
    subprocess.run(
        [*command, f"oci:{store}:tiny", f"docker://{reference}"], check=True, capture_output=True
    )
    back = tmp_path / "back"
    assert pull(to(reference), back, None).referrers == 0
    assert list_programs(back) == list_programs(store)


def test_something_else_under_the_tag(registry_host: str, reference: str, tmp_path: Path) -> None:
    transport = to(reference)
    for content in (b"{}", b"layer"):
        transport.put_blob(oci.describe("", content), content)
    image = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST_TYPE,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": str(Digest.of(b"{}")),
            "size": 2,
        },
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": str(Digest.of(b"layer")),
                "size": 5,
            }
        ],
    }
    transport.put_manifest("v1", json.dumps(image).encode(), oci.MANIFEST_TYPE)
    with pytest.raises(NotAnArtifactError, match=r"is not a model of aotc: .*image\.config"):
        pull(to(reference), tmp_path / "back", None)
    assert [path for path in (tmp_path / "back" / "blobs").rglob("*") if path.is_file()] == []


def test_programs_of_two_models_under_one_tag(make_store, reference: str, tmp_path: Path) -> None:
    from tiny_programs import build_program

    from aotc.store.artifact import write_program

    layout = Layout.create(tmp_path / "two")
    for model in ("one", "two"):
        publish(layout, model, [write_program(layout, build_program(model, model))])
        push(to(reference), layout.root, model)
    index = oci.Index(
        tuple(
            oci.Descriptor(
                oci.MANIFEST_TYPE,
                str(stored.manifest_digest),
                stored.descriptor.size,
                {oci.PROGRAM_NAME: model},
                oci.platform_of("x86_64_v3"),
            )
            for model in ("one", "two")
            for stored in [find(layout.root, model, model)]
        )
    )
    to(reference).put_manifest("v1", oci.encode(index), oci.INDEX_TYPE)
    with pytest.raises(AotcError, match="programs of several models"):
        pull(to(reference), tmp_path / "back", None)
    assert list_programs(tmp_path / "back") == []


def test_a_program_by_its_key(make_store, reference: str, key: BuildKey) -> None:
    store = make_store()
    push(to(reference), store, "tiny")
    program = fetch_program(reference, key)
    assert program is not None
    stored = find(store, "tiny", "decode", "x86_64_v3")
    assert (program.layers, program.contract) == (stored.layers(), stored.contract_json)
    assert program.record() == stored.record
    assert dict(program.identity) == dict(key.components)


def test_no_program_of_another_key(make_store, reference: str) -> None:
    push(to(reference), make_store(), "tiny")
    for changes in (
        {"ir": "program other\n"},
        {"flags": ("-O2",)},
        {"toolchain": "clang 2"},
        {"name": "sample"},
        {"model": "other"},
    ):
        assert fetch_program(reference, build_key(**changes)) is None, changes


def test_a_tag_that_is_not_there(registry_host: str, reference: str, key: BuildKey) -> None:
    with pytest.raises(UnknownReferenceError, match=r"no `v1` in 127\.0\.0\.1"):
        fetch_program(reference, key)
