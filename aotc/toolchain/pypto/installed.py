"""What of PyPTO is installed here, found without importing any of it.

Places and names are those of hw-native-sys/pypto (docs/en/user/01-installation.md) and of its
runtime, hw-native-sys/simpler.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from aotc.toolchain.base import Finding, ToolchainError

REPOSITORY = "https://github.com/hw-native-sys/pypto"
# What PyPTO and its runtime read of the environment: it enters the key.
VARIABLES = ("PYPTO_", "PTO2_", "SIMPLER_")
STAGES = ("pto", "cpp", "binaries")  # how far a program can be compiled

# An archive of ptoas has its executable at one of these, by version; the first that is there.
_PTOAS_IN_ROOT = ("ptoas", "ptoas.sh", "bin/ptoas")
_SIMULATOR_COMPILER = "g++-15"


@dataclass(frozen=True)
class Part:
    """A part of PyPTO: where it is, its version, and the digest of its content."""

    path: Path
    version: str
    digest: str

    def __str__(self) -> str:
        return f"{self.version} sha256={self.digest[:16]}"


@functools.cache
def pypto() -> Part | None:
    """Return the package, None where it is not installed or another project's of that name."""
    root = _package("pypto")
    if root is None or not _is_ours(root):
        return None
    return Part(root, _version("pypto"), _digest_tree(root))


def stranger() -> str | None:
    """Return what is installed under the name `pypto` and is another project, in words."""
    root = _package("pypto")
    return None if root is None or _is_ours(root) else f"pypto {_version('pypto')} in {root}"


@functools.cache
def runtime() -> Part | None:
    """Return the runtime, with the kernel compiler that belongs to it; None where it is absent."""
    bindings, setup = _package("simpler"), _package("simpler_setup")
    if bindings is None or setup is None:
        return None
    parts = [_digest_tree(bindings), _digest_tree(setup)]
    parts += [_digest_file(each) for each in sorted(setup.parent.glob("_task_interface.*"))]
    digest = hashlib.sha256(" ".join(parts).encode())
    return Part(setup, f"simpler {_version('simpler')}", digest.hexdigest())


def pto_isa() -> str | None:
    """Return the commit of pto-isa that the runtime wants."""
    setup = _package("simpler_setup")
    if setup is not None:
        for folder in (setup / "_assets", setup.parent):
            file = folder / "pto_isa.pin"
            if file.is_file():
                return file.read_text(encoding="utf-8").strip()
    return None


@functools.cache
def ptoas() -> Part | None:
    """Return the assembler that PyPTO would run; None where there is none."""
    root = os.environ.get("PTOAS_ROOT")
    if root:
        candidates = [Path(root, name) for name in _PTOAS_IN_ROOT]
        found = next((p for p in candidates if p.is_file() and os.access(p, os.X_OK)), None)
        # Its launcher says nothing of what it launches.
        return None if found is None else Part(found, _says(found), _digest_tree(Path(root)))
    on_path = shutil.which("ptoas")
    if on_path is None:
        return None
    executable = Path(on_path).resolve()
    return Part(executable, _says(executable), _digest_file(executable))


@functools.cache
def compiler(platform: str) -> Part | None:
    """Return the C++ compiler that makes the binaries for `platform`; None where it is absent."""
    if platform.endswith("sim"):
        found = shutil.which(_SIMULATOR_COMPILER)
        path = None if found is None else Path(found)
    else:
        home = os.environ.get("ASCEND_HOME_PATH")
        path = Path(home, "bin", "ccec") if home else None
    if path is None or not path.is_file():
        return None
    return Part(path, path.name, _digest_file(path.resolve()))


def code() -> tuple[Path, ...]:
    """Return the folders of the Python code that `pypto` and `runtime` have the digests of."""
    names = ("pypto", "simpler", "simpler_setup")
    return tuple(root for root in map(_package, names) if root is not None)


def stage(platform: str) -> str:
    """Return the last of `STAGES` that can be reached here."""
    if ptoas() is None:
        return "pto"
    if runtime() is None or compiler(platform) is None:
        return "cpp"
    return "binaries"


def require() -> Part:
    """Return the package; raise ToolchainError, with the way to get it, where it is absent."""
    found = pypto()
    if found is not None:
        return found
    other = stranger()
    if other is not None:
        raise ToolchainError(
            f"{other} is another project of that name, not hw-native-sys/pypto",
            hint=f"pip uninstall pypto, then install {REPOSITORY} from source",
        )
    raise ToolchainError(
        "PyPTO is not installed, which compiles for an NPU",
        hint=f"install {REPOSITORY} from source; `aotc doctor` tells what else is needed",
    )


def findings() -> list[Finding]:
    """Return what there is, what is missing, and how to get it."""
    package, other = pypto(), stranger()
    found = [
        Finding(
            "pypto",
            None if package is None else f"{package} in {package.path}",
            f"{other} is another project of that name: uninstall it, and install {REPOSITORY}"
            if other
            else f"install {REPOSITORY} from source (docs/ascend.md)",
        )
    ]
    for subject, part, remedy in (
        ("ptoas", ptoas(), "unpack a release of hw-native-sys/PTOAS and set PTOAS_ROOT to it"),
        ("runtime", runtime(), "pip install the folder `runtime` of the PyPTO checkout"),
        ("simulator compiler", compiler("a2a3sim"), f"put `{_SIMULATOR_COMPILER}` on PATH"),
        ("NPU compiler", compiler("a2a3"), "install CANN, and source its set_env.sh"),
    ):
        text = None if part is None else f"{part} in {part.path}"
        found.append(Finding(subject, text, remedy, required=False))
    pin = pto_isa()
    found.append(Finding("pto-isa", pin, "its commit comes with the runtime", required=False))
    return found


def _package(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _is_ours(root: Path) -> bool:
    return (root / "ir" / "distributed_compiled_program.py").is_file()


def _version(distribution: str) -> str:
    from importlib import metadata  # its import is slow, and a warm build has no use for it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unversioned"


def _says(executable: Path) -> str:
    """Return the version that an executable prints, without its name."""
    try:
        done = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unversioned"
    words = done.stdout.split()
    return words[-1] if done.returncode == 0 and words else "unversioned"


def _digest_tree(root: Path) -> str:
    """Return the digest of all files below `root` but bytecode, by relative name and content."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root).as_posix()} {_digest_file(path)}\n".encode())
    return digest.hexdigest()


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
