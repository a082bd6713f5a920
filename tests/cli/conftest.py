"""A project with a small model, and the command line in this process and in others."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_model import Project, command_line

from aotc.cli.main import main

Run = Callable[..., subprocess.CompletedProcess[str]]


@dataclass
class Result:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def built_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose model `small` has been built once for this host; it is only read."""
    project = Project(tmp_path_factory.mktemp("project"))
    project.write_model()
    assert main(["build", "small", "--models-dir", str(project.models), "--quiet"]) == 0
    return project


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AOTC_MODELS_DIR", "AOTC_STORE", "AOTC_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def built(project: Project, built_project: Project) -> Project:
    """A copy of the built project, which is the current directory."""
    shutil.copytree(built_project.root, project.root, dirs_exist_ok=True)
    return project


@pytest.fixture
def aotc(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Return a function that runs a command line in this process."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(list(arguments))
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def aotc_process() -> Run:
    """Return a function that runs a command line in a process of its own, in this directory.

    The Python text `before` and `after` runs there, around the command.
    """

    def run(
        *arguments: str,
        before: str = "",
        after: str = "",
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        if "stdout" not in options:
            options["stdout"] = subprocess.PIPE
        return subprocess.run(
            command_line(arguments, before, after),
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **(environment or {})},
            **options,
        )

    return run
