"""The canonical form of what PyPTO writes: equal for equal programs, wherever they were compiled.

Two compilations of one program differ in the numbers of the names that PyPTO gives to values, in
the source places that its MLIR carries, and in reports and caches that say when and where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Written beside the program: what happened, not what it is.
VOLATILE = re.compile(
    r"(^|/)(__pycache__|report|debug|passes_dump|ptoas_passes|dfx_outputs)/|(^|/)\.[^/]*$"
)

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_LOCATION = re.compile(rf'\s*\bloc\((?:{_STRING}|[^()"]|\([^()]*\))*\)')
_LOCATION_ALIAS = re.compile(r"^#loc\d*\s*=.*\n?", re.MULTILINE)
_LOCATION_USE = re.compile(r"\s*\bloc\(#loc\d*\)")
# A value of MLIR; what stands in a string is none.
_VALUE = re.compile(rf"{_STRING}|%[A-Za-z_$.][\w$.-]*|%\d+")


def program_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files that are the program, each in canonical form, sorted by path."""
    return {
        path: canonical(path, files[path])
        for path in sorted(files)
        if VOLATILE.search(path) is None
    }


def readable(files: Mapping[str, bytes]) -> str:
    """Return the text of all files that are text, each after its path."""
    parts = []
    for path in sorted(files):
        try:
            parts.append(f"// {path}\n{files[path].decode()}")
        except UnicodeDecodeError:
            continue
    return "\n".join(parts)


def canonical(path: str, content: bytes) -> bytes:
    """Return the canonical form of one file."""
    if path.endswith(".pto"):
        return canonical_mlir(content.decode()).encode()
    return content


def canonical_mlir(text: str) -> str:
    """Return MLIR without source places, and with its values named in order of appearance."""
    text = _LOCATION_ALIAS.sub("", text)
    text = _LOCATION_USE.sub("", text)
    text = _LOCATION.sub("", text)
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        name = found[0]
        return name if name.startswith('"') else names.setdefault(name, f"%v{len(names)}")

    return _VALUE.sub(renamed, text)
