"""The canonical form of what PyPTO writes: equal for equal programs, wherever they were compiled.

Two compilations of one program differ in the numbers of the names that PyPTO gives to values, in
the source places that its MLIR and its machine code carry, and in reports of when and where.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping

# Written beside the program: what happened, not what it is.
VOLATILE = re.compile(
    r"(^|/)(__pycache__|report|debug|passes_dump|ptoas_passes|dfx_outputs)/|(^|/)\.[^/]*$"
)

_STRING = r'"(?:[^"\\\n]|\\.)*"'
# A source place, as PyPTO and ptoas write it, or a string.
_LOCATION = re.compile(rf"\s*\bloc\((?:{_STRING}:\d+:\d+|#loc\d*|unknown)\)|({_STRING})")
_LOCATION_ALIAS = re.compile(r"^#loc\d*\s*=.*\n?", re.MULTILINE)
# A value of MLIR; what stands in a string is none.
_VALUE = re.compile(rf"{_STRING}|%[A-Za-z_$.][\w$.-]*|%\d+")


# The number that PyPTO gives to a value of an inlined function: it counts all that it has made.
_INLINED = re.compile(r"(?<=_inline)\d+")


def program_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files that are the program, each in canonical form, sorted by path."""
    numbers: dict[str, str] = {}

    def renumbered(text: str) -> str:
        return _INLINED.sub(lambda found: numbers.setdefault(found[0], str(len(numbers))), text)

    made = {}
    for path in sorted(files):
        if VOLATILE.search(path) is not None:
            continue
        try:
            text = files[path].decode()
        except UnicodeDecodeError:
            made[path] = without_debug_sections(files[path])
            continue
        if path.endswith(".pto"):
            text = canonical_mlir(text)
        made[path] = renumbered(text).encode()
    return made


def readable(files: Mapping[str, bytes]) -> str:
    """Return the text of all files that are text, each after its path."""
    parts = []
    for path in sorted(files):
        try:
            parts.append(f"// {path}\n{files[path].decode()}")
        except UnicodeDecodeError:
            continue
    return "\n".join(parts)


def canonical_mlir(text: str) -> str:
    """Return MLIR without source places, and with its values named in order of appearance."""
    text = _LOCATION_ALIAS.sub("", text)
    text = _LOCATION.sub(lambda found: found[1] or "", text)
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        name = found[0]
        return name if name.startswith('"') else names.setdefault(name, f"%v{len(names)}")

    return _VALUE.sub(renamed, text)


_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SHARED_OBJECT = 3  # ET_DYN
_NOTE = 4  # PT_NOTE
_BUILD_ID = b"\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\x00"  # 20 bytes follow


def without_debug_sections(content: bytes) -> bytes:
    """Return a shared object without its debug sections, which say where it was compiled.

    What is loaded, by its program headers, stays as it is; the section headers go, which only
    debuggers and linkers read, and the build ID becomes one of what is left (System V ABI, ELF).
    What is no ELF64 shared object, or has no debug sections, is returned as it is.
    """
    if content[:6] != _ELF64_LITTLE or struct.unpack_from("<H", content, 16)[0] != _SHARED_OBJECT:
        return content
    if b"\0.debug_info\0" not in content:
        return content
    (first,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    ends, notes = [first + size * count], []
    for header in range(first, first + size * count, size):
        (kind,) = struct.unpack_from("<I", content, header)
        (offset,) = struct.unpack_from("<Q", content, header + 8)
        (length,) = struct.unpack_from("<Q", content, header + 32)
        ends.append(offset + length)
        if kind == _NOTE:
            notes.append((offset, offset + length))
    kept = bytearray(content[: max(ends)])
    struct.pack_into("<Q", kept, 40, 0)  # where the section headers were
    struct.pack_into("<HHH", kept, 58, 0, 0, 0)  # their size, number and names
    for begin, end in notes:
        at = kept.find(_BUILD_ID, begin, end)
        if at >= 0:
            place = slice(at + len(_BUILD_ID), at + len(_BUILD_ID) + 20)
            kept[place] = bytes(20)
            kept[place] = hashlib.sha256(kept).digest()[:20]
    return bytes(kept)
