"""A program's object, mapped into this process and called through the C ABI."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from aotc.errors import AotcError, ExitCode

ABI_VERSION = 3


class LoadError(AotcError):
    """The program cannot run on this host: what it has, what the host has, what to do."""

    exit_code = ExitCode.ENVIRONMENT


class Call(ctypes.Structure):
    """`aotc_call` of aotc_abi.h."""

    _fields_ = (
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("symbols", ctypes.POINTER(ctypes.c_int64)),
        ("workspace", ctypes.c_void_p),
        ("team", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("packed", ctypes.c_char_p),
    )


class Library:
    """The functions of one object; see aotc_abi.h. Addresses are plain integers here."""

    def __init__(self, loaded: ctypes.CDLL):
        address, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        try:
            self.abi_version = _function(loaded.aotc_abi_version, int32)
            self.workspace_bytes = _function(loaded.aotc_workspace_bytes, int64, address, int32)
            self.run = _function(loaded.aotc_run, None, address, int32)
            self.pool_bytes = _function(loaded.aotc_pool_bytes, int64, int32)
            self.pool_init = _function(loaded.aotc_pool_init, None, address, int32)
            self.pool_enter = _function(loaded.aotc_pool_enter, None, address, int32)
            self.pool_dispatch = _function(loaded.aotc_pool_dispatch, None, *[address] * 3)
            self.pool_stop = _function(loaded.aotc_pool_stop, None, address)
        except AttributeError as error:
            raise LoadError(f"the object is not an aotc program: {error}") from None
        self.run_address = ctypes.cast(loaded.aotc_run, address).value
        # Objects that are no compiled programs may lack these.
        self.copy_address, self.pack_address, self.unpack_address = (
            function and ctypes.cast(function, address).value
            for function in (
                getattr(loaded, name, None) for name in ("aotc_copy", "aotc_pack", "aotc_unpack")
            )
        )
        check_abi_version(self.abi_version())


def check_abi_version(version: int) -> None:
    """Raise LoadError where this loader does not speak `version` of the ABI."""
    if version != ABI_VERSION:
        older = version < ABI_VERSION
        raise LoadError(
            f"the artifact is for ABI version {version}, this loader is for {ABI_VERSION}",
            hint="build the artifact again" if older else "install a newer aotc",
        )


def map_object(content: bytes) -> Library:
    """Map the shared object `content`, never from a file on disk; it stays until the process ends.

    Raises LoadError where the system refuses it, or it is not an aotc program.
    """
    try:
        # The descriptor stays open: the system's loader takes an object whose path, which holds
        # the number, it has seen before for the one loaded then.
        descriptor = os.memfd_create("aotc-program")
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        loaded = ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    except OSError as error:
        raise LoadError(f"the object cannot be mapped: {error}") from None
    return Library(loaded)


def _function(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    function.restype = result
    function.argtypes = arguments
    return function  # type: ignore[no-any-return]
