"""What is found of PyPTO, on folders that look like site-packages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aotc.cli.main import main
from aotc.toolchain.base import ToolchainError
from aotc.toolchain.pypto import PyPTO, installed

PACKAGES = ("pypto", "simpler", "simpler_setup")
CACHED = (installed.pypto, installed.runtime, installed.ptoas, installed.compiler)


def write(path: Path, text: str = "", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


class Site:
    """A folder of packages, and one of executables; nothing else of PyPTO is seen."""

    def __init__(self, root: Path):
        self.packages = root / "site-packages"
        self.executables = root / "bin"
        self.packages.mkdir()
        self.executables.mkdir()

    def package(self, name: str, version: str, *files: str) -> None:
        for file in ("__init__.py", *files):
            write(self.packages / name / file, f"# {file}")
        info = self.packages / f"{name}-{version}.dist-info"
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def pypto(self) -> None:
        self.package("pypto", "0.1.0", "ir/__init__.py", "ir/distributed_compiled_program.py")

    def runtime(self) -> None:
        self.package("simpler", "0.1.0")
        self.package("simpler_setup", "0.1.0")
        write(self.packages / "simpler_setup" / "_assets" / "pto_isa.pin", "cd4a3d3f\n")

    def executable(self, name: str, says: str = "") -> None:
        write(self.executables / name, f"#!/bin/sh\necho {says}\n", 0o755)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    found = installed.importlib.util.find_spec

    def only_here(name: str, package: str | None = None) -> object:
        if name in PACKAGES and not (made.packages / name).exists():
            return None
        return found(name, package)

    monkeypatch.setattr(installed.importlib.util, "find_spec", only_here)
    monkeypatch.syspath_prepend(str(made.packages))
    monkeypatch.setenv("PATH", f"{made.executables}:/usr/bin:/bin")
    for name in ("PTOAS_ROOT", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    if (made.executables / "x").exists() or installed.shutil.which("g++-15", path="/usr/bin:/bin"):
        pytest.skip("the simulator's compiler cannot be hidden")
    _forget()
    yield made
    _forget()


def _forget() -> None:
    for each in CACHED:
        each.cache_clear()
    installed.importlib.invalidate_caches()


Doctor = Callable[[], tuple[int, dict[str, object]]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run `aotc doctor pypto --json`; return its exit code and the findings by subject."""

    def run() -> tuple[int, dict[str, object]]:
        _forget()
        code = main(["doctor", "pypto", "--json"])
        (toolchain,) = json.loads(capsys.readouterr().out)["toolchains"]
        assert toolchain["targets"] == ["a2a3", "a5", "a2a3sim", "a5sim"]
        assert toolchain["usable"] is (code == 0)
        return code, {each["subject"]: each for each in toolchain["findings"]}

    return run


def test_nothing_is_installed(site: Site, doctor: Doctor) -> None:
    code, found = doctor()
    assert code == 4
    assert all(each["found"] is None and each["remedy"] for each in found.values())
    assert "https://github.com/hw-native-sys/pypto" in found["pypto"]["remedy"]
    with pytest.raises(ToolchainError, match="PyPTO is not installed") as caught:
        PyPTO().identity()
    assert "aotc doctor" in caught.value.hint


def test_the_other_project_of_that_name(site: Site, doctor: Doctor) -> None:
    site.package("pypto", "0.2.0", "_controller.py")
    code, found = doctor()
    assert code == 4
    assert found["pypto"]["found"] is None
    assert "pypto 0.2.0 in " in found["pypto"]["remedy"]
    assert "is another project of that name: uninstall it" in found["pypto"]["remedy"]
    with pytest.raises(ToolchainError, match=r"pypto 0\.2\.0 in .* is another project"):
        PyPTO().identity()


def test_stages_as_parts_are_added(site: Site, doctor: Doctor) -> None:
    site.pypto()
    code, found = doctor()
    assert code == 0
    assert found["pypto"]["found"].startswith("0.1.0 sha256=")
    assert found["ptoas"]["found"] is None
    assert installed.stage("a2a3sim") == "pto"
    site.executable("ptoas", "ptoas 0.27")
    assert doctor()[1]["ptoas"]["found"].startswith("0.27 sha256=")
    assert installed.stage("a2a3sim") == "cpp"
    site.runtime()
    assert doctor()[1]["pto-isa"]["found"] == "cd4a3d3f"
    assert installed.stage("a2a3sim") == "cpp"
    site.executable("g++-15")
    _, found = doctor()
    assert found["simulator compiler"]["found"] is not None
    assert installed.stage("a2a3sim") == "binaries"
    assert installed.stage("a2a3") == "cpp"


def test_the_compiler_of_an_npu(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pypto()
    site.runtime()
    site.executable("ptoas", "ptoas 0.57")
    home = site.packages.parent / "cann"
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    assert installed.stage("a2a3") == "cpp"
    write(home / "bin" / "ccec", "compiler", 0o755)
    _forget()
    assert installed.stage("a2a3") == "binaries"
    assert str(home) not in "".join(PyPTO().flags("a2a3"))


def test_where_ptoas_is_looked_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PTOAS_ROOT the PATH is not searched."""
    site.executable("ptoas", "ptoas 0.27")
    root = site.packages.parent / "release"
    monkeypatch.setenv("PTOAS_ROOT", str(root))
    assert installed.ptoas() is None
    write(root / "bin" / "ptoas", "#!/bin/sh\necho ptoas 0.57\n", 0o755)
    _forget()
    found = installed.ptoas()
    assert found is not None
    assert (found.version, found.path) == ("0.57", root / "bin" / "ptoas")


def test_any_change_is_another_identity(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pypto()
    before = PyPTO().identity()
    assert str(site.packages) not in before
    (site.packages / "pypto" / "ir" / "new.py").touch()
    _forget()
    changed = PyPTO().identity()
    assert changed != before
    (site.packages / "pypto" / "__pycache__").mkdir()
    (site.packages / "pypto" / "__pycache__" / "x.pyc").touch()
    _forget()
    assert PyPTO().identity() == changed
    flags = PyPTO().flags("a2a3sim")
    monkeypatch.setenv("PYPTO_PROG_BUILD_DIR", "/somewhere")
    assert PyPTO().flags("a2a3sim") == flags
    monkeypatch.setenv("PYPTO_VERIFY_LEVEL", "2")
    assert "PYPTO_VERIFY_LEVEL=2" in PyPTO().flags("a2a3sim")


def test_an_unknown_toolchain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "pipto"]) == 1
    assert "unknown toolchain `pipto`" in capsys.readouterr().err
