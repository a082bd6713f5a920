"""DLPack capsules: read where a tensor lies, without its library."""

from __future__ import annotations

import ctypes
from typing import Any

_KINDS = {0: "int", 1: "uint", 2: "fp", 4: "bf", 6: "bool"}
_BFLOAT = 4
_CPU_DEVICES = (1, 3)  # plain memory, and memory that a CUDA device can also reach
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Capsule:
    """A tensor of another library, kept alive by its capsule.

    `dtype` is a name as in contracts, `strides` count elements. `from_exporter` raises
    BufferError where the tensor does not lie in the memory of this host.
    """

    def __init__(self, capsule: Any):
        name = _get_name(capsule)
        pointer = _get_pointer(capsule, name)
        if name == b"dltensor_versioned":
            versioned = _Versioned.from_address(pointer)
            if versioned.major != 1:
                raise BufferError(f"DLPack version {versioned.major} is not supported")
            self._tensor, flags = versioned.tensor, versioned.flags
        else:
            self._tensor, flags = _Tensor.from_address(pointer), 0
        self.capsule = capsule
        self.read_only = bool(flags & _READ_ONLY)

    @staticmethod
    def from_exporter(exporter: Any) -> Capsule:
        """Ask `exporter`, which has `__dlpack__`, for its tensor."""
        device = exporter.__dlpack_device__()[0]
        if device not in _CPU_DEVICES:
            raise BufferError("not in the memory of this host")
        try:
            return Capsule(exporter.__dlpack__(max_version=(1, 0)))
        except TypeError:  # an exporter from before versions
            return Capsule(exporter.__dlpack__())

    @property
    def address(self) -> int:
        """The address of the first element."""
        return (self._tensor.data or 0) + int(self._tensor.byte_offset)

    @property
    def dtype(self) -> str:
        """The element type; a vector type has a name that no contract uses."""
        tensor = self._tensor
        kind = _KINDS.get(tensor.code, f"dlpack-{tensor.code}-")
        name = kind if kind == "bool" and tensor.bits == 8 else f"{kind}{tensor.bits}"
        return name if tensor.lanes == 1 else f"{name}x{tensor.lanes}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self._tensor.shape[: self._tensor.ndim])

    @property
    def strides(self) -> tuple[int, ...] | None:
        """The distance of neighbours in each dimension, in elements; None for row-major."""
        return tuple(self._tensor.strides[: self._tensor.ndim]) if self._tensor.strides else None

    def mark_bfloat(self) -> None:
        """Say that the 16-bit elements are bf16: for a writer whose library has no such type."""
        self._tensor.code = _BFLOAT


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    """Return whether elements follow each other; dimensions of extent 1 have no say."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
