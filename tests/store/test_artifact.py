"""Programs are published under their model, and found again with the same bytes."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aotc.errors import AotcError, ExitCode
from aotc.program.model import OBJECT_TYPE
from aotc.store import oci
from aotc.store.artifact import (
    Entry,
    NotFoundError,
    StoredProgram,
    find,
    list_programs,
    publish,
    write_program,
)
from aotc.store.digest import Digest
from aotc.store.layout import IntegrityError, Layout, StoreError
from aotc.store.validate import validate

Make = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def add(make_program: Make) -> Callable[..., StoredProgram]:
    """Return a function that writes and publishes one program."""

    def run(root: Path, model: str = "tiny", name: str = "decode", **rest: Any) -> StoredProgram:
        layout = Layout.create(root)
        stored = write_program(layout, make_program(model, name, **rest))
        publish(layout, model, [stored])
        return stored

    return run


def contents(root: Path) -> dict[str, bytes]:
    """Return what a store holds, but its locks."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.parent.name != "locks"
    }


def test_round_trip(root: Path, add: Make, make_program: Make) -> None:
    written = add(root)
    program = make_program()
    found = find(root, "tiny", "decode")
    assert found.manifest_digest == written.manifest_digest
    assert (found.model, found.program, found.target) == ("tiny", "decode", "x86_64_v3")
    assert found.abi_version == 1
    assert found.record.ranks == 1
    assert found.contract_json == program.contract
    assert found.object_bytes() == program.content(OBJECT_TYPE)
    assert found.layers() == program.layers

    assert found.record.identity == dict(program.identity)
    assert found.built_by == "aotc 0.1.0 with clang 1 sha256:00"
    assert validate(root) == []


