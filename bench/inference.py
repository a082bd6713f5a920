"""Decode, prefill and attention, against what the machine gives at the same moment."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from aotc import driver
from aotc.builder.build import Status
from aotc.builder.build import build as build_programs
from aotc.config import Config
from aotc.runtime import Program, Worker, load
from bench.measure import Row, Run, faster, interleave, median
from bench.native import Limits
from bench.peers import Peer, PeerError
from bench.qwen import Model, Sizes
from bench.work import Action, Plan

# The model with its heads, but little else: its steps show attention.
_NARROW = {"HIDDEN": 256, "INTERMEDIATE": 256, "REAL_VOCAB": 512, "VOCAB": 512}
_NARROW_LAYERS = 16
_NARROW_SEQUENCES = 8  # taken in turn, so that no K/V is in a cache


def build(config: Config, names: Sequence[str], store: Path) -> dict[str, Program]:
    """Build programs of `config` into `store`, and load them; raise the error of a build."""
    jobs = driver.jobs(config, [driver.default_target()], names)
    outcomes = build_programs(jobs, store, warn=print)
    for outcome in outcomes:
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if outcome.error is not None:
            raise outcome.error
    return {name: load(config.model, name, store) for name in names}


class Calls:
    """Calls of the model, ready to run, and the work that each does: by the names of the cases."""

    def __init__(self, model: Model, programs: Mapping[str, Program], sizes: Sizes, plan: Plan):
        self.model, self.sizes = model, sizes
        self.decodes = plan.decodes() if "decode" in programs else {}
        self.prefills = plan.prefills() if "prefill" in programs else {}
        self.actions: dict[str, Action] = {
            **{
                name: model.decode(programs["decode"], *case) for name, case in self.decodes.items()
            },
            **{
                name: model.prefill(programs["prefill"], tokens)
                for name, tokens in self.prefills.items()
            },
        }

    def work(self, name: str) -> tuple[float, str]:
        """Return what a case has to do, and the unit of its speed: GB or thousands of MFLOP."""
        if name in self.decodes:
            return self.sizes.decode_bytes(*self.decodes[name]) / 1e9, "GB/s"
        return self.sizes.prefill_flops(self.prefills[name]) / 1e9, "GFLOP/s"

    def tokens(self, name: str) -> int:
        """Return the tokens that a case takes or makes."""
        return self.decodes[name][0] if name in self.decodes else self.prefills[name]


def decode(calls: Calls, limits: Limits, plan: Plan) -> list[Row]:
    """Return a row for each batch and context."""
    runs = _run(calls, calls.decodes, limits, plan)
    sizes, rows = calls.sizes, []
    for name, (batch, context) in calls.decodes.items():
        nbytes = sizes.decode_bytes(batch, context)
        share = _roof(nbytes, sizes.decode_flops(batch, context) if batch > 1 else 0)
        bound = "read" if batch == 1 else "min(read, fma)"
        speed = nbytes / median(runs[name], lambda run: run.seconds)
        all_layers = sizes.decode_bytes(batch, context, sizes.all_layers)
        rows += [
            Row(name, speed / 1e9, "GB/s", median(runs[name], share), bound),
            Row(f"  {sizes.layers} layers", batch * speed / nbytes, "tokens/s"),
            Row(f"  scaled to {sizes.all_layers} layers", batch * speed / all_layers, "tokens/s"),
        ]
    return rows


def prefill(calls: Calls, limits: Limits, plan: Plan) -> list[Row]:
    """Return a row for each length of a prompt; only its last token is put to the output matrix."""
    runs = _run(calls, calls.prefills, limits, plan)
    sizes, rows = calls.sizes, []
    for name, tokens in calls.prefills.items():
        flops = sizes.prefill_flops(tokens)

        def share(run: Run, flops: int = flops) -> float:
            return (flops / run.fma + sizes.head_bytes / run.read) / run.seconds

        seconds = median(runs[name], lambda run: run.seconds)
        rows += [
            Row(name, flops / seconds / 1e9, "GFLOP/s", median(runs[name], share), "fma"),
            Row(f"  {sizes.layers} layers", tokens / seconds, "tokens/s"),
        ]
    return rows


def against(peer: Peer, calls: Calls, limits: Limits, plan: Plan) -> Iterator[Row]:
    """Yield a row for each case that a peer runs in turn with aotc.

    Where it fails, or its time is up, the reason goes to `peer.refused`.
    """
    for name in filter(peer.cases.__contains__, _lightest_first(calls)):
        # Theirs is before ours, which need not run where there is nothing to compare it with.
        theirs = functools.partial(peer.run, name)
        actions: dict[str, Action] = {"theirs": theirs, "ours": calls.actions[name]}
        try:
            runs = interleave(
                actions,
                limits,
                rounds=plan.rounds,
                seconds=plan.seconds,
                until=peer.deadline,
            )
        except PeerError as error:
            peer.refused[name] = str(error)
            continue
        work, unit = calls.work(name)
        speed = work / median(runs["theirs"], lambda run: run.seconds)
        ratio = faster(runs["ours"], runs["theirs"])
        yield Row(name, speed, unit, ratio, "aotc over it", peer=peer.label)


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
        [program],
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


def _lightest_first(calls: Calls) -> list[str]:
    """Return the cases: one of decode and one of prefill, and then the others by their tokens."""
    phases = [list(phase) for phase in (calls.decodes, calls.prefills) if phase]
    firsts = [min(phase, key=calls.tokens) for phase in phases]
    return list(dict.fromkeys([*firsts, *sorted(calls.actions, key=calls.tokens)]))


def _run(calls: Calls, names: Iterable[str], limits: Limits, plan: Plan) -> dict[str, list[Run]]:
    actions = {name: calls.actions[name] for name in names}
    return interleave(actions, limits, rounds=plan.rounds, seconds=plan.seconds)


def _roof(nbytes: float, flops: float) -> Callable[[Run], float]:
    return lambda run: max(nbytes / run.read, flops / run.fma) / run.seconds


def _in_turn(actions: Sequence[Action]) -> Action:
    turns = itertools.cycle(actions)
    return lambda: next(turns)()
