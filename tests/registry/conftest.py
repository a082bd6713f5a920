"""A registry for all tests, and a store to push from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from registry_server import FILES, SERVER, inputs_of, registry
from tiny_programs import build_key, build_program

from aotc import provenance
from aotc.program.key import BuildKey
from aotc.provenance import Build
from aotc.store.artifact import publish, write_program
from aotc.store.cache import Cache, Files
from aotc.store.layout import Layout

TARGETS = ("x86_64_v3", "aarch64")
_repositories = itertools.count()


@pytest.fixture(scope="session")
def registry_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `host:port` of a registry without TLS and without authentication."""
    if SERVER is None:
        pytest.skip("no docker-registry: apt-get install docker-registry")
    with registry(tmp_path_factory.mktemp("registry")) as host:
        yield host


@pytest.fixture
def reference(registry_host: str) -> str:
    """A tag in a repository that nothing has been pushed to."""
    return f"{registry_host}/team/tiny-{next(_repositories)}:v1"


@pytest.fixture(autouse=True)
def _no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    monkeypatch.delenv("AOTC_STORE_LOWER", raising=False)


MakeStore = Callable[..., Path]


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """Return a function that makes a store with programs of `tiny`, with their provenance."""

    def make(
        name: str = "store",
        code: bytes = b"code of ",
        targets: tuple[str, ...] = TARGETS,
        *,
        stated: bool = True,
        files: Files = FILES,
        outside: tuple[str, ...] = (),
        **inputs: str,
    ) -> Path:
        layout = Layout.create(tmp_path / name)
        stored = [
            write_program(
                layout, build_program(name=program, target=target, code=code + program.encode())
            )
            for program in ("decode", "prefill")
            for target in targets
        ]
        publish(layout, "tiny", stored)
        if stated:
            provenance.record(
                Cache(layout),
                [Build(each, inputs_of(each, **inputs), files, outside) for each in stored],
            )
        return layout.root

    return make


@pytest.fixture
def key() -> BuildKey:
    """The canonical key of `decode` for x86_64_v3 in the store of `make_store`."""
    return build_key()
