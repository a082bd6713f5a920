"""Build programs again elsewhere: in another folder, home, locale and time zone, with another hash
seed and another number of jobs; and say where what comes out differs first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aotc.builder.state import first_difference
from aotc.child import python_path
from aotc.driver import Job
from aotc.elsewhere import copy_model
from aotc.errors import AotcError, ExitCode
from aotc.program.key import BuildKey
from aotc.program.model import IR_TYPE, OBJECT_TYPE, SOURCE_TYPE
from aotc.store.artifact import LOWER_VARIABLE, StoredProgram, find
from aotc.toolchain import toolchain_for


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
            platform = toolchain_for(target).platform(target)
            models = copy_model(here[0][0].config, root / "elsewhere", platform)
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


def _run(words: Sequence[str], root: Path) -> None:
    """Run `aotc build` where all is different that must not matter."""
    for name in ("home", "temporary"):
        (root / name).mkdir(exist_ok=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("AOTC_STORE", "AOTC_MODELS_DIR", LOWER_VARIABLE)
    }
    environment |= {
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "temporary"),
        "PYTHONPATH": python_path(),
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
    ours, theirs = _parts(here), _parts(there)
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            return f"{name} is only {'here' if name in ours else 'elsewhere'}"
        found = _content_difference(name, ours[name], theirs[name])
        if found is not None:
            return found
    for each in BuildKey(here.record.identity).explain(BuildKey(there.record.identity)):
        return f"component `{each.component}`: here {each.mine}, elsewhere {each.other}"
    return f"the manifest: here {here.manifest_digest}, elsewhere {there.manifest_digest}"


def _parts(stored: StoredProgram) -> dict[str, bytes]:
    """Return contract and payload by name, what others are made of first."""
    names = {IR_TYPE: "IR", SOURCE_TYPE: "C source", OBJECT_TYPE: "object"}
    payload = {each.media_type: each.content for each in stored.layers()}
    files = stored.files() or {name: payload[media_type] for media_type, name in names.items()}
    return {"contract": stored.contract_json, **files}


def _content_difference(name: str, mine: bytes, others: bytes) -> str | None:
    if mine == others:
        return None
    try:
        line, then, now = first_difference(mine.decode(), others.decode())
        return f"{name}, line {line}: here `{_line(then)}`, elsewhere `{_line(now)}`"
    except UnicodeDecodeError:
        at = next(
            (at for at, (a, b) in enumerate(zip(mine, others, strict=False)) if a != b),
            min(len(mine), len(others)),
        )
        return f"{name}, byte {at} of {len(mine)} here and {len(others)} elsewhere"


def _line(text: str | None) -> str:
    return "" if text is None else text.strip()
