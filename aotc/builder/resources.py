"""How much may run at once: the processors and the memory that this process may use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from aotc.runtime.host import available_cores

# A front end and clang take 160 MB together for a layer of Qwen3; this is three times that.
JOB_BYTES = 512 << 20

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")
# Of a cgroup, version 2 and version 1: its limit, and what it uses, both in bytes.
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def default_jobs() -> int:
    """Return how many programs to compile at once: one a core, as far as there is memory."""
    memory = available_memory()
    cores = available_cores()
    return cores if memory is None else max(1, min(cores, memory // JOB_BYTES))


def has_room() -> bool:
    """Tell whether one more program can be compiled without using up the memory."""
    memory = available_memory()
    return memory is None or memory >= JOB_BYTES


def available_memory(
    memory: Path = _MEMORY, groups: Path = _GROUPS, own: Path = _OWN_GROUPS
) -> int | None:
    """Return the bytes that can be taken without swapping, also by the limits of the cgroups.

    None where the system does not tell.
    """
    found = list(_free_in_groups(groups, own))
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", _read(memory), re.MULTILINE)
    if match is not None:
        found.append(int(match[1]) * 1024)
    return min(found, default=None)


def _free_in_groups(root: Path, own: Path) -> Iterator[int]:
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        base = root if controllers == "" else root / "memory"
        if controllers and "memory" not in controllers.split(","):
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            for limit, used in _LIMITS:
                words = (_read(folder / limit), _read(folder / used))
                if all(each.isdigit() for each in words):
                    # Files that were not read lately count as used, and are given back.
                    yield max(0, int(words[0]) - int(words[1]) + _cached(folder))
            if folder == base:
                break


def _cached(folder: Path) -> int:
    match = re.search(r"^inactive_file (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    return int(match[1]) if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
