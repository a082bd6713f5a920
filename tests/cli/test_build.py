"""`aotc build`: what it prints and returns, also for what is wrong, and what it imports."""

from __future__ import annotations

import ctypes
import json
import re

import pytest
from small_model import SMALL, WRAPPERS, Project

from aotc import driver

# What a build that has nothing to do, and the commands that read a store, must never import.
HEAVY = (
    *("torch", "numpy", "rich", "filelock", "importlib.metadata"),
    *("aotc.frontend", "aotc.language", "aotc.ir", "aotc.ops", "aotc.passes", "aotc.codegen"),
)
PRINT_HEAVY = f"""
found = [each for each in {HEAVY!r} if each in sys.modules]
print("imported:", found, file=sys.stderr)
"""


def ordered(result) -> str:
    """Return the lines of what was printed, sorted: programs end in any order."""
    return "\n".join(sorted(result.out.splitlines()))


def test_build_then_up_to_date(aotc, project: Project):
    project.write_model()
    first = aotc("build", "small")
    assert first.code == 0
    assert re.fullmatch(r"square: built in \d+\.\d s\ntwice: built in \d+\.\d s", ordered(first))
    second = aotc("build", "small")
    assert (second.code, second.err) == (0, "")
    assert second.out == "twice: up to date\nsquare: up to date\n"


def test_only_the_programs_named(aotc, built: Project):
    built.wrappers.write_text(WRAPPERS.replace("pl.mul(x, x)", "pl.sub(x, x)"), encoding="utf-8")
    assert aotc("build", "small", "twice").out == "twice: up to date\n"
    assert aotc("build", "small", "square").out.startswith("square: built in ")


def test_a_comment_builds_nothing(aotc, built: Project):
    built.wrappers.write_text(WRAPPERS + "\n# changed\n", encoding="utf-8")
    assert ordered(aotc("build", "small")) == "square: up to date\ntwice: up to date"


def test_quiet(aotc, built: Project):
    result = aotc("build", "small", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_json(aotc, built: Project):
    document = json.loads(aotc("build", "small", "--json").out)
    for name, program in zip(("twice", "square"), document["programs"], strict=True):
        assert program.pop("seconds") < 5
        assert re.fullmatch("sha256:[0-9a-f]{64}", program.pop("manifest"))
        assert program == {
            "model": "small",
            "program": name,
            "target": driver.default_target(),
            "status": "up to date",
            "warnings": [],
            "error": None,
        }


def test_a_model_without_programs(aotc, project: Project):
    project.write_model(config=SMALL.partition("programs")[0])
    result = aotc("build", "small")
    assert (result.code, result.out, result.err) == (0, "", "`small` has no programs\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "extent: {A: 1}\n",
            "error: unknown key `extent`\n  --> {path}:4:1\n  4 | extent: {A: 1}\n      ^\n"
            "hint: did you mean `extents`?\n",
        ),
        (
            "extents: {A: [1]}\n",
            "error: `extents.A`: Expected `int | str`, got `array`\n  --> {path}:4:14\n"
            "  4 | extents: {A: [1]}\n                   ^\n",
        ),
        (
            "extents: {A: B, BB: 2}\n",
            "error: unknown name `B`\n  --> {path}:4:14\n  4 | extents: {A: B, BB: 2}\n"
            "                   ^\nhint: did you mean `BB`?\n",
        ),
        (
            "extents: {A: B, B: A}\n",
            "error: extents form a cycle: A -> B -> A\n  --> {path}:4:14\n"
            "  4 | extents: {A: B, B: A}\n                   ^\n",
        ),
        (
            "extents: {A: 0, B: 1 // A}\n",
            "error: extent `B`: division by zero\n  --> {path}:4:20\n"
            "  4 | extents: {A: 0, B: 1 // A}\n                         ^\n",
        ),
    ],
)
def test_a_mistake_in_the_config(aotc, project: Project, body, message):
    project.write_model(config="schema: 1\nmodel: small\nsource: sources\n" + body)
    result = aotc("build", "small")
    assert (result.code, result.out) == (1, "")
    assert result.err == message.replace("{path}", "models/small.yaml")
    assert not project.store.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smal"], "error: unknown model `smal`\nhint: did you mean `small`?\n"),
        (["zzz"], "error: unknown model `zzz`\nhint: models in models: small\n"),
        (
            ["small", "twise"],
            "error: `small` has no program `twise`\nhint: did you mean `twice`?\n",
        ),
        (
            ["small", "zzz"],
            "error: `small` has no program `zzz`\nhint: its programs: twice, square\n",
        ),
    ],
)
def test_an_unknown_name(aotc, built: Project, arguments, message):
    result = aotc("build", *arguments)
    assert (result.code, result.out, result.err) == (1, "", message)


