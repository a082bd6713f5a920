"""torch.compile of one layer, called for each; compiled for each number of rows, when first run.

The weights are inputs of what is compiled, so that one compilation serves all layers: with them as
constants (`freezing`) each layer would be compiled for itself, for minutes.
"""

from __future__ import annotations

import shutil

import torch

from bench.peers.engine import Engine
from bench.peers.torch_model import Qwen, better_dtype, decode_layer, prefill_layer
from bench.work import Action, Work


def start(work: Work) -> Engine:
    """Return the engine; raise RuntimeError where there is no C++ compiler for it to use."""
    require_compiler()
    model = Qwen(work, better_dtype(work))
    decode, prefill = (
        torch.compile(each(*model.shape), dynamic=False) for each in (decode_layer, prefill_layer)
    )
    torch._dynamo.config.recompile_limit = 64
    cases: dict[str, Action] = {
        name: model.decode(decode, *case) for name, case in work.plan.decodes().items()
    }
    for name, tokens in work.plan.prefills().items():
        cases[name] = model.prefill(prefill, tokens)
    return Engine(str(model.dtype).removeprefix("torch."), cases, logits=model.computed)


def require_compiler() -> None:
    """Raise RuntimeError where inductor finds no C++ compiler."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise RuntimeError("needs g++, which is not installed")
