"""Time and memory of builds, each by the command line in a fresh process."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from aotc import config
from aotc.runtime import load
from bench.measure import Row
from bench.qwen import shape_of, weight_sizes

# One program from its signature, or from the tensors that a caller would pass, which it makes for
# that: `samples` has dtype and shape of each.
_COMPILE = """
import json, sys
from pathlib import Path
from aotc import config, driver
model, models, program, samples = sys.argv[1:]
chosen, target, arguments = config.load(model, Path(models)), driver.default_target(), None
if samples:
    import torch
    from aotc.samples import arguments_of
    types = {"bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32}
    arguments = arguments_of(
        [torch.empty(shape, dtype=types[dtype]) for dtype, shape in json.loads(samples)]
    )
compiled = driver.lower(chosen, program, target, arguments)
driver.compile_program(chosen, program, target, compiled)
"""


def builds(model: str, models: Path, quick: bool) -> list[Row]:
    """Return rows for cold and warm builds of `model`, and of larger and smaller ones."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cold = _build(model, models, folder / "cold")
        rows += _rows(f"build of {model}, cold", *cold)
        warm = [_build(model, models, folder / "cold") for _ in range(1 if quick else 5)]
        rows += _rows(f"build of {model}, warm", *map(min, zip(*warm, strict=True)))
        if quick:
            return rows
        single = folder / "models"
        shutil.copytree(models, single)
        _set_layers(single / f"{model}.yaml", 1)
        rows += _rows("  with 1 layer, cold", *_build(model, single, folder / "single"), cold)
        for other in sorted(each.stem for each in models.glob("*.yaml")):
            if other != model:
                result = _build(other, models, folder / other)
                rows += _rows(f"  {other}, cold", *result, cold)
        rows += _samples(model, models, folder / "cold")
    return rows


def _samples(model: str, models: Path, store: Path) -> list[Row]:
    """Return rows for `decode` alone, by its signature and by real tensors of all layers."""
    chosen = config.load(model, models)
    names = chosen.environment("cpu")
    sizes = {
        **weight_sizes(names, chosen.extents["NUM_LAYERS"], pages=32),
        **{"ROPE_SEQ_DYN": int(names["MAX_SEQ"]), "BATCH_DYN": 1, "BLOCK_TABLE_FLAT_DYN": 32},
    }
    parameters = load(model, "decode", store).contract.parameters
    samples = json.dumps([[each.dtype, shape_of(each, sizes)] for each in parameters])
    command = [sys.executable, "-c", _COMPILE, model, str(models), "decode"]
    plain = measured([*command, ""])
    return [
        *_rows("decode alone, from its signature", *plain),
        *_rows(
            "  from torch.empty tensors, importing torch", *measured([*command, samples]), plain
        ),
    ]


def _rows(
    name: str, seconds: float, memory: float, of: tuple[float, float] | None = None
) -> list[Row]:
    against = "" if of is None else "of the first one"
    return [
        Row(name, seconds, "s", None if of is None else seconds / of[0], against),
        Row(
            "    largest process",
            memory / 1e6,
            "MB",
            None if of is None else memory / of[1],
            against,
        ),
    ]


def _build(model: str, models: Path, store: Path) -> tuple[float, float]:
    places = ["--models-dir", str(models), "--store", str(store)]
    return measured([sys.executable, "-m", "aotc", "build", model, "--quiet", *places])


def measured(command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a command, and the bytes of the largest process under it.

    A process counts as large as the one that starts it: call this while this one is small. Raises
    RuntimeError where the command fails.
    """
    begin = time.perf_counter()
    child = os.posix_spawn(command[0], list(command), os.environ)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(f"exit status {status} from {' '.join(command)}")
    return seconds, usage.ru_maxrss * 1024


def _set_layers(path: Path, layers: int) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"NUM_LAYERS: \d+", f"NUM_LAYERS: {layers}", text), encoding="utf-8")
