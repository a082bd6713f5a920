"""`python -m bench`: measure, write JSON as it goes, print a table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aotc import config
from aotc.cli.main import INTERRUPTED
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
        run(options)
    except AotcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        kept = f": {options.json} has what was measured" if options.json else ""
        print(f"interrupted{kept}", file=sys.stderr)
        return INTERRUPTED
    return 0


def run(options: argparse.Namespace) -> None:
    """Measure, and print header and table."""
    chosen = config.load(options.model, options.models)
    threads = choose_threads(options.threads)
    names = chosen.environment("cpu")
    layers = min(options.layers, int(names["NUM_LAYERS"]))
    numbers = {key: value for key, value in names.items() if isinstance(value, int | float)}
    work = Work(numbers, layers, threads, _plan(options, names))
    report = _Report(options, layers)
    report.save()
    # First, while this process is small: see `builds.measured`.
    place = options.model, options.models
    report.add("build", lambda: builds.builds(*place, options.quick, report.note))
    if options.peers:
        report.add(
            "inductor", lambda: builds.inductor(*place, work, options.peer_seconds, report.note)
        )
    with ExitStack() as stack:
        worker = stack.enter_context(nothing(0).prepare(threads))
        largest = max(machine.caches().values(), default=0)
        cold = options.read_bytes or min(max(4 * largest, _LEAST_READ), _MOST_READ)
        limits = report.limits = Limits(worker, cold)
        for _ in range(5):
            limits.read()
            limits.fma()
        report.machine = {**machine.describe(worker.threads, limits.lanes), "read_bytes": cold}
        _programs(chosen, work, options, report, limits, stack)
    report.complete = True
    report.save()
    print(_header(report.header()))
    print(table(report.all_rows()))
    for note in report.notes:
        print(f"not measured: {note}")


class _Report:
    """What was measured of the chosen groups; the file of `--json` has it after every row."""

    def __init__(self, options: argparse.Namespace, layers: int):
        self._options, self._layers = options, layers
        self._begin, self._meanwhile = time.monotonic(), machine.Meanwhile()
        self.chosen = list(options.only)
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.machine: dict[str, Any] = {}
        self.pages = machine.huge_pages()
        self.limits: Limits | None = None
        self.complete = False

    def note(self, text: str) -> None:
        """Keep what could not be measured, and why."""
        self.notes.append(text)
        self.save()

    def add(self, group: str, measure: Callable[[], Iterable[Row]]) -> None:
        """Measure where the group is chosen, and keep each row, and what others did until then."""
        if group not in self.chosen:
            return
        print(f"{group} ...", file=sys.stderr, flush=True)
        since = machine.Meanwhile()
        for row in measure():
            others = since.shares()["others"]
            self.rows.append(dataclasses.replace(row, others=others, group=group))
            self.save()

    def header(self) -> dict[str, Any]:
        """Return the machine, and what it did until now."""
        seconds = time.monotonic() - self._begin
        return {**self.machine, **self.pages, **self._meanwhile.shares(), "seconds": seconds}

    def all_rows(self) -> list[Row]:
        """Return the limits, as they are known now, and the rows."""
        if self.limits is None:
            return self.rows
        return [
            *_limit_rows("read, 8 streams a thread", self.limits.reads, "GB/s"),
            *_limit_rows("fma, fp32 in registers", self.limits.fmas, "GFLOP/s"),
            *self.rows,
        ]

    def save(self) -> None:
        """Write the document to the file of `--json`, which is whole at any time."""
        path = self._options.json
        if path is None:
            return
        document = {
            "command": self._options.command,
            "model": self._options.model,
            "layers": self._layers,
            "complete": self.complete,
            "machine": self.header(),
            "rows": [row.document() for row in self.all_rows()],
            "notes": self.notes,
        }
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)


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
            *overhead.oversubscription(options.quick),
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
            _peer(name, options.peer_seconds, work, calls, report, limits)
        model.check()


def _peer(
    name: str,
    seconds: float,
    work: Work,
    calls: inference.Calls,
    report: _Report,
    limits: Limits,
) -> None:
    """Measure an engine against aotc, for so many seconds; where it fails note why, and go on."""
    group = f"against {name}"
    report.chosen.append(group)
    plan = dataclasses.replace(work.plan, rounds=min(work.plan.rounds, 5), seconds=20.0)
    try:
        with peers.Peer(name, work, seconds) as peer:
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
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the results there, as they come"
    )
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
        "--peer-seconds",
        type=float,
        default=300.0,
        metavar="N",
        help="limit for one engine, from its start to its last run [default: 300]",
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
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder `{options.json.parent}`")
    if not 0 < options.peer_seconds <= threading.TIMEOUT_MAX:
        parser.error("--peer-seconds must be more than 0")
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
