"""A small model of two programs, and the command line of a process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parents[2] / "models"

SMALL = """\
schema: 1
model: small
source: sources
extents: {WIDTH: 8}
dynamic:
  ROWS_DYN: {min: 1, max: 64}
programs:
  twice: {wrapper: "wrappers:twice_host"}
  square: {wrapper: "wrappers:square_host"}
"""

_PROGRAM = """

@pl.jit
def {name}(
    x: pl.Tensor[[ROWS_DYN, WIDTH], pl.FP32], y: pl.Out[pl.Tensor[[ROWS_DYN, WIDTH], pl.FP32]]
):
    with pl.at(level=pl.Level.CORE_GROUP):
        y = pl.assemble(y, {body}, [0, 0])
    return y


@pl.jit.host
def {name}_host(
    x: pl.Tensor[[ROWS_DYN, WIDTH], pl.FP32], y: pl.Out[pl.Tensor[[ROWS_DYN, WIDTH], pl.FP32]]
) -> pl.Tensor[[ROWS_DYN, WIDTH], pl.FP32]:
    out = {name}(x, y)
    return out
"""
WRAPPERS = (
    "import pypto.language as pl\n"
    + _PROGRAM.format(name="twice", body="pl.add(x, x)")
    + _PROGRAM.format(name="square", body="pl.mul(x, x)")
)


@dataclass
class Project:
    """A folder with models and, beside them, the default store."""

    root: Path

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def store(self) -> Path:
        return self.root / "artifacts"

    @property
    def wrappers(self) -> Path:
        return self.models / "sources" / "wrappers.py"

    def write_model(self, config: str = SMALL, wrappers: str = WRAPPERS) -> None:
        self.wrappers.parent.mkdir(parents=True, exist_ok=True)
        (self.models / "small.yaml").write_text(config, encoding="utf-8")
        self.wrappers.write_text(wrappers, encoding="utf-8")

    def blob(self, digest: str) -> Path:
        return self.store / "blobs" / "sha256" / digest.removeprefix("sha256:")


def command_line(arguments: Sequence[str], before: str = "", after: str = "") -> list[str]:
    """Return the command of a Python process that runs `arguments`."""
    script = f"""\
import sys
{before}
from aotc.cli.main import main
code = main({list(arguments)!r})
{after}
sys.exit(code)
"""
    return [sys.executable, "-c", script]
