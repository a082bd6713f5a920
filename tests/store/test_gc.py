"""What is needed stays, what is not goes, and nobody who reads or builds meanwhile is hurt."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_programs import build_key, build_program

from aotc.errors import AotcError
from aotc.program.key import BuildKey, text_digest
from aotc.program.model import IR_TYPE
from aotc.store import oci, referrers
from aotc.store.artifact import StoredProgram, find, list_programs, publish, write_program
from aotc.store.cache import Cache
from aotc.store.digest import Digest
from aotc.store.gc import collect, digests_in, resolve, usage
from aotc.store.layout import IntegrityError, Layout, StoreError
from aotc.store.validate import validate

DAY = 86400.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def build(root: Path, name: str = "decode", model: str = "tiny", **parts: Any) -> StoredProgram:
    """Build and publish a program as the driver does, and end: no lease is left."""
    layout = Layout.create(root)
    program = build_program(model, name, **parts)
    cache = Cache(layout)
    built = cache.build_once(BuildKey(program.identity), lambda: program)
    inputs = BuildKey({"model": model, "program": name, "target": program.target})
    cache.record_inputs(inputs, {"w.py": text_digest(program.content(IR_TYPE))}, built.program)
    publish(layout, model, [built.program])
    return find(root, model, name)


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def age(root: Path, seconds: float, *names: str) -> None:
    then = time.time() - seconds
    for name in names:
        os.utime(root / name, (then, then))


def age_all(root: Path, seconds: float) -> None:
    age(root, seconds, *(name for name in files(root) if not name.startswith("locks/")))


def test_what_is_listed_stays(root: Path) -> None:
    build(root)
    build(root, "prefill", ir="other")
    collect(root)
    before = files(root)
    swept = collect(root)
    assert swept.removed == ()
    assert swept.kept_bytes == usage(root).total
    assert files(root) == before
    assert validate(root) == []


def test_a_store_after_it_is_as_if_only_what_is_listed_had_been_built(tmp_path: Path) -> None:
    root, fresh = tmp_path / "store", tmp_path / "fresh"
    for code in (b"one", b"two", b"three"):
        build(root, code=code, ir=f"program {code!r}")
        build(root, "prefill", ir="kept")
    (root / "quarantine").mkdir()
    (root / "quarantine" / "damaged").write_bytes(b"damaged")
    (root / "staging" / "left").write_bytes(b"left by a killed build")
    Layout(root).write_blob(b"nobody refers to this")
    swept = collect(root)
    build(fresh, code=b"three", ir="program b'three'")
    build(fresh, "prefill", ir="kept")
    collect(fresh)
    assert files(root) == files(fresh)
    assert {each.kind for each in swept.removed} == {
        *("manifest", "blob", "key", "lock", "quarantine", "staging")
    }
    manifests = [each.program for each in swept.removed if each.kind == "manifest"]
    assert manifests == ["`decode` of `tiny` for x86_64_v3"] * 2
    assert find(root, "tiny", "decode").object_bytes() == b"three"
    assert Cache(Layout.open(root)).lookup(build_key(ir="program b'three'")) is not None


def test_dry_run_tells_the_same_and_changes_nothing(root: Path) -> None:
    build(root, code=b"one", ir="one")
    build(root, code=b"two", ir="two")
    before = files(root)
    told = collect(root, dry_run=True)
    assert files(root) == before
    assert set(collect(root).removed) == set(told.removed)


def test_keep_and_lock_files_keep(root: Path, tmp_path: Path) -> None:
    programs = [build(root, code=code, ir=str(code)) for code in (b"one", b"two", b"three", b"4")]
    lock = tmp_path / "aotc.lock"
    lock.write_text(json.dumps({"decode": {"artifact": str(programs[0].manifest_digest)}}))
    keep = {*digests_in(lock), resolve(root, programs[1].manifest_digest.hex[:8])}
    collect(root, keep=keep)
    for kept in (programs[0], programs[1], programs[3]):
        kept.check()
    with pytest.raises(IntegrityError):
        programs[2].check()
    # The keys of what is kept are kept: it is not compiled again.
    assert Cache(Layout.open(root)).lookup(build_key(ir="b'one'")) is not None


def test_resolve_refuses_what_is_none_or_several(root: Path) -> None:
    digest = build(root).manifest_digest
    assert resolve(root, str(digest)) == digest
    for text, message in (("abc", "too short"), ("0" * 64, "no blob"), ("sha512:" + "a" * 9, "no")):
        with pytest.raises(AotcError, match=message):
            resolve(root, text)


def test_max_age_counts_from_the_last_use(root: Path) -> None:
    for code in ("old", "used", "new"):
        build(root, code=code.encode(), ir=code)
    build(root, ir="listed")
    age_all(root, 10 * DAY)
    assert Cache(Layout.create(root)).lookup(build_key(ir="used")) is not None
    build(root, code=b"new", ir="new")
    build(root, ir="listed")
    gc.collect()
    collect(root, max_age=5 * DAY)
    cache = Cache(Layout.open(root))
    found = {each: cache.lookup(build_key(ir=each)) is not None for each in ("old", "used", "new")}
    assert found == {"old": False, "used": True, "new": True}
    assert find(root, "tiny", "decode").ir() == "listed"


def test_max_bytes_removes_the_least_recently_used_first(root: Path) -> None:
    size = 100_000
    for index, name in enumerate("abcde"):
        build(root, code=name.encode() * size, ir=name)
        age_all(root, 0)
        folder = {name for name in files(root) if name.startswith(("blobs", "keys"))}
        for each in folder:
            status = (root / each).stat()
            os.utime(root / each, (status.st_mtime - 100, status.st_mtime - 100))
        assert index < 5
    for index, name in enumerate("abcde"):
        key = build_key(ir=name)
        stored = Cache(Layout.open(root)).lookup(key)
        assert stored is not None
        names = [f"blobs/sha256/{each.hex}" for each in stored.digests]
        age(root, (10 - index) * DAY, f"keys/canonical/{key.digest}", *names)
        for path in (root / "keys/inputs").rglob("*"):
            if path.is_file() and stored.manifest_digest.hex in path.read_text():
                age(root, (10 - index) * DAY, path.relative_to(root).as_posix())
    swept = collect(root, max_bytes=2 * size + 50_000)
    assert swept.kept_bytes <= 2 * size + 50_000
    cache = Cache(Layout.open(root))
    there = [name for name in "abcde" if cache.lookup(build_key(ir=name)) is not None]
    assert there == ["d", "e"]
    # What is listed stays, whatever the limit.
    assert collect(root, max_bytes=0).kept_bytes > size
    assert find(root, "tiny", "decode").ir() == "e"


def test_shared_payload_stays_while_one_needs_it(root: Path) -> None:
    build(root, code=b"shared", ir="one")
    build(root, code=b"other", ir="two")
    stored = build(root, "prefill", code=b"shared", ir="three")
    collect(root)
    stored.check()
    assert validate(root) == []


@pytest.mark.parametrize("what", ["index.json", "model index", "manifest"])
def test_damage_that_hides_what_is_needed_stops_it(root: Path, what: str) -> None:
    stored = build(root)
    build(root, "prefill")
    (listed,) = json.loads((root / "index.json").read_bytes())["manifests"]
    digest = stored.manifest_digest if what == "manifest" else Digest.parse(listed["digest"])
    path = root / "index.json" if what == "index.json" else stored.layout.blob_path(digest)
    path.write_bytes(path.read_bytes()[:-1])
    before = files(root)
    with pytest.raises(IntegrityError):
        collect(root)
    assert files(root) == before


@pytest.mark.parametrize("folder", ["blobs/sha256", "keys", "quarantine"])
def test_nothing_is_removed_through_a_link(root: Path, tmp_path: Path, folder: str) -> None:
    build(root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("0" * 64)).write_text("not ours")
    path = root / folder
    if path.exists():
        path.rename(tmp_path / "aside")
    path.symlink_to(outside)
    with pytest.raises(AotcError):
        collect(root)
    assert (outside / ("0" * 64)).read_text() == "not ours"


def test_an_index_of_another_tool_keeps_what_it_leads_to(root: Path) -> None:
    """References to what aotc does not write, as a signature, and an index in an index."""
    stored = build(root)
    layout = Layout.open(root)
    signature = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST_TYPE,
        "artifactType": "application/x",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": "", "size": 2},
        "layers": [{"mediaType": "application/x", "digest": "", "size": 9}],
        "subject": {"mediaType": oci.MANIFEST_TYPE, "digest": stored.descriptor.digest, "size": 1},
    }
    signature["config"]["digest"] = str(layout.write_blob(b"{}"))
    signature["layers"][0]["digest"] = str(layout.write_blob(b"signature"))
    digest = layout.write_blob(json.dumps(signature).encode())
    top = json.loads((root / "index.json").read_bytes())
    nested = {"schemaVersion": 2, "manifests": [_descriptor(layout, digest, oci.MANIFEST_TYPE)]}
    nested_digest = layout.write_blob(json.dumps(nested).encode())
    top["manifests"].append(_descriptor(layout, nested_digest, oci.INDEX_TYPE))
    (root / "index.json").write_text(json.dumps(top))
    before = files(root)
    collect(root)
    assert {name for name in before - files(root) if name.startswith("blobs")} == set()


def _descriptor(layout: Layout, digest: Digest, media_type: str) -> dict[str, Any]:
    size = layout.blob_path(digest).stat().st_size
    return {"mediaType": media_type, "digest": str(digest), "size": size}


def test_what_refers_to_a_program_goes_with_it(root: Path) -> None:
    """A signature neither keeps a program that was replaced, nor outlives it."""
    old, new = build(root, code=b"one", ir="one"), build(root, code=b"two", ir="two")
    layout = Layout.open(root)
    signatures = [
        referrers.make(referrers.ENVELOPE_TYPE, str(each.manifest_digest).encode(), each.descriptor)
        for each in (old, new)
    ]
    assert referrers.attach(layout, signatures) == 2
    assert validate(root) == []
    age_all(root, DAY)
    collect(root, max_age=2 * DAY)  # of the locks only
    before = files(root)
    old.check()
    assert len(list(referrers.find(layout, old.descriptor))) == 1
    collect(root, dry_run=True)
    assert files(root) == before
    collect(root)
    assert validate(root) == []
    assert list(referrers.find(layout, old.descriptor)) == []
    (kept,) = referrers.find(layout, new.descriptor)
    assert kept.content == str(new.manifest_digest).encode()
    blobs = {name.rpartition("/")[2] for name in before - files(root) if "blobs" in name}
    assert {old.manifest_digest.hex, signatures[0].descriptor.blob.hex} <= blobs
    assert signatures[0].manifest.layers[0].blob.hex in blobs
    # One of something that is not there at all.
    with open(root / "index.json", "rb") as file:
        top = json.load(file)
    absent = {**top["manifests"][0], "annotations": {referrers.SUBJECT: "sha256:" + "0" * 64}}
    top["manifests"].append({**absent, "digest": str(old.manifest_digest)})
    (root / "index.json").write_text(json.dumps(top))
    collect(root)
    assert validate(root) == []
    assert len(json.loads((root / "index.json").read_bytes())["manifests"]) == 2


@pytest.mark.parametrize("part", ["manifest", "layer"])
def test_a_damaged_signature_is_found(root: Path, part: str) -> None:
    stored = build(root)
    layout = Layout.open(root)
    signature = referrers.make(referrers.ENVELOPE_TYPE, b"signature", stored.descriptor)
    referrers.attach(layout, [signature])
    found = signature.descriptor if part == "manifest" else signature.manifest.layers[0]
    layout.blob_path(found.blob).write_bytes(b"?" * found.size)
    for problems in (validate(root), validate(root, "tiny")):
        (problem,) = problems
        assert problem.where == f"index.json > referrer to {stored.manifest_digest}"
    collect(root)
    stored.check()


def test_a_build_that_has_not_published_keeps_what_it_has(root: Path) -> None:
    build(root, code=b"old", ir="old")
    build(root, ir="listed")
    age_all(root, DAY)
    running = Layout.create(root)
    cache = Cache(running)
    found = cache.lookup(build_key(ir="old"))  # a day old, and nothing lists it
    assert found is not None
    program = build_program("tiny", "prefill", code=b"new", ir="new")
    written = write_program(running, program)
    collect(root)
    found.check()
    written.check()
    del cache, running, found, written
    gc.collect()
    collect(root)
    assert Cache(Layout.open(root)).lookup(build_key(ir="old")) is None


def test_a_killed_build_keeps_nothing(root: Path, in_child: Callable[..., Any]) -> None:
    build(root, ir="listed")
    collect(root)
    before = files(root)

    def body() -> None:
        layout = Layout.create(root)
        write_program(layout, build_program(code=b"new", ir="new"))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(body) == -signal.SIGKILL
    assert any(name.startswith("locks/lease-") for name in files(root))
    collect(root)
    assert files(root) == before


def test_what_was_collected_before_it_is_published_is_put_back(root: Path) -> None:
    """As where a lease cannot be made, or a file system does not keep it."""
    layout = Layout.create(root)
    stored = write_program(layout, build_program())
    for lease in (root / "locks").glob("lease-*"):
        lease.unlink()
    collect(root)
    with pytest.raises(IntegrityError):
        stored.check()
    publish(layout, "tiny", [stored])
    assert validate(root) == []
    assert find(root, "tiny", "decode").object_bytes() == stored.object_bytes()


def test_a_reader_keeps_what_it_has_found(root: Path) -> None:
    build(root, code=b"one", ir="one")
    found = find(root, "tiny", "decode")
    build(root, code=b"two", ir="two")
    collect(root)
    assert found.object_bytes() == b"one"
    assert found.ir() == "one"
    assert find(root, "tiny", "decode").object_bytes() == b"two"


def test_a_reader_whose_index_is_replaced_under_it_finds_the_new_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the index and each of the blobs it leads to, all is replaced and collected."""
    build(root, code=b"first", ir="first")
    read_blob = Layout.read_blob
    reads = replace_at = 0

    def read(self: Layout, *arguments: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads == replace_at:
            with monkeypatch.context() as patch:
                patch.setattr(Layout, "read_blob", read_blob)
                build(root, code=b"code %d" % replace_at, ir=f"code {replace_at}")
                collect(root)
        return read_blob(self, *arguments)

    monkeypatch.setattr(Layout, "read_blob", read)
    while replace_at <= reads:  # until there is no such read any more
        replace_at += 1
        reads = 0
        found = find(root, "tiny", "decode")
        assert found.object_bytes().decode() == found.ir()
    assert replace_at > 5


def test_usage_adds_up(root: Path) -> None:
    build(root, code=b"one" * 100, ir="one")
    build(root, code=b"two" * 1000, ir="two")
    build(root, "prefill", code=b"two" * 1000, ir="two")
    used = usage(root)
    assert used.total == sum(
        path.stat().st_size
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("oci-layout", "index.json")
    )
    (decode, prefill) = used.programs.values()
    assert decode >= 3000
    assert prefill >= 3000
    assert 3000 < used.listed < decode + prefill
    assert used.unlisted > 300
    collect(root)
    assert usage(root).unlisted == 0


def test_a_store_of_another_user_is_one_error(root: Path, in_child: Callable[..., Any]) -> None:
    build(root, code=b"one", ir="one")
    build(root, code=b"two", ir="two")
    opened = [path for path in root.parents if not path.stat().st_mode & 1]
    modes = [path.stat().st_mode for path in opened]
    for path in opened:
        path.chmod(0o755)

    def body() -> str:
        assert collect(root, dry_run=True).removed_bytes > 0
        try:
            collect(root)
        except StoreError as error:
            return error.message
        return ""

    try:
        before = files(root)
        assert "Permission denied" in in_child(body, user=65534)
        assert files(root) == before
    finally:
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode)


