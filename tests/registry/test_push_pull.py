"""From a store through a real registry into another store: the same digests, nothing twice."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from registry_server import FILES, Answer, get, inputs_of, proxy
from tiny_programs import build_key, build_program, folder_program

from aotc import provenance
from aotc.errors import AotcError
from aotc.program.key import BuildKey
from aotc.program.model import machine_code
from aotc.registry import Reference, RemoteCache, Transport, open_cache, pull, push
from aotc.registry.pull import NotAnArtifactError
from aotc.registry.transport import UnknownReferenceError
from aotc.store import oci
from aotc.store.artifact import NotFoundError, find, list_programs, publish, write_program
from aotc.store.cache import Cache
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
    layout = Layout.create(tmp_path / "two")
    for model in ("one", "two"):
        publish(layout, model, [write_program(layout, build_program(model, model))])
        push(to(reference), layout.root, model, replace=True)
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


# Pushes to one tag.


def test_two_shards_combine(make_store, reference: str, tmp_path: Path) -> None:
    whole = make_store()
    parts = [make_store(target, targets=(target,)) for target in ("x86_64_v3", "aarch64")]
    pushed = [push(to(reference), store, "tiny") for store in parts]
    back = tmp_path / "back"
    assert pull(to(reference), back, None).digest == pushed[1].digest != pushed[0].digest
    assert list_programs(back) == list_programs(whole)
    assert (back / "index.json").read_bytes() == (whole / "index.json").read_bytes()
    # The order does not matter, and again is nothing new.
    assert push(to(reference), parts[0], "tiny").digest == pushed[1].digest
    other = reference.replace(":v1", ":v2")
    assert [push(to(other), each, "tiny").digest for each in parts[::-1]][-1] == pushed[1].digest


def test_a_program_that_is_pushed_again_takes_its_place(make_store, reference: str) -> None:
    push(to(reference), make_store(), "tiny")
    push(to(reference), make_store("other", b"other ", ("aarch64",)), "tiny")
    text, _ = to(reference).manifest("v1")
    assert len(json.loads(text)["manifests"]) == 4


def test_replace_leaves_nothing_else(make_store, reference: str) -> None:
    push(to(reference), make_store(), "tiny")
    alone = make_store("alone", targets=("aarch64",))
    digest = push(to(reference), alone, "tiny", replace=True).digest
    text, _ = to(reference).manifest("v1")
    assert (len(json.loads(text)["manifests"]), Digest.of(text)) == (2, digest)


def test_what_another_has_pushed_meanwhile_stays(make_store, reference: str) -> None:
    """The other one has read the tag before, and writes it after: its index has no others."""
    first, second = (make_store(each, targets=(each,)) for each in ("x86_64_v3", "aarch64"))
    push(to(reference), second, "tiny")
    late = to(reference).manifest("v1")[0]
    puts: list[str] = []

    def overtake(answer: Answer) -> None:
        if answer.method == "PUT" and answer.path.endswith("/manifests/v1"):
            puts.append(answer.path)
            if len(puts) == 1:
                to(reference).put_manifest("v1", late, oci.INDEX_TYPE)

    with proxy(reference.partition("/")[0], overtake) as (host, _):
        pushed = push(to(f"{host}/{reference.partition('/')[2]}"), first, "tiny")
    text, _ = to(reference).manifest("v1")
    assert (len(puts), len(json.loads(text)["manifests"])) == (2, 4)
    assert Digest.of(text) == pushed.digest


def test_two_machines_at_once(make_store, reference: str) -> None:
    targets = ("x86_64_v3", "x86_64_v4", "aarch64")
    stores = [make_store(each, targets=(each,)) for each in targets]
    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(lambda store: push(slow(reference), store, "tiny"), stores))
    text, _ = to(reference).manifest("v1")
    assert len(json.loads(text)["manifests"]) == 6


def slow(reference: str) -> Transport:
    return Transport(Reference.parse(reference), backoff=0.5)


def test_a_tag_of_another_model_is_left_alone(make_store, reference: str, tmp_path: Path) -> None:
    layout = Layout.create(tmp_path / "other")
    publish(layout, "other", [write_program(layout, build_program("other"))])
    push(to(reference), layout.root, "other")
    before = to(reference).manifest("v1")
    with pytest.raises(AotcError, match=r":v1 has programs of `other`") as caught:
        push(to(reference), make_store(), "tiny")
    assert "--replace" in str(caught.value.hint)
    assert to(reference).manifest("v1") == before
    push(to(reference), make_store(), "tiny", replace=True)
    assert pull(to(reference), tmp_path / "back", None).programs[0].model == "tiny"


def test_an_image_is_not_overwritten(make_store, reference: str) -> None:
    image = {"schemaVersion": 2, "mediaType": oci.INDEX_TYPE, "manifests": [], "annotations": {}}
    text = json.dumps(image).encode()
    to(reference).put_manifest("v1", text, oci.INDEX_TYPE)
    with pytest.raises(NotAnArtifactError, match="is not a model of aotc") as caught:
        push(to(reference), make_store(), "tiny")
    assert "--replace" in str(caught.value.hint)
    assert to(reference).manifest("v1")[0] == text


# A registry as a cache for builds.


def test_a_program_by_its_key(make_store, reference: str, key: BuildKey, tmp_path: Path) -> None:
    store = make_store()
    push(to(reference), store, "tiny")
    layout = Layout.create(tmp_path / "mine")
    program = RemoteCache.open(reference).fetch(key, layout)
    assert program is not None
    stored = find(store, "tiny", "decode", "x86_64_v3")
    assert (program.layers, program.contract) == (stored.layers(), stored.contract_json)
    assert program.record() == stored.record
    assert dict(program.identity) == dict(key.components)


def test_a_hit_reads_one_index_and_one_manifest(
    make_store, reference: str, key: BuildKey, tmp_path: Path
) -> None:
    store = make_store()
    push(to(reference), store, "tiny")
    stored = find(store, "tiny", "decode", "x86_64_v3")
    layout = Layout.create(tmp_path / "mine")
    layout.write_blob(stored.object_bytes())
    with proxy(reference.partition("/")[0]) as (host, requests):
        remote = RemoteCache.open(f"{host}/{reference.partition('/')[2]}")
        assert remote.fetch(build_key(ir="another"), layout) is None
        assert [path.rpartition("/")[2] for _, path in requests] == ["v1"]
        assert remote.fetch(key, layout) is not None
    read = [path.rpartition("/")[2] for method, path in requests[1:]]
    missing = [stored.manifest.config, *stored.manifest.layers[1:]]
    assert read == [str(stored.manifest_digest), *(each.digest for each in missing)]


def test_an_index_without_keys(make_store, reference: str, key: BuildKey, tmp_path: Path) -> None:
    """As another client would push it: the records tell."""
    store = make_store()
    push(to(reference), store, "tiny")
    relist(reference, lambda each: {oci.PROGRAM_NAME: each[oci.PROGRAM_NAME]})
    layout = Layout.create(tmp_path / "mine")
    remote = RemoteCache.open(reference)
    assert remote.fetch(key, layout) is not None
    assert remote.fetch(build_key(ir="another"), layout) is None


def relist(reference: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Write the index of a tag again with other annotations."""
    index = json.loads(to(reference).manifest("v1")[0])
    for each in index["manifests"]:
        each["annotations"] = change(each["annotations"])
    to(reference).put_manifest("v1", json.dumps(index).encode(), oci.INDEX_TYPE)


