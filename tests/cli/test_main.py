"""The command line around the commands: help, errors, exit codes, streams."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import subprocess

import click
import pytest
from small_model import MODELS, Project, command_line

from aotc.builder import build as builder
from aotc.cli.main import COMMANDS
from aotc.errors import ExitCode


def test_help_lists_every_command_and_imports_none(aotc_process):
    done = aotc_process("--help", after="print(sorted(sys.modules), file=sys.stderr)")
    assert done.returncode == 0
    for name, (module, summary) in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert summary in done.stdout
        assert f"'{module}'" not in done.stderr
    for module in ("msgspec", "yaml", "rich", "numpy", "torch", "aotc.driver"):
        assert f"'{module}'" not in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name, aotc):
    module, summary = COMMANDS[name]
    command = importlib.import_module(module).command
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help.partition("\n")[0] == summary
    assert aotc(name, "--help").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bild"], "error: unknown command `bild`\nhint: did you mean `build`?\n"),
        (["zzz"], f"error: unknown command `zzz`\nhint: commands: {', '.join(COMMANDS)}\n"),
        (["build"], "Error: name a model, or give --all"),
        (["build", "m", "--nonsense"], "Error: No such option"),
        (["build", "m", "--target", "x"], "'x' is not one of 'x86_64_v3', 'x86_64_v4', "),
        (["--nonsense"], "Error: No such option"),
    ],
)
def test_wrong_usage(aotc, arguments, message):
    result = aotc(*arguments)
    assert result.code == ExitCode.USAGE == 2
    assert message in result.err
    assert result.out == ""


def test_errors_are_json_where_asked(aotc, project: Project):
    project.write_model(config="schema: 1\nmodel: small\nsource: s\nextents: {A: B}\n")
    result = aotc("build", "small", "--json")
    assert result.code == 1
    assert result.err == ""
    assert json.loads(result.out) == {
        "error": {
            "message": "unknown name `B`",
            "place": {"path": "models/small.yaml", "line": 4, "column": 14},
            "hint": "define it under `extents`",
            "exit_code": 1,
        }
    }
    wrong = aotc("build", "--json")
    assert wrong.code == 2
    assert json.loads(wrong.out)["error"]["exit_code"] == 2


def test_an_interrupt_exits_with_130(aotc, built: Project, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(builder, "build", interrupt)
    result = aotc("build", "small")
    assert result.code == 130
    assert result.err.strip() == "error: interrupted"


def test_a_fault_of_aotc_exits_with_70_and_says_so(aotc, built: Project, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(builder, "build", fail)
    result = aotc("build", "small", "--json")
    assert result.code == 70
    assert "ZeroDivisionError" in result.err
    assert json.loads(result.out)["error"]["exit_code"] == 70


@pytest.mark.parametrize("arguments", [["ls"], ["show", "small", "twice"], ["build", "small"]])
def test_a_closed_pipe_is_no_traceback(aotc_process, built: Project, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = aotc_process(*arguments, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["build", "small"]])
def test_a_full_disk_under_stdout(aotc_process, built: Project, arguments):
    with open("/dev/full", "w") as full:
        done = aotc_process(*arguments, stdout=full)
    assert done.returncode == 4
    assert done.stderr == "error: cannot write the output: No space left on device\n"


def test_a_disk_that_fills_up_elsewhere(aotc, built: Project, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/aotc-x/program.c")

    monkeypatch.setattr(builder, "build", fill)
    result = aotc("build", "small")
    assert (result.code, result.out) == (4, "")
    assert result.err == "error: No space left on device: /tmp/aotc-x/program.c\n"


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_on_a_terminal(built: Project, variables):
    """Errors have colour unless NO_COLOR is set; lines are those of a pipe; bars come and go."""
    built.wrappers.write_text(built.wrappers.read_text().replace("pl.add(x, x)", "pl.sub(x, x)"))
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"}
    environment |= {"TERM": "xterm", "COLUMNS": "80", **variables}
    text = _plain(_on_terminal(["build", "small"], environment))
    lines = [each for each in re.split(r"[\r\n]+", text) if each.strip()]
    running = re.compile(r"\S (twice|square) +[━╸╺ ]+ *(front end|machine code)? *\d:\d\d:\d\d")
    said = [each for each in lines if not running.fullmatch(each.strip())]
    up_to_date, built_now = sorted(said)  # a program may end before the one above it
    assert up_to_date == "square: up to date"
    assert re.fullmatch(r"twice: built in \d+\.\d s", built_now)
    assert ("machine code" in text) == (variables.get("TERM") != "dumb")
    wide = _on_terminal(["build", "small", "twise"], environment)
    message = "error: `small` has no program `twise`\r\nhint: did you mean `twice`?\r\n"
    assert message in _plain(wide)
    assert ("\x1b[31m" in wide) == ("NO_COLOR" not in variables)


def test_a_long_error_is_not_wrapped_on_a_terminal(built: Project):
    text = built.wrappers.read_text().replace("pl.add(x, x)", "pl.add(x, undefined_name)")
    built.wrappers.write_text(text, encoding="utf-8")
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "20"}
    shown = _plain(_on_terminal(["build", "small", "twice"], environment))
    assert "twice: failed\r\n" in shown
    assert "        y = pl.assemble(y, pl.add(x, undefined_name), [0, 0])\r\n" in shown


def _on_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    terminal, other = os.openpty()
    with subprocess.Popen(
        command_line(arguments), stdin=other, stdout=other, stderr=other, env=environment
    ):
        os.close(other)
        read = b""
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # on Linux this is the end
                break
            if not piece:
                break
            read += piece
    os.close(terminal)
    return read.decode()


def _plain(text: str) -> str:
    """Return `text` without what moves the cursor or colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_from_a_subfolder_of_the_checkout(aotc, monkeypatch):
    monkeypatch.chdir(MODELS.parent / "tests")  # which has a folder `models` without a config
    result = aotc("config", "qwen3-tiny", "--json")
    assert result.code == 0
    assert json.loads(result.out)["extents"]["VOCAB"] == 256


def test_from_elsewhere_the_models_are_those_of_the_checkout(aotc, project: Project):
    assert aotc("config", "qwen3-tiny").code == 0


def test_the_nearest_models_are_taken(aotc, built: Project, monkeypatch):
    below = built.root / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    result = aotc("ls", "--json")
    assert [each["program"] for each in json.loads(result.out)] == ["square", "twice"]


def test_places_from_the_environment(aotc, built_project: Project, project: Project, monkeypatch):
    monkeypatch.setenv("AOTC_MODELS_DIR", str(built_project.models))
    assert aotc("build", "small").out == "twice: up to date\nsquare: up to date\n"
    monkeypatch.setenv("AOTC_STORE", str(project.root / "other"))
    assert aotc("ls").err.startswith(f"error: no store in {project.root / 'other'}: ")


def test_shell_completion(aotc_process, project: Project):
    done = aotc_process(
        environment={"_AOTC_COMPLETE": "bash_complete", "COMP_WORDS": "aotc b", "COMP_CWORD": "1"}
    )
    assert done.stdout == "plain,build\n"
