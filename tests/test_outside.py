"""What a model's modules read besides each other is an input, or else no build trusts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aotc import config, driver
from aotc.driver import Job, Made
from aotc.store.cache import Cache
from aotc.store.layout import Layout

sys.path.insert(0, str(Path(__file__).parent / "cli"))
from small_model import WRAPPERS, Project


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
    "value", ["__import__('json').loads('2')", "__import__('numpy').float32(2)"]
)
def test_modules_from_elsewhere_are_not_looked_into(project: Project, value: str) -> None:
    made = compile_with(project, value)
    assert made.warnings == ()
    assert is_hit(project)


def test_the_environment_is_as_before(project: Project) -> None:
    import os

    before = (type(os.environ).__getitem__, type(os.environ).__iter__)
    compile_with(project, "2")
    assert (type(os.environ).__getitem__, type(os.environ).__iter__) == before
