"""The key changes with what comes out, and with nothing else."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotc import config, driver
from aotc.driver import Job
from aotc.store.cache import Cache
from aotc.store.layout import Layout
from aotc.toolchain import zig

sys.path.insert(0, str(Path(__file__).parent / "cli"))
from small_model import SMALL, WRAPPERS, Project

HOST = driver.default_target()


@dataclass
class State:
    """What a build of `square` depends on, or might."""

    config: str = SMALL
    source: str = WRAPPERS
    target: str = HOST
    flags: tuple[str, ...] = zig._FLAGS
    toolchain: str = zig.identity()
    environment: tuple[tuple[str, str], ...] = ()
    folder: str = "project"


Edit = Callable[[State], None]


def config_edit(old: str, new: str) -> Edit:
    assert old in SMALL

    def edit(state: State) -> None:
        state.config = state.config.replace(old, new)

    return edit


def source_edit(old: str, new: str) -> Edit:
    assert old in WRAPPERS

    def edit(state: State) -> None:
        state.source = state.source.replace(old, new)

    return edit


def variable(name: str, value: str) -> Edit:
    def edit(state: State) -> None:
        state.environment += ((name, value),)

    return edit


def place(**fields: object) -> Edit:
    def edit(state: State) -> None:
        for name, value in fields.items():
            setattr(state, name, value)

    return edit


def flags(old: str, new: str) -> Edit:
    def edit(state: State) -> None:
        state.flags = tuple(new if each == old else each for each in state.flags)

    return edit


# Each of these alters what comes out.
MEANING = {
    "an operator": source_edit("pl.mul(x, x)", "pl.sub(x, x)"),
    "an operand": source_edit("pl.mul(x, x)", "pl.mul(x, pl.add(x, x))"),
    "a literal": source_edit("pl.mul(x, x)", "pl.mul(x, 2.0)"),
    "another literal": source_edit("pl.mul(x, x)", "pl.mul(x, 3.0)"),
    "a type": source_edit("pl.FP32", "pl.BF16"),
    "an extent": config_edit("WIDTH: 8", "WIDTH: 16"),
    "a least size": config_edit("min: 1", "min: 2"),
    "a greatest size": config_edit("max: 64", "max: 63"),
    "a multiple": config_edit("max: 64", "max: 64, multiple_of: 4"),
    "a wrapper": config_edit("wrappers:square_host", "wrappers:twice_host"),
    "a device": config_edit("schema: 1", "schema: 1\ndistributed: {device_ids: [1]}"),
    "an optimization": flags("-O2", "-O1"),
    "a target": place(target="aarch64" if HOST != "aarch64" else "x86_64_v3"),
}
# Nor may these pass unseen, though what comes out may be equal byte for byte.
DENIED = {
    "another toolchain": place(toolchain="ziglang 0.18.0 sha256=AA"),
    "a flag of unknown effect": flags("-fno-ident", "-fident"),
    "a variable of aotc not known": variable("AOTC_OF_THE_FUTURE", "1"),
}
NEUTRAL = {
    "a comment": source_edit("\n\n\n@pl.jit\n", "\n\n\n# a comment\n@pl.jit\n"),
    "a comment in a body": source_edit("    return y\n", "    # so be it\n    return y\n"),
    "lines": source_edit("\n\n\n", "\n\n\n\n\n"),
    "spaces": source_edit("pl.add(x, x)", "pl.add( x,x )"),
    "another program": source_edit("pl.add(x, x)", "pl.sub(x, x)"),
    "an unused function": source_edit("import pypto", "def f(): return 1\nimport pypto"),
    "a comment in the config": config_edit("schema: 1", "# a comment\nschema: 1"),
    "an equal expression": config_edit("WIDTH: 8", "WIDTH: 2 * 2 * 2"),
    "an unused extent": config_edit("WIDTH: 8", "UNUSED: 7, WIDTH: 8"),
    "an unused symbol": config_edit("  ROWS_DYN", "  OTHER_DYN: {min: 1}\n  ROWS_DYN"),
    "a golden": config_edit('wrappers:square_host"', 'wrappers:square_host", golden: "g:g"'),
    "a program more": config_edit("programs:", 'programs:\n  more: {wrapper: "a:b"}'),
    "another checkout": place(folder="else/where"),
    **{
        f"the variable {name}": variable(name, value)
        for name, value in (
            ("HOME", "/nowhere"),
            ("LC_ALL", "tr_TR.UTF-8"),
            ("TZ", "Asia/Tokyo"),
            ("USER", "somebody"),
            ("EDITOR", "vi"),
            ("SOURCE_DATE_EPOCH", "1"),
            ("CCC_OVERRIDE_OPTIONS", "#O0"),
            ("CPATH", "/nowhere"),
            ("ZIG_LIB_DIR", "/nowhere"),
            ("AOTC_STORE", "/nowhere"),
        )
    },
}
EDITS = {**MEANING, **DENIED, **NEUTRAL}

Output = tuple[object, ...]


_compile = zig.compile_shared_object


@functools.cache
def machine_code(source: str, target: str, flags: object, environment: object) -> bytes:
    """Compile in the world as it is, which differs in no more than the arguments."""
    return _compile(source, zig.TARGETS[target])


class Bench:
    """Builds states, and says their keys and what comes out."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cache = Cache(Layout.create(folder / "store"), self.warn)
        first = self.enter(State())
        with first:
            driver.compile_into(self.cache, self.job)
        self.base = self.result(State())

    @staticmethod
    def warn(text: str) -> None:
        raise AssertionError(text)

    def enter(self, state: State) -> ExitStack:
        """Make the world that of `state`."""
        project = Project(self.folder / state.folder)
        project.write_model(config=state.config, wrappers=state.source)
        stack = ExitStack()
        stack.enter_context(mock.patch.object(zig, "_FLAGS", state.flags))
        stack.enter_context(mock.patch.object(zig, "identity", return_value=state.toolchain))
        stack.enter_context(mock.patch.dict(os.environ, dict(state.environment)))
        self.job = Job(config.load("small", project.models), "square", state.target)
        return stack

    def result(self, state: State) -> tuple[str, bool, Output]:
        """Return the canonical key, whether level one hits, and the output."""
        with self.enter(state):
            job = self.job
            level_one = driver.level_one_key(job.config, job.program, job.target)
            hit = self.cache.lookup_inputs(level_one, job.config.source) is not None
            compiled = driver.lower(job.config, job.program, job.target)
            world = (state.target, state.flags, state.environment)
            with mock.patch.object(
                zig, "compile_shared_object", lambda source, _: machine_code(source, *world)
            ):
                program = driver.compile_program(job.config, job.program, job.target, compiled)
        output = (program.contract, program.layers, program.device_ids)
        return compiled.key.digest, hit, output


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("keys"))


