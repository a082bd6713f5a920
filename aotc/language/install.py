"""Put aotc's language in the place of `pypto.language`, for the time of loading a model."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aotc.errors import AotcError
from aotc.language import vocabulary

_DISTRIBUTED = "pypto.language.distributed"


class _Language(types.ModuleType):
    """A module whose names are those of the vocabulary."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "distributed":
            raise _no_ranks()
        return vocabulary.resolve(name)


class _Placeholder:
    """A name of a pypto module that serves running, not building."""

    def __init__(self, path: str):
        self._path = path

    def __getattr__(self, name: str) -> _Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(f"{self._path}.{name}")

    def __or__(self, other: Any) -> _Placeholder:
        return self  # as in the annotation `RunConfig | None`

    __ror__ = __or__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise AotcError(
            f"`{self._path}` runs programs: a model's module cannot use it while it is built",
            hint='move it below `if __name__ == "__main__":`',
        )


class _Toolbox(types.ModuleType):
    """`pypto.runtime` and its kind: modules import from it at the top, for their own main."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for every other module of pypto: the distributed language is refused."""

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not _is_pypto(name):
            return None
        if name.startswith("pypto.language."):
            if name == _DISTRIBUTED or name.startswith(f"{_DISTRIBUTED}."):
                raise _no_ranks()
            vocabulary.resolve(name.removeprefix("pypto.language."))
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Toolbox(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def _no_ranks() -> AotcError:
    return vocabulary.UnknownName(
        f"`{_DISTRIBUTED}` is not supported yet",
        hint="build the program of one rank; collectives come with programs of several ranks",
    )


@contextmanager
def language_installed() -> Iterator[types.ModuleType]:
    """Make `pypto` and `pypto.language` mean aotc's own, and restore what was there.

    Yields the language module.
    """
    package, language = _Toolbox("pypto"), _Language("pypto.language")
    # Packages, as `import pypto.language.x` needs.
    package.__path__, language.__path__ = [], []
    modules: dict[str, types.ModuleType] = {"pypto": package, "pypto.language": language}
    vars(package)["language"] = language
    before = {name: each for name, each in sys.modules.items() if _is_pypto(name)}
    finder = _Finder()
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    sys.meta_path.insert(0, finder)
    try:
        yield language
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_pypto(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _is_pypto(name: str) -> bool:
    return name == "pypto" or name.startswith("pypto.")
