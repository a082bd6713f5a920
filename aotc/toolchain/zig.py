"""The pinned clang and linker of the `ziglang` package: freestanding C to a shared object."""

from __future__ import annotations

import errno
import functools
import importlib.util
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aotc.toolchain.base import ToolchainError

# No -ffast-math: results are part of the contract. An FMA is written where one is meant.
_FLAGS = (
    *("-x", "c", "-std=c17", "-O2", "-fPIC", "-fvisibility=hidden"),
    *("-ffreestanding", "-nostdinc", "-fno-ident", "-ffp-contract=off", "-fno-stack-protector"),
    # Half of the time went into passes that gain nothing: kernels are blocked and unrolled in the C
    # text, and step their pointers themselves. Loops of constant length are still unrolled whole.
    *("-mllvm", "-disable-lsr", "-mllvm", "-unroll-runtime=0"),
    *("-mllvm", "-unroll-allow-partial=0"),
    # A loop that does not vectorize is slow, not wrong; not every program uses all that is defined.
    *("-Wall", "-Werror", "-Wno-pass-failed", "-Wno-unused-function", "-Wno-unused-variable"),
)
_LINK_FLAGS = ("-shared", "--no-undefined", "--build-id=none", "-z", "noexecstack")


@dataclass(frozen=True)
class Target:
    """A CPU level: the triple and the flags that select it; `panels` where weights are packed."""

    triple: str
    flags: tuple[str, ...]
    panels: bool = True


# Without the second flag clang splits every vector of 512 bits.
_V4 = ("-march=x86-64-v4", "-mprefer-vector-width=512")
TARGETS = {
    "x86_64_v3": Target("x86_64-linux-gnu", ("-march=x86-64-v3",)),
    "x86_64_v4": Target("x86_64-linux-gnu", _V4),
    # Also the matrix unit, for bf16, which takes row-major weights.
    "x86_64_amx": Target("x86_64-linux-gnu", (*_V4, "-mamx-tile", "-mamx-bf16"), panels=False),
    "aarch64": Target("aarch64-linux-gnu", ("-march=armv8-a",)),
}


def locate() -> Path:
    """Return the path of the `zig` executable; raise ToolchainError where it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise ToolchainError("the compiler is not installed", hint="pip install ziglang")
    return Path(spec.origin).with_name("zig")


@functools.cache
def identity() -> str:
    """Return the name, version and digest of the compiler, as its wheel records them.

    Raises ToolchainError where it is not installed.
    """
    executable = locate()
    for record in sorted(executable.parent.parent.glob("ziglang-*.dist-info/RECORD")):
        # A megabyte of lines, read at each start: it is not worth a regular expression.
        _, _, rest = (b"\n" + record.read_bytes()).partition(b"\nziglang/zig,")
        if rest.startswith(b"sha256="):
            version = record.parent.name.removesuffix(".dist-info").replace("-", " ")
            return f"{version} {rest[: rest.index(b',')].decode()}"
    raise ToolchainError("the compiler's wheel has no record", hint="pip install ziglang")


def flags(target: str) -> tuple[str, ...]:
    """Return every flag that a compile and link for `target` uses."""
    level = TARGETS[target]
    return ("-target", level.triple, *level.flags, *_FLAGS, *_LINK_FLAGS)


def compile_shared_object(source: str, target: Target) -> bytes:
    """Compile freestanding C to a shared object that needs no library, and return its bytes.

    Raises ToolchainError, with the command line and the compiler's output, where it fails.
    """
    zig = str(locate())
    with tempfile.TemporaryDirectory(prefix="aotc-") as name:
        # Relative names only: no path of this machine may reach the object.
        folder = Path(name)
        (folder / "program.c").write_text(source, encoding="utf-8")
        clang = ("clang", "-target", target.triple, *target.flags, *_FLAGS)
        _run(folder, zig, *clang, "-c", "program.c", "-o", "program.o")
        _run(folder, zig, "ld.lld", *_LINK_FLAGS, "program.o", "-o", "program.so")
        return (folder / "program.so").read_bytes()


def _run(folder: Path, *command: str) -> None:
    # An empty environment: clang would read CPATH and the like, and no key would know.
    shown = " ".join(("zig", *command[1:]))
    try:
        done = subprocess.run(
            command, cwd=folder, env={}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ToolchainError(
            f"cannot start: {shown}\n{error.strerror}", hint=_HINT if _is_memory(error) else None
        ) from None
    if done.returncode != 0:
        code = done.returncode
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        # Without memory it is killed, crashes, or says so.
        short = code < 0 or any(each in done.stderr for each in _NO_MEMORY)
        raise ToolchainError(
            f"{how} from: {shown}\n{done.stderr.rstrip()}", hint=_HINT if short else None
        )


# What zig, clang and the linker say where they get no memory.
_NO_MEMORY = ("OutOfMemory", "out of memory", "bad_alloc", "Cannot allocate memory")
_HINT = "if the memory was used up, build fewer at once: -j 1"


def _is_memory(error: OSError) -> bool:
    return error.errno in (errno.ENOMEM, errno.EAGAIN)
