"""`aotc gc` and `aotc du`."""

from __future__ import annotations

import json
import os
import time

import pytest
from small_model import WRAPPERS, Project

EDITED = WRAPPERS.replace("pl.add(x, x)", "pl.sub(x, x)")


@pytest.fixture
def edited(aotc, built: Project) -> tuple[Project, str]:
    """The built project, edited and built again; and the manifest of `twice` before."""
    before = json.loads(aotc("ls", "--json").out)
    built.write_model(wrappers=EDITED)
    assert aotc("build", "small").code == 0
    (digest,) = [each["manifest"] for each in before if each["program"] == "twice"]
    return built, digest


def test_what_was_replaced_goes(aotc, edited):
    project, digest = edited
    told = aotc("gc", "--dry-run")
    assert told.out.startswith("would remove `twice` of `small` for ")
    assert project.blob(digest).exists()
    done = aotc("gc")
    assert done.code == 0
    assert f", {digest[7:19]}\nremoved " in done.out
    assert "manifest: 1" in done.out
    assert not project.blob(digest).exists()
    assert aotc("verify", "small", "--level", "integrity").code == 0
    assert aotc("build", "small").out == "twice: up to date\nsquare: up to date\n"
    assert aotc("gc").out.startswith("removed 0 B (")


def test_json(aotc, edited):
    document = json.loads(aotc("gc", "--json").out)
    assert document["dry_run"] is False
    assert document["removed_bytes"] == sum(each["size"] for each in document["removed"]) > 0
    (program,) = [each["program"] for each in document["removed"] if each["kind"] == "manifest"]
    assert program.startswith("`twice` of `small` for ")
    assert document["kept_bytes"] == json.loads(aotc("du", "--json").out)["total"]


@pytest.mark.parametrize("how", ["digest", "prefix", "lock file", "lock beside the models"])
def test_what_is_named_stays(aotc, edited, how):
    project, digest = edited
    lock = project.models / "aotc.lock" if how == "lock beside the models" else "elsewhere.lock"
    if "lock" in how:
        (project.root / lock).write_text(f'{{"twice": "{digest}"}}')
    arguments = {
        "digest": ["--keep", digest],
        "prefix": ["--keep", digest[7:19]],
        "lock file": ["--lock", "elsewhere.lock"],
    }.get(how, [])
    assert aotc("gc", *arguments).code == 0
    assert project.blob(digest).exists()
    project.write_model()
    assert aotc("build", "small").out == "twice: up to date\nsquare: up to date\n"


def test_ages(aotc, edited):
    project, digest = edited
    assert aotc("gc", "--max-age", "1d").code == 0
    assert project.blob(digest).exists()
    then = time.time() - 2 * 86400
    for path in project.store.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))
    assert aotc("gc", "--max-age", "1d").code == 0
    assert not project.blob(digest).exists()


def test_sizes(aotc, edited):
    project, digest = edited
    assert aotc("gc", "--max-bytes", "1G").out.startswith("removed 0 B")
    assert project.blob(digest).exists()
    done = aotc("gc", "--max-bytes", "1K")
    assert not project.blob(digest).exists()
    assert "are needed, or in use" in done.err
    assert aotc("build", "small").out == "twice: up to date\nsquare: up to date\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--max-age", "soon"], 2, "`soon` is not one such as 30m, 12h, 7d"),
        (["--max-bytes", "-1"], 2, "`-1` is not one such as 500M, 10G"),
        (["--max-bytes", "1X"], 2, "`1X` is not one such as 500M, 10G"),
        (["--keep", "abc"], 1, "`abc` is too short for a digest"),
        (["--keep", "0" * 12], 1, "no blob `000000000000` in the store in "),
        (["--lock", "absent"], 1, "cannot read absent: No such file or directory"),
        (["--store", "absent"], 4, "no store in absent: No such file or directory"),
    ],
)
def test_a_mistake(aotc, edited, arguments, code, message):
    done = aotc("gc", *arguments)
    assert done.code == code
    assert message in done.err


def test_a_damaged_index_stops_it(aotc, edited):
    project, digest = edited
    (project.store / "index.json").write_text("{")
    done = aotc("gc")
    assert done.code == 3
    assert "index.json is not valid" in done.err
    assert project.blob(digest).exists()


def test_du(aotc, edited):
    done = aotc("du")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines() if line]
    assert lines[0] == ["MODEL", "PROGRAM", "TARGET", "SIZE"]
    assert [line[:2] for line in lines[1:3]] == [["small", "square"], ["small", "twice"]]
    whole = [line[0] for line in lines[3:]]
    assert whole == ["WHOLE", "listed", "unlisted", "keys", "quarantine", "staging", "total"]
    document = json.loads(aotc("du", "--json").out)
    parts = ("listed", "unlisted", "keys", "quarantine", "staging")
    assert document["total"] == sum(document[each] for each in parts)
    assert document["unlisted"] > 0
    aotc("gc")
    assert json.loads(aotc("du", "--json").out)["unlisted"] == 0