def edited(names: Sequence[str]) -> State:
    state = State()
    for name in names:
        EDITS[name](state)
    return state


@pytest.mark.parametrize("name", EDITS)
def test_each_edit(bench: Bench, name: str) -> None:
    key, hit, output = bench.result(edited([name]))
    if name in MEANING:
        assert output != bench.base[2], "the test itself: this edit alters nothing"
    if name in NEUTRAL:
        assert output == bench.base[2], "the test itself: this edit alters something"
    assert (key == bench.base[0]) == (name in NEUTRAL)
    assert not hit or name in NEUTRAL


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(names=st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=6, unique=True))
def test_edits_together(bench: Bench, names: list[str]) -> None:
    """In any number and order, where one may undo or hide another."""
    key, hit, output = bench.result(edited(names))
    assert (key == bench.base[0]) == (output == bench.base[2] and not {*names} & {*DENIED})
    if hit:
        assert output == bench.base[2]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    line=st.integers(0, 40),
    text=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"])),
)
def test_a_comment_anywhere_changes_nothing(bench: Bench, line: int, text: str) -> None:
    lines = WRAPPERS.splitlines()
    lines.insert(min(line, len(lines)), f"# {text}")
    key, hit, output = bench.result(State(source="\n".join(lines) + "\n"))
    assert (key, output) == (bench.base[0], bench.base[2])
    assert not hit


def test_what_is_unchanged_hits_at_once(bench: Bench) -> None:
    assert bench.result(State())[1]
