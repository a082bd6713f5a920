"""A small model in a temporary folder, to lower and to run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotc import config, reference
from aotc.contract import Argument
from aotc.errors import AotcError
from aotc.frontend import Lowered, lower
from aotc.ir.text import parse_program, print_program
from aotc.ops.verify import verify

YAML = """\
schema: 1
model: small
source: small
extents: {H: 8, N: 4}
dynamic:
  B: {min: 1, max: 16}
  T: {min: 1, max: 16}
"""


class Model:
    """Sources of a model, by module name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.source = folder / "small"
        self.source.mkdir()
        (folder / "small.yaml").write_text(YAML)

    def write(self, **modules: str) -> Model:
        for name, text in modules.items():
            (self.source / f"{name}.py").write_text(textwrap.dedent(text))
        return self

    def incore(self, body: str, parameters: str = "x: pl.Tensor[[B, H], pl.FP32]") -> Model:
        """Write a wrapper over one in-core kernel, whose body begins at line 5, column 5.

        `parameters` are separated by semicolons; `out`, fp32 [B, H], comes last.
        """
        declared = [each.strip() for each in parameters.split(";")]
        names = ", ".join(each.partition(":")[0] for each in declared)
        signature = ", ".join([*declared, "out: pl.Out[pl.Tensor[[B, H], pl.FP32]]"])
        lines = textwrap.dedent(body).strip("\n")
        return self.write(
            wrappers="import pypto.language as pl\n"
            "LIMIT = 3\n"
            "@pl.jit.incore\n"
            f"def kernel({signature}):\n"
            f"{textwrap.indent(lines, '    ')}\n"
            "    return out\n"
            "@pl.jit.host\n"
            f"def host({signature}):\n"
            f"    return kernel({names}, out)\n"
        )

    def lower(
        self, wrapper: str = "wrappers:host", arguments: Sequence[Argument] | None = None
    ) -> Lowered:
        lowered = lower(config.load("small", self.folder), "cpu", wrapper, arguments)
        verify(lowered.program)
        assert parse_program(print_program(lowered.program)) == lowered.program
        return lowered

    def run(self, *arrays: Any, wrapper: str = "wrappers:host") -> list[Any]:
        """Run in the reference interpreter; parallel loops must not care about their order."""
        lowered = self.lower(wrapper)
        names = [each.name for each in lowered.program.parameters]
        copies = [each.copy() if isinstance(each, np.ndarray) else each for each in arrays]
        reference.run(lowered.program, dict(zip(names, copies, strict=True)), reverse_parallel=True)
        return reference.run(lowered.program, dict(zip(names, arrays, strict=True)))

    def error(self, wrapper: str = "wrappers:host", **keywords: Any) -> AotcError:
        """Lower, and return the error that it must raise."""
        with pytest.raises(AotcError) as caught:
            self.lower(wrapper, **keywords)
        assert "Traceback" not in caught.value.render()
        return caught.value

    def where(self, error: AotcError) -> str:
        """Return the error's place as `module:line:column`."""
        assert error.place is not None, error.render()
        return f"{error.place.path.stem}:{error.place.line}:{error.place.column}"


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)