def test_the_documents_are_those_of_the_image_specification(root: Path, add: Make) -> None:
    add(root)
    top = json.loads((root / "index.json").read_bytes())
    assert top["schemaVersion"] == 2
    (listed,) = top["manifests"]
    assert listed["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert listed["annotations"] == {"org.opencontainers.image.ref.name": "tiny"}
    layout = Layout.open(root)
    index = json.loads(layout.read_blob(Digest.parse(listed["digest"]), listed["size"]))
    (program,) = index["manifests"]
    assert program["platform"] == {"architecture": "amd64", "os": "linux", "variant": "v3"}
    assert program["annotations"] == {"dev.aotc.program": "decode"}
    manifest = json.loads(layout.read_blob(Digest.parse(program["digest"]), program["size"]))
    assert manifest["config"]["mediaType"] == "application/vnd.aotc.program.config.v1+json"
    assert [layer["mediaType"] for layer in manifest["layers"]] == [
        "application/vnd.aotc.object.v1",
        "application/vnd.aotc.ir.v1+text",
        "application/vnd.aotc.source.v1+c",
    ]


def test_equal_programs_give_equal_stores(tmp_path: Path, add: Make) -> None:
    stores = []
    for name, order in (("a", ["prefill", "decode"]), ("b/c", ["decode", "prefill"])):
        for program in order:
            add(tmp_path / name, name=program)
        stores.append(contents(tmp_path / name))
    reachable = [
        {name: text for name, text in each.items() if name in used(tmp_path / folder)}
        for folder, each in zip(("a", "b/c"), stores, strict=True)
    ]
    # The order leaves another superseded index behind, and nothing else.
    assert reachable[0] == reachable[1]
    before = contents(tmp_path / "a")
    add(tmp_path / "a", name="decode")
    assert contents(tmp_path / "a") == before


def used(root: Path) -> set[str]:
    """Return the files that can be reached from `index.json`, by an independent walk."""
    found = {"oci-layout", "index.json"}
    pending = [json.loads((root / "index.json").read_bytes())]
    while pending:
        document = pending.pop()
        for each in [
            *document.get("manifests", []),
            *document.get("layers", []),
            *([document["config"]] if "config" in document else []),
        ]:
            name = "blobs/" + each["digest"].replace(":", "/")
            found.add(name)
            if "manifest" in each["mediaType"] or "index" in each["mediaType"]:
                pending.append(json.loads((root / name).read_bytes()))
    return found


def test_payload_is_shared_and_records_are_not(root: Path, add: Make) -> None:
    first, second = add(root, "one"), add(root, "two")
    assert first.manifest.layers == second.manifest.layers
    assert first.manifest.config.digest != second.manifest.config.digest
    assert find(root, "one", "decode").model == "one"
    assert find(root, "two", "decode").model == "two"


def test_publishing_keeps_what_it_does_not_replace(root: Path, add: Make) -> None:
    add(root, name="decode")
    add(root, name="decode", target="aarch64")
    add(root, name="prefill")
    add(root, "other")
    replaced = add(root, name="decode", code=b"new")
    assert list_programs(root) == [
        Entry("other", "decode", "x86_64_v3"),
        Entry("tiny", "decode", "aarch64"),
        Entry("tiny", "decode", "x86_64_v3"),
        Entry("tiny", "prefill", "x86_64_v3"),
    ]
    found = find(root, "tiny", "decode", "x86_64_v3")
    assert found.object_bytes() == b"new"
    publish(Layout.open(root), "tiny", [replaced], declared=["decode"])
    assert {entry.program for entry in list_programs(root) if entry.model == "tiny"} == {"decode"}
    assert validate(root) == []


def test_a_program_is_not_published_under_another_model(root: Path, add: Make) -> None:
    stored = add(root, "one")
    with pytest.raises(ValueError, match="another model"):
        publish(Layout.open(root), "two", [stored])


@pytest.mark.parametrize(
    ("model", "program", "target", "message", "hint"),
    [
        ("tyny", "decode", None, "no model `tyny` in", "did you mean `tiny`?"),
        ("xyz", "decode", None, "no model `xyz` in", "models in"),
        ("tiny", "decod", None, "no program `decod` in `tiny`", "did you mean `decode`?"),
        ("tiny", "q", None, "no program `q` in `tiny`", "programs in `tiny`: both, decode"),
        (
            *("tiny", "decode", ["x86_64_v4", "x86_64_v3"]),
            "`decode` of `tiny` is there for aarch64, wanted for x86_64_v4 or x86_64_v3",
            "build it for x86_64_v4",
        ),
        ("tiny", "both", None, "`both` of `tiny` is there for several targets", "name one"),
    ],
)
def test_what_is_not_there(
    root: Path, add: Make, model: str, program: str, target: Any, message: str, hint: str
) -> None:
    add(root, target="aarch64")
    add(root, name="both", target="aarch64")
    add(root, name="both")
    with pytest.raises(NotFoundError) as caught:
        find(root, model, program, target)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == ExitCode.INPUT


def test_the_best_wanted_target_is_taken(root: Path, add: Make) -> None:
    for target in ("x86_64_v3", "x86_64_v4", "aarch64"):
        add(root, target=target)
    assert find(root, "tiny", "decode", ["x86_64_v4", "x86_64_v3"]).target == "x86_64_v4"
    assert find(root, "tiny", "decode", "x86_64_v3").target == "x86_64_v3"


def test_an_empty_store(root: Path) -> None:
    Layout.create(root)
    assert list_programs(root) == []
    assert validate(root) == []
    with pytest.raises(NotFoundError, match="no model `tiny`") as caught:
        find(root, "tiny", "decode")
    assert (caught.value.hint or "").endswith(": none")


def test_an_unknown_target_is_not_written(root: Path, make_program: Make) -> None:
    with pytest.raises(AotcError, match="unknown target `mips`"):
        write_program(Layout.create(root), make_program(target="mips"))


def test_a_damaged_index_is_refused_and_repaired(root: Path, add: Make) -> None:
    stored = add(root)
    (root / "index.json").write_bytes(b'{"manifests":')
    with pytest.raises(IntegrityError, match=r"index\.json is not valid"):
        find(root, "tiny", "decode")
    warnings: list[str] = []
    publish(Layout.open(root), "tiny", [stored], warn=warnings.append)
    assert len(warnings) == 1
    assert "index.json" in warnings[0]
    assert (root / "quarantine" / "index.json").read_bytes() == b'{"manifests":'
    assert find(root, "tiny", "decode").object_bytes() == stored.object_bytes()


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_damaged_model_index_is_repaired(root: Path, add: Make, damage: bytes | None) -> None:
    stored = add(root)
    add(root, "other")
    (listed,) = [
        each
        for each in json.loads((root / "index.json").read_bytes())["manifests"]
        if each["annotations"][oci.REFERENCE_NAME] == "tiny"
    ]
    path = Layout(root).blob_path(Digest.parse(listed["digest"]))
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    assert validate(root) != []
    warnings: list[str] = []
    publish(Layout.open(root), "tiny", [stored], warn=warnings.append)
    assert len(warnings) == 1
    assert validate(root) == []
    assert len(list_programs(root)) == 2


@pytest.fixture
def as_nobody(in_child: Make) -> Iterator[tuple[Path, Callable[[Callable[[], Any]], Any]]]:
    """Give a store path and a function that runs another without write permission to it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        store = Path(name) / "store"

        def run(body: Callable[[], Any]) -> Any:
            folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
            for folder in folders:
                folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
            try:
                return in_child(body, user=65534)
            finally:
                for folder in folders:
                    folder.chmod(0o755)

        yield store, run


def test_a_read_only_store_is_read_and_not_written(
    as_nobody: Any, add: Make, make_program: Make
) -> None:
    root, run = as_nobody
    stored = add(root)

    def body() -> list[Any]:
        found = find(root, "tiny", "decode")
        found.check()
        layout = Layout.create(root)
        publish(layout, "tiny", [found])  # listed already
        errors = []
        for write in (
            lambda: write_program(layout, make_program(code=b"new")),
            lambda: publish(layout, "renamed", []),
        ):
            try:
                write()
            except StoreError as error:
                errors.append((error.message, error.hint))
        return [found.manifest_digest, validate(root), errors]

    before = contents(root)
    digest, problems, errors = run(body)
    assert digest == stored.manifest_digest
    assert problems == []
    assert len(errors) == 2
    for message, hint in errors:
        assert message.endswith("Permission denied")
        assert hint == "choose a store that this user may write"
    assert contents(root) == before


def test_a_path_under_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Not a directory"):
        Layout.create(tmp_path / "file" / "store")
    with pytest.raises(StoreError, match="Not a directory"):
        find(tmp_path / "file" / "store", "tiny", "decode")


def test_no_room_leaves_the_store_as_it_was(
    root: Path, add: Make, make_program: Make, in_child: Make
) -> None:
    add(root)
    before = contents(root)

    def body() -> tuple[str, str | None]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            # The object comes first: what had room before it must not stay behind either.
            write_program(Layout.create(root), make_program(code=bytes(50_000), ir="x" * 200_000))
        except StoreError as error:
            return error.message, error.hint
        return "", None

    message, hint = in_child(body)
    assert message == f"cannot write to the store in {root}: File too large"
    assert hint == "make room, or choose another store"
    assert contents(root) == before


def test_killed_at_any_step_leaves_a_working_store(
    root: Path, add: Make, make_program: Make, in_child: Make
) -> None:
    steps = ("mkdir", "fsync", "replace", "fchmod", "open")
    add(root, "other")
    step = 0
    outcome = -signal.SIGKILL
    while outcome == -signal.SIGKILL:
        step += 1

        def body(last: int = step) -> str:
            count = 0

            def counted(call: Callable[..., Any]) -> Callable[..., Any]:
                def run(*arguments: Any, **named: Any) -> Any:
                    nonlocal count
                    count += 1
                    if count == last:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return call(*arguments, **named)

                return run

            for name in steps:
                setattr(os, name, counted(getattr(os, name)))
            add(root, code=f"code {last}".encode())
            return "done"

        outcome = in_child(body)
        assert validate(root) == []
        assert find(root, "other", "decode").object_bytes() == make_program().content(OBJECT_TYPE)
        assert list_programs(root)[0].model == "other"
    assert outcome == "done"
    assert step > 25
    assert find(root, "tiny", "decode").object_bytes() == f"code {step}".encode()
    leftovers = list((root / "staging").iterdir())
    assert leftovers
    for path in leftovers:
        os.utime(path, (0, 0))
    Layout.create(root)
    assert list((root / "staging").iterdir()) == []


def test_concurrent_publishing_loses_nothing(root: Path, add: Make, make_program: Make) -> None:
    Layout.create(root)
    children = []
    for model in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for program in range(5):
                    add(root, f"model{model}", f"program{program}")
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert list_programs(root) == [
        Entry(f"model{model}", f"program{program}", "x86_64_v3")
        for model in range(6)
        for program in range(5)
    ]
    assert validate(root) == []


def test_reading_imports_no_compiler_yaml_or_lock(root: Path, add: Make) -> None:
    add(root)
    script = (
        "import sys; from pathlib import Path; from aotc.store import artifact, validate\n"
        "artifact.find(Path(sys.argv[1]), 'tiny', 'decode').object_bytes()\n"
        "validate.validate(Path(sys.argv[1]))\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    ours = {name.split(".")[1] for name in loaded if name.startswith("aotc.")}
    assert ours <= {"errors", "expression", "contract", "dtypes", "program", "store"}
    assert not loaded & {"yaml", "torch", "numpy", "filelock", "aotc.program.key"}
