"""What an import from elsewhere brings: modules that are no part of a model, Python or aotc.

A module is known by its distribution, with those that it requires: name, version, and the digests
that the wheel's RECORD has of its files. One that no distribution has installed is known by the
bytes of its files, with all that these import. So a value is the same on every machine that has
the same wheels, and another one after an upgrade or an edit.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from aotc.program.key import text_digest

# Only where a model imports such a module: a build that has nothing to do starts without it.
if TYPE_CHECKING:
    from importlib.metadata import Distribution

# aotc's own sources are a component of every key, and to a model `pypto` is its toolchain.
_OURS = frozenset({"aotc", "pypto"})
_MAX_FILES = 10_000  # of a module without a distribution
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class UnknownModuleError(Exception):
    """It cannot be told what a module is made of."""


def is_foreign(name: str) -> bool:
    """Tell whether the top-level module `name` is neither of Python's nor of aotc's own."""
    return name not in sys.stdlib_module_names and name not in _OURS


def identify(name: str) -> str | None:
    """Return what the top-level module `name` is now; None where there is none.

    `DISTRIBUTION VERSION sha256:DIGEST`, or `files sha256:DIGEST`. The module is not imported.
    Raises UnknownModuleError where its files, or those of what it needs, cannot be known.
    """
    title: str | None = None
    parts: dict[str, str] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in parts or not is_foreign(module):
            continue
        place = _locate(module)
        if place is None:
            parts[module] = "none"
            continue
        found = _distribution_of(place)
        if found is None:
            parts[module], imported = _digest_of_files(place)
            waiting += imported
        else:
            parts[module] = found.name
            parts |= _required(found)
        title = title or (f"{found.name} {found.version}" if found else "files")
    if title is None or parts[name] == "none":
        return None
    text = "".join(f"{each} {parts[each]}\n" for each in sorted(parts))
    return f"{title} sha256:{text_digest(text)}"


def _locate(name: str) -> Path | None:
    """Return the file or the folder of a module, as an import in a fresh process would find it."""
    spec = PathFinder.find_spec(name) or _other_spec(name)
    if spec is None:
        return None
    origin = Path(spec.origin) if spec.has_location and spec.origin else None
    if origin is None or not origin.is_file():
        raise UnknownModuleError(f"`{name}` has no file")  # a namespace, or inside an archive
    return origin.parent if spec.submodule_search_locations is not None else origin


def _other_spec(name: str) -> ModuleSpec | None:
    """Ask what else finds modules, such as the finders of editable installations."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and finder is not PathFinder:
            spec: ModuleSpec | None = find(name, None)
            if spec is not None:
                return spec
    return None


def _distribution_of(place: Path) -> Distribution | None:
    """Return the distribution that has installed the module at `place`, if its wheel says so."""
    from importlib.metadata import distributions

    file = f"{place.name}/__init__.py" if place.is_dir() else place.name
    line = re.compile(rf"^{re.escape(file)},sha256=", re.MULTILINE)
    for each in distributions(path=[str(place.parent)]):
        if line.search(each.read_text("RECORD") or ""):
            return each
    return None


def _required(first: Distribution) -> dict[str, str]:
    """Return version and digest of a distribution and of all that it requires, by name."""
    from importlib.metadata import PackageNotFoundError, distribution

    found: dict[str, str] = {}
    waiting = [first]
    while waiting:
        each = waiting.pop()
        name = f"distribution {_normalized(each.name)}"
        if name in found:
            continue
        found[name] = f"{each.version} {_record_digest(each)}"
        for requirement in each.requires or ():
            # What only an extra asks for may be imported too, but not for this module's sake.
            match = _REQUIREMENT.match(requirement)
            if match is not None and "extra ==" not in requirement:
                try:
                    waiting.append(distribution(match[0]))
                except PackageNotFoundError:
                    found[f"distribution {_normalized(match[0])}"] = "none"
    return found


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _record_digest(found: Distribution) -> str:
    """Return the digest of what RECORD says of the files, but of those that an installer writes."""
    lines = [
        line
        for line in (found.read_text("RECORD") or "").splitlines()
        if ",sha256=" in line and ".dist-info/" not in line and not line.startswith("..")
    ]
    return text_digest("\n".join(sorted(lines)))


def _digest_of_files(place: Path) -> tuple[str, list[str]]:
    """Return the digest of a module's files, and the top-level modules that these import."""
    files = sorted(_files(place)) if place.is_dir() else [place]
    if len(files) > _MAX_FILES:
        raise UnknownModuleError(f"{place.name} has more than {_MAX_FILES} files")
    lines = []
    imported: set[str] = set()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UnknownModuleError(f"{file.name}: {error.strerror}") from None
        lines.append(f"{file.relative_to(place.parent).as_posix()} {text_digest(content)}\n")
        if file.suffix == ".py":
            imported |= _imports(content)
    return text_digest("".join(lines)), sorted(imported)


def _files(folder: Path) -> Iterator[Path]:
    for each in folder.rglob("*"):
        if each.is_file() and each.suffix != ".pyc":
            yield each


def _imports(content: bytes) -> set[str]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()  # it cannot be imported either
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names
