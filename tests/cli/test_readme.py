"""What README.md says of the command line is so."""

from __future__ import annotations

import re
import shlex

import pytest
from small_model import MODELS

from aotc.cli import main as command_line
from aotc.errors import ExitCode

README = (MODELS.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^    (aotc .*)$", README.replace("\\\n", ""), re.MULTILINE)


def test_there_is_an_example_of_every_command():
    shown = {shlex.split(each)[1] for each in EXAMPLES}
    assert shown | {"schema"} == set(command_line.COMMANDS)
    assert "`aotc schema`" in README


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_understood(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()
    name, *arguments = shlex.split(example, comments=True)[1:]
    context = command_line.cli.make_context("aotc", [name, *arguments])
    command = command_line.cli.get_command(context, name)
    assert command is not None
    with command.make_context(name, arguments) as parsed:
        model = parsed.params.get("model")
        assert model is None or (MODELS / f"{model}.yaml").exists()


def test_every_exit_code_is_documented():
    codes = {*ExitCode, command_line.INTERRUPTED, command_line.CLOSED_OUTPUT}
    documented = {int(code) for code in re.findall(r"^\| (\d+) ", README, re.MULTILINE)}
    assert documented == {int(code) for code in codes}
