"""Load a model's modules from its folder: executed once, afresh for each load, nothing written.

While they run, `pypto.language` means aotc's own, the model's own files shadow other modules of
their names, and the names of the config stand in each module's globals. The kernels may lie in a
folder of their own, which comes first.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aotc.errors import AotcError, Place, suggestion
from aotc.language import vocabulary
from aotc.language.install import language_installed

# The import system is one for the process.
_LOCK = threading.Lock()
_COUNTER = itertools.count()


@dataclass(frozen=True)
class SourceFile:
    """A file that was read: its text in lines, its syntax tree and the sha256 of its bytes."""

    path: Path
    lines: tuple[str, ...]
    tree: ast.Module
    digest: str

    def place(self, node: ast.AST) -> Place:
        """Return where `node` begins."""
        line: int = getattr(node, "lineno", 1)
        offset: int = getattr(node, "col_offset", 0)
        # The AST counts columns in UTF-8 bytes; a Place counts characters.
        before = self.lines[line - 1].encode()[:offset]
        return Place(self.path, line, len(before.decode()) + 1)


@dataclass
class Sources:
    """The files of one load, by path, in the order in which they were read.

    `absent` are those that an import looked for in vain: were one there, it would be read.
    """

    folder: Path
    kernels: Path | None = None
    files: dict[Path, SourceFile] = field(default_factory=dict)
    absent: set[Path] = field(default_factory=set)

    def digests(self) -> dict[str, str | None]:
        """Return what the load depended on: names relative to the folder, None for an absent.

        Names of files in the folder of the kernels begin with the way there.
        """
        found: dict[Path, str | None] = {path: each.digest for path, each in self.files.items()}
        found.update(dict.fromkeys(sorted(self.absent)))
        return {self._name(path): each for path, each in found.items()}

    @property
    def folders(self) -> list[Path]:
        """The folders in the order in which a module is looked for."""
        return [each for each in (self.kernels, self.folder) if each is not None]

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()

    def read(self, path: Path) -> SourceFile:
        """Return the file at `path`, parsed; raise AotcError where it is not Python text."""
        if path not in self.files:
            self.files[path] = parse_file(path)
        return self.files[path]

    def function(self, python: types.FunctionType) -> tuple[SourceFile, ast.FunctionDef]:
        """Return the file and the definition of a recorded function."""
        path = Path(python.__code__.co_filename)
        if path not in self.files:
            raise AotcError(
                f"`{python.__name__}` is defined in {path}, outside the model's folder",
                hint=f"copy it into {self.folder}",
            )
        file, line = self.files[path], python.__code__.co_firstlineno
        for node in ast.walk(file.tree):
            if isinstance(node, ast.FunctionDef) and node.name == python.__name__:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if line in (first, node.lineno):
                    return file, node
        raise AotcError(f"`{python.__name__}` has no definition in {path}")


def parse_file(path: Path) -> SourceFile:
    """Read and parse `path`; raise AotcError where it is not Python text."""
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise AotcError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AotcError(f"{path} is not UTF-8 text") from None
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        place = Place(path, error.lineno or 1, error.offset or 1)
        raise AotcError(f"not Python: {error.msg}", place=place) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise AotcError(f"{path} is not Python: {error}") from None
    return SourceFile(path, tuple(text.splitlines()), tree, hashlib.sha256(content).hexdigest())


def load(
    folder: Path,
    module: str,
    environment: Mapping[str, Any],
    kernels: Path | None = None,
    *,
    language: Callable[[], AbstractContextManager[object]] = language_installed,
) -> tuple[types.ModuleType, Sources]:
    """Execute `module` of the package in `folder`; return it with every file that was read.

    `environment` stands in the globals of each module before it runs. What a module imports by a
    bare name is looked for in the folder `kernels` first. `language` makes `pypto.language` mean
    what it should. Raises AotcError, with file, line and column, for whatever goes wrong in a
    module of the folders.
    """
    for each in (folder, kernels):
        if each is not None and not each.is_dir():
            subject = "source folder" if each == folder else "folder of the kernels,"
            raise AotcError(f"the {subject} {each.resolve()} does not exist")
    sources = Sources(folder.resolve(), None if kernels is None else kernels.resolve())
    package = f"_aotc_model_{next(_COUNTER)}"
    with _LOCK, language(), _folder_first(sources, package, environment):
        try:
            loaded = importlib.import_module(f"{package}.{module}")
        except (Exception, SystemExit) as error:
            raise _explain(error, sources, module, environment) from None
    return loaded, sources


@contextmanager
def _folder_first(sources: Sources, package: str, environment: Mapping[str, Any]) -> Iterator[None]:
    finder = _Finder(sources, package, environment)
    hidden = {name: each for name, each in sys.modules.items() if finder.owns(name)}
    for name in hidden:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.owns(name)]:
            del sys.modules[name]
        sys.modules.update(hidden)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the package of the model, and its files under their bare names."""

    def __init__(self, sources: Sources, package: str, environment: Mapping[str, Any]):
        self.sources = sources
        self.package = package
        self.environment = environment
        self.bare: dict[str, Path] = {}
        for folder in reversed(sources.folders):
            for each in folder.iterdir():
                if each.suffix == ".py" or (each.is_dir() and any(each.glob("*.py"))):
                    self.bare[each.stem] = folder
        for name in sys.stdlib_module_names:
            self.bare.pop(name, None)

    def owns(self, name: str) -> bool:
        top = name.partition(".")[0]
        return top == self.package or top in self.bare

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self.owns(name):
            if "." not in name and name not in sys.stdlib_module_names:
                for folder in self.sources.folders:
                    self._note_absent(folder / name)
            return None
        parts = name.split(".")
        folder = self.sources.folder
        if parts[0] == self.package:
            parts = parts[1:]
        else:
            folder = self.bare[parts[0]]
            if folder is self.sources.folder and self.sources.kernels is not None:
                self._note_absent(self.sources.kernels / parts[0])
        base = folder.joinpath(*parts)
        candidates = [base / "__init__.py"]
        if parts:
            candidates.append(base.with_name(f"{base.name}.py"))
        for file in candidates:
            if file.is_file():
                return self._spec(name, file, file.name == "__init__.py" and base.is_dir())
            self.sources.absent.add(file)
        return self._spec(name, None, True) if base.is_dir() else None

    def _note_absent(self, base: Path) -> None:
        self.sources.absent |= {base / "__init__.py", base.with_suffix(".py")}

    def _spec(self, name: str, file: Path | None, package: bool) -> importlib.machinery.ModuleSpec:
        origin = None if file is None else str(file)
        spec = importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=package)
        spec.has_location = file is not None
        return spec

    def exec_module(self, module: types.ModuleType) -> None:
        origin = module.__spec__.origin if module.__spec__ else None
        if origin is None:
            return
        file = self.sources.read(Path(origin))
        module.__dict__.update(self.environment)
        code = compile(file.tree, origin, "exec", dont_inherit=True)
        exec(code, module.__dict__)