def test_a_key_that_leads_to_another_program_is_refused(
    make_store, reference: str, tmp_path: Path
) -> None:
    push(to(reference), make_store(), "tiny")
    wanted = build_key(ir="another")
    relist(reference, lambda each: {**each, oci.BUILD_KEY: wanted.digest})
    with pytest.raises(AotcError, match="under a key that it does not have"):
        RemoteCache.open(reference).fetch(wanted, Layout.create(tmp_path / "mine"))


@pytest.mark.parametrize("part", ["contract", "ir", "abi"])
def test_a_program_that_is_not_of_its_own_key_is_refused(
    reference: str, tmp_path: Path, part: str
) -> None:
    """Whoever pushes it says that it is; but the key says what contract and IR it must have."""
    changes: dict[str, Any] = {
        "contract": {"contract": b'{"parameters":[],"returns":[],"symbols":[]}'},
        "ir": {"layers": machine_code(b"code", "other\n", "")},
        "abi": {"abi_version": 2},
    }[part]
    layout = Layout.create(tmp_path / "evil")
    program = dataclasses.replace(build_program(), **changes)
    publish(layout, "tiny", [write_program(layout, program)])
    push(to(reference), layout.root, "tiny")
    key = BuildKey(program.identity)
    with pytest.raises(AotcError, match=f"has another {part} than its key: "):
        RemoteCache.open(reference).fetch(key, Layout.create(tmp_path / "mine"))


