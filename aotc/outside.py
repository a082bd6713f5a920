"""What a model's modules read, while they are loaded, besides each other.

A file of their own folder becomes an input like any module, and a module that they import from
elsewhere one by what it is (see `modules`). What lies outside, or has no digest, cannot be one: the
environment, other files, other processes, the network. What imported modules read themselves is
not looked into.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from aotc import modules
from aotc.program.key import text_digest
from aotc.store.cache import MODULE

_OTHERS = {
    "os.listdir": "lists a folder",
    "os.scandir": "lists a folder",
    "os.system": "runs a command",
    "subprocess.Popen": "runs a command",
    "socket.connect": "uses the network",
}


@dataclass
class Reads:
    """What was read: files of the folder, by relative name, with their sha256 or None; modules from
    elsewhere, with what `modules.identify` says of them; the rest in words, with the place that
    reads it.
    """

    folder: Path
    more: tuple[Path, ...] = ()  # folders with modules of the model besides
    compiler: tuple[Path, ...] = ()  # folders of code that the toolchain's identity has
    variables: tuple[str, ...] = ()  # what the key has of the environment, by prefix
    files: dict[str, str | None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)  # in order, each once
    imported: dict[str, str] = field(default_factory=dict)  # top-level modules, and where first

    def note(self, what: str, path: object = None) -> None:
        """Note that someone does `what`, or opens `path`, if that is a module of the folder."""
        frame = self._reader()
        if frame is None:
            return
        name = None if path is None else self._relative(path)
        if name is None:
            if not self._is_by_compiler(frame):
                self.others[f"{self._place(frame)} {what}"] = None
        elif name not in self.files:
            self.files[name] = _digest(self.folder / name)

    def note_variable(self, name: str) -> None:
        """Note that someone reads an environment variable, if that is a module of the folder."""
        if not name.startswith(self.variables or ("\0",)):
            self.note(f"reads the environment variable {name}")

    def note_import(self, name: str) -> None:
        """Note that someone imports `name`, if that is a module of the folder."""
        top = name.partition(".")[0]
        # First what costs nothing: aotc's own imports come here too, by the thousand.
        if not top or not modules.is_foreign(top) or (frame := self._reader()) is None:
            return
        own = (frame.f_globals.get("__package__") or "").partition(".")[0]
        if top != own and not self._has_module(top):
            self.imported.setdefault(top, self._place(frame))

    def identify_modules(self) -> None:
        """Make inputs of the modules that were imported from elsewhere."""
        for name, place in self.imported.items():
            # One in a folder of the model would be taken instead.
            for folder in (self.folder, *self.more):
                for file in (f"{name}/__init__.py", f"{name}.py"):
                    self.files.setdefault(self._name(folder / file), None)
            try:
                self.files[MODULE + name] = modules.identify(name)
            except modules.UnknownModuleError as error:
                self.others[f"{place} imports `{name}`: {error}"] = None

    def _has_module(self, name: str) -> bool:
        folders = (self.folder, *self.more)
        return any((each / f"{name}.py").is_file() or (each / name).is_dir() for each in folders)

    def _place(self, frame: FrameType) -> str:
        return f"{self._name(Path(frame.f_code.co_filename))}:{frame.f_lineno}"

    def _reader(self) -> FrameType | None:
        """Return the frame of the module that is at work, None where it is an import or aotc."""
        prefixes = tuple(f"{each}{os.sep}" for each in (self.folder, *self.more))
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(prefixes):
                return frame
            if name.startswith("<frozen importlib"):
                return None
            frame = frame.f_back
        return None

    def _is_by_compiler(self, reader: FrameType) -> bool:
        """Return whether the compiler, called by the module, does it for itself."""
        if not self.compiler:
            return False
        prefixes = tuple(f"{each}{os.sep}" for each in self.compiler)
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame is not reader:
            if frame.f_code.co_filename.startswith(prefixes):
                return True
            frame = frame.f_back
        return False

    def _relative(self, path: object) -> str | None:
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        absolute = Path(os.path.abspath(os.fsdecode(path)))
        if absolute.is_dir():
            return None
        inside = any(absolute.is_relative_to(each) for each in (self.folder, *self.more))
        return self._name(absolute) if inside else None

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.folder)).as_posix()


_current: Reads | None = None
_is_hooked = False


@contextmanager
def watch(
    folder: Path,
    kernels: Path | None = None,
    *,
    compiler: tuple[Path, ...] = (),
    variables: tuple[str, ...] = (),
) -> Iterator[Reads]:
    """Note what the modules in `folder`, and in that of the kernels, read meanwhile.

    Files are named relative to `folder`. What the code in the folders `compiler` reads for itself
    is left out, and environment variables that begin with one of `variables`.
    """
    global _current, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_audit)  # there is no way to remove one
        _is_hooked = True
    environment: Any = type(os.environ)
    get, each = environment.__getitem__, environment.__iter__

    def get_noted(self: Any, name: Any) -> Any:
        if _current is not None:
            _current.note_variable(os.fsdecode(name))
        return get(self, name)

    def each_noted(self: Any) -> Iterator[Any]:
        if _current is not None:
            _current.note("reads all environment variables")
        return iter(list(each(self)))

    # A module that is there already makes no event.
    statement, function = builtins.__import__, importlib.import_module

    def statement_noted(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if _current is not None and level == 0:
            _current.note_import(name)
        return statement(name, globals, locals, fromlist, level)

    def function_noted(name: str, package: str | None = None) -> Any:
        if _current is not None and not name.startswith("."):
            _current.note_import(name)
        return function(name, package)

    before = _current
    more = () if kernels is None else (kernels.resolve(),)
    _current = reads = Reads(folder.resolve(), more, compiler, variables)
    environment.__getitem__, environment.__iter__ = get_noted, each_noted
    builtins.__import__, importlib.import_module = statement_noted, function_noted
    try:
        yield reads
    finally:
        builtins.__import__, importlib.import_module = statement, function
        environment.__getitem__, environment.__iter__ = get, each
        _current = before
    reads.identify_modules()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    global _current
    reads = _current
    if reads is None or (event != "open" and event not in _OTHERS):
        return
    _current = None  # what is done here is not theirs
    try:
        if event != "open":
            reads.note(_OTHERS[event])
        elif not _only_writes(*arguments[1:3]):
            reads.note(f"opens {_shown(arguments[0])}", arguments[0])
    finally:
        _current = reads


def _only_writes(mode: object, flags: object) -> bool:
    if isinstance(flags, int):
        return flags & os.O_ACCMODE == os.O_WRONLY
    return isinstance(mode, str) and "r" not in mode and "+" not in mode


def _shown(path: object) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else "a file"


def _digest(path: Path) -> str | None:
    try:
        return text_digest(path.read_bytes())
    except OSError:
        return None
