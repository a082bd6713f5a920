"""What callers pass as tensors and scalars: where it lies, and what the contract checks of it.

Tensors of numpy and torch are known by their own classes, looked up among the modules already
imported; others by DLPack or the buffer protocol.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from typing import Any

from aotc.contract import Argument, ContractError, Parameter
from aotc.dtypes import DTYPES, Kind
from aotc.runtime.dlpack import Capsule, is_row_major

_SHORT_NAMES = {
    **{"float16": "fp16", "float32": "fp32", "float64": "fp64"},
    "bfloat16": "bf16",
}
# What the format characters of the buffer protocol mean; the item size says the rest.
_FORMAT_KINDS = {
    code: kind
    for kind, codes in (("fp", "efd"), ("int", "bhilqn"), ("uint", "cBHILQN"))
    for code in codes
}
_INTEGER_FORMATS = {1: "b", 2: "h", 4: "i", 8: "q"}


class Described:
    """A tensor of ours: it describes itself."""

    def describe(self) -> tuple[Argument, object]:
        """Return what the contract checks, and what keeps the memory alive."""
        raise NotImplementedError


def bind_argument(parameter: Parameter, value: Any) -> tuple[Argument, object]:
    """Return what the contract checks of `value`, and what keeps its memory alive.

    A Python number is an argument for a scalar parameter. Raises ContractError where `value` is
    no argument at all, or lies where its element type may not.
    """
    if isinstance(value, (bool, int, float)) and not parameter.dims:
        encoded = _encode(parameter, value)
        address = ctypes.addressof(encoded)
        return Argument(parameter.dtype, (), address=address, nbytes=len(encoded)), encoded
    argument, keep = describe(f"`{parameter.name}`", value)
    size = DTYPES[parameter.dtype].size
    if argument.nbytes and argument.address is not None and argument.address % size:
        raise ContractError(
            f"`{parameter.name}`: not aligned to its {size}-byte elements",
            hint="pass a copy of it",
        )
    return argument, keep


def describe(subject: str, value: Any) -> tuple[Argument, object]:
    """Return what the contract checks of the tensor `value`, and what keeps its memory alive.

    Raises ContractError, which begins with `subject`, where it is no tensor of this host.
    """
    if isinstance(value, Described):
        return value.describe()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _describe_numpy(value), value
    if torch is not None and isinstance(value, torch.Tensor):
        return _describe_torch(subject, value), value
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        try:
            capsule = Capsule.from_exporter(value)
        except BufferError as error:
            raise ContractError(f"{subject}: {error}") from None
        return _describe_capsule(capsule), (value, capsule)
    try:
        view = memoryview(value)
    except (TypeError, BufferError):
        raise ContractError(
            f"{subject}: expected a tensor, got {type(value).__name__}",
            hint="pass a numpy or torch tensor, or anything with DLPack or the buffer protocol",
        ) from None
    return _describe_buffer(view), view


def _describe_numpy(array: Any) -> Argument:
    name = _SHORT_NAMES.get(array.dtype.name, array.dtype.name)
    return Argument(
        dtype=name if array.dtype.isnative else f"byte-swapped {name}",
        shape=array.shape,
        contiguous=array.flags.c_contiguous,
        writable=array.flags.writeable,
        address=array.__array_interface__["data"][0],
        nbytes=array.nbytes,
    )


def _describe_torch(subject: str, tensor: Any) -> Argument:
    layout = str(tensor.layout).removeprefix("torch.")
    if tensor.device.type != "cpu" or layout != "strided":
        raise ContractError(
            f"{subject}: expected a dense tensor in the memory of this host, "
            f"got a {layout} one on {tensor.device}"
        )
    name = str(tensor.dtype).removeprefix("torch.")
    return Argument(
        dtype=_SHORT_NAMES.get(name, name),
        shape=tuple(tensor.shape),
        contiguous=tensor.is_contiguous() and not tensor.is_neg(),
        address=tensor.data_ptr(),
        nbytes=tensor.numel() * tensor.element_size(),
    )


def _describe_capsule(capsule: Capsule) -> Argument:
    shape, dtype = capsule.shape, capsule.dtype
    size = DTYPES[dtype].size if dtype in DTYPES else 0
    return Argument(
        dtype=dtype,
        shape=shape,
        contiguous=is_row_major(shape, capsule.strides),
        writable=not capsule.read_only,
        address=capsule.address,
        nbytes=math.prod(shape) * size,
    )


class _Buffer(ctypes.Structure):
    """`Py_buffer`."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("object", ctypes.c_void_p),
        ("nbytes", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, [ctypes.POINTER(_Buffer)]


def _describe_buffer(view: memoryview) -> Argument:
    address = None
    if view.c_contiguous:
        # The view, which the caller keeps, holds the export; this one only tells the address.
        buffer = _Buffer()
        _get_buffer(view, ctypes.byref(buffer), 0)
        address = buffer.address
        _release_buffer(ctypes.byref(buffer))
    return Argument(
        dtype=_buffer_dtype(view),
        shape=view.shape or (),
        contiguous=view.c_contiguous,
        writable=not view.readonly,
        address=address,
        nbytes=view.nbytes,
    )


def _buffer_dtype(view: memoryview) -> str:
    code = view.format.lstrip("@=<" if sys.byteorder == "little" else "@=>!")
    if code == "?":
        return "bool"
    kind = _FORMAT_KINDS.get(code)
    return view.format if kind is None else f"{kind}{8 * view.itemsize}"


def _encode(parameter: Parameter, value: bool | int | float) -> ctypes.Array[ctypes.c_char]:
    """Return `value` as bytes of the scalar parameter's type, rounded to nearest even."""
    dtype = DTYPES[parameter.dtype]
    if dtype.is_float:
        encoded = _encode_float(dtype.name, value)
    elif isinstance(value, float):
        raise ContractError(f"`{parameter.name}`: expected {dtype}, got the float {value}")
    else:
        code = "?" if dtype.kind is Kind.BOOL else _INTEGER_FORMATS[dtype.size]
        if dtype.kind is Kind.BOOL and value not in (0, 1):
            encoded = None
        else:
            encoded = _pack(code.upper() if dtype.kind is Kind.UNSIGNED else code, value)
    if encoded is None:
        raise ContractError(f"`{parameter.name}`: {value} is out of the range of {dtype}")
    return ctypes.create_string_buffer(encoded, len(encoded))


def _encode_float(name: str, value: int | float) -> bytes | None:
    if name == "fp16":
        return _pack("e", value)
    if name == "fp32":
        return _pack("f", value)
    single = _pack("f", value)
    if single is None:
        return None
    bits = int.from_bytes(single, sys.byteorder)
    if value == value:
        bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("=H", bits >> 16)


def _pack(code: str, value: float) -> bytes | None:
    try:
        return struct.pack(f"={code}", value)
    except (struct.error, OverflowError):
        return None
