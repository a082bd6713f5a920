"""Whether programs are up to date, and why not; nothing is compiled and nothing is written.

A program is fresh where a build would find it built. What it would not find is compared with the
nearest build that the store remembers, component by component of the key, file by file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from aotc.builder import processes
from aotc.builder.build import not_started, without_answer
from aotc.builder.task import Canonical, Lower, decode
from aotc.child import Failed
from aotc.config import Config
from aotc.document import Document
from aotc.driver import Job, level_one_key
from aotc.errors import AotcError, ExitCode
from aotc.lock import LOCK_FILE, Entry, Program, key_of
from aotc.program.key import BuildKey, Difference
from aotc.store.artifact import NotFoundError, StoredProgram, find, lower_roots, open_program
from aotc.store.cache import MODULE, Cache, Inputs, file_digest
from aotc.store.layout import MARKER_FILE, IntegrityError, Layout, StoreError


class Condition(Enum):
    """What a program is; its code is that of `aotc build --check`, the gravest last."""

    FRESH = "up to date"
    STALE = "stale"
    MISSING = "missing"
    UNVERIFIABLE = "unverifiable"
    BROKEN = "broken"  # the front end refuses its sources


CODES = {
    Condition.FRESH: ExitCode.OK,
    Condition.STALE: ExitCode.STALE,
    Condition.MISSING: ExitCode.MISSING,
    Condition.UNVERIFIABLE: ExitCode.UNVERIFIABLE,
    Condition.BROKEN: ExitCode.INPUT,
}
_GRAVITY = list(Condition)


@dataclass(frozen=True)
class Change:
    """A component that differs from the nearest build: its value then and now.

    None where it is not given, or the file is not there. `path` and `line` say where it stands
    now; `old_line` and `new_line` are the first of its lines that differ.
    """

    component: str
    old: str | None
    new: str | None
    path: str | None = None
    line: int | None = None
    old_line: str | None = None
    new_line: str | None = None

    def __str__(self) -> str:
        place = self.path or ""
        if self.line is not None:
            place = f"{place or self.component}:{self.line}"
        if self.old_line is not None or self.new_line is not None:
            return f"{place}: {_quoted(self.old_line)} -> {_quoted(self.new_line)}"
        if self.component.startswith("file ") and (self.old is None or self.new is None):
            return f"{place}: {'is new' if self.old is None else 'is not there any more'}"
        at = f" ({place})" if place else ""
        return f"{self.component}{at}: {_short(self.old)} -> {_short(self.new)}"


@dataclass(frozen=True)
class Verdict:
    """What a program is, and why; what it was compared with, and in what it differs from that.

    `equal` names the components that do not differ. `error` is what the front end says of sources
    that it refuses.
    """

    job: Job
    condition: Condition
    reasons: tuple[str, ...] = ()
    nearest: str | None = None
    changes: tuple[Change, ...] = ()
    equal: tuple[str, ...] = ()
    stored: StoredProgram | None = None
    error: AotcError | None = None


def judge(job: Job, store: Path, locked: Mapping[Program, Entry] | None = None) -> Verdict:
    """Tell whether a build of `job` into `store` would find it built, and listed.

    It is also held against `locked`, the entries of a lock file, where that has any program of the
    model for the target. Runs the front end where a source file or the config has changed, in a
    process of its own: what a model's modules do there is an error of that program.
    """
    return _Judge(job, store, locked or {}).verdict()


def orphans(configs: Iterable[Config], locked: Mapping[Program, Entry]) -> list[Program]:
    """Return what is locked of the models, but is no program of them any more."""
    declared = {config.model: config.programs for config in configs}
    return [
        (model, program, target)
        for model, program, target in locked
        if model in declared and program not in declared[model]
    ]


class _Untouched(Layout):
    """A layout whose files stay as they are, also where they are damaged."""

    def set_aside(self, name: str) -> None:
        pass

    def remove_file(self, name: str) -> None:
        pass

    def use(self, name: str) -> None:
        pass


@dataclass(frozen=True)
class _Compiled:
    """A program as the front end leaves it: its canonical key and its IR."""

    key: BuildKey
    ir: str


def _lower(job: Job) -> _Compiled:
    """Run the front end in another process; raise AotcError for whatever it comes to there."""
    begin = time.monotonic()
    with closing(processes.run([Lower(job).encode()], limit=1)) as events:
        answer = None
        for event in events:
            match event:
                case processes.Refused():
                    raise not_started(job, event.error)
                case processes.Said():
                    answer = decode(event.line)
                case processes.Ended() if not isinstance(answer, Canonical | Failed):
                    raise without_answer(job, event, time.monotonic() - begin)
    if isinstance(answer, Failed):
        raise answer.error()
    assert isinstance(answer, Canonical)
    return _Compiled(BuildKey(answer.components), answer.ir)


@dataclass
class _Judge:
    job: Job
    store: Path
    locked: Mapping[Program, Entry]
    damage: list[str] = field(default_factory=list)
    found: list[tuple[Condition, str]] = field(default_factory=list)

    def verdict(self) -> Verdict:
        job = self.job
        key = level_one_key(job.config, job.program, job.target)
        compiled: _Compiled | None = None
        try:
            cache = self._cache()
            stored = None if cache is None else cache.lookup_inputs(key, job.config.source)
            at_once = stored is not None
            if stored is None and not self.damage:
                compiled = _lower(job)
                stored = None if cache is None else cache.lookup(compiled.key)
            listed = None if cache is None else self._listed()
            self._judge_store(stored, listed)
            self._judge_lock(stored, compiled)
        except (StoreError, IntegrityError) as error:
            return Verdict(job, Condition.UNVERIFIABLE, (error.message,))
        except AotcError as error:
            return Verdict(job, Condition.BROKEN, (error.message,), error=error)
        condition = max((each for each, _ in self.found), key=_GRAVITY.index)
        reasons = tuple(reason for _, reason in self.found if reason)
        if at_once or cache is None:
            return Verdict(job, condition, reasons, stored=stored)
        nearest, changes, equal = self._compare(cache, key, compiled, listed)
        return Verdict(job, condition, reasons, nearest, changes, equal, stored)

    def _cache(self) -> Cache | None:
        """Return the build cache, to be read only, or None where there is no store."""
        if os.path.lexists(self.store / MARKER_FILE):
            return Cache(_Untouched.open(self.store), self.damage.append)
        return Cache(_Untouched(self.store), self.damage.append) if lower_roots() else None

    def _listed(self) -> StoredProgram | None:
        job = self.job
        try:
            return find(self.store, job.config.model, job.program, job.target)
        except NotFoundError:
            return None

    def _judge_store(self, stored: StoredProgram | None, listed: StoredProgram | None) -> None:
        if stored is None and self.damage:
            self.found.append((Condition.UNVERIFIABLE, self.damage[0]))
        elif stored is None and listed is None:
            self.found.append((Condition.MISSING, f"no artifact in {self.store}"))
        elif stored is None:
            self.found.append((Condition.STALE, "the artifact is of other inputs"))
        elif listed is None or listed.manifest_digest != stored.manifest_digest:
            lists = "nothing" if listed is None else str(listed.manifest_digest)
            reason = f"it is built as {stored.manifest_digest}, but the store lists {lists}"
            self.found.append((Condition.STALE, reason))
        else:
            self.found.append((Condition.FRESH, ""))

    def _judge_lock(self, stored: StoredProgram | None, compiled: _Compiled | None) -> None:
        job = self.job
        names = (job.config.model, job.program, job.target)
        if not any((model, target) == (names[0], names[2]) for model, _, target in self.locked):
            return
        entry = self.locked.get(names)
        if entry is None:
            self.found.append((Condition.MISSING, f"{LOCK_FILE} does not have it"))
            return
        if stored is not None:
            key = BuildKey(stored.record.identity)
        elif compiled is not None:
            key = compiled.key
        else:
            return
        changed = key.explain(key_of(names, entry))
        if changed:
            words = "; ".join(
                f"{each.component} {_short(each.other)} -> {_short(each.mine)}" for each in changed
            )
            self.found.append((Condition.STALE, f"{LOCK_FILE} has another key: {words}"))
        elif stored is not None and str(stored.manifest_digest) != entry.artifact:
            reason = (
                f"{LOCK_FILE} has {entry.artifact} for the same key as {stored.manifest_digest}"
            )
            self.found.append((Condition.UNVERIFIABLE, reason))

    def _compare(
        self,
        cache: Cache,
        key: BuildKey,
        compiled: _Compiled | None,
        listed: StoredProgram | None,
    ) -> tuple[str | None, tuple[Change, ...], tuple[str, ...]]:
        """Return what the nearest build is, in what it differs from one now, and in what not."""
        nearest, inputs = _nearest(cache, self.job, key)
        changes: list[Change] = []
        equal: list[str] = []
        before = listed
        if nearest is not None:
            for difference in key.explain(BuildKey(nearest.components)):
                changes += _changes(self.job, difference)
            changes += [
                _file_change(self.job.config.source, nearest, name, now)
                for name, now in inputs.items()
                if now != nearest.files[name]
            ]
            equal += [
                each
                for each in key.components
                if key.components[each] == nearest.components.get(each)
            ]
            equal += [name for name, now in inputs.items() if now == nearest.files[name]]
            before = _open(cache, nearest) or listed
        if before is not None and compiled is not None:
            changes += _canonical_changes(before, compiled, known=nearest is not None)
        described = None
        if nearest is not None:
            described = nearest.manifest.digest
        elif before is not None:
            described = str(before.manifest_digest)
        return described, tuple(changes), tuple(equal)


def _nearest(cache: Cache, job: Job, key: BuildKey) -> tuple[Inputs | None, dict[str, str | None]]:
    """Return the inputs of the nearest build, and the digests that its files have now."""
    best: tuple[tuple[bool, int], Inputs, dict[str, str | None]] | None = None
    digests: dict[str, str | None] = {}
    for inputs in cache.inputs(job.config.model, job.program):
        for name in inputs.files:
            if name not in digests:
                digests[name] = file_digest(job.config.source, name)
        now = {name: digests[name] for name in inputs.files}
        distance = len(key.explain(BuildKey(inputs.components)))
        distance += sum(now[name] != inputs.files[name] for name in now)
        rank = (inputs.components.get("target") != job.target, distance)
        if best is None or rank < best[0]:
            best = (rank, inputs, now)
    return (None, {}) if best is None else best[1:]


def _open(cache: Cache, inputs: Inputs) -> StoredProgram | None:
    for layer in cache.layers:
        try:
            return open_program(layer, inputs.manifest)
        except AotcError:
            continue
    return None


def _changes(job: Job, difference: Difference) -> Iterator[Change]:
    """Yield what differs within a component of the level-one key."""
    name, old, new = difference.component, difference.other, difference.mine
    section = name.removeprefix("config.")
    if section == name:
        place = _yaml_place(job, ("programs", job.program, name)) if name == "wrapper" else None
        yield Change(name, old, new, *(place or (None, None)))
        return
    then, now = _leaves(old), _leaves(new)
    for path in sorted({*then, *now}):
        if then.get(path) != now.get(path):
            place = _yaml_place(job, (*_SECTIONS.get(section, (section,)), *path))
            yield Change(".".join((name, *path)), then.get(path), now.get(path), *place)


# Where the fields of a config stand in its file, where they have another name there.
_SECTIONS = {"symbols": ("dynamic",), "device_ids": ("distributed", "device_ids")}


def _leaves(text: str | None) -> dict[tuple[str, ...], str]:
    def walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        if isinstance(value, dict) and value:
            for name, each in value.items():
                yield from walk(each, (*path, name))
        else:
            yield path, json.dumps(value) if not isinstance(value, str) else value

    return {} if text is None else dict(walk(json.loads(text), ()))


def _yaml_place(job: Job, where: tuple[str, ...]) -> tuple[str, int | None]:
    """Return the file of the config, and the line of the entry `where` or of what it is in."""
    path = job.config.programs[job.program].wrapper.place.path
    places = Document(path).values
    while where and where not in places:
        where = where[:-1]
    return str(path), places[where].line if where else None


def _file_change(source: Path, before: Inputs, name: str, now: str | None) -> Change:
    old = before.files[name]
    if name.startswith(MODULE):
        return Change(name.replace(":", " "), old, now)
    path = str(source / name)
    component = f"file {name}"
    if old is None or now is None or name not in before.texts:
        return Change(component, old, now, path)
    try:
        text = (source / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Change(component, old, now, path)
    return Change(component, old, now, path, *first_difference(before.texts[name], text))


def _canonical_changes(
    before: StoredProgram, compiled: _Compiled, *, known: bool
) -> Iterator[Change]:
    """Yield in what the program that came out differs; the rest is `known` from level one."""
    for each in compiled.key.explain(BuildKey(before.record.identity)):
        if each.component == "ir" and not before.files():
            lines = first_difference(before.ir(), compiled.ir)
            yield Change("ir", each.other, each.mine, None, *lines)
        elif each.component in ("contract", "ir") or not known:
            yield Change(each.component, each.other, each.mine)


def first_difference(old: str, new: str) -> tuple[int | None, str | None, str | None]:
    """Return the number, from 1, of the first line that differs, and that line then and now."""
    lines = zip_longest(old.splitlines(), new.splitlines())
    for number, (then, now) in enumerate(lines, start=1):
        if then != now:
            return number, then, now
    return None, None, None  # they differ in how their lines end


def gravest(conditions: Sequence[Condition]) -> Condition:
    """Return the gravest of `conditions`, `FRESH` where there are none."""
    return max(conditions, key=_GRAVITY.index, default=Condition.FRESH)


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    is_digest = len(value) == 64 and not value.strip("0123456789abcdef")
    return value[:12] if is_digest else value


def _quoted(line: str | None) -> str:
    return "nothing" if line is None else f"`{line.strip()}`"
