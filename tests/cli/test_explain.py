"""`aotc explain`: what a program is, and what has changed, with its place."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from small_model import SMALL, WRAPPERS, Project

from aotc import driver

HOST = driver.default_target()
OTHER = "aarch64" if HOST != "aarch64" else "x86_64_v3"


def edit(project: Project, old: str, new: str) -> None:
    text = project.wrappers.read_text(encoding="utf-8")
    assert old in text
    project.wrappers.write_text(text.replace(old, new), encoding="utf-8")


def explained(aotc: Any, *arguments: str) -> dict[str, Any]:
    result = aotc("explain", "small", "square", "--json", *arguments)
    assert (result.code, result.err) == (0, "")
    (program,) = json.loads(result.out)["programs"]
    return program


def change(program: dict[str, Any], component: str) -> dict[str, Any]:
    (found,) = [each for each in program["changes"] if each["component"] == component]
    return found


def test_what_is_up_to_date(aotc, built: Project):
    result = aotc("explain", "small")
    assert (result.code, result.err) == (0, "")
    assert (
        result.out == f"small/twice for {HOST}: up to date\nsmall/square for {HOST}: up to date\n"
    )
    shown = json.loads(aotc("show", "small", "square", "--json").out)
    assert explained(aotc)["manifest"] == shown["manifest"]


def test_the_file_and_line_of_a_change(aotc, built: Project):
    shown = json.loads(aotc("show", "small", "square", "--json").out)
    edit(built, "pl.mul(x, x)", "pl.sub(x, x)")
    line = (
        built.wrappers.read_text()
        .splitlines()
        .index("        y = pl.assemble(y, pl.sub(x, x), [0, 0])")
    )
    result = aotc("explain", "small", "square")
    assert result.out.splitlines()[:5] == [
        f"small/square for {HOST}: stale",
        "  the artifact is of other inputs",
        f"  the nearest build is {shown['manifest']}, from which it differs:",
        f"    models/sources/wrappers.py:{line + 1}: `y = pl.assemble(y, pl.mul(x, x), [0, 0])`"
        " -> `y = pl.assemble(y, pl.sub(x, x), [0, 0])`",
        result.out.splitlines()[4],
    ]
    assert result.out.splitlines()[4].startswith("    ir:")
    program = explained(aotc)
    assert (program["status"], program["nearest"]) == ("stale", shown["manifest"])
    found = change(program, "file wrappers.py")
    assert (found["path"], found["line"]) == ("models/sources/wrappers.py", line + 1)
    assert (found["old_line"], found["new_line"]) == (
        "        y = pl.assemble(y, pl.mul(x, x), [0, 0])",
        "        y = pl.assemble(y, pl.sub(x, x), [0, 0])",
    )
    assert change(program, "ir")["old"] != change(program, "ir")["new"]
    assert {"aotc", "compiler", "flags", "toolchain", "config.extents"} <= {*program["equal"]}
    assert "file wrappers.py" not in program["equal"]


def test_a_comment_is_up_to_date_and_named(aotc, built: Project):
    edit(built, "import pypto", "# a comment\nimport pypto")
    program = explained(aotc)
    assert program["status"] == "up to date"
    (found,) = program["changes"]
    assert (found["component"], found["line"]) == ("file wrappers.py", 1)
    assert found["new_line"] == "# a comment"


def test_a_value_of_the_config_with_its_line(aotc, built: Project):
    config = built.models / "small.yaml"
    config.write_text(SMALL.replace("WIDTH: 8", "WIDTH: 16").replace("max: 64", "max: 32"))
    program = explained(aotc)
    assert program["status"] == "stale"
    found = change(program, "config.extents.WIDTH")
    assert (found["old"], found["new"]) == ("8", "16")
    assert (found["path"], found["line"]) == ("models/small.yaml", 4)
    found = change(program, "config.symbols.ROWS_DYN.maximum")
    assert (found["old"], found["new"], found["line"]) == ("64", "32", 6)
    assert {each["component"] for each in program["changes"]} >= {"contract", "ir"}
    words = aotc("explain", "small", "square").out
    assert "    config.extents.WIDTH (models/small.yaml:4): 8 -> 16\n" in words


def test_a_variable(aotc, built: Project, monkeypatch):
    monkeypatch.setenv("AOTC_OF_THE_FUTURE", "/include")
    found = change(explained(aotc), "environment.AOTC_OF_THE_FUTURE")
    assert (found["old"], found["new"]) == (None, "/include")
    assert (
        "    environment.AOTC_OF_THE_FUTURE: none -> /include\n"
        in aotc("explain", "small", "square").out
    )


def test_a_file_that_comes_and_goes(aotc, built: Project):
    (built.wrappers.parent / "wrappers").mkdir()
    (built.wrappers.parent / "wrappers" / "__init__.py").write_text(WRAPPERS)
    program = explained(aotc)
    found = change(program, "file wrappers/__init__.py")
    assert (found["old"], program["status"]) == (None, "up to date")
    words = aotc("explain", "small", "square").out
    assert "    models/sources/wrappers/__init__.py: is new\n" in words
    built.wrappers.unlink()
    assert "    models/sources/wrappers.py: is not there any more\n" in aotc("explain", "small").out


def test_what_was_never_built(aotc, project: Project):
    project.write_model()
    program = explained(aotc)
    assert (program["status"], program["nearest"], program["changes"]) == ("missing", None, [])
    assert aotc("explain", "small", "square").out == (
        f"small/square for {HOST}: missing\n  no artifact in artifacts\n"
    )
    assert not project.store.exists()


def test_what_was_built_for_another_target(aotc, built: Project):
    program = explained(aotc, "--target", OTHER)
    assert program["status"] == "missing"
    assert program["nearest"] is not None
    assert {each["component"] for each in program["changes"]} == {"target", "flags"}


def test_the_nearest_of_several_builds(aotc, built: Project):
    first = json.loads(aotc("show", "small", "square", "--json").out)["manifest"]
    edit(built, "pl.mul(x, x)", "pl.sub(x, x)")
    (built.models / "small.yaml").write_text(SMALL.replace("WIDTH: 8", "WIDTH: 16"))
    aotc("build", "small")
    edit(built, "pl.sub(x, x)", "pl.mul(x, x)")
    (built.models / "small.yaml").write_text(SMALL.replace("WIDTH: 8", "WIDTH: 24"))
    program = explained(aotc)
    assert program["nearest"] == first
    assert program["changes"][0]["component"] == "config.extents.WIDTH"


def test_a_store_without_keys(aotc, built: Project):
    """As one that was pulled is: it is compared with what is listed."""
    shutil.rmtree(built.store / "keys")
    edit(built, "pl.mul(x, x)", "pl.sub(x, x)")
    program = explained(aotc)
    assert program["status"] == "stale"
    assert [each["component"] for each in program["changes"]] == ["ir"]


def test_sources_that_do_not_compile(aotc, built: Project):
    edit(built, "pl.mul(x, x)", "pl.mull(x, x)")
    result = aotc("explain", "small", "square")
    assert result.code == 1
    assert result.out == f"small/square for {HOST}: broken\n"
    assert "error: " in result.err
    document = json.loads(aotc("explain", "small", "--json").out)
    assert [each["status"] for each in document["programs"]] == ["up to date", "broken"]


def test_nothing_is_written(aotc, built: Project):
    edit(built, "pl.mul(x, x)", "pl.sub(x, x)")
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    built.blob(shown["layers"][0]["digest"]).write_bytes(b"")
    before = sorted((path, path.stat().st_mtime_ns) for path in built.root.rglob("*"))
    assert aotc("explain", "small").code == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in built.root.rglob("*")) == before


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_an_unknown_program(aotc, built: Project, arguments):
    result = aotc("explain", "small", "squire", *arguments)
    assert result.code == 1
    assert "`small` has no program `squire`" in result.out + result.err