def test_a_name_that_the_config_does_not_give(aotc, project: Project):
    project.write_model(wrappers=WRAPPERS.replace("[ROWS_DYN, WIDTH]", "[ROWS_DIN, WIDTH]"))
    result = aotc("build", "small", "twice")
    assert result.code == 1
    assert result.out == "twice: failed\n1 failed\n"
    assert "`ROWS_DIN`" in result.err
    assert "`twice_host`, parameter `x`, dimension 0" in result.err
    assert "hint: did you mean `ROWS_DYN`?" in result.err
    assert re.search(r"  --> \S+wrappers\.py:\d+:\d+\n", result.err)


def test_a_pinned_dimension_is_warned_of(aotc, project: Project):
    head, wrapper, rest = WRAPPERS.partition("@pl.jit.host\ndef twice_host")
    own, kernel, others = rest.partition("@pl.jit\n")
    pinned = own.replace("ROWS_DYN", "16")
    project.write_model(wrappers=head + wrapper + pinned + kernel + others)
    result = aotc("build", "small", "twice")
    assert result.code == 0
    assert result.out.startswith("twice: built in ")
    first, second = result.err.splitlines()
    assert first.startswith("warning: twice: wrapper `twice_host` pins `x` dimension 0 to 16")
    assert second.startswith("warning: twice: wrapper `twice_host` pins `y` dimension 0 to 16")


def test_a_bare_tensor_in_a_host_wrapper(aotc, project: Project):
    bare = WRAPPERS.replace(
        "def twice_host(\n    x: pl.Tensor[[ROWS_DYN, WIDTH], pl.FP32]",
        "def twice_host(\n    x: pl.Tensor",
    )
    assert bare != WRAPPERS
    project.write_model(wrappers=bare)
    result = aotc("build", "small", "twice")
    assert (result.code, result.out) == (1, "twice: failed\n1 failed\n")
    lines = result.err.splitlines()
    assert lines[0] == "error: wrapper `twice_host`, parameter `x`: a bare `pl.Tensor` has no shape"
    assert re.fullmatch(r"  --> \S+/models/sources/wrappers\.py:15:8", lines[1])
    assert lines[2].startswith("  15 |     x: pl.Tensor, y: ")
    assert lines[3].index("^") == lines[2].index("pl.Tensor")
    assert lines[4].startswith("hint: write `pl.Tensor[[dims], pl.DTYPE]`")


def test_one_that_fails_does_not_stop_the_others(aotc, project: Project):
    project.write_model(wrappers=WRAPPERS.replace("pl.add(x, x)", "pl.ad(x, x)"))
    result = aotc("build", "small")
    assert result.code == 1
    assert re.fullmatch(
        r"1 built, 1 failed\nsquare: built in \d+\.\d s\ntwice: failed", ordered(result)
    )
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err
    document = json.loads(aotc("build", "small", "--json").out)
    failed, other = document["programs"]
    assert (failed["status"], other["status"]) == ("failed", "up to date")
    assert failed["error"]["place"]["line"] > 0
    assert failed["error"]["exit_code"] == 1
    assert other["error"] is None


