"""`python -m bench`: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aotc import config
from aotc.cli.options import find_models
from aotc.config import Config
from aotc.errors import AotcError
from aotc.runtime.host import choose_threads
from bench import builds, inference, machine, overhead, peers
from bench.measure import Row, table
from bench.native import Limits, nothing
from bench.qwen import Model, Sizes
from bench.work import Names, Plan, Work

GROUPS = ("build", "inductor", "overhead", "attention", "decode", "prefill")
_LEAST_READ = 1 << 30
_MOST_READ = 2 << 30


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and return the exit code."""
    options = _parse(arguments)
    try:
        document = run(options)
    except AotcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, print header and table, and return everything as plain data."""
    begin, meanwhile = time.monotonic(), machine.Meanwhile()
    chosen = config.load(options.model, options.models)
    report, threads = _Report(options.only), choose_threads(options.threads)
    names = chosen.environment("cpu")
    layers = min(options.layers, int(names["NUM_LAYERS"]))
    numbers = {key: value for key, value in names.items() if isinstance(value, int | float)}
    work = Work(numbers, layers, threads, _plan(options, names))
    # First, while this process is small: see `builds.measured`.
    place = options.model, options.models
    report.add("build", lambda: builds.builds(*place, options.quick, report.note))
    if options.peers:
        report.add("inductor", lambda: builds.inductor(*place, work, report.note))
    with ExitStack() as stack:
        worker = stack.enter_context(nothing(0).prepare(threads))
        largest = max(machine.caches().values(), default=0)
        cold = options.read_bytes or min(max(4 * largest, _LEAST_READ), _MOST_READ)
        limits = Limits(worker, cold)
        for _ in range(5):
            limits.read()
            limits.fma()
        header = machine.describe(worker.threads, limits.lanes)
        _programs(chosen, work, options, report, limits, stack)
        rows = [
            *_limit_rows("read, 8 streams a thread", limits.reads, "GB/s"),
            *_limit_rows("fma, fp32 in registers", limits.fmas, "GFLOP/s"),
            *report.rows,
        ]
        header |= {"read_bytes": cold, **report.pages, **meanwhile.shares()}
    header["seconds"] = time.monotonic() - begin
    print(_header(header))
    print(table(rows))
    for note in report.notes:
        print(f"not measured: {note}")
    return {
        "command": options.command,
        "model": options.model,
        "layers": layers,
        "machine": header,
        "rows": [row.document() for row in rows],
        "notes": report.notes,
    }


class _Report:
    """The rows of the chosen groups."""

    def __init__(self, chosen: Sequence[str]):
        self.chosen = list(chosen)
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.pages = machine.huge_pages()

    def note(self, text: str) -> None:
        """Keep what could not be measured, and why."""
        self.notes.append(text)

    def add(self, group: str, measure: Callable[[], list[Row]]) -> None:
        """Measure where the group is chosen, and note what other processes did meanwhile."""
        if group not in self.chosen:
            return
        print(f"{group} ...", file=sys.stderr, flush=True)
        since = machine.Meanwhile()
        measured = measure()
        others = since.shares()["others"]
        self.rows += [dataclasses.replace(row, others=others, group=group) for row in measured]


def _programs(
    chosen: Config,
    work: Work,
    options: argparse.Namespace,
    report: _Report,
    limits: Limits,
    stack: ExitStack,
) -> None:
    """Measure what runs programs of the model."""
    worker, plan, layers = limits.worker, work.plan, work.layers
    store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    report.add("attention", lambda: inference.attention(chosen, worker, limits, store, plan))
    needed = [each for each in ("decode", "prefill") if each in report.chosen]
    if "overhead" in report.chosen and "decode" not in needed:
        needed.append("decode")
    if not needed:
        return
    programs = inference.build(chosen, needed, store)
    report.add(
        "overhead",
        lambda: [
            *overhead.dispatch(worker, options.quick),
            *overhead.loading(chosen.model, "decode", store, worker.threads, options.quick),
        ],
    )
    print("weights ...", file=sys.stderr, flush=True)
    model = Model(
        worker,
        work.names,
        list(programs.values()),
        layers=layers,
        sequences=max(plan.batches),
        max_context=max(*plan.contexts, *plan.prompts),
    )
    copied = min(model.nbytes, _LEAST_READ)
    report.add(
        "overhead", lambda: overhead.upload(model.upload_rate, model.copy_rate, worker, copied)
    )
    wanted = {name: each for name, each in programs.items() if name in report.chosen}
    report.pages = machine.huge_pages()  # with the weights in memory
    calls = inference.Calls(model, wanted, Sizes(work.names, layers), plan)
    report.add("decode", lambda: inference.decode(calls, limits, plan))
    report.add("prefill", lambda: inference.prefill(calls, limits, plan))
    if calls.actions:
        for name in options.peers:
            _peer(name, work, calls, report, limits)
        model.check()


def _peer(name: str, work: Work, calls: inference.Calls, report: _Report, limits: Limits) -> None:
    """Measure an engine against aotc; where it fails note why, and go on."""
    group = f"against {name}"
    report.chosen.append(group)
    plan = dataclasses.replace(work.plan, rounds=min(work.plan.rounds, 5), seconds=30.0)
    try:
        with peers.Peer(name, work) as peer:
            report.add(group, lambda: inference.against(peer, calls, limits, plan))
            for reason in dict.fromkeys(peer.refused.values()):
                cases = [case for case, why in peer.refused.items() if why == reason]
                report.note(f"{peer.label}: {'; '.join(cases)}: {reason}")
    except peers.PeerError as error:
        report.note(f"{name}: {error}")


def _plan(options: argparse.Namespace, names: Names) -> Plan:
    """Return what to run, as far as the model's bounds go."""
    plan = Plan()
    if options.quick:
        plan = Plan(prompts=plan.prompts[:1], rounds=3, seconds=10)
    longest, most = int(names["MAX_SEQ"]), int(names["MAX_PREFILL_TOKENS"])
    return dataclasses.replace(
        plan,
        batches=[each for each in plan.batches if each <= names["MAX_BATCH"]],
        contexts=[min(plan.contexts[0], longest // 4), min(plan.contexts[1], longest)],
        prompts=sorted({min(each, longest, most) for each in plan.prompts}),
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--threads", type=int, help="[default: one a core]")
    parser.add_argument("--layers", type=int, default=4, help="layers of true width [default: 4]")
    parser.add_argument("--model", default="qwen3-14b", help="[default: qwen3-14b]")
    parser.add_argument("--models", type=Path, default=find_models(), help="folder of the configs")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(GROUPS),
        metavar="NAME,...",
        help=f"of {', '.join(GROUPS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--peers",
        nargs="?",
        type=lambda text: text.split(","),
        const=list(peers.ENGINES),
        default=[],
        metavar="NAME,...",
        help=f"other engines on the same work, all or of {', '.join(peers.ENGINES)}",
    )
    parser.add_argument(
        "--read-bytes", type=int, help="size of what the baseline reads [default: 4 x L3, 1-2 GB]"
    )
    options = parser.parse_args(arguments)
    for each in options.only:
        if each not in GROUPS:
            parser.error(f"--only: `{each}` is none of {', '.join(GROUPS)}")
    for each in options.peers:
        if each not in peers.ENGINES:
            parser.error(f"--peers: `{each}` is none of {', '.join(peers.ENGINES)}")
    if options.layers < 1:
        parser.error("--layers must be at least 1")
    shown = [each for each in arguments if each not in ("--json", str(options.json))]
    options.command = shlex.join(["python", "-m", "bench", *shown])
    return options


def _limit_rows(name: str, rates: Sequence[float], unit: str) -> list[Row]:
    return [
        Row(f"{name}, median", statistics.median(rates) / 1e9, unit),
        Row("  best", max(rates) / 1e9, unit),
    ]


def _header(values: dict[str, Any]) -> str:
    shown = {
        name: f"{value:.3g}" if isinstance(value, float) else value
        for name, value in values.items()
    }
    return "\n".join(f"{name:<14} {value}" for name, value in shown.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
