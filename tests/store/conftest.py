"""Small programs with an identity of their own, as the driver makes them."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from aotc.program.key import BuildKey, canonical_key
from aotc.program.model import DistributedCompiledProgram

CONTRACT = b'{"parameters":[],"symbols":[],"returns":[]}'

MakeProgram = Callable[..., DistributedCompiledProgram]


@pytest.fixture
def make_key() -> Callable[..., BuildKey]:
    def make(model: str = "tiny", name: str = "decode", **changes: Any) -> BuildKey:
        parts: dict[str, Any] = {
            "contract": CONTRACT,
            "ir": "program decode\n",
            "target": "x86_64_v3",
            "toolchain": "clang 1 sha256:00",
            "flags": ("-O3",),
            "abi_version": 1,
            "environment": {},
            "compiler": "0" * 64,
        }
        return canonical_key(model=model, program=name, **{**parts, **changes})

    return make


@pytest.fixture
def make_program(make_key: Callable[..., BuildKey]) -> MakeProgram:
    def make(
        model: str = "tiny",
        name: str = "decode",
        *,
        target: str = "x86_64_v3",
        code: bytes = b"\x7fELF" + bytes(range(64)),
        ir: str = "program decode\n",
    ) -> DistributedCompiledProgram:
        return DistributedCompiledProgram(
            model=model,
            name=name,
            target=target,
            abi_version=1,
            contract=CONTRACT,
            object=code,
            ir=ir,
            source="void aotc_run(void) {}\n",
            identity=make_key(model, name, target=target, ir=ir).components,
        )

    return make


@pytest.fixture
def in_child() -> Callable[..., Any]:
    """Return a function that runs another in a forked child, as `user`, and gives its result.

    A child that a signal ended gives the negative number of the signal.
    """

    def run(body: Callable[[], Any], user: int | None = None) -> Any:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if user is not None and os.getuid() == 0:
                    os.setgroups([])
                    os.setgid(user)
                    os.setuid(user)
                with open(writer, "wb") as file:
                    pickle.dump(body(), file)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writer)
        with open(reader, "rb") as file:
            content = file.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return -os.WTERMSIG(status)
        assert os.WEXITSTATUS(status) == 0
        return pickle.loads(content)

    return run
