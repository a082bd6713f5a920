"""Build into a store whose file system lacks something; prints `sound` where all went well.

Started by test_filesystems.py in a process with the shim of `fault_layer`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fault_layer import Faults, fork
from tiny_programs import build_key, build_program

from aotc.program.model import DistributedCompiledProgram
from aotc.store.artifact import find, list_programs, publish
from aotc.store.cache import Cache
from aotc.store.gc import collect
from aotc.store.layout import Layout
from aotc.store.lock import acquire
from aotc.store.validate import validate

BUILDERS = 6


def main(folder: Path, refused: int, error: int) -> None:
    """Build, build again, damage, repair, replace, collect; with others; after a killed one."""
    store = folder / "store"
    Faults().arm(store, 0, error, refused=refused)

    def build(name: str, code: bytes, log: Path | None = None) -> bool:
        program = build_program(name=name, code=code)

        def compile_now() -> DistributedCompiledProgram:
            if log is not None:
                with log.open("a") as file:
                    file.write("compiled\n")
                time.sleep(0.1)
            return program

        layout = Layout.create(store)
        built = Cache(layout, lambda _: None).build_once(build_key(name=name), compile_now)
        publish(layout, "tiny", [built.program], warn=lambda _: None)
        return built.compiled

    assert build("decode", b"one")
    assert not build("decode", b"one")
    stored = find(store, "tiny", "decode")
    stored.layout.blob_path(stored.digests[0]).write_bytes(b"two")
    assert len(validate(store)) == 1
    assert build("decode", b"one")
    assert validate(store) == []
    collect(store)
    assert find(store, "tiny", "decode").object_bytes() == b"one"

    log = folder / "log"
    compiled = _children(lambda: int(build("prefill", b"three", log)), BUILDERS)
    assert sorted(compiled) == [0] * (BUILDERS - 1) + [1], compiled
    assert log.read_text() == "compiled\n"

    lock = store / "locks" / "build-x.lock"

    def die() -> int:
        assert acquire(lock, 0) is not None
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert fork(die, folder / "died") == -signal.SIGKILL
    held = acquire(lock, 5)
    assert held is not None
    assert acquire(lock, 0.05) is None  # held, by this process too
    held.release()
    assert validate(store) == []
    assert [each.program for each in list_programs(store)] == ["decode", "prefill"]
    print("sound")


def _children(body: Callable[[], int], count: int) -> list[int]:
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = body()
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
