"""`aotc ls` and `aotc show`."""

from __future__ import annotations

import json
import re

import pytest
from small_model import Project

from aotc import driver
from aotc.runtime.library import ABI_VERSION

HOST = driver.default_target()


def test_list(aotc, built: Project):
    result = aotc("ls")
    assert (result.code, result.err) == (0, "")
    title, *rows = result.out.splitlines()
    assert title.split() == ["MODEL", "PROGRAM", "TARGET", "MANIFEST", "SIZE"]
    for name, row in zip(("square", "twice"), rows, strict=True):
        assert re.fullmatch(rf"small +{name} +{HOST} +[0-9a-f]{{12}} +\d+\.\d KiB", row)


def test_list_as_json(aotc, built: Project):
    square, twice = json.loads(aotc("ls", "small", "--json").out)
    assert (square["model"], square["program"], square["target"]) == ("small", "square", HOST)
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    assert twice["manifest"] == shown["manifest"]
    assert twice["size"] == sum(layer["size"] for layer in shown["layers"])
    assert all(
        built.blob(each["digest"]).stat().st_size == each["size"] for each in shown["layers"]
    )


@pytest.mark.parametrize(
    ("command", "model"),
    [(["ls"], "MODEL"), (["ls", "small"], "small"), (["show", "small", "twice"], "small")],
)
def test_no_store(aotc, project: Project, command, model):
    project.write_model()
    result = aotc(*command)
    assert (result.code, result.out) == (4, "")
    assert result.err == (
        "error: no store in artifacts: No such file or directory\n"
        f"hint: `aotc build {model}` makes it\n"
    )


def test_an_empty_store(aotc, project: Project):
    project.write_model(wrappers="")
    assert aotc("build", "small").code == 1
    result = aotc("ls")
    assert (result.code, result.out, result.err) == (0, "", "no programs in artifacts\n")
    assert aotc("ls", "--json").out == "[]\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["ls", "smal"],
            "no model `smal` in the store in artifacts\nhint: did you mean `small`?\n",
        ),
        (
            ["ls", "zzz"],
            "no model `zzz` in the store in artifacts\nhint: `aotc build zzz` makes it\n",
        ),
        (
            ["show", "zzz", "twice"],
            "no model `zzz` in the store in artifacts\n"
            "hint: models in the store in artifacts: small\n",
        ),
        (
            ["show", "small", "twise"],
            "no program `twise` in `small`\nhint: did you mean `twice`?\n",
        ),
    ],
)
def test_an_unknown_name(aotc, built: Project, command, message):
    result = aotc(*command)
    assert (result.code, result.out, result.err) == (1, "", f"error: {message}")


def test_another_target_than_there_is(aotc, built: Project):
    other = next(each for each in ("aarch64", "x86_64_v3") if each != HOST)
    result = aotc("show", "small", "twice", "--target", other)
    assert result.code == 1
    assert result.err == (
        f"error: `twice` of `small` is there for {HOST}, wanted for {other}\n"
        f"hint: build it for {other}\n"
    )


def test_summary(aotc, built: Project):
    result = aotc("show", "small", "twice")
    assert (result.code, result.err) == (0, "")
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    assert result.out.startswith(f"twice of small for {HOST}\n\nbuilt by  aotc ")
    assert f"\nABI       {ABI_VERSION}\n" in result.out
    for digest in (shown["manifest"], *(layer["digest"] for layer in shown["layers"])):
        assert digest in result.out
    assert result.out.endswith(
        "\n\n"
        "PARAMETER       DTYPE  DIMENSIONS\n"
        "x          in   fp32   [ROWS_DYN, 8]\n"
        "y          out  fp32   [ROWS_DYN, 8]\n"
        "\n"
        "SYMBOL    MUST BE\n"
        "ROWS_DYN  >= 1, <= 64\n"
        "\n"
        "returns y\n"
    )


def test_the_parts(aotc, built: Project):
    contract = json.loads(aotc("show", "small", "twice", "--contract").out)
    assert [each["name"] for each in contract["parameters"]] == ["x", "y"]
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    assert contract == shown["contract"]
    for option, layer in (("--ir", shown["layers"][1]), ("--source", shown["layers"][2])):
        stored = built.blob(layer["digest"]).read_text()
        assert aotc("show", "small", "twice", option).out == stored.removesuffix("\n") + "\n"
        (text,) = json.loads(aotc("show", "small", "twice", option, "--json").out).values()
        assert text == stored
    assert "aotc_run" in aotc("show", "small", "twice", "--source").out


def flip(path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_damaged_part(aotc, built: Project):
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    flip(built.blob(shown["layers"][2]["digest"]))
    result = aotc("show", "small", "twice", "--source")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(f"error: blob {shown['layers'][2]['digest']} is damaged: ")
    # A program is whole, or it is refused, as the loader does.
    assert aotc("show", "small", "twice", "--ir").code == 3


def test_a_damaged_manifest_does_not_hide_the_others(aotc, built: Project):
    shown = json.loads(aotc("show", "small", "square", "--json").out)
    flip(built.blob(shown["manifest"]))
    result = aotc("ls")
    assert result.code == 3
    assert result.err.startswith(f"warning: `square` of `small` for {HOST}: blob ")
    assert re.search(rf"small +square +{HOST} +damaged\n", result.out)
    assert re.search(rf"small +twice +{HOST} +[0-9a-f]{{12}} ", result.out)
    assert aotc("show", "small", "square").code == 3


def test_a_damaged_index(aotc, built: Project):
    (built.store / "index.json").write_text("{}]")
    result = aotc("ls")
    assert result.code == 3
    assert "index.json is not valid" in result.err


@pytest.mark.parametrize("command", [["ls"], ["show", "small", "twice"]])
def test_without_torch(aotc_process, built: Project, command):
    done = aotc_process(*command, before="sys.modules['torch'] = sys.modules['numpy'] = None")
    assert (done.returncode, done.stderr) == (0, "")
