"""`--lower-store`: a store that is read where the other has nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_model import Project

from aotc.store.artifact import LOWER_VARIABLE


@pytest.fixture
def below(built: Project) -> list[str]:
    """The options for an empty store on top of the one that has been built."""
    return ["--store", str(built.root / "top"), "--lower-store", str(built.store)]


def test_what_is_below_is_found(aotc, built: Project, below):
    assert aotc("build", "small", *below).out == "twice: up to date\nsquare: up to date\n"
    assert aotc("build", "small", "--check", *below).code == 0
    assert [each["program"] for each in json.loads(aotc("ls", "--json", *below).out)] == [
        "square",
        "twice",
    ]
    assert "twice of small" in aotc("show", "small", "twice", *below).out
    assert aotc("verify", "small", "--level", "integrity", *below).code == 0
    assert LOWER_VARIABLE not in os.environ


def test_processes_that_compile_know_it(aotc, built: Project, below):
    text = built.wrappers.read_text()
    built.wrappers.write_text(f"# a comment\n{text}")  # the front end runs, and finds what is below
    lines = sorted(aotc("build", "small", *below).out.splitlines())
    assert lines == ["square: up to date", "twice: up to date"]
    assert not list((built.root / "top").glob("blobs/sha256/*"))


def test_it_takes_the_place_of_the_variable(aotc, built: Project, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(LOWER_VARIABLE, str(tmp_path / "nowhere"))
    top = ["--store", str(built.root / "top")]
    assert aotc("build", "small", *top).code == 4
    assert aotc("build", "small", *top, "--lower-store", str(built.store)).code == 0
    assert os.environ[LOWER_VARIABLE] == str(tmp_path / "nowhere")


def test_several(aotc, built: Project, tmp_path: Path):
    empty = ["--store", str(tmp_path / "empty")]
    aotc("build", "small", "twice", "--target", "aarch64", *empty)
    both = ["--lower-store", str(tmp_path / "empty"), "--lower-store", str(built.store)]
    found = json.loads(aotc("ls", "--json", "--store", str(tmp_path / "top"), *both).out)
    assert len(found) == 3


def test_one_that_is_not_there(aotc, built: Project, tmp_path: Path):
    result = aotc("ls", "--lower-store", str(tmp_path / "nowhere"))
    assert result.code == 4
    assert "no store in" in result.err


def test_a_name_that_would_be_two(aotc, built: Project):
    result = aotc("ls", "--lower-store", "a:b")
    assert (result.code, "a lower store cannot have `:` in its name: a:b" in result.err) == (
        2,
        True,
    )