PROCESSES = 16
SECONDS = 6.0


def test_sixteen_processes_and_a_collector(
    root: Path, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    """Each key is compiled once, no read is bad, and the store is sound after."""
    Layout.create(root)
    log = tmp_path / "log"
    log.touch()
    end = time.monotonic() + SECONDS

    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(line + "\n")

    def work(worker: int) -> None:
        choice = random.Random(worker)
        turn = 0
        while time.monotonic() < end:
            turn += 1
            # Some models that all build, and one of its own that changes with every turn.
            shared = choice.random() < 0.6
            name = f"program{choice.randrange(8)}" if shared else f"own{worker}"
            ir = name if shared else f"{worker} {turn}"
            program = build_program("tiny", name, code=ir.encode() * 50, ir=ir)
            warnings: list[str] = []
            layout = Layout.create(root)
            cache = Cache(layout, warnings.append)
            key = BuildKey(program.identity)

            def compile_now(key: BuildKey = key, program: Any = program) -> Any:
                note(f"compiled {key.digest}")
                time.sleep(0.005)
                return program

            built = cache.build_once(key, compile_now)
            publish(layout, "tiny", [built.program], warn=warnings.append)
            assert warnings == [], warnings
            del cache, layout
            found = find(root, "tiny", name)
            assert found.object_bytes() == found.ir().encode() * 50
            if shared:
                assert found.ir() == name
            for entry in list_programs(root)[:3]:
                other = find(root, entry.model, entry.program)
                assert other.object_bytes() == other.ir().encode() * 50
                other.check() if other.program.startswith("program") else None
        note(f"turns {turn}")

    def sweep() -> None:
        removed = 0
        while time.monotonic() < end:
            removed += len(collect(root).removed)
            time.sleep(0.01)
        note(f"removed {removed}")

    bodies: list[Callable[[], None]] = [
        *(lambda worker=worker: work(worker) for worker in range(PROCESSES)),
        sweep,
    ]
    children = []
    for body in bodies:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                body()
                status = 0
            except BaseException:
                import traceback

                note(traceback.format_exc())
            finally:
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    text = log.read_text()
    assert statuses == [0] * len(bodies), text[-3000:]
    compiled = [line for line in text.splitlines() if line.startswith("compiled")]
    assert len(compiled) == len(set(compiled)) > PROCESSES
    assert validate(root) == []
    removed = int(text.partition("removed ")[2].split()[0])
    assert removed > 0
    collect(root)
    assert validate(root) == []
    turns = sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("turns"))
    record_property(
        "total", f"{turns} builds by 16 processes, {len(compiled)} compiled, {removed} removed"
    )
