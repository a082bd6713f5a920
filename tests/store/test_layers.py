"""A private store on top of a shared one that is only read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_programs import build_key, build_program

from aotc.errors import ExitCode
from aotc.program.key import BuildKey
from aotc.store.artifact import LOWER_VARIABLE, find, list_programs, publish
from aotc.store.cache import Built, Cache
from aotc.store.gc import collect
from aotc.store.layout import IntegrityError, Layout, StoreError
from aotc.store.validate import validate

SOURCES = Path("/nonexistent")


class Stores:
    """A store below, and one on top."""

    def __init__(self, folder: Path):
        self.shared = folder / "shared"
        self.private = folder / "private"
        self.warnings: list[str] = []

    def build(self, root: Path, name: str = "decode", ir: str = "one") -> Built:
        layout = Layout.create(root)
        program = build_program("tiny", name, code=ir.encode(), ir=ir)
        built = Cache(layout, self.warnings.append).build_once(
            BuildKey(program.identity), lambda: program
        )
        publish(layout, "tiny", [built.program], warn=self.warnings.append)
        return built


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """Stores of which the shared one is below and has `decode`."""
    made = Stores(tmp_path)
    monkeypatch.delenv(LOWER_VARIABLE, raising=False)
    made.build(made.shared)
    monkeypatch.setenv(LOWER_VARIABLE, str(made.shared))
    return made


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_what_is_below_is_found_before_there_is_a_private_store(stores: Stores) -> None:
    assert find(stores.private, "tiny", "decode").ir() == "one"
    assert [each.program for each in list_programs(stores.private)] == ["decode"]
    assert validate(stores.private, "tiny") == []
    assert not stores.private.exists()


def test_a_build_hits_below_and_writes_nothing_there(stores: Stores) -> None:
    before = contents(stores.shared)
    assert not stores.build(stores.private).compiled
    assert contents(stores.shared) == before
    assert list((stores.private / "blobs/sha256").iterdir()) == []
    assert not (stores.private / "index.json").exists()
    assert find(stores.private, "tiny", "decode").ir() == "one"


def test_what_is_built_on_top_hides_what_is_below(stores: Stores) -> None:
    before = contents(stores.shared)
    assert stores.build(stores.private, ir="two").compiled
    assert stores.build(stores.private, "prefill").compiled
    assert find(stores.private, "tiny", "decode").ir() == "two"
    assert find(stores.shared, "tiny", "decode").ir() == "one"
    assert len(list_programs(stores.private)) == 2
    # Built as it is below again: what hid it goes.
    assert not stores.build(stores.private).compiled
    assert find(stores.private, "tiny", "decode").ir() == "one"
    assert [validate(each, "tiny") for each in (stores.private, stores.shared)] == [[], []]
    assert contents(stores.shared) == before


def test_each_store_is_complete_on_its_own(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shared store holds but lists no longer is copied when it is listed on top."""
    stores.build(stores.shared, ir="two")
    assert not stores.build(stores.private, ir="one").compiled
    monkeypatch.delenv(LOWER_VARIABLE)
    assert validate(stores.private) == []
    assert find(stores.private, "tiny", "decode").ir() == "one"


def test_damage_below_is_built_on_top(stores: Stores) -> None:
    stored = find(stores.shared, "tiny", "decode")
    path = stored.layout.blob_path(stored.digests[0])
    path.write_bytes(b"two")
    with pytest.raises(IntegrityError):
        find(stores.private, "tiny", "decode")
    assert validate(stores.private, "tiny")[0].where.startswith(str(stores.shared))
    before = contents(stores.shared)
    assert stores.build(stores.private).compiled
    assert any(str(stored.digests[0]) in each for each in stores.warnings)
    assert contents(stores.shared) == before
    assert find(stores.private, "tiny", "decode").object_bytes() == b"one"


def test_sources_bound_on_top_to_what_is_below(stores: Stores) -> None:
    cache = Cache(Layout.create(stores.private))
    stored = cache.lookup(build_key(ir="one"))
    assert stored is not None
    inputs = BuildKey({"model": "tiny", "program": "decode", "target": "x86_64_v3"})
    cache.record_inputs(inputs, {"absent.py": None, "gone.py": None}, stored)
    assert cache.lookup_inputs(inputs, SOURCES) is not None
    del cache
    collect(stores.private)
    assert Cache(Layout.create(stores.private)).lookup_inputs(inputs, SOURCES) is not None


def test_several_below_are_looked_into_in_order(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(LOWER_VARIABLE)
    third = tmp_path / "third"
    stores.build(third, ir="hidden")
    stores.build(third, "only")
    monkeypatch.setenv(LOWER_VARIABLE, os.pathsep.join([str(stores.shared), str(third)]))
    assert find(stores.private, "tiny", "decode").ir() == "one"
    assert find(stores.private, "tiny", "only").ir() == "one"


def test_one_below_that_is_not_there_is_an_error(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOWER_VARIABLE, str(tmp_path / "unmounted"))
    for act in (
        lambda: find(stores.private, "tiny", "decode"),
        lambda: stores.build(stores.private),
    ):
        with pytest.raises(StoreError, match=r"no store in .*unmounted") as caught:
            act()
        assert caught.value.exit_code == ExitCode.ENVIRONMENT
