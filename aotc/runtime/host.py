"""What this host has: its CPU level, and the cores that it may use."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from aotc.errors import AotcError
from aotc.runtime.library import LoadError

THREADS_VARIABLE = "AOTC_NUM_THREADS"
PIN_VARIABLE = "AOTC_PIN"
MAX_THREADS = 1024

# Of Linux on x86_64: a system call, a request that it knows, and the feature that is requested.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18

_V3 = "avx avx2 bmi1 bmi2 f16c fma abm movbe popcnt sse4_2 ssse3 cx16"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
# What a target needs: the machine, and the flags of /proc/cpuinfo. Best first.
TARGETS: dict[str, tuple[str, frozenset[str]]] = {
    "x86_64_amx": ("x86_64", frozenset(f"{_V4} amx_tile amx_bf16".split())),
    "x86_64_v4": ("x86_64", frozenset(_V4.split())),
    "x86_64_v3": ("x86_64", frozenset(_V3.split())),
    "aarch64": ("aarch64", frozenset()),
}


@dataclass(frozen=True)
class Host:
    """A machine, as `platform.machine` names it, and the CPU flags that a process may use."""

    machine: str
    flags: frozenset[str]

    @staticmethod
    def current() -> Host:
        """Return the host of this process."""
        return Host(platform.machine(), _cpu_flags())

    def targets(self) -> list[str]:
        """Return the targets that run here, best first."""
        return [name for name in TARGETS if not self._lacks(name)]

    def check(self, target: str) -> None:
        """Raise LoadError where an object for `target` does not run here."""
        if target not in TARGETS:
            known = ", ".join(TARGETS)
            raise LoadError(
                f"the artifact is for `{target}`, which this loader does not know",
                hint=f"targets of this loader: {known}; a newer aotc may know more",
            )
        lacks = self._lacks(target)
        if lacks:
            here = ", ".join(self.targets()) or "none of the known targets"
            raise LoadError(
                f"the artifact is for {target}, this host is {self.machine} without {lacks}"
                if TARGETS[target][0] == self.machine
                else f"the artifact is for {target}, this host is {self.machine}",
                hint=f"build it for a target that runs here: {here}",
            )

    def _lacks(self, target: str) -> str:
        machine, flags = TARGETS[target]
        return machine if machine != self.machine else ", ".join(sorted(flags - self.flags))


def _cpu_flags(info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    try:
        text = info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = frozenset(found[1].split()) if found else frozenset()
    return flags if "amx_tile" not in flags or _tiles_granted() else flags - {"amx_tile"}


def _tiles_granted() -> bool:
    """Ask the kernel for the tile registers of x86_64, which a process must not use before."""
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call.restype = ctypes.c_long
    arguments = (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return int(system_call(*map(ctypes.c_long, arguments))) == 0


def choose_threads(threads: int | None) -> int:
    """Return `threads`, or else AOTC_NUM_THREADS, or else the cores that this process may use.

    Raises AotcError for a number outside 1..MAX_THREADS.
    """
    subject = "threads"
    if threads is None:
        text = os.environ.get(THREADS_VARIABLE, "")
        if not text:
            return min(available_cores(), MAX_THREADS)
        subject = THREADS_VARIABLE
        threads = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
        shown = text
    else:
        shown = str(threads)
    if not 1 <= threads <= MAX_THREADS:
        raise AotcError(f"{subject} must be in 1..{MAX_THREADS}, got `{shown}`")
    return threads


def choose_pinning(pin: bool | None) -> bool:
    """Return `pin`, or else what AOTC_PIN says, or else False.

    Raises AotcError where AOTC_PIN is neither 0 nor 1.
    """
    text = os.environ.get(PIN_VARIABLE, "")
    if pin is not None or not text:
        return bool(pin)
    if text not in ("0", "1"):
        raise AotcError(f"{PIN_VARIABLE} must be 0 or 1, got `{text}`")
    return text == "1"


def team_processors(threads: int) -> list[int]:
    """Return a processor of its own for each of `threads`: a core each as far as there are.

    Raises AotcError where this process may run on fewer processors.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise AotcError(
            f"{threads} threads cannot be pinned to the {len(allowed)} processors of this process",
            hint="use fewer threads, or do not pin them",
        )
    seen: dict[str, int] = {}
    ranks = {}
    for processor in allowed:
        core = _core(processor)
        ranks[processor] = seen[core] = seen.get(core, -1) + 1
    return sorted(allowed, key=lambda processor: (ranks[processor], processor))[:threads]


def available_cores() -> int:
    """Return the number of physical cores that affinity and the cgroup's CPU quota allow."""
    allowed = sorted(os.sched_getaffinity(0))
    cores = {_core(processor) for processor in allowed}
    quota = _cgroup_quota()
    return max(1, len(cores) if quota is None else min(len(cores), math.ceil(quota)))


def _core(processor: int) -> str:
    topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return _read(topology) or str(processor)


def _cgroup_quota(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Return the CPUs that the tightest quota on the way to the root allows, or None."""
    quotas: list[float] = []
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            base, names = root / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            words = " ".join(_read(folder / name) for name in names).split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                quotas.append(int(words[0]) / int(words[1]))
            if folder == base:
                break
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
