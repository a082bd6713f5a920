"""Run a build with a fault at each of its file operations; what came of it goes to stdout as JSON.

Started by test_faults.py in a process with the shim of `fault_layer`. Each run is a forked child on
a fresh copy of the store, so what is imported and compiled before is there already.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fault_layer import KILL, Faults, adopt_orphans, fork

# Imported by a build when it is needed: here once, for all children.
import aotc.builder.build
import aotc.builder.processes
import aotc.builder.resources
import aotc.builder.task
import aotc.cli.build
import aotc.cli.delivery  # noqa: F401
from aotc.cli.main import main
from aotc.errors import AotcError
from aotc.program.key import BuildKey, text_digest
from aotc.program.model import IR_TYPE, OBJECT_TYPE, DistributedCompiledProgram
from aotc.store.artifact import find, list_programs, publish
from aotc.store.cache import Cache
from aotc.store.gc import collect
from aotc.store.layout import Layout
from aotc.store.validate import validate

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from small_model import SMALL, WRAPPERS, Project

CONFIG = SMALL.replace('  square: {wrapper: "wrappers:square_host"}\n', "")
EDITED = WRAPPERS.replace("pl.add(x, x)", "pl.sub(x, x)")


class Runs:
    """Repeats a body with a fault at each step, and checks the store after each.

    Of the steps, which are counted from 1, those from `first` on in steps of `stride`.
    """

    def __init__(self, folder: Path, first: int, stride: int):
        self.first = first
        self.stride = stride
        self.folder = folder
        self.project = Project(folder)
        self.store = folder / "store"
        self.faults = Faults()
        self.problems: list[str] = []
        self.steps = 0
        self.calls: dict[str, int] = {}

    def build(self) -> int:
        return main(
            ["build", "small", "--models-dir", str(self.project.models), "--store", str(self.store)]
        )

    def artifacts(self) -> tuple[Path, DistributedCompiledProgram, DistributedCompiledProgram]:
        """Build the model before and after an edit; return the first store and both programs."""
        self.project.write_model(CONFIG)
        assert fork(self.build, self.folder / "log") == 0, (self.folder / "log").read_text()
        before = self.folder / "before"
        shutil.copytree(self.store, before)
        self.project.write_model(CONFIG, EDITED)
        assert fork(self.build, self.folder / "log") == 0, (self.folder / "log").read_text()
        return before, _program(before), _program(self.store)

    def every_step(
        self,
        template: Path | None,
        body: Callable[[], int],
        check: Callable[[], None],
        error: int,
        *,
        writes_only: bool = False,
        sticky: bool = False,
    ) -> None:
        step = self.first - self.stride
        while True:
            step += self.stride
            shutil.rmtree(self.store, ignore_errors=True)
            if template is not None:
                shutil.copytree(template, self.store)

            def armed(at: int = step) -> int:
                self.faults.arm(self.store, at, error, writes_only=writes_only, sticky=sticky)
                return body()

            outcome = fork(armed, self.folder / "log")
            count, call = self.faults.disarm()
            if count < step:
                assert outcome == 0, (self.folder / "log").read_text()
                break
            self.steps += 1
            self.calls[call] = self.calls.get(call, 0) + 1
            said = (self.folder / "log").read_text()
            where = f"error {error} at step {step} ({call}): "
            # 3 and 4 are AotcError's: damage or the environment; 0 is a fault that did no harm.
            expected = [-signal.SIGKILL] if error == KILL else [0, 3, 4]
            if outcome not in expected or "Traceback" in said:
                self.problems.append(f"{where}ended with {outcome}: {said[-1500:]}")
            try:
                check()
            except (AotcError, AssertionError) as failure:
                self.problems.append(f"{where}{failure!r} {said[-500:]}")


def _program(root: Path) -> DistributedCompiledProgram:
    stored = find(root, "small", "twice")
    return DistributedCompiledProgram(
        model=stored.model,
        name=stored.program,
        target=stored.target,
        abi_version=stored.abi_version,
        contract=stored.contract_json,
        layers=stored.layers(),
        identity=stored.record.identity,
    )


def _store_part(
    runs: Runs, program: DistributedCompiledProgram, *, gc: bool = False
) -> Callable[[], int]:
    """Return what a build does to the store, after `program` was compiled; or `gc` after that."""
    inputs = BuildKey({"model": "small", "program": "twice", "target": program.target})
    files = {"wrappers.py": text_digest("edited")}

    def body() -> int:
        try:
            layout = Layout.create(runs.store)
            cache = Cache(layout, lambda _: None)
            cache.lookup_inputs(inputs, runs.folder / "nowhere")
            built = cache.build_once(BuildKey(program.identity), lambda: program)
            cache.record_inputs(inputs, files, built.program)
            publish(layout, "small", [built.program], warn=lambda _: None)
            del cache, layout, built  # and with them the lease
            if gc:
                collect(runs.store)
        except AotcError as error:
            print(error.render())
            return int(error.exit_code)
        return 0

    return body


def run(folder: Path, scenario: str, error: int, first: int, stride: int) -> Runs:
    """Run one scenario with `error`, 0 for a kill, at every step."""
    runs = Runs(folder, first, stride)
    before, old, new = runs.artifacts()

    checks = 0

    def sound(*, next_build: Callable[[], int]) -> Callable[[], None]:
        def check() -> None:
            nonlocal checks
            checks += 1
            if (runs.store / "oci-layout").exists():
                assert validate(runs.store) == [], validate(runs.store)
                for entry in list_programs(runs.store):
                    code = find(runs.store, entry.model, entry.program).object_bytes()
                    assert code in (old.content(OBJECT_TYPE), new.content(OBJECT_TYPE))
                    if scenario == "update" and code == old.content(OBJECT_TYPE):
                        kept = find(runs.store, "small", "twice")
                        assert kept.ir() == old.content(IR_TYPE).decode()
            if scenario in ("update", "gc"):
                assert len(list_programs(runs.store)) == 1
            # A whole build takes long: of many, some, and for the rest what it does to the store.
            again = next_build if checks % 16 == 0 else _store_part(runs, new)
            assert fork(again, folder / "next") == 0, (folder / "next").read_text()
            assert validate(runs.store) == []
            assert find(runs.store, "small", "twice").object_bytes() == new.content(OBJECT_TYPE)

        return check

    match scenario:
        case "build":
            runs.every_step(
                None, runs.build, sound(next_build=runs.build), error, writes_only=error == KILL
            )
        case "create" | "update" | "full":
            body = _store_part(runs, new)
            template = before if scenario == "update" else None
            sticky = scenario == "full"
            runs.every_step(template, body, sound(next_build=body), error, sticky=sticky)
        case "gc":
            body = _store_part(runs, new, gc=True)
            runs.every_step(before, body, sound(next_build=body), error)
    return runs


if __name__ == "__main__":
    adopt_orphans()
    name, *numbers = sys.argv[2:]
    done = run(Path(sys.argv[1]), name, *map(int, numbers))
    print(json.dumps({"steps": done.steps, "calls": done.calls, "problems": done.problems}))
