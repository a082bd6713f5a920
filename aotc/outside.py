"""What a model's modules read, while they are loaded, besides each other.

A file of their own folder becomes an input like any module. What lies outside, or has no digest,
cannot be one: the environment, other files, other processes, the network. Modules that they import
from elsewhere are not looked into.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from aotc.program.key import text_digest

_OTHERS = {
    "os.listdir": "lists a folder",
    "os.scandir": "lists a folder",
    "os.system": "runs a command",
    "subprocess.Popen": "runs a command",
    "socket.connect": "uses the network",
}


@dataclass
class Reads:
    """What was read: files of the folder, by relative name, with their sha256 or None; the rest in
    words, with the place that reads it.
    """

    folder: Path
    files: dict[str, str | None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)  # in order, each once

    def note(self, what: str, path: object = None) -> None:
        """Note that someone does `what`, or opens `path`, if that is a module of the folder."""
        frame = self._reader()
        if frame is None:
            return
        name = None if path is None else self._relative(path)
        if name is None:
            file = Path(frame.f_code.co_filename).relative_to(self.folder)
            self.others[f"{file.as_posix()}:{frame.f_lineno} {what}"] = None
        elif name not in self.files:
            self.files[name] = _digest(self.folder / name)

    def _reader(self) -> FrameType | None:
        """Return the frame of the module that is at work, None where it is an import or aotc."""
        prefix = f"{self.folder}{os.sep}"
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(prefix):
                return frame
            if name.startswith("<frozen importlib"):
                return None
            frame = frame.f_back
        return None

    def _relative(self, path: object) -> str | None:
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        absolute = Path(os.path.abspath(os.fsdecode(path)))
        if not absolute.is_relative_to(self.folder) or absolute.is_dir():
            return None
        return absolute.relative_to(self.folder).as_posix()


_current: Reads | None = None
_is_hooked = False


@contextmanager
def watch(folder: Path) -> Iterator[Reads]:
    """Note what the modules in `folder` read meanwhile."""
    global _current, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_audit)  # there is no way to remove one
        _is_hooked = True
    environment: Any = type(os.environ)
    get, each = environment.__getitem__, environment.__iter__

    def get_noted(self: Any, name: Any) -> Any:
        if _current is not None:
            _current.note(f"reads the environment variable {os.fsdecode(name)}")
        return get(self, name)

    def each_noted(self: Any) -> Iterator[Any]:
        if _current is not None:
            _current.note("reads all environment variables")
        return iter(list(each(self)))

    before = _current
    _current = reads = Reads(folder.resolve())
    environment.__getitem__, environment.__iter__ = get_noted, each_noted
    try:
        yield reads
    finally:
        environment.__getitem__, environment.__iter__ = get, each
        _current = before


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
