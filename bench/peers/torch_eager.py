"""torch as it runs without a compiler, in bf16 or fp32, whichever is faster on this machine."""

from __future__ import annotations

from bench.peers.engine import Engine
from bench.peers.torch_model import Qwen, better_dtype, decode_layer, prefill_layer
from bench.work import Action, Work


def start(work: Work) -> Engine:
    """Return the engine."""
    model = Qwen(work, better_dtype(work))
    decode, prefill = decode_layer(*model.shape), prefill_layer(*model.shape)
    cases: dict[str, Action] = {
        name: model.decode(decode, *case) for name, case in work.plan.decodes().items()
    }
    for name, tokens in work.plan.prefills().items():
        cases[name] = model.prefill(prefill, tokens)
    return Engine(str(model.dtype).removeprefix("torch."), cases, logits=model.computed)