def test_no_program_of_another_key(make_store, reference: str, tmp_path: Path) -> None:
    push(to(reference), make_store(), "tiny")
    layout = Layout.create(tmp_path / "mine")
    for changes in (
        {"ir": "program other\n"},
        {"flags": ("-O2",)},
        {"toolchain": "clang 2"},
        {"name": "sample"},
        {"model": "other"},
    ):
        remote = RemoteCache.open(reference)
        assert remote.fetch(build_key(**changes), layout) is None, changes


def test_a_tag_that_is_not_there(registry_host: str, reference: str) -> None:
    with pytest.raises(UnknownReferenceError, match=r"no `v1` in 127\.0\.0\.1"):
        RemoteCache.open(reference)
    said: list[str] = []
    assert open_cache(reference, warn=said.append) is None
    assert said == [f"no `v1` in {reference.removesuffix(':v1')}; building without it"]


# What was pulled serves builds.


@pytest.mark.parametrize("said", [True, False])
def test_the_keys_of_what_was_pulled(
    make_store, reference: str, key: BuildKey, tmp_path: Path, said: bool
) -> None:
    store = make_store(stated=said)
    push(to(reference), store, "tiny")
    layout = Layout(tmp_path / "back")
    pull(to(reference), layout.root, None)
    cache = Cache(layout)
    stored = find(store, "tiny", "decode", "x86_64_v3")
    found = cache.lookup(key)
    assert found is not None
    assert found.blobs == stored.blobs
    assert (cache.files_of(inputs_of(stored), stored) == FILES) == said


@pytest.mark.parametrize(
    "files", [{"../secret": "1" * 64}, {"/etc/passwd": "1" * 64}, {"a/../b": None}]
)
def test_a_statement_that_leads_out_of_the_sources(
    make_store, reference: str, tmp_path: Path, files: dict[str, str | None]
) -> None:
    push(to(reference), make_store(files=files), "tiny")
    pull(to(reference), tmp_path / "back", None)
    assert list(Cache(Layout(tmp_path / "back")).inputs("tiny", "decode")) == []


def test_what_no_key_has_gets_no_first_key(make_store, reference: str, tmp_path: Path) -> None:
    push(to(reference), make_store(outside=("reads a file",)), "tiny")
    pull(to(reference), tmp_path / "back", None)
    assert list(Cache(Layout(tmp_path / "back")).inputs("tiny", "decode")) == []


def test_a_statement_on_the_inputs_of_another_program(
    make_store, reference: str, tmp_path: Path
) -> None:
    push(to(reference), make_store(target="x86_64_v4"), "tiny")
    pull(to(reference), tmp_path / "back", None)
    assert list(Cache(Layout(tmp_path / "back")).inputs("tiny", "decode")) == []


def test_a_program_that_is_a_folder(reference: str, tmp_path: Path) -> None:
    layout = Layout.create(tmp_path / "store")
    stored = write_program(layout, folder_program())
    publish(layout, "ranks", [stored])
    push(to(reference), layout.root, "ranks")
    pull(to(reference), tmp_path / "back", ["a2a3sim"])
    assert validate(tmp_path / "back") == []
    back = find(tmp_path / "back", "ranks", "add_rank", "a2a3sim")
    assert back.manifest_digest == stored.manifest_digest
    assert back.files() == stored.files()
    with pytest.raises(AotcError):
        pull(to(reference), tmp_path / "other", ["a5sim"])
