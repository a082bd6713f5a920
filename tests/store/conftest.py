"""Programs to store, and work in a process of its own."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_layer import compile_shim
from tiny_programs import build_key, build_program

from aotc.program.key import BuildKey
from aotc.program.model import DistributedCompiledProgram

MakeProgram = Callable[..., DistributedCompiledProgram]


@pytest.fixture
def make_key() -> Callable[..., BuildKey]:
    return build_key


@pytest.fixture
def make_program() -> MakeProgram:
    return build_program


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


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim of `fault_layer`, compiled."""
    return compile_shim(tmp_path_factory.mktemp("faults"))
