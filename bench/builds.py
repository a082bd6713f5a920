"""Time and memory of builds, each by the command line in a fresh process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from aotc import config
from aotc.runtime import load
from bench import peers
from bench.measure import Row
from bench.qwen import shape_of, weight_sizes
from bench.work import Work

_SMALL = "qwen3-0.6b"

# One program from its signature, or from the tensors that a caller would pass, which it makes for
# that: `samples` has dtype and shape of each. Prints the seconds without imports.
_COMPILE = """
import json, sys, time
from pathlib import Path
from aotc import config, driver
model, models, program, samples = sys.argv[1:]
chosen, target, arguments = config.load(model, Path(models)), driver.default_target(), None
if samples:
    import torch
    from aotc.samples import arguments_of
    types = {"bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32}
begin = time.perf_counter()
if samples:
    arguments = arguments_of(
        [torch.empty(shape, dtype=types[dtype]) for dtype, shape in json.loads(samples)]
    )
compiled = driver.lower(chosen, program, target, arguments)
driver.compile_program(chosen, program, target, compiled)
print(time.perf_counter() - begin)
"""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of a process, bytes of the largest one under it, and the seconds that it printed."""

    seconds: float
    memory: float
    printed: float = 0.0


def builds(model: str, models: Path, quick: bool, note: Callable[[str], None]) -> list[Row]:
    """Return rows for builds: cold and warm, of other sizes, and from samples.

    What is compared runs in turn. `note` is told what could not be measured.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rounds = 1 if quick else 3
        commands = {"cold": _command(model, models, folder / "cold")}
        if not quick:
            single = _with_one_layer(model, models, folder / "models")
            commands["single"] = _command(model, single, folder / "single")
        if not quick and model != _SMALL and (models / f"{_SMALL}.yaml").exists():
            commands["small"] = _command(_SMALL, models, folder / "small")

        def fresh() -> None:
            for each in commands:
                shutil.rmtree(folder / each, ignore_errors=True)

        costs = in_turn(commands, rounds, before=fresh)
        layers = config.load(model, models).extents["NUM_LAYERS"]
        rows = _rows(f"build of {model}, cold", costs["cold"])
        fresh()
        rows.append(_together(peak_memory(commands["cold"])))
        if "single" in costs:
            against = f"{layers} layers over it"
            rows += _rows("  with 1 layer", costs["single"], costs["cold"], against)
        if "small" in costs:
            rows += _rows(f"  {_SMALL}", costs["small"], costs["cold"], f"{model} over it")
        start = {"start": [sys.executable, "-c", "pass"], "warm": commands["cold"]}
        warm = in_turn(start, 3 if quick else 11)
        rows += [
            _row(f"build of {model}, warm", "s", warm["warm"], lambda each: each.seconds),
            _row(
                *("  start of a process", "s", warm["start"], lambda each: each.seconds),
                *(warm["warm"], "of the warm build", True),
            ),
        ]
        return rows + _samples(model, models, folder / "cold", rounds, note)


def _samples(
    model: str, models: Path, store: Path, rounds: int, note: Callable[[str], None]
) -> list[Row]:
    """Return rows for `decode` alone, by its signature and by real tensors of true size.

    Of all layers, if the system gives as many addresses; nothing touches the memory.
    """
    chosen = config.load(model, models)
    names = chosen.environment("cpu")
    parameters = load(model, "decode", store).contract.parameters
    command = [sys.executable, "-c", _COMPILE, model, str(models), "decode"]
    layers = chosen.extents["NUM_LAYERS"]
    while True:
        sizes = {
            **weight_sizes(names, layers, pages=32),
            **{"ROPE_SEQ_DYN": int(names["MAX_SEQ"]), "BATCH_DYN": 1, "BLOCK_TABLE_FLAT_DYN": 32},
        }
        samples = json.dumps([[each.dtype, shape_of(each, sizes)] for each in parameters])
        try:
            commands = {"plain": [*command, ""], "samples": [*command, samples]}
            costs = in_turn(commands, rounds)
            break
        except RuntimeError:
            note(f"torch.empty tensors of {layers} layers: more than the system allows")
            if layers == 1:
                return []
            layers //= 2
    against = "over the signature"
    return [
        *_rows("decode alone, from its signature", costs["plain"]),
        *_rows(
            f"  from torch.empty tensors of {layers} layers",
            *(costs["samples"], costs["plain"], against, True),
        ),
        _row(
            *("    without imports", "s", costs["samples"], lambda each: each.printed),
            *(costs["plain"], against, True),
        ),
    ]


def inductor(
    model: str, models: Path, work: Work, seconds: float, note: Callable[[str], None]
) -> list[Row]:
    """Return rows for a decoder layer by AOTInductor, and for decode with one layer by aotc.

    Each build may take so many seconds.
    """
    if peers.missing("AOTInductor") or not any(map(shutil.which, ("g++", "clang++", "c++"))):
        note("AOTInductor: not installed, or no g++ for it")
        return []
    document = json.dumps(dataclasses.asdict(work))
    theirs = [sys.executable, "-m", "bench.peers.torch_aot", document]
    with tempfile.TemporaryDirectory() as folder:
        single = _with_one_layer(model, models, Path(folder) / "models")
        ours = [sys.executable, "-c", _COMPILE, model, str(single), "decode", ""]
        variables = {"TMPDIR": folder, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        try:
            commands = {"ours": ours, "theirs": theirs}
            costs = in_turn(commands, 1, environment=variables, seconds=seconds)
            together = [peak_memory(each, variables, seconds) for each in commands.values()]
        except RuntimeError as error:
            note(f"AOTInductor: {error}")
            return []
    name = "one layer of decode"
    memory = _row(
        *("    largest process", "MB", costs["theirs"], lambda each: each.memory / 1e6),
        *(costs["ours"], "over aotc", True),
    )
    return [
        *_rows(f"{name}, with embedding and output", costs["ours"]),
        _together(together[0]),
        _row(
            *(f"  {name} by AOTInductor", "s", costs["theirs"], lambda each: each.printed),
            *(costs["ours"], "over aotc, imports apart", True),
        ),
        memory,
        _together(together[1], together[1] / together[0], "over aotc"),
    ]


def _rows(
    name: str,
    costs: Sequence[Cost],
    of: Sequence[Cost] = (),
    against: str = "",
    over: bool = False,
) -> list[Row]:
    return [
        _row(name, "s", costs, lambda each: each.seconds, of, against, over),
        _row("    largest process", "MB", costs, lambda each: each.memory / 1e6, of, against, over),
    ]


def _together(memory: float, ratio: float | None = None, against: str = "") -> Row:
    return Row("    all processes together", memory / 1e6, "MB", ratio, against)


def _row(
    name: str,
    unit: str,
    costs: Sequence[Cost],
    value: Callable[[Cost], float],
    of: Sequence[Cost] = (),
    against: str = "",
    over: bool = False,
) -> Row:
    """Return the median of a value, and of its ratio to `of` by rounds, or the inverse."""
    median = statistics.median(map(value, costs))
    if not of:
        return Row(name, median, unit)
    ratios = [value(b) / value(a) for a, b in zip(costs, of, strict=True)]
    ratio = statistics.median(1 / each if over else each for each in ratios)
    return Row(name, median, unit, ratio, against)


def in_turn(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    *,
    before: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    seconds: float = threading.TIMEOUT_MAX,
) -> dict[str, list[Cost]]:
    """Run all commands in turn, `rounds` times; raise RuntimeError where one fails."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        before()
        for name, command in commands.items():
            costs[name].append(measured(command, environment, seconds))
    return costs


def _command(model: str, models: Path, store: Path) -> list[str]:
    places = ["--models-dir", str(models), "--store", str(store)]
    return [sys.executable, "-m", "aotc", "build", model, "--quiet", *places]


def measured(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    seconds: float = threading.TIMEOUT_MAX,
) -> Cost:
    """Return what a command costs, and the number that it prints last, if it does.

    A process counts as large as the one that starts it: call this while this one is small. Raises
    RuntimeError, with the last line that it printed, where the command fails, or takes longer than
    `seconds`.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
        variables = {**os.environ, **(environment or {})}
        begin = time.perf_counter()
        child = os.posix_spawn(
            command[0], list(command), variables, file_actions=actions, setpgroup=0
        )
        with _limited(child, seconds):
            _, status, usage = os.wait4(child, 0)
        took = time.perf_counter() - begin
        output.seek(0)
        last = output.read().strip().rpartition("\n")[2]
    if status != 0:
        raise RuntimeError(f"exit status {os.waitstatus_to_exitcode(status)}: {last[:300]}")
    printed = float(last) if re.fullmatch(r"[\d.e-]+", last) else 0.0
    return Cost(took, usage.ru_maxrss * 1024, printed)


@contextlib.contextmanager
def _limited(group: int, seconds: float) -> Iterator[None]:
    """Kill a process group after so many seconds, which is a RuntimeError, or else at the end."""
    begin = time.perf_counter()
    timer = threading.Timer(seconds, _kill, [group])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _kill(group)
    if time.perf_counter() - begin > seconds:
        raise RuntimeError(f"no result in {seconds:g} s")


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def peak_memory(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    seconds: float = threading.TIMEOUT_MAX,
) -> float:
    """Return the most bytes that a command and all processes under it have at one time.

    What several share counts once. It looks a hundred times a second, which slows the command down.
    Raises RuntimeError where the command fails, or takes longer than `seconds`.
    """
    variables = {**os.environ, **(environment or {})}
    nowhere = subprocess.DEVNULL
    with (
        subprocess.Popen(
            command, env=variables, stdout=nowhere, stderr=nowhere, process_group=0
        ) as process,
        _limited(process.pid, seconds),
    ):
        most = 0
        while process.poll() is None:
            most = max(most, sum(map(_proportional, _descendants(process.pid))))
            time.sleep(0.01)
    if process.returncode != 0:
        raise RuntimeError(f"exit status {process.returncode} from {shlex.join(command)[:300]}")
    return most


def _descendants(process: int) -> list[int]:
    found, waiting = [], [process]
    while waiting:
        found.append(waiting.pop())
        for path in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                waiting += map(int, path.read_text(encoding="ascii").split())
    return found


def _proportional(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0  # it has ended
    value = re.search(r"^Pss:\s*(\d+) kB", text, re.MULTILINE)
    return int(value[1]) * 1024 if value else 0


def _with_one_layer(model: str, models: Path, copy: Path) -> Path:
    shutil.copytree(models, copy)
    path = copy / f"{model}.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r"NUM_LAYERS: \d+", "NUM_LAYERS: 1", text), encoding="utf-8")
    return copy
