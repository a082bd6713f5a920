"""`aotc.lock`: deterministic, strict, and never less than it was."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aotc import lock
from aotc.errors import AotcError, ExitCode
from aotc.lock import LOCK_FILE, Entry, LockFileError, NotLockedError
from aotc.program.key import canonical_key
from aotc.program.model import DistributedCompiledProgram, machine_code
from aotc.store.artifact import StoredProgram, write_program
from aotc.store.layout import Layout


def make(
    folder: Path,
    model: str = "tiny",
    name: str = "decode",
    target: str = "x86_64_v3",
    ir: str = "ir",
) -> StoredProgram:
    """Store a program that is nothing but its names and `ir`."""
    contract = b'{"name":"' + name.encode() + b'"}'
    key = canonical_key(
        model=model,
        program=name,
        contract=contract,
        ir=ir,
        target=target,
        toolchain="clang 1 sha256=00",
        flags=("-O3",),
        abi_version=1,
        environment={},
        compiler="0" * 64,
    )
    program = DistributedCompiledProgram(
        model, name, target, 1, contract, machine_code(b"object", ir, "source"), key.components
    )
    return write_program(Layout.create(folder / "store"), program)


def names(stored: StoredProgram) -> lock.Program:
    return stored.model, stored.program, stored.target


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert lock.read(tmp_path) == {}
    stored = [make(tmp_path), make(tmp_path, target="aarch64"), make(tmp_path, name="prefill")]
    assert lock.update(tmp_path, stored, {"tiny": ["decode", "prefill"]})
    assert lock.read(tmp_path) == {names(each): Entry.of(each) for each in stored}
    assert [path.name for path in tmp_path.glob("*lock*")] == [LOCK_FILE]
    entry = json.loads((tmp_path / LOCK_FILE).read_text())["models"]["tiny"]["decode"]["aarch64"]
    assert entry["artifact"] == str(stored[1].manifest_digest)
    assert entry["components"]["toolchain"] == "clang 1 sha256=00"
    assert entry["components"]["compiler"] == "0" * 64
    assert str(tmp_path) not in (tmp_path / LOCK_FILE).read_text()


def test_equal_builds_write_equal_bytes_in_any_order(tmp_path: Path) -> None:
    stored = [make(tmp_path), make(tmp_path, target="aarch64"), make(tmp_path, model="other")]
    for folder, order in (("a", stored), ("b", stored[::-1])):
        (tmp_path / folder).mkdir()
        for each in order:
            lock.update(tmp_path / folder, [each], {})
    first, second = ((tmp_path / each / LOCK_FILE).read_bytes() for each in "ab")
    assert first == second
    assert not lock.update(tmp_path / "a", stored, {})
    assert (tmp_path / "a" / LOCK_FILE).read_bytes() == first


def test_a_change_of_one_program_is_a_small_diff(tmp_path: Path) -> None:
    lock.update(tmp_path, [make(tmp_path), make(tmp_path, name="prefill")], {})
    before = (tmp_path / LOCK_FILE).read_text().splitlines()
    lock.update(tmp_path, [make(tmp_path, ir="other")], {})
    after = (tmp_path / LOCK_FILE).read_text().splitlines()
    changed = [new.split()[0] for old, new in zip(before, after, strict=True) if old != new]
    assert changed == ['"artifact":', '"ir":', '"key":']


def test_the_entries_of_others_stay_but_not_what_the_config_dropped(tmp_path: Path) -> None:
    other, arm = make(tmp_path, model="other"), make(tmp_path, target="aarch64")
    lock.update(tmp_path, [make(tmp_path, name="old"), make(tmp_path), other, arm], {})
    changed = make(tmp_path, ir="changed")
    lock.update(tmp_path, [changed], {"tiny": ["decode"]})
    assert lock.read(tmp_path) == {names(each): Entry.of(each) for each in (other, arm, changed)}


def _damage_key(text: str) -> str:
    key = json.loads(text)["models"]["tiny"]["decode"]["x86_64_v3"]["key"]
    return text.replace(key, "1" * 64)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-9], "is not a lock file: "),
        (lambda text: "", "is not a lock file: "),
        (lambda text: "[" * 10000, "is not a lock file: "),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "has schema 2"),
        (lambda text: text.replace('"key"', '"kee"'), "is not a lock file: "),
        (_damage_key, "the key is not that of its components"),
        (lambda text: text.replace('"-O3', '"-O2').replace("-O3", "-O2"), "the key is not that"),
        (lambda text: text.replace("sha256:", "sha512:"), "not a sha256 digest"),
        (lambda text: text.replace("  ", "   "), "is not in the form that aotc writes"),
        (lambda text: text.replace('"schema": 1', '"schema": 1, "schema": 1'), "not in the form"),
    ],
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, damage: Callable[[str], str], message: str
) -> None:
    lock.update(tmp_path, [make(tmp_path)], {})
    path = tmp_path / LOCK_FILE
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    for act in (lock.read, lambda folder: lock.update(folder, [make(tmp_path)], {})):
        with pytest.raises(LockFileError, match=message) as caught:
            act(tmp_path)
        assert caught.value.exit_code is ExitCode.UNVERIFIABLE
    assert path.read_text() == damaged


def test_require(tmp_path: Path) -> None:
    stored = make(tmp_path)
    locked = {names(stored): Entry.of(stored)}
    lock.require(locked, stored)
    with pytest.raises(NotLockedError, match=r"tiny/decode for aarch64 is not in aotc\.lock"):
        lock.require(locked, make(tmp_path, target="aarch64"))
    with pytest.raises(NotLockedError, match=r"is not what aotc.lock has\n  ir: locked ") as caught:
        lock.require(locked, make(tmp_path, ir="other"))
    assert caught.value.exit_code is ExitCode.STALE
    assert "\n  artifact: locked sha256:" in caught.value.message


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock.update(tmp_path, [make(tmp_path)], {})
    before = (tmp_path / LOCK_FILE).read_bytes()
    other = make(tmp_path, ir="other")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(AotcError, match=r"cannot write .*aotc\.lock: No space left on device"):
        lock.update(tmp_path, [other], {})
    assert (tmp_path / LOCK_FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if "lock" in path.name] == [LOCK_FILE]


def _update(folder: Path, number: int) -> None:
    lock.update(folder, [make(folder / str(number), model=f"model{number}")], {})


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_update, args=(tmp_path, number)) for number in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert {model for model, _, _ in lock.read(tmp_path)} == {f"model{n}" for n in range(4)}