def _explain(
    error: BaseException, sources: Sources, module: str, environment: Mapping[str, Any]
) -> AotcError:
    """Return `error` as a diagnosis with the place in the model's files where it arose."""
    place = _place_of(error, sources)
    if isinstance(error, AotcError):
        if error.place is None:
            error.place = place
        return error
    if isinstance(error, ModuleNotFoundError) and place is None:
        return AotcError(f"{sources.folder} has no module `{module}`")
    if isinstance(error, ImportError) and error.path and Path(error.path) in sources.files:
        names = [name for name in error.msg.split("'") if name.isidentifier()]
        file = sources.files[Path(error.path)]
        if names:
            known = [each.name for each in file.tree.body if isinstance(each, ast.FunctionDef)]
            hint = suggestion(names[0], known) or f"it defines {', '.join(known) or 'no function'}"
            return AotcError(f"{file.path} has no `{names[0]}`", place=place, hint=hint)
    if isinstance(error, ImportError) and (error.name or "").startswith("pypto"):
        found = [name for name in error.msg.split("'") if name.isidentifier()]
        try:
            vocabulary.resolve(found[0] if found else error.name or "")
        except AotcError as unknown:
            unknown.place = place
            return unknown
    if isinstance(error, NameError) and error.name:
        known = [*environment, *vars(builtins)]
        hint = suggestion(error.name, known) or "define it in the module or in the config"
        return AotcError(f"unknown name `{error.name}`", place=place, hint=hint)
    return AotcError(
        f"the module fails while it is loaded: {type(error).__name__}: {error}", place=place
    )


def _place_of(error: BaseException, sources: Sources) -> Place | None:
    place = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        file = sources.files.get(Path(code.co_filename))
        if file is not None:
            positions = list(code.co_positions())[trace.tb_lasti // 2]
            line, column = positions[0] or trace.tb_lineno, positions[2] or 0
            before = file.lines[line - 1].encode()[:column]
            place = Place(file.path, line, len(before.decode()) + 1)
        trace = trace.tb_next
    return place
