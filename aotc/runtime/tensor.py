"""Tensors that live on the device across calls."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aotc.contract import PANEL_DOTS, PANEL_WIDTH, Argument
from aotc.dtypes import DTYPES
from aotc.errors import AotcError
from aotc.runtime.arguments import Described, describe
from aotc.runtime.dlpack import Capsule
from aotc.runtime.memory import Memory

if TYPE_CHECKING:
    from aotc.runtime.worker import BoundCall, Worker

_PIECE = 8 << 20  # bytes of what is packed in place at a time, about

# The names of element types in numpy, where they differ; numpy itself has no bf16.
_NUMPY_NAMES = {"bf16": "uint16", "fp16": "float16", "fp32": "float32", "index": "int64"}


def fits_panels(shape: tuple[int, ...], dtype: str, panels: int) -> bool:
    """Whether a tensor can be packed so: see `aotc_pack` in aotc_abi.h."""
    if dtype != "bf16" or len(shape) != 2:
        return False
    rows, columns = shape
    if panels:
        return rows % panels == 0 and columns % PANEL_WIDTH == 0
    return rows % PANEL_WIDTH == 0 and columns % PANEL_DOTS == 0


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
    if found.panels is not None:
        raise TensorError("a packed tensor", hint="copy_to another host tensor gives it row-major")
    if writable and not found.writable:
        raise TensorError("the host tensor is read-only")
    return found, keep


class DeviceTensor(Described):
    """A tensor in the memory of a worker's device; made by `Worker.alloc_tensor`.

    It lives until `free`, or until its worker closes. Views of it (`numpy`, DLPack) keep its
    memory, but no call can use it any more. `panels` says how it is packed, None where it is
    row-major; a packed tensor has no views.
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
        self.panels: int | None = None
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
        found = Argument(
            self.dtype,
            self.shape,
            address=memory.address,
            nbytes=self.nbytes,
            panels=self.panels,
        )
        return found, memory

    def copy_from(self, host: Any) -> None:
        """Copy from `host`: a contiguous tensor of this shape and dtype; for bf16 also uint16.

        Raises TensorError where it is another.
        """
        source, _keep = match_host(host, self.shape, self.dtype, writable=False)
        self._copy(self.memory.address, source.address, packing=True)

    def copy_to(self, host: Any) -> None:
        """Copy to `host`: a writable contiguous tensor like those of `copy_from`."""
        target, _keep = match_host(host, self.shape, self.dtype, writable=True)
        self._copy(target.address, self.memory.address, packing=False)

    def _copy(self, target: int | None, source: int | None, *, packing: bool) -> None:
        if not self.nbytes:
            return
        assert target is not None
        assert source is not None
        if self.panels is None:
            self.worker.copy(target, source, self.nbytes)
        else:
            self.worker.repack(target, source, self.shape, self.panels, packing=packing)

    def pack(self, parameter: str) -> None:
        """Pack the tensor where it is, as `Worker.alloc_tensor` does for `parameter`.

        For a tensor that was filled through a view. Views taken before show what programs of this
        parameter read; calls bound before raise from now on. Raises WorkerError while the worker
        runs a call in another thread.
        """
        panels = self.worker.panels_of(parameter, self.shape, self.dtype)
        if panels is None or panels == self.panels:
            return
        if self.panels is not None:
            raise TensorError("the tensor is packed for another parameter")
        rows, columns = self.shape
        # Blocks of so many rows are packed each for itself.
        unit = panels or PANEL_WIDTH
        step = unit * max(1, _PIECE // (unit * columns * 2 or 1))
        piece = Memory(min(step, rows) * columns * 2)  # before anything changes
        with self.worker.exclusive():
            self._invalidate("packed")
        self.panels = panels
        address = self.memory.address
        for row in range(0, rows if self.nbytes else 0, step):
            assert address is not None
            assert piece.address is not None
            shape = min(step, rows - row), columns
            place = address + row * columns * 2
            self.worker.copy(piece.address, place, shape[0] * columns * 2)
            self.worker.repack(place, piece.address, shape, panels, packing=True)

    def numpy(self) -> Any:
        """Return a numpy array over the same memory, of uint16 for bf16; needs numpy.

        Raises TensorError where the tensor is packed.
        """
        import numpy

        if self.panels is not None:
            raise TensorError(
                f"the tensor {self.shape} of {self.dtype} is packed and has no view",
                hint="copy_to another tensor gives it row-major",
            )

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
        self._invalidate("freed")
        self._memory = None

    def _invalidate(self, what: str) -> None:
        for call in list(self._calls):
            call.invalidate(f"an argument, the tensor {self.shape} of {self.dtype}, was {what}")
        self._calls.clear()
