"""`aotc run` times a program, and shows where the time goes."""

import json

import pytest

from aotc import profile

TABLE = ("time", "of all", "runs", "GB/s", "GFLOP/s", "of roof", "region")


@pytest.fixture(autouse=True)
def _small_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "READ_BYTES", 1 << 20)


def test_a_time_for_each_call(built, aotc):
    result = aotc("run", "small", "twice", "--set", "ROWS_DYN=5", "--repeat", "3", "--json")
    document = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert document["symbols"] == {"ROWS_DYN": 5}
    assert document["argument_bytes"] == 2 * 5 * 8 * 4
    assert len(document["seconds"]) == 3
    assert all(each > 0 for each in document["seconds"])
    assert "profile" not in document


def test_text(built, aotc):
    result = aotc("run", "small", "twice", "--threads", "1")
    assert result.code == 0
    assert result.out.count("\n") == 1
    assert " a call, the median of 10; " in result.out
    assert result.err.startswith("1 thread, ")
    assert "ROWS_DYN 1\narguments of 64 B; the process has " in result.err


def test_a_profile(built, aotc, project):
    file = project.root / "trace.json"
    before = {each: each.read_bytes() for each in project.store.rglob("*") if each.is_file()}
    command = ["run", "small", "square", "--set", "ROWS_DYN=64", "--threads", "2"]
    result = aotc(*command, "--profile", "--trace", str(file))
    assert result.code == 0
    lines = result.out.splitlines()
    titles = lines[2]
    assert titles.split("  ")[-1] == "region"
    assert all(title in titles for title in TABLE)
    assert any(line.endswith("y = pl.assemble(y, pl.mul(x, x), [0, 0])  [x, y]") for line in lines)
    assert lines[-1].startswith("roof: read ")
    names = {each["name"] for each in json.loads(file.read_text())["traceEvents"]}
    assert {"thread_name", "call"} < names
    # Nothing of it is stored.
    after = {each: each.read_bytes() for each in project.store.rglob("*") if each.is_file()}
    assert after == before

    document = json.loads(aotc(*command, "--trace", str(file), "--json").out)
    (region,) = document["profile"]["regions"]
    assert (region["runs"], region["flops"], region["bytes"]) == (1, 0, 2 * 64 * 8 * 4)
    parts = [region["seconds"], document["profile"]["waiting_seconds"]]
    parts.append(document["profile"]["rest_seconds"])
    assert sum(parts) == pytest.approx(document["profile"]["seconds"])


def test_sources_that_have_changed_since_the_build(built, aotc, project):
    text = project.wrappers.read_text(encoding="utf-8")
    project.wrappers.write_text(text.replace("pl.mul(x, x)", "pl.add(x, x)"), encoding="utf-8")
    assert aotc("run", "small", "square").code == 0
    result = aotc("run", "small", "square", "--profile")
    assert result.code == 1
    assert "the sources of `square` are no longer those of the artifact" in result.err
    assert "`aotc build small square` makes it again" in result.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--set", "ROWS"], 2, "`ROWS` is not of the form SYMBOL=NUMBER"),
        (["--set", "ROWS_DYN=-1"], 2, "`ROWS_DYN=-1` is not of the form SYMBOL=NUMBER"),
        (["--set", "ROWS=4"], 1, "the program has no symbol `ROWS`"),
        (["--set", "ROWS_DYN=65"], 1, "`ROWS_DYN` must be at most 64, got 65"),
        (["--set", "ROWS_DYN=0"], 1, "`ROWS_DYN` must be at least 1, got 0"),
        (["--threads", "0"], 1, "threads must be in 1..1024, got `0`"),
        (["--repeat", "0"], 2, "0 is not in the range x>=1"),
    ],
)
def test_mistakes(built, aotc, options, code, message):
    result = aotc("run", "small", "twice", *options)
    assert result.code == code
    assert message in result.err


def test_what_is_not_there(built, aotc):
    result = aotc("run", "small", "thrice")
    assert result.code == 1
    assert "`small` has no program `thrice`" in result.err


def test_not_built(project, aotc):
    project.write_model()
    result = aotc("run", "small", "twice")
    assert result.code != 0
    assert "`aotc build small` makes it" in result.err


def test_integers_of_the_model(built, aotc, project):
    samples = project.wrappers.with_name("samples.py")
    samples.write_text("def twice(symbols):\n    return {'x': [1] * symbols['ROWS_DYN']}\n")
    result = aotc("run", "small", "twice")
    assert "`x` takes 8 elements, and the module `samples` of the model gives 1" in result.err
    samples.write_text("def twice(symbols):\n    return {'x': [WIDTH] * WIDTH}\n")
    assert aotc("run", "small", "twice").code == 0
