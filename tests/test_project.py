"""The project's own files agree: dependencies, pins, imports, the Makefile's targets."""

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", each, maxsplit=1)[0].lower() for each in requirements}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {name.lower(): version for name, version in pairs}


def test_every_dependency_is_pinned_and_nothing_else() -> None:
    declared = names([*PROJECT["dependencies"], *itertools.chain(*EXTRAS.values())])
    assert set(pins()) == declared


def test_the_makefile_installs_the_declared_compiler() -> None:
    assert f"ziglang=={pins()['ziglang']}" in PROJECT["dependencies"]


def test_every_import_of_the_package_is_a_declared_dependency() -> None:
    imported: set[str] = set()
    for path in (ROOT / "aotc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    third_party = imported - sys.stdlib_module_names - {"aotc", "pypto"}
    installed_as = {"yaml": "pyyaml"}
    # What is in an extra is imported where it is used, and a message says which is missing.
    optional = names([*EXTRAS["test"], *EXTRAS["registry"], *EXTRAS["signing"]])
    required = names(PROJECT["dependencies"])
    assert {installed_as.get(name, name) for name in third_party} <= required | optional


@pytest.mark.parametrize("target", ["prebuild", "test", "lint", "golden"])
def test_make_help_lists(target: str) -> None:
    command = ["make", "--no-print-directory", "-C", str(ROOT), "help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^{target}\t\w", text, re.MULTILINE)