def test_a_damaged_object_is_reported_and_built_again(aotc, built: Project):
    shown = json.loads(aotc("show", "small", "twice", "--json").out)
    path = built.blob(shown["layers"][0]["digest"])
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    result = aotc("build", "small")
    assert result.code == 0
    assert re.fullmatch(r"square: up to date\ntwice: built in \d+\.\d s", ordered(result))
    assert result.err.startswith("warning: blob sha256:")
    assert "damaged" in result.err
    assert path.read_bytes() == intact


def test_other_targets(aotc, built: Project):
    other = next(each for each in ("aarch64", "x86_64_v3") if each != driver.default_target())
    result = aotc("build", "small", "twice", "--target", other)
    assert (result.code, result.err) == (0, "")
    listed = json.loads(aotc("ls", "--json").out)
    assert {each["target"] for each in listed} == {driver.default_target(), other}


def test_without_a_compiler_on_path(aotc_process, project: Project):
    project.write_model()
    done = aotc_process("build", "small", environment={"PATH": "/nonexistent"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "square: built in " in done.stdout


def test_without_the_compiler_package(aotc_process, project: Project):
    project.write_model()
    hidden = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ziglang" else found(name, *rest)
"""
    done = aotc_process("build", "small", before=hidden)
    assert done.returncode == 4
    assert done.stderr == "error: the compiler is not installed\nhint: pip install ziglang\n"


def test_without_torch_a_cold_build_is_small(aotc_process, project: Project):
    project.write_model()
    done = aotc_process(
        "build",
        "small",
        before="sys.modules['torch'] = None",
        # Not ru_maxrss, which a process inherits from the one that started it.
        after="print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')))",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", done.stdout)
    assert int(peak) < 300 * 1024


@pytest.mark.parametrize(
    "arguments", [["build", "small"], ["ls"], ["show", "small", "twice", "--source"]]
)
def test_what_reads_a_store_imports_no_compiler(aotc_process, built: Project, arguments):
    done = aotc_process(*arguments, after=PRINT_HEAVY)
    assert done.returncode == 0
    assert done.stderr == "imported: []\n"


def obey_permissions() -> None:
    """Make the next program obey permissions also where root runs it."""
    drop_from_bounding_set, override_permissions = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, override_permissions)


def test_a_read_only_store_is_enough_for_all_but_building(aotc_process, built: Project):
    folders = [built.store, *(path for path in built.store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    for arguments in (["ls"], ["show", "small", "twice", "--ir"], ["build", "small"]):
        done = aotc_process(*arguments, preexec_fn=obey_permissions)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    assert done.stdout == "twice: up to date\nsquare: up to date\n"
    built.wrappers.write_text(WRAPPERS.replace("pl.add(x, x)", "pl.sub(x, x)"))
    done = aotc_process("build", "small", "twice", preexec_fn=obey_permissions)
    assert (done.returncode, done.stdout) == (4, "twice: failed\n1 failed\n")
    assert done.stderr.startswith("error: cannot ")
    assert "hint: choose a store that this user may write\n" in done.stderr
    for folder in folders:
        folder.chmod(0o755)


@pytest.mark.parametrize("part", ["manifest", "layers"])
def test_damaged_provenance_is_reported_and_recorded_again(aotc, built: Project, part):
    """By a build that finds all programs up to date."""
    listed = json.loads((built.store / "index.json").read_text())["manifests"]
    statements = [each["digest"] for each in listed if "dev.aotc.subject" in each["annotations"]]
    damaged = statements[0]
    if part == "layers":
        damaged = json.loads(built.blob(statements[0]).read_text())["layers"][0]["digest"]
    intact = built.blob(damaged).read_bytes()
    built.blob(damaged).write_bytes(intact[:-1])
    assert aotc("verify", "small", "--level", "integrity").code == 3
    result = aotc("build", "small")
    assert (result.code, result.out) == (0, "twice: up to date\nsquare: up to date\n")
    assert result.err.startswith(f"warning: blob {damaged} is damaged: ")
    assert "a statement or signature on small/" in result.err
    assert built.blob(damaged).read_bytes() == intact
    assert aotc("verify", "small", "--level", "integrity").code == 0
    assert aotc("build", "small").err == ""
