"""What the numbers were measured on, and what else the machine did meanwhile."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from aotc.runtime.host import Host

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_TICK = os.sysconf("SC_CLK_TCK")


def describe(threads: int, lanes: int) -> dict[str, Any]:
    """Return CPU, caches, vector width, memory and threads."""
    names = re.search(r"^model name\s*:\s*(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return {
        "cpu": names[1] if names else platform.machine(),
        "caches": caches(),
        "targets": Host.current().targets(),
        "vector": f"{lanes} x fp32",
        "processors": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_gb": round(int(total[1]) / 1e6, 1) if total else None,
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def caches() -> dict[str, int]:
    """Return the bytes of each data cache: L1, L2, L3."""
    found = {}
    for index in sorted(_CACHES.glob("index*")):
        if _read(index / "type") != "Instruction":
            size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size"))
            if size:
                scale = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[2]]
                found[f"L{_read(index / 'level')}"] = int(size[1]) * scale
    return found


def huge_pages() -> dict[str, float]:
    """Return the GB of anonymous memory that this process has, and how much is on huge pages."""
    text = _read(Path("/proc/self/smaps_rollup"))
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    return {
        "anonymous_gb": int(values.get("Anonymous", 0)) * 1024 / 1e9,
        "huge_gb": int(values.get("AnonHugePages", 0)) * 1024 / 1e9,
    }


class Meanwhile:
    """Processor time since it was made: stolen by the host, and used by other processes."""

    def __init__(self) -> None:
        self._start = self._now()

    def shares(self) -> dict[str, float]:
        """Return the share of all processors' time that was stolen, and that others used."""
        begin, end = self._start, self._now()
        elapsed, stolen, busy, own = (b - a for a, b in zip(begin, end, strict=True))
        capacity = max(elapsed * (os.cpu_count() or 1), 1e-9)
        return {"steal": stolen / capacity, "others": max(0.0, busy - own) / capacity}

    @staticmethod
    def _now() -> tuple[float, float, float, float]:
        words = _read(Path("/proc/stat")).split("\n", 1)[0].split()[1:]
        ticks = [int(word) / _TICK for word in words] + [0.0] * 8
        user, nice, system, _idle, _wait, interrupt, soft, stolen = ticks[:8]
        return (
            time.monotonic(),
            stolen,
            user + nice + system + interrupt + soft,
            sum(os.times()[:4]),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
