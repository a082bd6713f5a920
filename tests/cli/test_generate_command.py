"""`aotc generate`, with the tiny Qwen3 and with what is missing."""

from __future__ import annotations

import json
import shutil

import pytest
from small_model import MODELS, SMALL, Project

from aotc import driver
from aotc.cli.main import main

WEIGHTS = ("--weights", "random:0")
PROMPTS = ("--prompt-ids", "1,2,3,4,5", "--prompt-ids", "7, 8")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with qwen3-tiny, built."""
    pytest.importorskip("torch")
    project = Project(tmp_path_factory.mktemp("tiny"))
    project.models.mkdir()
    shutil.copy(MODELS / "qwen3-tiny.yaml", project.models)
    shutil.copytree(MODELS / "qwen3", project.models / "qwen3")
    assert main(["build", "qwen3-tiny", "--models-dir", str(project.models), "--quiet"]) == 0
    return project


@pytest.fixture
def generate(aotc, tiny: Project):
    """Return a function that runs `generate qwen3-tiny` in that project."""

    def run(*arguments: str):
        return aotc("generate", "qwen3-tiny", "--models-dir", str(tiny.models), *arguments)

    return run


def test_a_line_a_step_and_a_column_a_prompt(generate):
    result = generate(*WEIGHTS, *PROMPTS, "--max-new-tokens", "4")
    assert result.code == 0
    steps = [[int(each) for each in line.split("\t")] for line in result.out.splitlines()]
    assert [len(step) for step in steps] == [2, 2, 2, 2]
    assert all(0 <= token < 250 for step in steps for token in step)
    weights, speed = result.err.splitlines()
    assert weights.startswith("weights ready in ")
    assert speed.startswith("first tokens after ")

    document = json.loads(generate(*WEIGHTS, *PROMPTS, "--max-new-tokens", "4", "--json").out)
    assert [each["ids"] for each in document["prompts"]] == [[1, 2, 3, 4, 5], [7, 8]]
    new = [each["new_ids"] for each in document["prompts"]]
    assert new == [list(column) for column in zip(*steps, strict=True)]


def test_threads_chunks_and_bounds_do_not_change_what_comes_out(generate):
    common = (*WEIGHTS, *PROMPTS, "--max-new-tokens", "3", "--quiet")
    expected = generate(*common, "--threads", "1").out
    assert len(expected.splitlines()) == 3
    for options in (["--threads", "2"], ["--chunk", "2"], ["--max-seq-len", "128"]):
        result = generate(*common, *options)
        assert (result.out, result.err) == (expected, ""), options
    assert generate("--weights", "random:1", *common[2:]).out != expected
    assert generate(*common, "--layers", "1").out != expected


def test_a_checkpoint(generate, tmp_path):
    missing = generate("--weights", str(tmp_path), *PROMPTS)
    assert missing.code == 1
    assert (
        missing.err == f"error: cannot read {tmp_path / 'config.json'}: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-new-tokens", "0"], "max_new_tokens must be at least 1, got 0"),
        (["--max-seq-len", "129"], "max_seq_len must be from 1 to 128, got 129"),
        (["--max-seq-len", "6"], "prompt 1: 5 tokens and 16 new ones are 21"),
        (["--layers", "5"], "layers must be from 1 to 4, got 5"),
        (["--threads", "0"], "threads must be in 1..1024, got `0`"),
        (["--chunk", "0"], "chunk_tokens must be from 1 to 128, got 0"),
        (["--prompt-ids", "250"], "prompt 3: id 250 is outside the vocabulary of 250"),
        (["--max-new-tokens", "124"], "prompt 1: 5 tokens and 124 new ones are 129"),
    ],
)
def test_a_wrong_request(generate, options, message):
    result = generate(*WEIGHTS, *PROMPTS, *options)
    assert (result.code, result.out) == (1, "")
    assert f"error: {message}" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt-ids", "1,,2", *WEIGHTS], "`1,,2` is not a list of token ids"),
        (["--prompt-ids", "", *WEIGHTS], "`` is not a list of token ids"),
        (["--prompt-ids", "-1", *WEIGHTS], "`-1` is not a list of token ids"),
        (["--prompt-ids", "1", "--weights", "random"], "`random` is neither random:SEED nor"),
        (["--prompt-ids", "1", "--weights", "none"], "`none` is neither random:SEED nor"),
        (WEIGHTS, "Missing option '--prompt-ids'"),
        (["--prompt-ids", "1"], "Missing option '--weights'"),
    ],
)
def test_wrong_usage(aotc, project: Project, options, message):
    result = aotc("generate", "small", *options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def three_programs(project: Project) -> None:
    """Make `small` a model with the programs of a Qwen3 by name."""
    names = ("prefill", "decode", "greedy_sample")
    head = SMALL.partition("programs")[0]
    programs = "".join(f'  {name}: {{wrapper: "wrappers:twice_host"}}\n' for name in names)
    project.write_model(config=f"{head}programs:\n{programs}")


def test_not_built(aotc, project: Project):
    three_programs(project)
    result = aotc("generate", "small", *WEIGHTS, *PROMPTS)
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith("error: no store in artifacts: ")
    assert result.err.endswith("\nhint: `aotc build small` makes it\n")
    assert aotc("build", "small", "prefill", "--quiet").code == 0
    result = aotc("generate", "small", *WEIGHTS, *PROMPTS)
    assert (result.code, result.out) == (1, "")
    assert (
        result.err == "error: no program `decode` in `small`\nhint: `aotc build small` makes it\n"
    )


def test_a_model_that_has_no_such_programs(aotc, built: Project):
    result = aotc("generate", "small", *WEIGHTS, *PROMPTS)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: `small` has no program `prefill`\nhint: its programs: twice, square\n"
    )


def test_artifacts_for_another_cpu(aotc, project: Project):
    three_programs(project)
    other = "aarch64" if driver.default_target() != "aarch64" else "x86_64_v3"
    assert aotc("build", "small", "--target", other, "--quiet").code == 0
    result = aotc("generate", "small", *WEIGHTS, *PROMPTS)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"error: `prefill` of `small` is there for {other}, wanted for ")
    assert result.err.endswith("\nhint: `aotc build small` makes it\n")


def test_a_damaged_object_is_not_run(aotc, project: Project):
    three_programs(project)
    assert aotc("build", "small", "--quiet").code == 0
    digest = json.loads(aotc("show", "small", "decode", "--json").out)["layers"][0]["digest"]
    content = bytearray(project.blob(digest).read_bytes())
    content[len(content) // 2] ^= 1
    project.blob(digest).write_bytes(content)
    result = aotc("generate", "small", *WEIGHTS, *PROMPTS)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith(f"error: blob {digest} is damaged: ")


def test_without_torch(aotc_process, project: Project):
    three_programs(project)
    assert main(["build", "small", "--quiet"]) == 0
    done = aotc_process(
        "generate", "small", *WEIGHTS, *PROMPTS, before="sys.modules['torch'] = None"
    )
    assert (done.returncode, done.stdout) == (4, "")
    message = "error: generating needs the package `torch`\nhint: pip install torch\n"
    assert done.stderr == message
