"""Decode, prefill and attention, against what the machine gives at the same moment."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aotc import driver
from aotc.builder.build import build as build_programs
from aotc.config import Config
from aotc.runtime import Program, Worker, load
from bench.measure import Action, Row, Run, faster, interleave, median
from bench.native import Limits
from bench.qwen import Model, Sizes

# The model with its heads, but little else: its steps show attention.
_NARROW = {"HIDDEN": 256, "INTERMEDIATE": 256, "REAL_VOCAB": 512, "VOCAB": 512}
_NARROW_LAYERS = 16
_NARROW_SEQUENCES = 8  # taken in turn, so that no K/V is in a cache

# By peer, then by the case that it runs.
Peers = Mapping[str, Mapping[str, Action]]


@dataclass(frozen=True)
class Plan:
    """What to run: batches, contexts, prompts, and for how long."""

    batches: Sequence[int] = (1, 4, 16)
    contexts: Sequence[int] = (128, 4096)
    prompts: Sequence[int] = (128, 512)
    rounds: int = 7
    seconds: float = 40.0  # of each group of runs that are compared


def build(config: Config, names: Sequence[str], store: Path) -> dict[str, Program]:
    """Build programs of `config` into `store`, and load them; raise the error of a build."""
    jobs = driver.jobs(config, [driver.default_target()], names)
    outcomes = build_programs(jobs, store, warn=print)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return {name: load(config.model, name, store) for name in names}


def decode(
    model: Model, program: Program, sizes: Sizes, limits: Limits, plan: Plan, peers: Peers
) -> list[Row]:
    """Return a row for each batch and context."""
    cases = {
        decode_case(batch, context): (batch, context)
        for context in plan.contexts
        for batch in plan.batches
    }
    ours = {name: model.decode(program, *case) for name, case in cases.items()}
    runs = _compare(ours, limits, plan, peers)
    model.check()
    rows = []
    for name, (batch, context) in cases.items():
        nbytes = sizes.decode_bytes(batch, context)
        share = _roof(nbytes, sizes.decode_flops(batch, context) if batch > 1 else 0)
        bound = "read" if batch == 1 else "min(read, fma)"
        speed = nbytes / median(runs[name], lambda run: run.seconds)
        all_layers = sizes.decode_bytes(batch, context, sizes.all_layers)
        rows += [
            Row(name, speed / 1e9, "GB/s", median(runs[name], share), bound),
            Row(f"  {sizes.layers} layers", batch * speed / nbytes, "tokens/s"),
            Row(f"  scaled to {sizes.all_layers} layers", batch * speed / all_layers, "tokens/s"),
            *_peer_rows(name, runs, peers, nbytes / 1e9, "GB/s"),
        ]
    return rows


def prefill(
    model: Model, program: Program, sizes: Sizes, limits: Limits, plan: Plan, peers: Peers
) -> list[Row]:
    """Return a row for each length of a prompt; only its last token is put to the output matrix."""
    ours = {prefill_case(tokens): model.prefill(program, tokens) for tokens in plan.prompts}
    runs = _compare(ours, limits, plan, peers)
    model.check()
    rows = []
    for tokens in plan.prompts:
        name = prefill_case(tokens)
        flops = sizes.prefill_flops(tokens)

        def share(run: Run, flops: int = flops) -> float:
            return (flops / run.fma + sizes.head_bytes / run.read) / run.seconds

        seconds = median(runs[name], lambda run: run.seconds)
        rows += [
            Row(name, flops / seconds / 1e9, "GFLOP/s", median(runs[name], share), "fma"),
            Row(f"  {sizes.layers} layers", tokens / seconds, "tokens/s"),
            *_peer_rows(name, runs, peers, flops / 1e9, "GFLOP/s"),
        ]
    return rows


def attention(config: Config, worker: Worker, limits: Limits, store: Path, plan: Plan) -> list[Row]:
    """Return a row for decode attention of one sequence at the longest context.

    The difference of a step there and one at the shortest context, of a model with few other
    weights: nothing else in a step depends on the context.
    """
    layers = min(_NARROW_LAYERS, config.extents["NUM_LAYERS"])
    extents = {**config.extents, **_NARROW}
    narrow = dataclasses.replace(config, model=f"{config.model}-attention", extents=extents)
    program = build(narrow, ["decode"], store)["decode"]
    names = narrow.environment("cpu")
    short, long = min(plan.contexts), max(plan.contexts)
    model = Model(
        worker,
        names,
        [program.contract],
        layers=layers,
        sequences=_NARROW_SEQUENCES,
        max_context=long,
    )
    actions = {}
    for context in (short, long):
        calls = [model.decode(program, 1, context, each) for each in range(_NARROW_SEQUENCES)]
        for call in calls:
            call()
        actions[str(context)] = _in_turn(calls)
    model.check()
    runs = interleave(actions, limits, rounds=3 * plan.rounds, seconds=plan.seconds)
    model.free()
    sizes = Sizes(names, layers)
    nbytes = sizes.cache_bytes(1, long) - sizes.cache_bytes(1, short)
    pairs = list(zip(runs[str(short)], runs[str(long)], strict=True))
    seconds = [b.seconds - a.seconds for a, b in pairs]
    shares = [nbytes / b.read / (b.seconds - a.seconds) for a, b in pairs]
    return [
        Row(
            f"decode attention, batch 1, context {long}",
            nbytes / float(np.median(seconds)) / 1e9,
            "GB/s",
            float(np.median(shares)),
            "read",
        )
    ]


def decode_case(batch: int, context: int) -> str:
    """Return the name of a decode step."""
    return f"decode, batch {batch}, context {context}"


def prefill_case(tokens: int) -> str:
    """Return the name of a prefill."""
    return f"prefill, {tokens} tokens"


def _compare(
    ours: Mapping[str, Action], limits: Limits, plan: Plan, peers: Peers
) -> dict[str, list[Run]]:
    """Run each case, right after it what the peers have for it, and so on."""
    actions: dict[str, Action] = {}
    for name, action in ours.items():
        actions[name] = action
        for peer, cases in peers.items():
            if name in cases:
                actions[f"{peer}: {name}"] = cases[name]
    return interleave(actions, limits, rounds=plan.rounds, seconds=plan.seconds)


def _peer_rows(
    name: str, runs: Mapping[str, list[Run]], peers: Peers, work: float, unit: str
) -> list[Row]:
    rows = []
    for peer in peers:
        theirs = runs.get(f"{peer}: {name}")
        if theirs:
            speed = work / median(theirs, lambda run: run.seconds)
            rows.append(Row(f"  {peer}", speed, unit, faster(runs[name], theirs), "aotc over it"))
    return rows


def _roof(nbytes: float, flops: float) -> Callable[[Run], float]:
    return lambda run: max(nbytes / run.read, flops / run.fma) / run.seconds


def _in_turn(actions: Sequence[Action]) -> Action:
    turns = itertools.cycle(actions)
    return lambda: next(turns)()
