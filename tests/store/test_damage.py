"""Any flipped bit that can be reached is found and refused, up to the loader; none crashes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aotc.cli.main import main
from aotc.errors import AotcError
from aotc.program.key import BuildKey
from aotc.runtime.host import Host
from aotc.runtime.loader import load
from aotc.store.artifact import find
from aotc.store.cache import Cache
from aotc.store.gc import collect
from aotc.store.layout import Layout
from aotc.store.validate import validate

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from small_model import WRAPPERS, Project

FLIPS = 10_000  # that can be reached, in two tests; and a tenth of that elsewhere
PROGRAMS = ("twice", "square")

pytestmark = pytest.mark.skipif(not Host.current().targets(), reason="no target runs here")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A model that was built, edited and built again: its store has unlisted programs too."""
    project = Project(tmp_path_factory.mktemp("project"))
    for wrappers in (WRAPPERS.replace("pl.add(x, x)", "pl.sub(x, x)"), WRAPPERS):
        project.write_model(wrappers=wrappers)
        assert main(["build", "small", "--models-dir", str(project.models), "--quiet"]) == 0
    return project


def reachable(root: Path, *, referrers: bool = False) -> set[Path]:
    """Return the files of the listed programs, by a walk of its own.

    With `referrers`, also those of what refers to programs, which a loader does not read.
    """
    found = {root / "index.json", root / "oci-layout"}
    top = json.loads((root / "index.json").read_bytes())
    name = "org.opencontainers.image.ref.name"
    listed = [each for each in top["manifests"] if referrers or name in each["annotations"]]
    pending = [{"manifests": listed}]
    while pending:
        document = pending.pop()
        config = [document["config"]] if "config" in document else []
        for each in [*document.get("manifests", []), *document.get("layers", []), *config]:
            path = root / "blobs" / each["digest"].replace(":", "/")
            found.add(path)
            if "image" in each["mediaType"]:
                pending.append(json.loads(path.read_bytes()))
    return found


def is_refused(act: Callable[[], Any]) -> bool:
    try:
        act()
    except AotcError:
        return True
    return False


def is_sound(root: Path) -> bool:
    """Whether `validate` finds nothing; without a store, or its marker, it has nothing to list."""
    try:
        return validate(root) == []
    except AotcError:
        return False


@pytest.mark.parametrize("half", [1, 2])
def test_ten_thousand_flipped_bits(
    project: Project, half: int, record_property: Callable[[str, str], None]
) -> None:
    root = project.store
    listed = reachable(root)
    referring = reachable(root, referrers=True) - listed
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    assert listed < set(files)
    targets = Host.current().targets()
    programs = [find(root, "small", name, targets) for name in PROGRAMS]
    keys = [BuildKey(each.record.identity) for each in programs]
    sound_digests = {each.program: each.manifest_digest for each in programs}
    contents = {path: path.read_bytes() for path in files}
    choice = random.Random(half)
    found = unreachable = 0
    others = [path for path in files if path not in listed]
    while found < FLIPS // 2:
        path = choice.choice(others if choice.random() < 0.1 else sorted(listed))
        with open(path, "r+b", buffering=0) as file:
            position = choice.randrange(os.fstat(file.fileno()).st_size)
            file.seek(position)
            (sound,) = file.read(1)
            bit = 1 << choice.randrange(8)
            file.seek(position)
            file.write(bytes([sound ^ bit]))
            where = f"{path.relative_to(root)} byte {position} bit {bit}"
            refused = [
                is_refused(lambda name=name: find(root, "small", name, targets))
                for name in PROGRAMS
            ]
            if path in listed:
                found += 1
                assert not is_sound(root), where
                # A bit of an entry of `index.json` for a signature does not touch the programs.
                assert any(refused) or (
                    path.name == "index.json"
                    and all(
                        find(root, "small", name, targets).manifest_digest == digest
                        for name, digest in sound_digests.items()
                    )
                ), where
                for name, each in zip(PROGRAMS, refused, strict=True):
                    if each:
                        assert is_refused(lambda name=name: load("small", name, root)), where
            else:
                unreachable += 1
                assert refused == [False, False], where
                assert is_sound(root) == (path not in referring), where
                if "keys" in path.parts:
                    warnings: list[str] = []
                    cache = Cache(Layout.open(root), warnings.append)
                    hits = [cache.lookup(key) for key in keys]
                    assert len(warnings) == hits.count(None), where
            file.seek(position)
            file.write(bytes([sound]))
        if not path.exists():  # it was set aside
            path.write_bytes(contents[path])
    assert validate(root) == []
    load("small", "twice", root)
    record_property("total", f"{found} reachable bits flipped, {unreachable} others")


def test_a_store_serves_another_path_and_another_user(
    project: Project, tmp_path: Path, in_child: Callable[..., Any]
) -> None:
    """Made by one user in one place, it verifies, loads and hits for another in another place."""
    elsewhere = Project(tmp_path / "some where" / "ünicode")
    shutil.copytree(project.root, elsewhere.root)
    opened = [
        path for path in (elsewhere.root, *elsewhere.root.parents) if not path.stat().st_mode & 1
    ]
    modes = [path.stat().st_mode for path in opened]
    before = {path: path.read_bytes() for path in elsewhere.store.rglob("*") if path.is_file()}

    def body() -> Any:
        os.environ["HOME"] = "/nonexistent"
        problems = validate(elsewhere.store)
        load("small", "twice", elsewhere.store)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = main(["build", "small", "--json", "--models-dir", str(elsewhere.models)])
        return problems, code, output.getvalue()

    try:
        for path in opened:
            path.chmod(0o755)
        problems, code, output = in_child(body, user=65534)
    finally:
        for path, mode in zip(opened, modes, strict=True):
            path.chmod(mode)
    assert (problems, code) == ([], 0)
    programs = json.loads(output)["programs"]
    assert [each["status"] for each in programs] == ["up to date"] * 2
    # Another user may not even write there.
    after = {path: path.read_bytes() for path in elsewhere.store.rglob("*") if path.is_file()}
    assert after == before


def test_nothing_of_the_place_or_the_user_is_in_a_store(project: Project) -> None:
    words = [os.fsencode(project.root), os.fsencode(Path.home()), os.uname().nodename.encode()]
    words = [word for word in words if len(word) > 4]  # a shorter one is there by chance
    for path in project.store.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert [word for word in words if word in content] == [], path


def test_damage_is_repaired_by_the_next_build_and_then_collected(project: Project) -> None:
    root = project.store
    for path in sorted(reachable(root)):
        if path.name == "oci-layout":
            continue
        sound = path.read_bytes()
        path.write_bytes(sound[:-1])
        assert validate(root) != []
        build = ["build", "small", "--models-dir", str(project.models), "--quiet"]
        assert main(build) == 0, path
        # The index has lost what referred to programs that are replaced by now.
        assert path.read_bytes() == sound or path.name == "index.json"
        assert validate(root) == []
        for name in PROGRAMS:
            find(root, "small", name, Host.current().targets())
    assert len(list((root / "quarantine").iterdir())) > 4
    collect(root)
    assert list((root / "quarantine").iterdir()) == []
    assert validate(root) == []
