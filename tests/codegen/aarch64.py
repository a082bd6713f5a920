"""Run objects for aarch64 on this machine, under qemu's emulation of its user mode."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import aotc
from aotc.toolchain.zig import TARGETS, locate

QEMU = shutil.which("qemu-aarch64")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 (qemu-user) is not installed")

_INCLUDE = Path(aotc.__file__).parent / "runtime" / "include"
_ALIGNMENT = 64


@cache
def _host() -> Path:
    """Compile the host once a run; it needs no library either."""
    folder = Path(tempfile.mkdtemp(prefix="aotc-aarch64-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).with_name("aarch64_host.c")
    zig, clang = str(locate()), ("clang", "-target", TARGETS["aarch64"].triple)
    flags = ("-std=c17", "-O1", "-ffreestanding", "-nostdinc", "-fno-stack-protector")
    subprocess.run(
        [zig, *clang, *flags, f"-I{_INCLUDE}", "-Werror", "-c", str(source), "-o", "host.o"],
        cwd=folder,
        check=True,
    )
    subprocess.run([zig, "ld.lld", "-static", "host.o", "-o", "host"], cwd=folder, check=True)
    return folder / "host"


def run(
    content: bytes,
    arguments: Sequence[np.ndarray],
    symbols: Sequence[int],
    threads: int,
    packed: Sequence[bool] | None = None,
) -> list[np.ndarray]:
    """Return what `arguments`, of which some are `packed`, are after a call of `content`."""
    assert QEMU is not None
    starts: list[int] = []
    end = 8 * (3 + len(symbols) + 2 * len(arguments))
    flags = packed or [False] * len(arguments)
    for each in arguments:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + each.nbytes
    job = bytearray(end)
    words = np.array([threads, len(symbols), len(arguments), *symbols, *starts, *flags], np.int64)
    job[: words.nbytes] = words.tobytes()
    for start, each in zip(starts, arguments, strict=True):
        job[start : start + each.nbytes] = np.ascontiguousarray(each).tobytes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.so").write_bytes(content)
        (folder / "job").write_bytes(job)
        command = [QEMU, str(_host()), "program.so", "job"]
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        after = (folder / "job").read_bytes()
    return [
        np.frombuffer(after, each.dtype, each.size, start).reshape(each.shape)
        for start, each in zip(starts, arguments, strict=True)
    ]
