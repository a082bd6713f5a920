"""`aotc verify`: levels, output and exit codes; what each level finds has tests of its own."""

from __future__ import annotations

import json

import pytest
from small_model import SMALL, Project

QUICK = ("--level", "integrity", "--level", "contract")


def test_a_line_for_each_check(aotc, built: Project):
    result = aotc("verify", "small", *QUICK)
    assert (result.code, result.err) == (0, "")
    integrity, *contracts, last = result.out.splitlines()
    assert integrity.startswith("ok  integrity: ")
    assert [each.partition(": ")[0] for each in contracts] == [
        "ok  contract twice",
        "ok  contract square",
    ]
    assert last == "3 checks, none failed"
    assert aotc("verify", "small", "twice", "--level", "contract").out.count("\n") == 2


def test_json_and_quiet(aotc, built: Project):
    result = aotc("verify", "small", *QUICK, "--json")
    document = json.loads(result.out)
    assert (result.code, document["model"], document["passed"]) == (0, "small", True)
    assert [each["level"] for each in document["checks"]] == ["integrity", "contract", "contract"]
    quiet = aotc("verify", "small", *QUICK, "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_a_contract_that_the_sources_no_longer_have(aotc, built: Project):
    built.write_model(config=SMALL.replace("WIDTH: 8", "WIDTH: 16"))
    result = aotc("verify", "small", *QUICK, "--quiet")
    assert (result.code, result.err) == (1, "")
    assert all(line.startswith("FAILED  contract ") for line in result.out.splitlines())
    assert "expected" in result.out
    document = json.loads(aotc("verify", "small", *QUICK, "--json").out)
    assert document["passed"] is False


def test_damaged_bytes_exit_with_3(aotc, built: Project):
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    for digest in (shown["manifest"], *(layer["digest"] for layer in shown["layers"])):
        path = built.blob(digest)
        intact = path.read_bytes()
        path.write_bytes(intact[:7] + bytes([intact[7] ^ 1]) + intact[8:])
        result = aotc("verify", "small")
        assert result.code == 3, digest
        assert "FAILED  integrity" in result.out
        assert digest in result.out
        path.write_bytes(intact)


def test_all_levels_together(aotc, built: Project):
    pytest.importorskip("torch")
    result = aotc("verify", "small", "twice")
    assert result.code == 0, result.out
    levels = {line.split()[1].rstrip(":") for line in result.out.splitlines()[:-1]}
    assert levels == {"integrity", "contract", "equivalence", "numerics"}


def test_not_built(aotc, project: Project):
    project.write_model()
    result = aotc("verify", "small")
    assert (result.code, result.out) == (4, "")
    assert result.err.endswith("hint: `aotc build small` makes it\n")


def test_an_unknown_program(aotc, built: Project):
    result = aotc("verify", "small", "twise")
    assert (result.code, result.out) == (1, "")
    assert result.err == "error: `small` has no program `twise`\nhint: did you mean `twice`?\n"


def test_an_unknown_level(aotc, built: Project):
    result = aotc("verify", "small", "--level", "everything")
    assert result.code == 2
    assert "'everything' is not one of 'integrity', 'contract'" in result.err


def test_without_torch_all_but_numerics(aotc_process, built: Project):
    done = aotc_process(
        "verify", "small", *QUICK, before="sys.modules['torch'] = None", after="assert not code"
    )
    assert (done.returncode, done.stderr) == (0, "")
