"""How much may run at once, by what the system says of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotc.builder import resources
from aotc.builder.resources import JOB_BYTES, available_memory

GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "", 8 * GIB),
        ({"a/memory.max": "max", "a/memory.current": "5"}, "0::/a\n", 8 * GIB),
        ({"a/memory.max": f"{2 * GIB}", "a/memory.current": f"{GIB}"}, "0::/a\n", GIB),
        ({"a/memory.max": f"{GIB}", "a/memory.current": f"{2 * GIB}"}, "0::/a\n", 0),
        (
            {
                "a/memory.max": f"{2 * GIB}",
                "a/memory.current": f"{2 * GIB}",
                "a/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            },
            "0::/a\n",
            GIB,
        ),
        # The tightest on the way to the root counts.
        (
            {
                "a/memory.max": f"{3 * GIB}",
                "a/memory.current": "0",
                "a/b/memory.max": "max",
                "a/b/memory.current": "0",
            },
            "0::/a/b\n",
            3 * GIB,
        ),
        (
            {"memory/a/memory.limit_in_bytes": f"{GIB}", "memory/a/memory.usage_in_bytes": "0"},
            "4:cpu:/b\n3:memory:/a\n",
            GIB,
        ),
    ],
)
def test_available_memory(tmp_path: Path, files: dict[str, str], own: str, expected: int) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    memory = (tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "own")
    assert available_memory(*memory) == expected


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    assert available_memory(*(tmp_path / name for name in "abc")) is None


@pytest.mark.parametrize(
    ("memory", "cores", "jobs"),
    [
        (None, 4, 4),
        (100 * JOB_BYTES, 4, 4),
        (2 * JOB_BYTES, 4, 2),
        (JOB_BYTES - 1, 4, 1),
        (0, 1, 1),
    ],
)
def test_default_jobs(
    monkeypatch: pytest.MonkeyPatch, memory: int | None, cores: int, jobs: int
) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: memory)
    monkeypatch.setattr(resources, "available_cores", lambda: cores)
    assert resources.default_jobs() == jobs
    assert resources.has_room() == (memory is None or memory >= JOB_BYTES)
