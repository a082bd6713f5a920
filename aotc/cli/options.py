"""The options that commands share, and the places they default to."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import aotc
from aotc.cli.output import Printer
from aotc.errors import AotcError
from aotc.store.artifact import LOWER_VARIABLE, NotFoundError
from aotc.store.layout import StoreError
from aotc.store.oci import PLATFORMS

if TYPE_CHECKING:
    from aotc.config import Config
    from aotc.driver import Job

Function = Callable[..., Any]
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@dataclass(frozen=True)
class Chosen:
    """What a command line names: models, and a job for each program and target."""

    configs: list[Config]
    jobs: list[Job]


@dataclass(frozen=True)
class Project:
    """Where the model configs are, and where the artifacts."""

    models: Path
    store: Path


def models_option(function: Function) -> Function:
    """Add `--models-dir`, passed as `models_dir`."""
    return click.option(
        "--models-dir",
        type=_DIRECTORY,
        envvar="AOTC_MODELS_DIR",
        default=find_models,
        show_default="the nearest `models` upward",
        show_envvar=True,
        help="Folder of the model configs.",
    )(function)


def project_options(function: Function) -> Function:
    """Add `--models-dir` and `--store`, passed as the Project `project`, and `--lower-store`."""

    @functools.wraps(function)
    def wrapper(
        *args: Any,
        models_dir: Path,
        store: Path | None,
        lower_stores: tuple[Path, ...],
        **options: Any,
    ) -> Any:
        project = Project(models_dir, beside(models_dir) if store is None else store)
        with _lower(lower_stores):
            return function(*args, project=project, **options)

    store_option = click.option(
        "--store",
        type=_DIRECTORY,
        envvar="AOTC_STORE",
        show_default="`artifacts` beside the models",
        show_envvar=True,
        help="Folder of the artifacts.",
    )
    lower_option = click.option(
        "--lower-store",
        "lower_stores",
        type=_DIRECTORY,
        multiple=True,
        show_default="AOTC_STORE_LOWER",
        help="Store to read what the other has not; may be repeated.",
    )
    return models_option(store_option(lower_option(wrapper)))


@contextmanager
def _lower(stores: Sequence[Path]) -> Iterator[None]:
    """Let `stores` be those of the variable meanwhile, as it is what other processes know."""
    for each in stores:
        if os.pathsep in os.fspath(each):
            raise click.UsageError(f"a lower store cannot have `{os.pathsep}` in its name: {each}")
    before = os.environ.get(LOWER_VARIABLE)
    if stores:
        os.environ[LOWER_VARIABLE] = os.pathsep.join(map(str, stores))
    try:
        yield
    finally:
        if before is not None:
            os.environ[LOWER_VARIABLE] = before
        elif stores:
            del os.environ[LOWER_VARIABLE]


def target_option(
    help: str, *, multiple: bool = False, choices: Iterable[str] = PLATFORMS
) -> Callable[[Function], Function]:
    """Return what adds `--target`, also `--platform`, passed as `target`; `targets` if multiple."""
    return click.option(
        "--target",
        "--platform",
        "targets" if multiple else "target",
        type=click.Choice(list(choices)),
        multiple=multiple,
        help=help,
    )


def output_options(function: Function) -> Function:
    """Add `--json` and `--quiet`, passed as the Printer `printer`."""

    @functools.wraps(function)
    def wrapper(*args: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        return function(*args, printer=Printer(quiet=quiet, as_json=as_json), **options)

    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    quiet = click.option("-q", "--quiet", is_flag=True, help="Print data and errors only.")
    return as_json(quiet(wrapper))


def chosen_jobs(
    models: Path, names: Sequence[str], targets: Sequence[str], *, all_models: bool = False
) -> Chosen:
    """Return what `MODEL [PROGRAM]...`, once or several times, names; without a program, all.

    A name that is both a program of the model before it and a model is the program. Without
    targets it is the best that runs here. Raises AotcError for an unknown name, UsageError for
    none.
    """
    from aotc import config, driver

    known = config.available_models(models)
    if all_models == bool(names):
        raise click.UsageError("name a model, or give --all" + ", not both" * bool(names))
    if all_models and not known:
        raise AotcError(f"no models in {models}", hint="--models-dir names their folder")
    programs: dict[str, list[str]] = {each: [] for each in known} if all_models else {}
    configs: dict[str, Config] = {}
    model = ""
    for name in names or known:
        if not all_models and model and (name in configs[model].programs or name not in known):
            programs[model].append(name)
        else:
            model = name
            programs.setdefault(model, [])
            configs[model] = configs.get(model) or config.load(model, models)
    wanted = list(dict.fromkeys(targets)) or [driver.default_target()]
    jobs = [
        job for each in configs.values() for job in driver.jobs(each, wanted, programs[each.model])
    ]
    return Chosen(list(configs.values()), jobs)


def shard(text: str) -> tuple[int, int]:
    """Return the part, from 1, and the number of parts that `I/N` names; raise BadParameter."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    part, of = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= of:
        raise click.BadParameter(f"`{text}` is not a part such as 1/4 or 4/4")
    return part, of


def part_of(jobs: Sequence[Job], part: int, of: int) -> list[Job]:
    """Return the jobs of a part: each is in one of them, however they were ordered."""
    known = sorted(jobs, key=lambda job: (job.config.model, job.program, job.target))
    mine = {str(job) for job in known[part - 1 :: of]}
    return [job for job in jobs if str(job) in mine]


@contextmanager
def needs_build(model: str, *, names_are_known: bool = True) -> Iterator[None]:
    """Say how to make the artifacts of `model` where they turn out not to be there.

    If `names_are_known`, also where the store has others: their names are no help then.
    """
    try:
        yield
    except (NotFoundError, StoreError) as error:
        if error.hint is None or (names_are_known and isinstance(error, NotFoundError)):
            error.hint = f"`aotc build {model}` makes it"
        raise


def find_models() -> Path:
    """Return the nearest folder `models` with a config, from the current directory upward.

    Where there is none it is the one of the checkout that aotc runs from.
    """
    for folder in (Path(), *Path.cwd().parents):
        if any((folder / "models").glob("*.yaml")):
            return folder / "models"
    checkout = Path(aotc.__file__).parents[1] / "models"
    return checkout if checkout.is_dir() else Path("models")


def beside(models: Path) -> Path:
    """Return the default store for the configs in `models`."""
    return Path(os.path.normpath(models / ".." / "artifacts"))
