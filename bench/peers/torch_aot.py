"""AOTInductor: one layer exported and compiled to a package, loaded once and called for each layer.

Run as a program it is the build comparison: `python -m bench.peers.torch_aot WORK` compiles one
layer for decode, and prints the seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch._inductor import aoti_compile_and_package, aoti_load_package

from bench.peers.engine import Engine
from bench.peers.serve import work_of
from bench.peers.torch_compiled import require_compiler
from bench.peers.torch_model import Layer, Qwen, Tensor, better_dtype, decode_layer, prefill_layer
from bench.work import Action, Work


def start(work: Work) -> Engine:
    """Return the engine, whose cases are compiled when first run.

    Raises RuntimeError where there is no C++ compiler for it to use.
    """
    require_compiler()
    model = Qwen(work, better_dtype(work))
    plan = work.plan
    few = dataclasses.replace(
        plan,
        batches=sorted({min(plan.batches), max(plan.batches)}),
        contexts=[min(plan.contexts)],
        prompts=[max(plan.prompts)],
    )
    folder = Path(tempfile.mkdtemp())

    def decode(batch: int, context: int) -> Action:
        inputs = _decode_inputs(work, batch, context, model.dtype)
        return model.decode(_compile(decode_layer(*model.shape), inputs, folder), batch, context)

    def prefill(tokens: int) -> Action:
        inputs = _prefill_inputs(work, tokens, model.dtype)
        return model.prefill(_compile(prefill_layer(*model.shape), inputs, folder), tokens)

    cases = {name: _when_run(decode, *case) for name, case in few.decodes().items()}
    cases |= {name: _when_run(prefill, tokens) for name, tokens in few.prefills().items()}
    refused = {
        name: "the code is that of torch.compile; each case is a compilation of its own"
        for name in (*plan.decodes(), *plan.prefills())
        if name not in cases
    }
    return Engine(str(model.dtype).removeprefix("torch."), cases, refused, model.computed)


def build(work: Work) -> None:
    """Export and compile one decoder layer, as start does; print the seconds that it took.

    Batch and context are the first of the plan. The import of torch is not counted.
    """
    require_compiler()
    torch.set_num_threads(work.threads)
    shape = (float(work.names["EPS"]), work.size("NUM_HEADS"), work.size("NUM_KV_HEADS"))
    batch, context = work.plan.batches[0], work.plan.contexts[0]
    inputs = _decode_inputs(work, batch, context, torch.bfloat16)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _package(decode_layer(*shape), inputs, Path(folder))
    print(time.perf_counter() - begin)


def _when_run(make: Callable[..., Action], *case: int) -> Action:
    """Return an action that is made when it first runs."""
    made = functools.cache(make)
    return lambda: made(*case)()


class _Module(torch.nn.Module):
    def __init__(self, layer: Layer):
        super().__init__()
        self._layer = layer

    def forward(
        self, x: Tensor, angles: list[Tensor], cache: list[Tensor], weights: list[Tensor]
    ) -> Tensor:
        return self._layer(x, *angles, *cache, *weights)


def _compile(layer: Layer, inputs: list[Tensor], folder: Path) -> Layer:
    loaded = aoti_load_package(_package(layer, inputs, folder))

    def run(x: Tensor, *others: Tensor) -> Tensor:
        result: Tensor = loaded(x, list(others[:2]), list(others[2:4]), list(others[4:]))
        return result

    return run


def _package(layer: Layer, inputs: list[Tensor], folder: Path) -> str:
    arguments = (inputs[0], inputs[1:3], inputs[3:5], inputs[5:])
    with torch.no_grad():
        exported = torch.export.export(_Module(layer), arguments)
        path = folder / f"{len(list(folder.iterdir()))}.pt2"
        return str(aoti_compile_and_package(exported, package_path=str(path)))


def _decode_inputs(work: Work, batch: int, context: int, dtype: torch.dtype) -> list[Tensor]:
    cache = (batch, work.size("NUM_KV_HEADS"), context, work.size("HEAD_DIM"))
    return _inputs(work, batch, 1, cache, dtype)


def _prefill_inputs(work: Work, tokens: int, dtype: torch.dtype) -> list[Tensor]:
    cache = (1, work.size("NUM_KV_HEADS"), tokens, work.size("HEAD_DIM"))
    return _inputs(work, tokens, tokens, cache, dtype)


def _inputs(
    work: Work, rows: int, positions: int, cache: tuple[int, ...], dtype: torch.dtype
) -> list[Tensor]:
    """Return tensors of the types of a layer's arguments; nothing touches their memory."""
    hidden, dim = work.size("HIDDEN"), work.size("HEAD_DIM")
    return [
        torch.empty(rows, hidden, dtype=dtype),
        *(torch.empty(positions, dim) for _ in range(2)),
        *(torch.empty(cache, dtype=dtype) for _ in range(2)),
        *(torch.empty(n, k, dtype=dtype) for k, n in work.matrices().values()),
        *(torch.empty(width) for width in (hidden, dim, dim, hidden)),
    ]


if __name__ == "__main__":
    build(work_of(json.loads(sys.argv[1])))
