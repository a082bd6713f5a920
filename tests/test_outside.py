"""What a model's modules read besides each other is an input, or else no build trusts them."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from aotc import config, driver
from aotc.driver import Job, Made
from aotc.store.cache import Cache
from aotc.store.layout import Layout

sys.path.insert(0, str(Path(__file__).parent / "cli"))
from small_model import SMALL, WRAPPERS, Project, command_line


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def compile_with(project: Project, value: str) -> Made:
    """Compile a program that multiplies by `value`, an expression of its module."""
    text = WRAPPERS.replace("pl.mul(x, x)", "pl.mul(x, FACTOR)")
    text = text.replace("\n\n\n", f"\n\nimport os\n\nFACTOR = float({value})\n\n\n", 1)
    project.write_model(wrappers=text)
    return driver.compile_into(cache(project), job(project))


def cache(project: Project) -> Cache:
    return Cache(Layout.create(project.store))


def job(project: Project) -> Job:
    return Job(config.load("small", project.models), "square", driver.default_target())


def is_hit(project: Project) -> bool:
    found = job(project)
    key = driver.level_one_key(found.config, found.program, found.target)
    return cache(project).lookup_inputs(key, found.config.source) is not None


@pytest.mark.parametrize(
    ("value", "warning"),
    [
        ("os.environ.get('FACTOR', '2')", "reads the environment variable FACTOR"),
        ("os.getenv('FACTOR', '2')", "reads the environment variable FACTOR"),
        ("'FACTOR' in os.environ", "reads the environment variable FACTOR"),
        ("len(dict(os.environ))", "reads all environment variables"),
        (
            "__import__('pathlib').Path('/proc/self/comm').read_text() == 'x'",
            "opens /proc/self/comm",
        ),
        ("len(os.listdir('/'))", "lists a folder"),
        ("os.system('true')", "runs a command"),
        ("__import__('subprocess').run(['true']).returncode", "runs a command"),
    ],
)
def test_what_no_key_can_have_is_never_trusted(project: Project, value: str, warning: str) -> None:
    made = compile_with(project, value)
    assert made.built.compiled
    assert f"wrappers.py:5 {warning}, which no key has" in made.warnings
    assert not is_hit(project)
    # The program is found by what came out all the same.
    assert not compile_with(project, value).built.compiled


def test_another_environment_is_another_program(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "os.environ['FACTOR']"
    monkeypatch.setenv("FACTOR", "2")
    first = compile_with(project, value)
    monkeypatch.setenv("FACTOR", "3")
    second = compile_with(project, value)
    assert second.built.compiled
    assert first.built.program.manifest_digest != second.built.program.manifest_digest


def test_a_file_of_the_folder_is_an_input(project: Project) -> None:
    value = "__import__('pathlib').Path(__spec__.origin).with_name('factor.txt').read_text()"
    project.write_model()
    file = project.wrappers.parent / "factor.txt"
    file.write_text("2")
    made = compile_with(project, value)
    assert (made.warnings, made.files["factor.txt"] is not None) == ((), True)
    assert is_hit(project)
    file.write_text("3")
    assert not is_hit(project)
    assert compile_with(project, value).built.compiled
    file.write_text("2")
    assert is_hit(project)


def test_a_file_that_is_looked_for_is_an_input(project: Project) -> None:
    name = "os.path.join(os.path.dirname(__spec__.origin), 'factor.txt')"
    compile_with(project, "2")
    before = f"\ntry:\n    open({name})\nexcept OSError:\n    pass\n"
    project.wrappers.write_text(project.wrappers.read_text() + before)
    made = driver.compile_into(cache(project), job(project))
    assert made.files["factor.txt"] is None
    assert is_hit(project)
    (project.wrappers.parent / "factor.txt").write_text("3")
    assert not is_hit(project)


@pytest.mark.parametrize(
    ("value", "module"),
    [
        ("__import__('json').loads('2')", None),
        ("__import__('numpy').float32(2)", "numpy"),
        # aotc itself has imported this one, so no event tells of it.
        ("__import__('yaml').safe_load('2')", "yaml"),
        ("__import__('importlib').import_module('yaml.nodes') and 2", "yaml"),
        ("__import__('aotc_test_no_such') if os.name == 'nt' else 2", None),
    ],
)
def test_modules_from_elsewhere_are_inputs(
    project: Project, value: str, module: str | None
) -> None:
    made = compile_with(project, value)
    assert made.warnings == ()
    named = [name for name in made.files if name.startswith("module:")]
    assert named == ([] if module is None else [f"module:{module}"])
    if module is not None:
        assert made.files[f"{module}.py"] is None
        said = str(made.files[f"module:{module}"])
        assert re.fullmatch(r"(PyYAML|numpy) [0-9.]+ sha256:[0-9a-f]{64}", said)
    assert is_hit(project)


@dataclass
class Elsewhere:
    """A project whose factor comes from the module `aotc_test_factor`, and where that may lie."""

    project: Project
    site: Path

    def write(self, text: str, name: str = "aotc_test_factor.py") -> None:
        (self.site / name).parent.mkdir(parents=True, exist_ok=True)
        (self.site / name).write_text(text)

    def build(self) -> tuple[str, str]:
        """Return what a build in a fresh process makes of the program, and its digest."""
        words = ["build", "small", "square", "--json"]
        places = ["--models-dir", str(self.project.models), "--store", str(self.project.store)]
        done = subprocess.run(
            command_line([*words, *places]),
            env={**os.environ, "PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        (program,) = json.loads(done.stdout)["programs"]
        assert (done.returncode, program["warnings"]) == (0, []), done.stderr
        return program["status"], program["manifest"]


@pytest.fixture
def elsewhere(project: Project, tmp_path: Path) -> Elsewhere:
    text = WRAPPERS.replace("pl.mul(x, x)", "pl.mul(x, FACTOR)")
    head = (
        "\ntry:\n    from aotc_test_factor import FACTOR\nexcept ImportError:\n    FACTOR = 1.0\n"
    )
    project.write_model(wrappers=text.replace("\n\n\n", f"\n{head}\n\n", 1))
    made = Elsewhere(project, tmp_path / "site")
    made.site.mkdir()
    return made


def test_an_edit_an_upgrade_or_a_removal_is_never_a_stale_hit(elsewhere: Elsewhere) -> None:
    absent = elsewhere.build()
    assert elsewhere.build() == ("up to date", absent[1])
    elsewhere.write("FACTOR = 2.0\n")
    two = elsewhere.build()
    assert (two[0], elsewhere.build()) == ("built", ("up to date", two[1]))
    # By way of another module, which the model does not name.
    elsewhere.write("from aotc_test_value import FACTOR\n")
    elsewhere.write("FACTOR = 3.0\n", "aotc_test_value.py")
    three = elsewhere.build()
    elsewhere.write("FACTOR = 4.0\n", "aotc_test_value.py")
    four = elsewhere.build()
    assert len({absent[1], two[1], three[1], four[1]}) == 4
    for name in ("aotc_test_factor.py", "aotc_test_value.py"):
        (elsewhere.site / name).unlink()
    assert elsewhere.build() == ("up to date", absent[1])
    # One of the model's own files takes the place.
    (elsewhere.project.wrappers.parent / "aotc_test_factor.py").write_text("FACTOR = 2.0\n")
    assert elsewhere.build() == ("up to date", two[1])


def test_an_upgrade_of_a_distribution(elsewhere: Elsewhere) -> None:
    found = []
    for version, factor in (("1.0", "2.0"), ("1.1", "3.0"), ("1.0", "2.0")):
        for old in elsewhere.site.glob("*.dist-info/RECORD"):
            old.unlink()
        elsewhere.write(f"FACTOR = {factor}\n", "aotc_test_factor/__init__.py")
        info = f"aotc_test-{version}.dist-info"
        name = "Metadata-Version: 2.1\nName: aotc-test\nVersion: "
        elsewhere.write(f"{name}{version}\n", f"{info}/METADATA")
        elsewhere.write(f"aotc_test_factor/__init__.py,sha256={version},13\n", f"{info}/RECORD")
        found.append(elsewhere.build())
    assert [status for status, _ in found] == ["built", "built", "up to date"]
    assert found[0][1] == found[2][1] != found[1][1]


def test_a_module_whose_files_are_not_known_is_never_trusted(project: Project) -> None:
    (project.root / "site" / "aotc_test_nothing").mkdir(parents=True)
    sys.path.insert(0, str(project.root / "site"))
    try:
        made = compile_with(project, "__import__('aotc_test_nothing') and 2")
    finally:
        sys.path.pop(0)
        sys.modules.pop("aotc_test_nothing", None)
    what = "wrappers.py:5 imports `aotc_test_nothing`: `aotc_test_nothing` has no file"
    assert made.warnings == (f"{what}, which no key has",)
    assert not is_hit(project)


def test_kernels_in_a_folder_of_their_own_are_watched_too(project: Project) -> None:
    kernels = project.models / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "factor.txt").write_text("2")
    (kernels / "numbers_of.py").write_text(
        "import os, yaml\nFOUND = os.environ.get('FACTOR')\n"
        "import pathlib\n"
        "FACTOR = float(pathlib.Path(__spec__.origin).with_name('factor.txt').read_text())\n"
    )
    text = WRAPPERS.replace("pl.mul(x, x)", "pl.mul(x, FACTOR)")
    text = text.replace("\n\n\n", "\n\nfrom numbers_of import FACTOR\n\n\n", 1)
    project.write_model(SMALL + "kernels: {cpu: kernels}\n", text)
    made = driver.compile_into(cache(project), job(project))
    where = "../kernels/numbers_of.py:2"
    assert made.warnings == (f"{where} reads the environment variable FACTOR, which no key has",)
    assert {"../kernels/factor.txt", "../kernels/numbers_of.py", "module:yaml"} <= set(made.files)
    code = (kernels / "numbers_of.py").read_text()
    (kernels / "numbers_of.py").write_text(code.replace("os.environ.get('FACTOR')", "1"))
    assert driver.compile_into(cache(project), job(project)).warnings == ()
    assert is_hit(project)
    (kernels / "factor.txt").write_text("3")
    assert not is_hit(project)


def test_the_environment_is_as_before(project: Project) -> None:
    def patched() -> tuple[object, ...]:
        environment = type(os.environ)
        imports = (builtins.__import__, importlib.import_module)
        return (environment.__getitem__, environment.__iter__, *imports)

    before = patched()
    compile_with(project, "2")
    assert patched() == before
