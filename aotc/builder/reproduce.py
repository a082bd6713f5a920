"""Build programs again elsewhere: in another folder, home, locale and time zone, with another hash
seed and another number of jobs; and say where what comes out differs first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aotc
from aotc.builder.state import first_difference
from aotc.driver import Job
from aotc.errors import AotcError, ExitCode
from aotc.program.key import BuildKey
from aotc.store.artifact import LOWER_VARIABLE, StoredProgram, find


class RebuildError(AotcError):
    """A program that is built here cannot be built elsewhere."""


@dataclass(frozen=True)
class Rebuilt:
    """What came of a program elsewhere: the first difference in words, None where it is equal."""

    job: Job
    difference: str | None


def rebuild(
    wanted: Sequence[tuple[Job, StoredProgram]], *, limit: int, timeout: float | None = None
) -> list[Rebuilt]:
    """Build the programs of `wanted` elsewhere, with other than `limit` jobs, and compare.

    Raises RebuildError, with what the build says, where it fails there.
    """
    others = 1 if limit > 1 else 2
    with tempfile.TemporaryDirectory(prefix="aotc-repro-") as name:
        root = Path(name)
        found = []
        for model, target in dict.fromkeys((job.config.model, job.target) for job, _ in wanted):
            here = [
                (job, stored)
                for job, stored in wanted
                if (job.config.model, job.target) == (model, target)
            ]
            models = _copy(here[0][0], root / "elsewhere")
            store = root / "store"
            words = [model, *(job.program for job, _ in here), "--target", target]
            words += ["--models-dir", str(models), "--store", str(store), "-j", str(others)]
            if timeout is not None:
                words += ["--timeout", f"{timeout:g}"]
            _run(words, root)
            for job, stored in here:
                other = find(store, model, job.program, target)
                found.append(Rebuilt(job, _difference(stored, other)))
        return found


def _copy(job: Job, root: Path) -> Path:
    """Copy the config and the sources of a model; return the folder of the config."""
    path = job.config.programs[job.program].wrapper.place.path
    relative = os.path.relpath(job.config.source, path.parent)
    above = sum(part == os.pardir for part in Path(relative).parts)
    models = root.joinpath(*["folder"] * above, "configs")
    models.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, models / path.name)
    ignored = shutil.ignore_patterns("__pycache__")
    source = Path(os.path.normpath(models / relative))
    shutil.copytree(job.config.source, source, ignore=ignored, dirs_exist_ok=True)
    return models


def _run(words: Sequence[str], root: Path) -> None:
    """Run `aotc build` where all is different that must not matter."""
    for name in ("home", "temporary"):
        (root / name).mkdir(exist_ok=True)
    package = str(Path(aotc.__file__).parents[1])
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("AOTC_STORE", "AOTC_MODELS_DIR", LOWER_VARIABLE)
    }
    environment |= {
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "temporary"),
        "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "POSIX",
        "TZ": "Pacific/Kiritimati",
        "USER": "somebody",
        "LOGNAME": "somebody",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "aotc", "build", *words],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        error = RebuildError(f"the build elsewhere failed:\n{done.stderr.strip()}")
        if done.returncode in list(ExitCode):
            error.exit_code = ExitCode(done.returncode)
        raise error


def _difference(here: StoredProgram, there: StoredProgram) -> str | None:
    """Return the first difference, from what comes first on the way to machine code."""
    if here.manifest_digest == there.manifest_digest:
        return None
    texts = (
        ("contract", here.contract_json.decode(), there.contract_json.decode()),
        ("IR", here.ir(), there.ir()),
        ("C source", here.source(), there.source()),
    )
    for what, mine, others in texts:
        if mine != others:
            line, then, now = first_difference(mine, others)
            return f"{what}, line {line}: here `{_line(then)}`, elsewhere `{_line(now)}`"
    ours, theirs = here.object_bytes(), there.object_bytes()
    if ours != theirs:
        offset = next(
            (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
            min(len(ours), len(theirs)),
        )
        return f"object, byte {offset} of {len(ours)} here and {len(theirs)} elsewhere"
    for each in BuildKey(here.record.identity).explain(BuildKey(there.record.identity)):
        return f"component `{each.component}`: here {each.mine}, elsewhere {each.other}"
    return f"the manifest: here {here.manifest_digest}, elsewhere {there.manifest_digest}"


def _line(text: str | None) -> str:
    return "" if text is None else text.strip()
