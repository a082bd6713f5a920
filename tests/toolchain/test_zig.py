"""The pinned compiler makes equal, self-contained objects for every target."""

import ctypes
import errno
import importlib.util
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from aotc.toolchain import zig

SOURCE = """
__attribute__((visibility("default"))) float scale(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += 2 * x[i];
    return sum;
}
"""
# Machine numbers of the ELF specification: EM_X86_64, EM_AARCH64.
MACHINES = {"x86_64_v3": 62, "x86_64_v4": 62, "x86_64_amx": 62, "aarch64": 183}


@pytest.mark.parametrize("name", list(zig.TARGETS))
def test_object_is_for_its_target_and_repeats(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = zig.compile_shared_object(SOURCE, zig.TARGETS[name])
    assert first[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", first, 18)[0] == MACHINES[name]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert zig.compile_shared_object(SOURCE, zig.TARGETS[name]) == first


@pytest.mark.skipif(platform.machine() != "x86_64", reason="runs the x86_64 object")
def test_object_runs(tmp_path: Path) -> None:
    path = tmp_path / "program.so"
    path.write_bytes(zig.compile_shared_object(SOURCE, zig.TARGETS["x86_64_v3"]))
    function = ctypes.CDLL(str(path)).scale
    function.restype = ctypes.c_float
    for count, expected in ((0, 0.0), (1, 2.0), (3, 12.0)):
        assert function((ctypes.c_float * 3)(1, 2, 3), count) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [("int f(", "expected"), ("int g(void); int f(void) { return g(); }", "undefined symbol: g")],
)
def test_failure_carries_the_log(source: str, message: str) -> None:
    with pytest.raises(zig.ToolchainError, match=message) as caught:
        zig.compile_shared_object(source, zig.TARGETS["x86_64_v3"])
    assert "from: zig" in caught.value.message


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(zig.ToolchainError, match="not installed"):
        zig.locate()


# In a process of its own: address space enough for Python, and too little for the compiler.
_LITTLE = """
import resource
from aotc.toolchain import zig
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (16 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    zig.compile_shared_object("int f(void) { return 1; }", zig.TARGETS["aarch64"])
except zig.ToolchainError as error:
    print(error.hint)
"""


def test_without_memory_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LITTLE], capture_output=True, text=True, check=False
    )
    hint = "if the memory was used up, build fewer at once: -j 1\n"
    assert (done.stdout, done.stderr) == (hint, "")


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM, errno.ENOENT])
def test_a_compiler_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(subprocess, "run", refuse)
    message = f"^cannot start: zig clang .*\n{os.strerror(code)}$"
    with pytest.raises(zig.ToolchainError, match=message) as caught:
        zig.compile_shared_object("", zig.TARGETS["aarch64"])
    assert (caught.value.hint is None) == (code == errno.ENOENT)


def test_a_compiler_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(zig.ToolchainError, match=r"^SIGKILL from: zig clang ") as caught:
        zig.compile_shared_object("", zig.TARGETS["aarch64"])
    assert "-j 1" in str(caught.value.hint)
