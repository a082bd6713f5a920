"""`aotc run`."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aotc import config, driver, inputs
from aotc.cli.options import Project, needs_build, output_options, project_options, target_option
from aotc.cli.output import Printer, size_text, table
from aotc.config import Config
from aotc.errors import AotcError
from aotc.runtime import BoundCall, DeviceTensor, Program, Worker
from aotc.runtime.host import Host
from aotc.runtime.loader import load_stored
from aotc.runtime.memory import huge_pages
from aotc.store.artifact import StoredProgram, find
from aotc.toolchain import toolchain_for
from aotc.toolchain.zig import TARGETS

if TYPE_CHECKING:
    from aotc.profile import Profile


def _parse_symbols(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    symbols = {}
    for text in texts:
        found = re.fullmatch(r"(\w+)=(\d{1,18})", text, re.ASCII)
        if found is None:
            raise click.BadParameter(f"`{text}` is not of the form SYMBOL=NUMBER")
        symbols[found[1]] = int(found[2])
    return symbols


@click.command("run")
@click.argument("model")
@click.argument("program")
@click.option(
    "--set",
    "given",
    callback=_parse_symbols,
    metavar="SYMBOL=NUMBER",
    multiple=True,
    help="Value of a dynamic dimension; may be repeated.  [default: the least]",
)
@click.option("--threads", type=int, help="Threads to run on.  [default: one a core]")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Calls to time, after one that is not.",
)
@click.option("--profile", is_flag=True, help="Tell where the time goes, by region of the code.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the profile of a call to this file, for a viewer of Chrome traces.",
)
@target_option("CPU level of the artifact.  [default: the best that runs here]", choices=TARGETS)
@project_options
@output_options
def command(
    model: str,
    program: str,
    given: dict[str, int],
    threads: int | None,
    repeat: int,
    profile: bool,
    trace: Path | None,
    target: str | None,
    project: Project,
    printer: Printer,
) -> None:
    """Run PROGRAM of MODEL on sample arguments, and time it.

    Floating-point arguments are random numbers. Integers are what the model's module `samples`
    says, else zeros.

    A profile is that of another build of the same program, which is compiled here and not stored.
    Its roof is what the machine gives to the same threads: bytes read, and fused multiply-adds.
    """
    resolved = config.load(model, project.models)
    driver.program_names(resolved, [program])
    with needs_build(model):
        stored = find(project.store, model, program, target or Host.current().targets())
    loaded = load_stored(stored)
    assert isinstance(loaded, Program)  # by the choice of targets
    symbols = inputs.symbol_values(loaded.contract, given)
    platform = toolchain_for(stored.target).platform(stored.target)
    known = inputs.integers(resolved, program, platform, symbols)
    with loaded.prepare(threads) as worker:
        tensors = inputs.device_tensors(worker, loaded.contract, symbols, known)
        seconds = _time(worker.bind(*tensors), repeat)
        document = {
            "model": model,
            "program": program,
            "target": stored.target,
            "threads": worker.threads,
            "symbols": symbols,
            "argument_bytes": sum(each.nbytes for each in tensors),
            "huge_page_bytes": huge_pages(),
            "seconds": seconds,
        }
        if not printer.as_json:
            _print_times(printer, document)
        if profile or trace is not None:
            measured = _profile(resolved, stored, worker, tensors, repeat, trace)
            document["profile"] = _profile_document(measured)
            if not printer.as_json:
                printer.data("\n" + _profile_table(measured))
    if printer.as_json:
        printer.document(document)


def _time(call: BoundCall, repeat: int) -> list[float]:
    call()
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _profile(
    resolved: Config,
    stored: StoredProgram,
    worker: Worker,
    tensors: Sequence[DeviceTensor],
    repeat: int,
    trace: Path | None,
) -> Profile:
    from aotc import profile as profiling

    built = profiling.build(resolved, stored.program, stored.target)
    if built.ir != stored.ir():
        raise AotcError(
            f"the sources of `{stored.program}` are no longer those of the artifact",
            hint=f"`aotc build {stored.model} {stored.program}` makes it again",
        )
    measured = profiling.measure(built, worker, tensors, repeat, profiling.READ_BYTES)
    if trace is not None:
        text = json.dumps(profiling.chrome_trace(measured))
        trace.write_text(text + "\n", encoding="utf-8")
    return measured


def _print_times(printer: Printer, document: dict[str, Any]) -> None:
    seconds = document["seconds"]
    count = len(seconds)
    printer.data(
        f"{_time_text(statistics.median(seconds))} a call, the median of {count}; "
        f"{_time_text(min(seconds))} to {_time_text(max(seconds))}"
    )
    threads = document["threads"]
    shown = [f"{threads} thread{'s' * (threads != 1)}", document["target"]]
    shown += [f"{name} {value}" for name, value in document["symbols"].items()]
    printer.note(", ".join(shown))
    printer.note(
        f"arguments of {size_text(document['argument_bytes'])}; "
        f"the process has {size_text(document['huge_page_bytes'])} on huge pages"
    )


def _profile_document(profile: Profile) -> dict[str, Any]:
    return {
        "seconds": profile.call,
        "waiting_seconds": profile.waiting,
        "rest_seconds": profile.rest,
        "read_bytes_per_second": profile.read,
        "fma_flops_per_second": profile.fma,
        "regions": [msgspec.to_builtins(each) for each in profile.regions],
    }


def _profile_table(profile: Profile) -> str:
    rows = [("time", "of all", "runs", "GB/s", "GFLOP/s", "of roof", "region")]
    for each in sorted(profile.regions, key=lambda region: -region.seconds):
        seconds = max(each.seconds, 1e-12)
        rows.append(
            (
                _time_text(each.seconds),
                f"{each.seconds / profile.call:.1%}",
                str(each.runs),
                f"{each.bytes / seconds / 1e9:.2f}" if each.bytes else "",
                f"{each.flops / seconds / 1e9:.1f}" if each.flops else "",
                "" if each.share is None else f"{each.share:.2f}",
                each.name,
            )
        )
    for name, seconds in (
        ("waiting at barriers", profile.waiting),
        ("the rest", profile.rest),
        ("a call of the profile build", profile.call),
    ):
        share = f"{seconds / profile.call:.1%}"
        rows.append((_time_text(seconds), share, "", "", "", "", name))
    limits = f"roof: read {profile.read / 1e9:.1f} GB/s, FMA {profile.fma / 1e9:.0f} GFLOP/s"
    return f"{table(rows, right=range(6))}\n{limits}"


def _time_text(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"
