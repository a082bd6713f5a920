"""A module from elsewhere is what it is by its wheel, or by its bytes; never by where it lies."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from aotc import modules
from aotc.modules import UnknownModuleError, identify


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, where imports look first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def install(
    site: Path, name: str, version: str = "1.0", digest: str = "AA", requires: tuple[str, ...] = ()
) -> None:
    """Install a distribution of one package, as a wheel would be."""
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").write_text("")
    for old in site.glob(f"{name}-*.dist-info"):
        for each in old.iterdir():
            each.unlink()
        old.rmdir()
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    )
    (info / "RECORD").write_text(
        f"{name}/__init__.py,sha256={digest},0\n"
        f"{name}-{version}.dist-info/METADATA,sha256=BB,9\n../../bin/{name},sha256=CC,9\n"
    )


def test_a_distribution(site: Path) -> None:
    install(site, "aotc_test_one")
    first = identify("aotc_test_one")
    assert first is not None
    assert first.startswith("aotc_test_one 1.0 sha256:")
    install(site, "aotc_test_one", "1.1")
    second = identify("aotc_test_one")
    install(site, "aotc_test_one", "1.1", digest="DD")  # another build of one version
    assert len({first, second, identify("aotc_test_one")}) == 3
    install(site, "aotc_test_one")
    assert identify("aotc_test_one") == first


def test_what_an_installer_writes_does_not_count(site: Path) -> None:
    install(site, "aotc_test_one")
    first = identify("aotc_test_one")
    (record,) = site.glob("*.dist-info/RECORD")
    record.write_text(
        "../../bin/other,sha256=EE,9\naotc_test_one/__pycache__/x.pyc,,\n"
        "aotc_test_one-1.0.dist-info/INSTALLER,sha256=FF,4\naotc_test_one/__init__.py,sha256=AA,0\n"
    )
    assert identify("aotc_test_one") == first


def test_what_a_distribution_requires_counts(site: Path) -> None:
    install(site, "aotc_test_low")
    install(site, "aotc_test_extra")
    needs = ("aotc-test.low (>=1)", 'aotc_test_extra; extra == "x"', "aotc_test_absent>2")
    install(site, "aotc_test_top", requires=needs)
    first = identify("aotc_test_top")
    install(site, "aotc_test_extra", "2.0")
    assert identify("aotc_test_top") == first
    install(site, "aotc_test_low", "2.0")
    second = identify("aotc_test_top")
    install(site, "aotc_test_absent")
    assert len({first, second, identify("aotc_test_top")}) == 3


@pytest.mark.parametrize("name", ["aotc_test_loose.py", "aotc_test_loose/__init__.py"])
def test_loose_files(site: Path, name: str) -> None:
    file = site / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("import os, aotc, aotc_test_other.deep\n")
    (site / "aotc_test_other.py").write_text("from . import us\nimport aotc_test_loose\n")
    found = [identify("aotc_test_loose")]
    (site / "aotc_test_other.py").write_text("VALUE = 2\n")  # what it imports
    found.append(identify("aotc_test_loose"))
    (site / "aotc_test_other.py").unlink()
    found.append(identify("aotc_test_loose"))
    file.write_text("VALUE = 1\n")
    found.append(identify("aotc_test_loose"))
    if name.count("/"):
        (file.parent / "data.bin").write_bytes(b"\xff")
        found.append(identify("aotc_test_loose"))
    assert len(set(found)) == len(found)
    assert all(each is not None and each.startswith("files sha256:") for each in found)


def test_it_is_the_same_in_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for place in ("a", "b/c"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "aotc_test_moved.py").write_text("VALUE = 1\n")
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        found.add(identify("aotc_test_moved"))
    assert len(found) == 1


def test_what_is_nowhere_and_what_is_no_import_from_elsewhere() -> None:
    assert identify("aotc_test_nowhere") is None
    assert [each for each in ("os", "aotc", "pypto", "json") if modules.is_foreign(each)] == []
    assert modules.is_foreign("yaml")


def test_a_broken_module_is_known_by_its_bytes(site: Path) -> None:
    (site / "aotc_test_broken.py").write_bytes(b"def \xff")
    assert str(identify("aotc_test_broken")).startswith("files sha256:")


def test_what_has_no_files_is_not_known(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "aotc_test_namespace").mkdir()
    with pytest.raises(UnknownModuleError, match="`aotc_test_namespace` has no file"):
        identify("aotc_test_namespace")
    (site / "aotc_test_user.py").write_text("import aotc_test_namespace\n")
    with pytest.raises(UnknownModuleError, match="`aotc_test_namespace` has no file"):
        identify("aotc_test_user")
    monkeypatch.setattr(modules, "_MAX_FILES", 1)
    (site / "aotc_test_large").mkdir()
    for name in ("__init__.py", "more.py"):
        (site / "aotc_test_large" / name).write_text("")
    with pytest.raises(UnknownModuleError, match="has more than 1 files"):
        identify("aotc_test_large")


def test_the_module_itself_is_not_asked(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another import has left in this process does not count."""
    (site / "aotc_test_loaded.py").write_text("VALUE = 1\n")
    first = identify("aotc_test_loaded")
    monkeypatch.setitem(sys.modules, "aotc_test_loaded", types.ModuleType("aotc_test_loaded"))
    assert identify("aotc_test_loaded") == first
