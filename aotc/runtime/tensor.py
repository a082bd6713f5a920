"""Tensors that live on the device across calls."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aotc.contract import Argument
from aotc.dtypes import DTYPES
from aotc.errors import AotcError
from aotc.runtime.arguments import Described, describe
from aotc.runtime.dlpack import Capsule
from aotc.runtime.memory import Memory

if TYPE_CHECKING:
    from aotc.runtime.worker import BoundCall, Worker

# The names of element types in numpy, where they differ; numpy itself has no bf16.
_NUMPY_NAMES = {"bf16": "uint16", "fp16": "float16", "fp32": "float32", "index": "int64"}


class TensorError(AotcError):
    """A device tensor is used after it was freed, or copied from or to what does not fit."""


def match_host(
    host: Any, shape: tuple[int, ...], dtype: str, *, writable: bool
) -> tuple[Argument, object]:
    """Return `host`, which a tensor of the device is copied from or to, and what keeps its memory.

    Raises TensorError where it is not contiguous, or of another shape or dtype; bf16 may be uint16.
    """
    found, keep = describe("host tensor", host)
    allowed = (dtype, "uint16") if dtype == "bf16" else (dtype,)
    if found.dtype not in allowed or found.shape != shape:
        raise TensorError(f"expected {shape} of {dtype}, got {found.shape} of {found.dtype}")
    if not found.contiguous:
        raise TensorError("not contiguous", hint="pass a contiguous copy of it")
    if writable and not found.writable:
        raise TensorError("the host tensor is read-only")
    return found, keep


class DeviceTensor(Described):
    """A tensor in the memory of a worker's device; made by `Worker.alloc_tensor`.

    It lives until `free`, or until its worker closes. Views of it (`numpy`, DLPack) keep its
    memory, but no call can use it any more.
    """

    def __init__(self, worker: Worker, shape: Sequence[int], dtype: str):
        if dtype not in DTYPES:
            raise TensorError(f"unknown dtype `{dtype}`", hint=f"dtypes: {', '.join(DTYPES)}")
        if any(extent < 0 for extent in shape):
            raise TensorError(f"a negative extent in {tuple(shape)}")
        self.shape = tuple(shape)
        self.dtype = dtype
        self.nbytes = math.prod(shape) * DTYPES[dtype].size
        self.worker = worker
        self._memory: Memory | None = Memory(self.nbytes)
        self._calls: weakref.WeakSet[BoundCall] = weakref.WeakSet()

    def __repr__(self) -> str:
        state = "" if self._memory is not None else ", freed"
        return f"DeviceTensor({self.shape}, {self.dtype}{state})"

    @property
    def memory(self) -> Memory:
        """The memory; raises TensorError after `free`."""
        if self._memory is None:
            raise TensorError(f"the tensor {self.shape} of {self.dtype} has been freed")
        return self._memory

    def describe(self) -> tuple[Argument, object]:
        """Return what the contract checks, and the memory."""
        memory = self.memory
        found = Argument(self.dtype, self.shape, address=memory.address, nbytes=self.nbytes)
        return found, memory

    def copy_from(self, host: Any) -> None:
        """Copy from `host`: a contiguous tensor of this shape and dtype; for bf16 also uint16.

        Raises TensorError where it is another.
        """
        source, _keep = match_host(host, self.shape, self.dtype, writable=False)
        self._copy(self.memory.address, source.address)

    def copy_to(self, host: Any) -> None:
        """Copy to `host`: a writable contiguous tensor like those of `copy_from`."""
        target, _keep = match_host(host, self.shape, self.dtype, writable=True)
        self._copy(target.address, self.memory.address)

    def _copy(self, target: int | None, source: int | None) -> None:
        if self.nbytes:
            assert target is not None
            assert source is not None
            self.worker.copy(target, source, self.nbytes)

    def numpy(self) -> Any:
        """Return a numpy array over the same memory, of uint16 for bf16; needs numpy."""
        import numpy

        dtype = numpy.dtype(_NUMPY_NAMES.get(self.dtype, self.dtype))
        return numpy.frombuffer(self.memory.view(), dtype).reshape(self.shape)

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.numpy().__dlpack__(**options)
        if self.dtype == "bf16":
            Capsule(capsule).mark_bfloat()
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def used_by(self, call: BoundCall) -> None:
        """Note that `call` must not run after `free`."""
        self._calls.add(call)

    def free(self) -> None:
        """Give the memory back; calls bound to the tensor raise from now on. Twice is once.

        Raises WorkerError while the worker runs a call in another thread.
        """
        with self.worker.exclusive():
            self.drop()

    def drop(self) -> None:
        """Free the tensor; its worker is not running."""
        for call in list(self._calls):
            call.invalidate(f"an argument, the tensor {self.shape} of {self.dtype}, was freed")
        self._calls.clear()
        self._memory = None
