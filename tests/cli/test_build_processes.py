"""`aotc build` of several programs: what one comes to does not touch the others, nor stays behind.

The faults are real ones: they are in the modules of the model, which the front end executes.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_model import MODELS, SMALL, WRAPPERS, Project, command_line

from aotc import driver
from aotc.builder import resources
from aotc.store.validate import validate

CONFIG = SMALL + '  odd: {wrapper: "odd:odd_host"}\n  even: {wrapper: "even:even_host"}\n'


def module(name: str, before: str = "") -> str:
    """Return a module with a sound program `name`, after the statements `before`."""
    head, _, rest = WRAPPERS.partition("\n\n\n@pl.jit\n")
    body = rest.partition("\n\n\n@pl.jit\n")[0].replace("twice", name)
    return f"{head}\n{before}\n\n\n@pl.jit\n{body}\n"


@pytest.fixture
def faulty(project: Project) -> Callable[..., None]:
    """Return a function that writes the model, with statements before its odd and even module."""

    def write(odd: str = "", even: str = "") -> None:
        project.write_model(config=CONFIG)
        (project.wrappers.parent / "odd.py").write_text(module("odd", odd), encoding="utf-8")
        (project.wrappers.parent / "even.py").write_text(module("even", even), encoding="utf-8")

    return write


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of what is started from here."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def statuses(text: str) -> dict[str, str]:
    return {each["program"]: each["status"] for each in json.loads(text)["programs"]}


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        (
            "import os; os.kill(os.getpid(), 9)",
            4,
            "error: the compilation of small/odd for {target} was killed\n"
            "hint: if the memory was used up, build fewer at once: -j 1\n",
        ),
        (
            "import os; os.abort()",
            4,
            "error: the compilation of small/odd for {target} crashed with SIGABRT\n",
        ),
        (
            "import os; os._exit(0)",
            70,
            "error: the compilation of small/odd for {target} ended without a result\n",
        ),
        ("raise MemoryError", 1, "error: the module fails while it is loaded: MemoryError: \n"),
        ("import sys; sys.exit(0)", 1, "error: the module fails while it is loaded: SystemExit"),
    ],
)
def test_a_crash_stops_no_other(aotc_process, faulty, project, temporary, statement, code, message):
    faulty(odd=statement)
    done = aotc_process("build", "small")
    assert done.returncode == code
    assert done.stderr.startswith(message.format(target=driver.default_target()))
    lines = done.stdout.splitlines()
    assert "odd: failed" in lines
    assert lines[-1] == "3 built, 1 failed"
    assert validate(project.store, "small") == []
    assert list(temporary.iterdir()) == []
    faulty()
    assert statuses(aotc_process("build", "small", "--json").stdout) == {
        **dict.fromkeys(("twice", "square", "even"), "up to date"),
        "odd": "built",
    }


def test_the_log_of_a_crash_is_told(aotc_process, faulty):
    faulty(odd="import os; os.write(2, b'the last words\\n'); os.abort()")
    done = aotc_process("build", "small")
    assert "crashed with SIGABRT\nthe last words\n" in done.stderr


def test_what_a_module_prints_is_a_message(aotc_process, faulty):
    faulty(odd="print('{\"type\": \"made\"}'); import sys; print('words', file=sys.stderr)")
    done = aotc_process("build", "small", "--json")
    assert set(statuses(done.stdout).values()) == {"built"}
    assert sorted(done.stderr.splitlines()) == ["odd: words", 'odd: {"type": "made"}']


def test_a_process_that_a_module_leaves_behind_is_ended(aotc_process, faulty, temporary):
    faulty(odd="import os, time; os.fork() or time.sleep(600)")
    begin = time.monotonic()
    done = aotc_process("build", "small", "--json")
    assert time.monotonic() - begin < 30
    assert set(statuses(done.stdout).values()) == {"built"}
    assert processes_in(temporary) == []


def test_without_room_in_memory_one_runs_at_a_time(aotc, faulty, monkeypatch):
    faulty()
    monkeypatch.setattr(resources, "has_room", lambda: False)
    done = aotc("build", "small", "-j", "4", "--json-lines")
    order = [each["event"] for each in events(done.out) if each["event"] in ("started", "finished")]
    assert order == ["started", "finished"] * 4


def test_a_timeout(aotc_process, faulty, project, temporary):
    faulty(odd="import time; time.sleep(600)")
    begin = time.monotonic()
    done = aotc_process("build", "small", "odd", "twice", "--timeout", "6", "--json")
    assert time.monotonic() - begin < 30
    assert done.returncode == 4
    odd = next(each for each in json.loads(done.stdout)["programs"] if each["program"] == "odd")
    assert odd["error"]["message"].startswith("small/odd for ")
    assert " was stopped after 6." in odd["error"]["message"]
    assert statuses(done.stdout) == {"odd": "failed", "twice": "built"}
    assert list(temporary.iterdir()) == []


def test_a_single_program_is_ended_too(aotc_process, faulty):
    faulty(odd="import time; time.sleep(600)")
    done = aotc_process("build", "small", "odd", "--timeout", "2")
    assert (done.returncode, done.stdout) == (4, "odd: failed\n1 failed\n")


def events(text: str) -> Iterator[dict[str, str]]:
    return map(json.loads, text.splitlines())


def test_events_and_one_job_at_a_time(aotc_process, faulty):
    faulty(even="import sys; sys.exit(0)")
    done = aotc_process("build", "small", "-j", "1", "--json-lines")
    seen = list(events(done.stdout))
    running = 0
    for each in seen:
        running += {"started": 1, "finished": -1}.get(each["event"], 0)
        assert running in (0, 1)
    mine = [each for each in seen if each.get("program") == "odd"]
    assert [each["event"] for each in mine] == ["started", "stage", "stage", "finished"]
    assert [each["stage"] for each in mine[1:3]] == list(driver.STAGES)
    assert mine[-1]["status"] == "built"
    report = seen[-1]
    assert (report["event"], report["exit_code"], done.returncode) == ("report", 1, 1)
    assert len(report["programs"]) == 4


def test_an_error_is_an_event_too(aotc_process, faulty):
    faulty()
    done = aotc_process("build", "smal", "--json-lines")
    (event,) = events(done.stdout)
    assert (event["event"], event["message"]) == ("error", "unknown model `smal`")
    assert (done.returncode, done.stderr) == (1, "")


def test_as_many_jobs_as_asked_for_run_together(aotc_process, faulty, tmp_path):
    """Each of the two waits for the other: one after the other they would never end."""
    meet = (
        "import pathlib, time\n"
        "pathlib.Path({mine!r}).touch()\n"
        "while not pathlib.Path({other!r}).exists(): time.sleep(0.01)\n"
    )
    mine, other = str(tmp_path / "odd.here"), str(tmp_path / "even.here")
    faulty(odd=meet.format(mine=mine, other=other), even=meet.format(mine=other, other=mine))
    done = aotc_process("build", "small", "odd", "even", "-j", "2", "--timeout", "60", "--json")
    assert statuses(done.stdout) == {"odd": "built", "even": "built"}


def processes_in(folder: Path) -> list[str]:
    """Return the commands of the processes whose folder, or whose TMPDIR, is below `folder`."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            inside = str(folder) in os.readlink(each / "cwd")
            inside |= f"TMPDIR={folder}".encode() in (each / "environ").read_bytes()
            if inside and int(each.name) != os.getpid():
                found.append((each / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (OSError, ValueError):
            continue
    return found


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to it"
        time.sleep(0.02)


@pytest.mark.parametrize("names", [["odd", "even"], ["odd"]])
def test_ctrl_c_in_the_front_end(faulty, project, temporary, tmp_path, names):
    reached = tmp_path / "reached"
    faulty(odd=f"import pathlib, time; pathlib.Path({str(reached)!r}).touch(); time.sleep(600)")
    process = start("build", "small", *names)
    wait_for(reached.exists)
    if "even" in names:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("even: built")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    counts = "1 built, 1 interrupted" if "even" in names else "1 interrupted"
    assert out.splitlines() == ["odd: interrupted", counts]
    _nothing_is_left(project, temporary)
    assert not (project.store / "index.json").exists()
    faulty()
    again = start("build", "small", *names, "--json")
    assert statuses(again.communicate()[0])["odd"] == "built"
    assert validate(project.store, "small") == []


def test_ctrl_c_in_the_compiler(project, temporary):
    store = project.root / "store"
    process = _start_of_clang(store)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    report = list(events(out))[-1]
    assert (process.returncode, report["event"], report["exit_code"]) == (130, "report", 130)
    assert {each["status"] for each in report["programs"]} == {"interrupted"}
    assert err == ""
    _nothing_is_left(Project(project.root), temporary, store)


def test_a_killed_build_leaves_no_process_and_no_file(project, temporary):
    store = project.root / "store"
    process = _start_of_clang(store)
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: not processes_in(temporary))
    wait_for(lambda: not list(temporary.iterdir()))


def _start_of_clang(store: Path) -> subprocess.Popen[str]:
    """Start a build of two large programs, and wait until clang runs for both."""
    where = ("--models-dir", str(MODELS), "--store", str(store))
    process = start("build", "qwen3-14b", "prefill", "decode", "-j", "2", "--json-lines", *where)
    assert process.stdout is not None
    entered = 0
    while entered < 2:
        entered += json.loads(process.stdout.readline()).get("stage") == driver.STAGES[1]
    wait_for(lambda: sum("clang" in each for each in _commands()) >= 2)
    return process


def _commands() -> list[str]:
    return processes_in(Path(os.environ["TMPDIR"]))


def _nothing_is_left(project: Project, temporary: Path, store: Path | None = None) -> None:
    assert processes_in(temporary) == []
    assert list(temporary.iterdir()) == []
    staging = (store or project.store) / "staging"
    assert not staging.exists() or list(staging.iterdir()) == []


def test_a_warm_build_starts_no_process(aotc_process, faulty):
    refuse = "import subprocess\n"
    refuse += "def start(self, words, *rest, **more): raise AssertionError(words)\n"
    refuse += "subprocess.Popen.__init__ = start\n"
    faulty()
    assert aotc_process("build", "small").returncode == 0
    done = aotc_process("build", "small", before=refuse)
    assert (done.returncode, done.stdout.count(": up to date")) == (0, 4)
    assert aotc_process("build", "small", "--check", before=refuse).returncode == 0
    faulty(odd="# changed")
    assert aotc_process("build", "small", before=refuse).returncode == 70  # the test itself works


def test_a_crash_of_a_single_program_is_reported(aotc_process, faulty, temporary):
    faulty(odd="import os; os.abort()")
    done = aotc_process("build", "small", "odd")
    assert (done.returncode, done.stdout) == (4, "odd: failed\n1 failed\n")
    assert "crashed with SIGABRT" in done.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("command", [("build", "--check"), ("explain",)])
def test_a_crash_is_a_verdict(aotc_process, faulty, temporary, command):
    faulty(odd="import os; os.abort()")
    done = aotc_process(*command, "small", "odd", "even", "--json")
    assert done.returncode == 4
    odd, even = json.loads(done.stdout)["programs"]
    assert (odd["status"], even["status"]) == ("broken", "missing")
    target = driver.default_target()
    assert odd["error"]["message"] == (
        f"the compilation of small/odd for {target} crashed with SIGABRT"
    )
    assert list(temporary.iterdir()) == []


FORK_FAILS = """\
import errno, os, subprocess
found, count = subprocess.Popen._execute_child, [0]
def start(self, *rest):
    count[0] += 1
    if {which}:
        raise OSError(errno.{error}, os.strerror(errno.{error}))
    return found(self, *rest)
subprocess.Popen._execute_child = start
"""


@pytest.mark.parametrize("error", ["EAGAIN", "ENOMEM"])
def test_no_process_can_be_started(aotc_process, faulty, project, temporary, error):
    faulty()
    before = FORK_FAILS.format(which="True", error=error)
    done = aotc_process("build", "small", before=before)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (4, "4 failed")
    assert done.stderr.count("error: no process can be started for small/") == 4
    assert os.strerror(getattr(errno, error)) in done.stderr
    assert "hint: build fewer at once, with -j 1, or raise the limits" in done.stderr
    assert "Traceback" not in done.stderr
    done = aotc_process("build", "small", "--check", before=before)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    assert list(temporary.iterdir()) == []


def test_a_process_that_cannot_be_started_waits_for_another(aotc_process, faulty):
    faulty()
    before = FORK_FAILS.format(which="count[0] in (2, 3)", error="EAGAIN")
    done = aotc_process("build", "small", "-j", "4", "--json", before=before)
    assert set(statuses(done.stdout).values()) == {"built"}


# Memory.


@pytest.fixture
def memory_group() -> Iterator[str]:
    """A cgroup of 200 MB: the statement that a module joins it with."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        group = Path("/sys/fs/cgroup", root, f"aotc-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(200 << 20))
        except OSError:
            group.rmdir()
            continue
        yield f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')"
        group.rmdir()
        return
    pytest.skip("no cgroup of memory can be made here")


def test_the_system_kills_a_compilation_that_takes_too_much(
    aotc_process, faulty, project, memory_group
):
    faulty(odd=f"{memory_group}; taken = bytearray(1 << 30)")
    done = aotc_process("build", "small")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (4, "3 built, 1 failed")
    assert f"the compilation of small/odd for {driver.default_target()} was killed" in done.stderr
    assert "hint: if the memory was used up, build fewer at once: -j 1\n" in done.stderr
    assert validate(project.store) == []


def test_several_models_and_targets(aotc, faulty, project):
    faulty()
    other = project.models / "other.yaml"
    other.write_text(SMALL.replace("model: small", "model: other"), encoding="utf-8")
    done = aotc(
        "build", "small", "twice", "other", "--json", "--target", "x86_64_v3", "--target", "aarch64"
    )
    assert done.code == 0
    built = {
        (each["model"], each["program"], each["target"])
        for each in json.loads(done.out)["programs"]
    }
    assert built == {
        (model, program, target)
        for model, program in (("small", "twice"), ("other", "twice"), ("other", "square"))
        for target in ("x86_64_v3", "aarch64")
    }
    listed = json.loads(aotc("ls", "--json").out)
    assert {(each["model"], each["program"], each["target"]) for each in listed} == built
    done = aotc("build", "--all", "--target", "x86_64_v3")
    lines = done.out.splitlines()
    assert lines[-1] == "3 built, 3 up to date"
    assert "other/twice for x86_64_v3: up to date" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Error: name a model, or give --all"),
        (["small", "--all"], "Error: name a model, or give --all, not both"),
        (["small", "--check", "--locked"], "Error: --locked and --check cannot be combined"),
        (["small", "-j", "0"], "Error: Invalid value for '-j' / '--jobs'"),
        (["small", "--timeout", "0"], "Error: Invalid value for '--timeout'"),
    ],
)
def test_wrong_usage(aotc, faulty, arguments, message):
    faulty()
    result = aotc("build", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_folder_without_models(aotc, project):
    project.models.mkdir()
    result = aotc("build", "--all", "--models-dir", str(project.models))
    assert (result.code, result.err.partition("\n")[0]) == (
        1,
        f"error: no models in {project.models}",
    )
