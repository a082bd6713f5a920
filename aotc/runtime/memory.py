"""Memory of the CPU device: aligned, and on huge pages where it is large."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re

from aotc.errors import AotcError, ExitCode

HUGE_PAGE = 2 << 20


def huge_pages() -> int:
    """Return the bytes of this process that are on huge pages; 0 where the system does not tell."""
    try:
        with open("/proc/self/smaps_rollup", encoding="utf-8") as file:
            found = re.search(r"^AnonHugePages:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


class OutOfMemoryError(AotcError):
    """The host has not the memory that was asked for."""

    exit_code = ExitCode.ENVIRONMENT


class Memory:
    """Anonymous zero-filled memory of `nbytes` at `address`, given back with its last user.

    It is aligned to a page, and from 2 MB on to 2 MB, on huge pages where the system has them.
    Raises OutOfMemoryError where there is not enough.
    """

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self.address: int | None = None
        self._mapping: mmap.mmap | None = None
        if nbytes == 0:
            return
        huge = nbytes >= HUGE_PAGE
        try:
            mapping = mmap.mmap(
                -1,
                nbytes + HUGE_PAGE if huge else nbytes,
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            )
        except (OSError, OverflowError, ValueError):
            raise OutOfMemoryError(f"not enough memory for {nbytes} bytes") from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        self._offset = -start % HUGE_PAGE if huge else 0
        if huge:
            # Advice, which a system without huge pages refuses.
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE, self._offset, nbytes)
        self._mapping = mapping
        self.address = start + self._offset

    def view(self) -> memoryview:
        """Return the bytes; the memory lives as long as the view."""
        if self._mapping is None:
            return memoryview(bytearray())
        return memoryview(self._mapping)[self._offset : self._offset + self.nbytes]
