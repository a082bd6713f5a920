"""`python -m bench`: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from aotc import config
from aotc.cli.options import find_models
from aotc.errors import AotcError
from aotc.runtime.host import choose_threads
from bench import builds, inference, machine, overhead, peers
from bench.inference import Peers, Plan
from bench.measure import Row, table
from bench.native import Limits, nothing
from bench.qwen import Model, Sizes

GROUPS = ("build", "overhead", "attention", "decode", "prefill")
_LEAST_READ = 1 << 30
_MOST_READ = 2 << 30


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and return the exit code."""
    options = _parse(arguments)
    begin = time.monotonic()
    try:
        document = run(options)
    except AotcError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    document["seconds"] = round(time.monotonic() - begin, 1)
    print(f"{document['seconds']:.0f} s", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


def run(options: argparse.Namespace) -> dict[str, object]:
    """Measure, print as it comes, and return everything as plain data."""
    rows: list[Row] = []
    chosen = config.load(options.model, options.models)
    names = chosen.environment("cpu")
    threads = choose_threads(options.threads)
    plan = Plan()
    if options.quick:
        plan = Plan(prompts=plan.prompts[:1], rounds=3, seconds=10)
    longest = int(names["MAX_SEQ"])
    plan = Plan(
        [each for each in plan.batches if each <= names["MAX_BATCH"]],
        sorted({min(128, longest // 4), min(4096, longest)}),
        sorted({min(each, int(names["MAX_PREFILL_TOKENS"])) for each in plan.prompts}),
        plan.rounds,
        plan.seconds,
    )
    meanwhile = machine.Meanwhile()

    def add(group: str, measure: Callable[[], list[Row]]) -> None:
        if group in options.only:
            _progress(group)
            since = machine.Meanwhile()
            measured = measure()
            others = since.shares()["others"]
            rows.extend(dataclasses.replace(row, others=others) for row in measured)

    # First, while this process is small.
    add("build", lambda: builds.builds(options.model, options.models, options.quick))
    largest = max(machine.caches().values(), default=0)
    cold = options.read_bytes or min(max(4 * largest, _LEAST_READ), _MOST_READ)
    with ExitStack() as stack:
        worker = stack.enter_context(nothing(0).prepare(threads))
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limits = Limits(worker, cold)
        for _ in range(5):
            limits.read(), limits.fma()
        header = machine.describe(threads, limits.lanes)
        needed = [each for each in ("decode", "prefill") if each in options.only]
        if "overhead" in options.only and "decode" not in needed:
            needed.append("decode")
        programs = inference.build(chosen, needed, store) if needed else {}
        add("attention", lambda: inference.attention(chosen, worker, limits, store, plan))
        add("overhead", lambda: overhead.dispatch(worker, options.quick))
        add(
            "overhead",
            lambda: overhead.loading(chosen.model, "decode", store, threads, options.quick),
        )
        if needed:
            _progress("weights")
            layers = min(options.layers, int(names["NUM_LAYERS"]))
            sizes = Sizes(names, layers)
            model = Model(
                worker,
                names,
                [program.contract for program in programs.values()],
                layers=layers,
                sequences=max(plan.batches),
                max_context=longest,
            )
            add("overhead", lambda: overhead.upload(model.upload_rate, limits))
            rivals: Peers = {}
            if options.peers:
                _progress("peers")
                rivals = peers.peers(worker, names, layers, plan, stack)
            for group in ("decode", "prefill"):
                measure = getattr(inference, group)
                add(
                    group,
                    lambda m=measure, g=group: m(model, programs[g], sizes, limits, plan, rivals),
                )
        rows[:0] = [
            *_limit_rows("read, 8 streams a thread", limits.reads, "GB/s"),
            *_limit_rows("fma, fp32 in registers", limits.fmas, "GFLOP/s"),
        ]
        header |= {"read_bytes": cold, **machine.huge_pages(), **meanwhile.shares()}
    print(_header(header))
    print(table(rows))
    return {"machine": header, "model": options.model, "rows": [row.document() for row in rows]}


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
    parser.add_argument("--peers", action="store_true", help="run other engines on the same work")
    parser.add_argument("--read-bytes", type=int, help="of the read baseline [default: 4 x L3]")
    options = parser.parse_args(arguments)
    for each in options.only:
        if each not in GROUPS:
            parser.error(f"--only: `{each}` is none of {', '.join(GROUPS)}")
    if options.layers < 1:
        parser.error("--layers must be at least 1")
    return options


def _limit_rows(name: str, rates: Sequence[float], unit: str) -> list[Row]:
    return [
        Row(f"{name}, median", statistics.median(rates) / 1e9, unit),
        Row("  best", max(rates) / 1e9, unit),
    ]


def _header(values: dict[str, object]) -> str:
    return "\n".join(f"{name:<14} {_shown(value)}" for name, value in values.items())


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _progress(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
