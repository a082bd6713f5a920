"""A copy of examples/npu, the command line on it, and scripts: each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = "a2a3sim"
QUIET = {"PYPTO_RUNTIME_LOG": "error"}


def run(
    words: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with `words`, and only what `environment` adds."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **QUIET, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@dataclass
class Project:
    """A copy of examples/npu, with a store of its own."""

    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def aotc(
        self, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        where = ["--models-dir", str(self.models), "--store", str(self.store)]
        return run(["-m", "aotc", *words, *where], environment)

    def build(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        done = self.aotc("build", *words, "--target", TARGET, environment=environment)
        assert done.returncode == 0, done.stdout + done.stderr

    def script(
        self, text: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        file = self.root / "script.py"
        file.write_text(text, encoding="utf-8")
        return run([file, self.store], environment)


def copy_examples(root: Path) -> Project:
    shutil.copytree(ROOT / "examples" / "npu" / "models", root / "models")
    return Project(root)
