"""`aotc generate`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from aotc import config, driver, weights
from aotc.cli.options import Project, needs_build, output_options, project_options
from aotc.cli.output import Printer
from aotc.errors import AotcError, ExitCode
from aotc.generate import Generator, Programs
from aotc.runtime import Program, Worker, load

PROGRAMS = ("prefill", "decode", "greedy_sample")


class MissingPackageError(AotcError):
    """A package that this command needs is not installed."""

    exit_code = ExitCode.ENVIRONMENT


def _parse_ids(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[list[int]]:
    for text in texts:
        if not re.fullmatch(r"\s*\d{1,18}\s*(,\s*\d{1,18}\s*)*", text, re.ASCII):
            raise click.BadParameter(f"`{text}` is not a list of token ids, such as 9707,11,1879")
    return [[int(each) for each in text.split(",")] for text in texts]


def _parse_weights(_: click.Context, __: click.Parameter, text: str) -> int | Path:
    """Return the seed of `random:SEED`, or an existing directory."""
    seed = re.fullmatch(r"random:(\d{1,18})", text, re.ASCII)
    if seed is not None:
        return int(seed[1])
    if not Path(text).is_dir():
        raise click.BadParameter(f"`{text}` is neither random:SEED nor a directory")
    return Path(text)


@click.command("generate")
@click.argument("model")
@click.option(
    "--weights",
    "source",
    callback=_parse_weights,
    metavar="random:SEED|DIR",
    required=True,
    help="Random weights, or a Hugging Face checkpoint in safetensors.",
)
@click.option(
    "--prompt-ids",
    "prompts",
    callback=_parse_ids,
    metavar="ID,ID,...",
    required=True,
    multiple=True,
    help="Token ids of a prompt; once for each prompt of the batch.",
)
@click.option("--layers", type=int, help="Run the first layers only.  [default: all]")
@click.option(
    "--max-seq-len",
    type=int,
    help="Tokens that a sequence may have.  [default: what the prompts need]",
)
@click.option(
    "--max-new-tokens", type=int, default=16, show_default=True, help="Tokens to generate."
)
@click.option("--threads", type=int, help="Threads to run on.  [default: one a core]")
@click.option(
    "--chunk", type=int, help="Most prompt tokens of one prefill.  [default: the model's]"
)
@project_options
@output_options
def command(
    model: str,
    source: int | Path,
    prompts: list[list[int]],
    layers: int | None,
    max_seq_len: int | None,
    max_new_tokens: int,
    threads: int | None,
    chunk: int | None,
    project: Project,
    printer: Printer,
) -> None:
    """Generate tokens greedily with the artifacts of MODEL.

    Prints a line for each step as it comes, with the new token id of each prompt, separated by
    tabs.
    """
    resolved = config.load(model, project.models)
    names = resolved.environment("cpu")
    driver.program_names(resolved, PROGRAMS)
    prefill, decode, greedy_sample = _load(model, project)
    _require_torch()
    if max_seq_len is None:
        max_seq_len = max(map(len, prompts)) + max_new_tokens
        if "MAX_SEQ" in names:
            max_seq_len = min(max_seq_len, int(names["MAX_SEQ"]))
    with prefill.prepare(threads) as worker:
        # All of them before the weights, which are packed as they ask.
        programs = Programs(worker, worker.load(decode), worker.load(greedy_sample))
        begin = time.monotonic()

        def allocate(_: str, shape: tuple[int, ...], dtype: str) -> Any:
            return worker.alloc_tensor(shape, dtype)

        with printer.progress() as running:
            running.start("weights")
            if isinstance(source, int):
                given = weights.random_weights(names, source, allocate, layers=layers)
            else:
                given = weights.load_weights(source, names, allocate, layers=layers)
            for name, tensor in given.items():
                # Tied to the embedding, whose rows are read, the output matrix stays as it is.
                if sum(each is tensor for each in given.values()) == 1:
                    tensor.pack(name)
        loaded = time.monotonic()
        printer.note(f"weights ready in {loaded - begin:.1f} s")
        generator = Generator(
            programs,
            names,
            given,
            max_seq_len=max_seq_len,
            chunk_tokens=chunk,
            allocate=allocate,
        )
        _generate(generator, prompts, max_new_tokens, worker, printer)


def _load(model: str, project: Project) -> list[Program]:
    """Load the three programs, for one worker to run."""
    with needs_build(model):
        return [load(model, name, project.store) for name in PROGRAMS]


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingPackageError(
            "generating needs the package `torch`", hint="pip install torch"
        ) from None


def _generate(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    worker: Worker,
    printer: Printer,
) -> None:
    begin = time.monotonic()
    times = []
    steps = []
    for step in generator.stream(prompts, max_new_tokens):
        times.append(time.monotonic() - begin)
        steps.append(step)
        if not printer.as_json:
            printer.data("\t".join(map(str, step)))
    if printer.as_json:
        new = list(zip(*steps, strict=True))
        printer.document(
            {
                "prompts": [
                    {"ids": list(ids), "new_ids": list(tokens)}
                    for ids, tokens in zip(prompts, new, strict=True)
                ],
                "threads": worker.threads,
                "seconds": {"first": round(times[0], 3), "all": round(times[-1], 3)},
            }
        )
    rest = times[-1] - times[0]
    speed = f", then {(len(steps) - 1) / rest:.1f} steps a second" if rest > 0 else ""
    threads = f"{worker.threads} thread{'s' if worker.threads > 1 else ''}"
    printer.note(f"first tokens after {times[0]:.2f} s{speed}, {threads}")
