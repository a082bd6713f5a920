"""A build happens when, and only when, no sound program of its key is there."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc.program.key import BuildKey, text_digest
from aotc.program.model import OBJECT_TYPE, DistributedCompiledProgram
from aotc.store.artifact import find, publish
from aotc.store.cache import Built, Cache
from aotc.store.layout import Layout, StoreError
from aotc.store.validate import validate

Make = Callable[..., Any]


class Setup:
    """A store, a source folder, and a build that counts its runs."""

    def __init__(self, folder: Path, make_program: Make, make_key: Make):
        self.root = folder / "store"
        self.sources = folder / "sources"
        self.sources.mkdir(parents=True)
        (self.sources / "kernels").mkdir()
        (self.sources / "wrappers.py").write_text("wrapper")
        (self.sources / "kernels" / "decode.py").write_text("kernel")
        self.warnings: list[str] = []
        self.cache = Cache(Layout.create(self.root), self.warnings.append)
        self.program: DistributedCompiledProgram = make_program()
        self.canonical: BuildKey = make_key()
        self.inputs = BuildKey(
            {"model": "tiny", "program": "decode", "target": "x86_64_v3", "compiler": "1"}
        )
        self.builds = 0

    def build(self) -> DistributedCompiledProgram:
        self.builds += 1
        return self.program

    def build_once(self) -> Built:
        return self.cache.build_once(self.canonical, self.build)

    def read(self, *names: str) -> dict[str, str | None]:
        return {
            name: text_digest(path.read_bytes()) if (path := self.sources / name).exists() else None
            for name in names
        }


@pytest.fixture
def setup(tmp_path: Path, make_program: Make, make_key: Make) -> Setup:
    return Setup(tmp_path, make_program, make_key)


NAMES = ("wrappers.py", "kernels/decode.py", "kernels/__init__.py")


def test_the_second_build_is_a_hit(setup: Setup) -> None:
    assert setup.cache.lookup(setup.canonical) is None
    first, second = setup.build_once(), setup.build_once()
    assert (first.compiled, second.compiled, setup.builds) == (True, False, 1)
    assert first.program.manifest_digest == second.program.manifest_digest
    assert second.program.object_bytes() == setup.program.content(OBJECT_TYPE)
    assert setup.warnings == []


def test_another_key_builds_again(setup: Setup, make_program: Make, make_key: Make) -> None:
    setup.build_once()
    assert setup.cache.lookup(make_key(flags=("-O2",))) is None
    assert setup.cache.lookup(make_key(name="prefill")) is None


def test_unchanged_sources_hit_without_the_front_end(setup: Setup) -> None:
    assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is None
    stored = setup.build_once().program
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), stored)
    hit = setup.cache.lookup_inputs(setup.inputs, setup.sources)
    assert hit is not None
    assert hit.manifest_digest == stored.manifest_digest
    for path in setup.sources.rglob("*.py"):
        os.utime(path, (1, 1))  # a time is nothing to go by
    assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is not None
    other = BuildKey({**setup.inputs.components, "compiler": "2"})
    assert setup.cache.lookup_inputs(other, setup.sources) is None


@pytest.mark.parametrize("change", ["edited", "same size and time", "removed", "added", "folder"])
def test_a_changed_source_misses_until_it_is_back(setup: Setup, change: str) -> None:
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), setup.build_once().program)
    path = setup.sources / "kernels" / "decode.py"
    status = path.stat()
    match change:
        case "edited":
            path.write_text("kernel # a comment")
        case "same size and time":
            path.write_text("kernal")
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "removed":
            path.unlink()
        case "added":
            (path.parent / "__init__.py").write_text("")
        case "folder":
            path.unlink()
            path.mkdir()
    assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is None
    # A changed comment gives the same IR, so level two hits.
    assert not setup.build_once().compiled
    if change in ("edited", "same size and time"):
        path.write_text("kernel")
        assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is not None


def test_the_store_and_the_sources_may_move(setup: Setup, tmp_path: Path) -> None:
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), setup.build_once().program)
    setup.root.rename(tmp_path / "moved store")
    setup.sources.rename(tmp_path / "moved sources")
    cache = Cache(Layout.open(tmp_path / "moved store"))
    assert cache.lookup_inputs(setup.inputs, tmp_path / "moved sources") is not None
    for path in (tmp_path / "moved store").rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes()


def test_many_edits_keep_the_newest_sources(setup: Setup) -> None:
    stored = setup.build_once().program
    for edit in range(40):
        (setup.sources / "wrappers.py").write_text(str(edit))
        setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), stored)
    folder = setup.root / "keys" / "inputs" / setup.inputs.digest
    assert len(list(folder.iterdir())) == 16
    assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is not None


@pytest.mark.parametrize("name", ["/etc/passwd", "a/..", "a/../b.py", "./a.py"])
def test_files_are_named_relative_to_the_source_root(setup: Setup, name: str) -> None:
    stored = setup.build_once().program
    with pytest.raises(ValueError, match="not relative to the source root"):
        setup.cache.record_inputs(setup.inputs, {name: None}, stored)


def test_a_failed_build_is_not_kept(setup: Setup) -> None:
    def fail() -> DistributedCompiledProgram:
        raise RuntimeError("the compiler said no")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="the compiler said no"):
            setup.cache.build_once(setup.canonical, fail)
    assert list((setup.root / "blobs" / "sha256").iterdir()) == []
    assert setup.build_once().compiled


def test_a_program_of_another_key_is_not_stored(setup: Setup, make_key: Make) -> None:
    with pytest.raises(ValueError, match="not the one of the key"):
        setup.cache.build_once(make_key(ir="another"), setup.build)


@pytest.mark.parametrize("part", ["manifest", "config", "object", "ir", "source"])
@pytest.mark.parametrize("damage", ["flipped", "missing", "empty"])
def test_a_damaged_blob_is_reported_set_aside_and_rebuilt(
    setup: Setup, part: str, damage: str
) -> None:
    stored = setup.build_once().program
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), stored)
    publish(setup.cache.layout, "tiny", [stored])
    layers = dict(zip(("object", "ir", "source"), stored.manifest.layers, strict=True))
    parts = {"manifest": stored.descriptor, "config": stored.manifest.config, **layers}
    digest = parts[part].blob
    path = setup.cache.layout.blob_path(digest)
    sound = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 4]))
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
    assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is None
    (warning,) = setup.warnings
    assert str(digest) in warning
    assert not path.exists()
    assert (setup.root / "quarantine" / digest.hex).exists() == (damage != "missing")
    assert setup.build_once().compiled
    assert setup.builds == 2
    assert path.read_bytes() == sound
    assert validate(setup.root) == []
    assert find(setup.root, "tiny", "decode").object_bytes() == setup.program.content(OBJECT_TYPE)


def test_a_blob_that_was_repaired_meanwhile_is_put_back(setup: Setup) -> None:
    stored = setup.build_once().program
    digest = stored.manifest.layers[0].blob
    setup.cache.layout.set_blob_aside(digest)
    assert setup.cache.layout.read_blob(digest) == setup.program.content(OBJECT_TYPE)


@pytest.mark.parametrize("level", ["inputs", "canonical"])
@pytest.mark.parametrize("damage", [b"", b"{}", b"[" * 100_000, b"flip"])
def test_a_damaged_key_is_a_reported_miss(setup: Setup, level: str, damage: bytes) -> None:
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), setup.build_once().program)
    (path,) = [each for each in (setup.root / "keys" / level).rglob("*") if each.is_file()]
    if damage == b"flip":
        text = path.read_bytes()
        damage = text.replace(b'"digest":"sha256:', b'"digest":"sha256:0')
        assert damage != text
    path.write_bytes(damage)
    if level == "inputs":
        assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is None
    else:
        assert setup.cache.lookup(setup.canonical) is None
        assert setup.build_once().compiled
    assert len(setup.warnings) == 1
    assert str(path) in setup.warnings[0]


def test_a_key_bound_to_another_program_is_a_miss(
    setup: Setup, make_key: Make, make_program: Make
) -> None:
    setup.build_once()
    other = make_key("other")
    Cache(setup.cache.layout).build_once(other, lambda: make_program("other"))
    keys = setup.root / "keys" / "canonical"
    text = (keys / setup.canonical.digest).read_bytes()
    wrong = (keys / other.digest).read_bytes()
    descriptor = wrong[wrong.index(b'"manifest"') :]
    (keys / setup.canonical.digest).write_bytes(text[: text.index(b'"manifest"')] + descriptor)
    assert setup.cache.lookup(setup.canonical) is None
    assert "leads to other decode x86_64_v3" in setup.warnings[0]
    assert setup.build_once().compiled


@pytest.mark.parametrize("change", ["of another key", "edited"])
def test_sources_bound_to_the_wrong_program_are_a_miss(setup: Setup, change: str) -> None:
    stored = setup.build_once().program
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), stored)
    keys = setup.root / "keys" / "inputs"
    (entry,) = (keys / setup.inputs.digest).iterdir()
    wanted = setup.inputs
    if change == "of another key":
        wanted = BuildKey({**setup.inputs.components, "compiler": "2"})
        (keys / wanted.digest).mkdir()
        entry = entry.rename(keys / wanted.digest / entry.name)
    else:
        (setup.sources / "wrappers.py").write_text("other")
        old, new = text_digest("wrapper").encode(), text_digest("other").encode()
        entry.write_bytes(entry.read_bytes().replace(old, new))
    assert setup.cache.lookup_inputs(wanted, setup.sources) is None
    assert len(setup.warnings) == 1
    assert not entry.exists()


def test_an_unreadable_source_is_a_miss(setup: Setup) -> None:
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), setup.build_once().program)
    path = setup.sources / "wrappers.py"
    path.unlink()
    path.symlink_to(path)  # a loop
    assert setup.cache.lookup_inputs(setup.inputs, setup.sources) is None


def test_what_builds_depended_on_is_remembered(setup: Setup) -> None:
    assert list(setup.cache.inputs("tiny", "decode")) == []
    stored = setup.build_once().program
    files, texts = (
        setup.read(*NAMES),
        {"wrappers.py": "wrapper", "kernels/decode.py": "k\u00e4rnel"},
    )
    setup.cache.record_inputs(setup.inputs, files, stored, texts)
    (found,) = setup.cache.inputs("tiny", "decode")
    assert (found.components, found.files) == (setup.inputs.components, files)
    assert (found.texts, found.manifest) == (texts, stored.descriptor)
    assert list(setup.cache.inputs("tiny", "prefill")) == []


def test_concurrent_builds_of_a_key_compile_once(setup: Setup, tmp_path: Path) -> None:
    log = tmp_path / "log"
    children = []

    def build() -> DistributedCompiledProgram:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.2)
        return setup.program

    for _ in range(6):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                built = setup.cache.build_once(setup.canonical, build)
                built.program.check()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert log.read_text() == "built\n"


def test_a_killed_builder_holds_up_nobody(setup: Setup, in_child: Make) -> None:
    def body() -> None:
        setup.cache.build_once(setup.canonical, lambda: os.kill(os.getpid(), signal.SIGKILL))

    assert in_child(body) == -signal.SIGKILL
    assert setup.build_once().compiled


def test_a_store_without_write_permission_hits_and_does_not_build(
    tmp_path: Path, setup: Setup, in_child: Make
) -> None:
    stored = setup.build_once().program
    setup.cache.record_inputs(setup.inputs, setup.read(*NAMES), stored)
    folders = [setup.root, *(path for path in setup.root.rglob("*") if path.is_dir())]
    # Pytest's folders are closed to others: open the way for the child's user.
    foreign = os.getuid() == 0
    closed = [path for path in setup.root.parents if foreign and not path.stat().st_mode & 1]
    modes = [(path, path.stat().st_mode) for path in [*folders, *closed]]
    missing = BuildKey({**setup.canonical.components, "ir": "another"})

    def body() -> Any:
        hit = setup.cache.lookup_inputs(setup.inputs, setup.sources)
        assert hit is not None
        assert not setup.build_once().compiled
        try:
            setup.cache.build_once(missing, setup.build)
        except StoreError as error:
            return hit.manifest_digest, error.message, error.hint, setup.builds
        return None

    try:
        for path in closed:
            path.chmod(0o755)
        for path in folders:
            path.chmod(0o555)
        found = in_child(body, user=65534)
    finally:
        for path, mode in modes:
            path.chmod(mode)
    message = f"cannot lock the store in {setup.root}: Permission denied"
    hint = "choose a store that this user may write"
    assert found == (stored.manifest_digest, message, hint, 1)


def test_a_full_disk_is_one_error_and_no_key(setup: Setup, in_child: Make) -> None:
    def body() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            setup.build_once()
        except StoreError as error:
            return error.message
        return ""

    assert in_child(body).endswith("File too large")
    assert list((setup.root / "blobs" / "sha256").iterdir()) == []
    assert setup.cache.lookup(setup.canonical) is None
    assert setup.build_once().compiled
