"""Programs on an NPU, or its simulator: the folder that PyPTO made, run by PyPTO's own worker.

The Python interface is that of `aotc.runtime.worker`. What the contract says is checked here,
before PyPTO sees an argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotc.contract import Argument, Contract, ContractError, Direction
from aotc.dtypes import DTYPES
from aotc.runtime.arguments import Described, bind_argument
from aotc.runtime.tensor import TensorError, match_host
from aotc.runtime.worker import WorkerError, busy, result_of

ALIGNMENT = 64  # bytes; of each tensor in the staging memory
STAGING_BYTES = 64 << 20

_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "index": "int64"}


@dataclass(frozen=True)
class NpuProgram:
    """A loaded program: its contract, and the folder that PyPTO loads, which lives as long."""

    contract: Contract
    target: str
    device_ids: tuple[int, ...]
    compiled: Any  # pypto's DistributedCompiledProgram

    def prepare(
        self,
        threads: int | None = None,
        *,
        also: Sequence[NpuProgram] = (),
        device_ids: Sequence[int] | None = None,
        staging: int = STAGING_BYTES,
    ) -> NpuWorker:
        """Return a worker for this program and `also` others, for a `with` statement.

        `device_ids` are by default those that the program was built for; each rank has one.
        `staging` is the memory, in bytes, that host tensors of calls go through. `threads` means
        nothing here. Raises WorkerError where PyPTO does not start its workers.
        """
        del threads
        chosen = self.device_ids if device_ids is None else tuple(device_ids)
        if len(chosen) != len(self.device_ids) or len(set(chosen)) != len(chosen):
            raise WorkerError(
                f"devices {list(chosen)}: the program has {len(self.device_ids)} ranks",
                hint="give each rank a device of its own",
            )
        return NpuWorker([self, *also], chosen, staging)


def load_folder(
    contract: Contract, files: Mapping[str, bytes], target: str, device_ids: tuple[int, ...]
) -> NpuProgram:
    """Lay out `files`, which the caller has verified, and load them; nothing is compiled.

    Raises LoadError where PyPTO is not here, or is not the one that they were built for.
    """
    from aotc.runtime.npu_host import check_folder, import_pypto

    package = import_pypto()
    folder = Path(tempfile.mkdtemp(prefix="aotc-npu-"))
    try:
        _write(folder, files)
        check_folder(folder, target)
        compiled = package.from_dir(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    owner = os.getpid()
    weakref.finalize(compiled, _remove, folder, owner)
    return NpuProgram(contract, target, device_ids, compiled)


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files`; only their owner can read them, and nobody changes them."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o500 if content.startswith(b"\x7fELF") else 0o400)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not the workers that PyPTO forks
        shutil.rmtree(folder, ignore_errors=True)


class _Staging:
    """Memory that the workers of PyPTO see too: it is there before they are forked."""

    def __init__(self, nbytes: int):
        import torch

        room = _shared_memory_left()
        if nbytes > room:
            raise WorkerError(
                f"{nbytes} bytes of staging memory, and /dev/shm has {room} left",
                hint="make /dev/shm larger, or prepare with a smaller `staging`",
            )
        memory: Any = torch.empty(max(nbytes, 1), dtype=torch.uint8)
        self.memory = memory.share_memory_()
        self.taken: dict[int, int] = {}  # size by offset

    def take(self, shape: Sequence[int], dtype: str) -> int:
        """Return where there is room for a tensor; raise WorkerError where there is none."""
        size = max(math.prod(shape) * DTYPES[dtype].size, 1)
        start = room = 0
        for other in sorted([*self.taken, self.memory.numel()]):
            room = max(room, other - start)
            if other - start >= size:
                break
            end = other + self.taken.get(other, 0)
            start = -(-end // ALIGNMENT) * ALIGNMENT
        else:
            raise WorkerError(
                f"a tensor {tuple(shape)} of {dtype} takes {size} bytes of staging memory, "
                f"{room} are left",
                hint="prepare with more: `staging=BYTES`; or use device tensors",
            )
        self.taken[start] = size
        return start

    def tensor(self, start: int, shape: Sequence[int], dtype: str) -> Any:
        """Return the torch tensor at `start`."""
        import torch

        element = getattr(torch, _TORCH_NAMES.get(dtype, dtype))
        nbytes = math.prod(shape) * DTYPES[dtype].size
        return self.memory[start : start + nbytes].view(element).reshape(tuple(shape))

    def release(self, starts: Sequence[int]) -> None:
        """Give back what `take` has taken."""
        for each in starts:
            del self.taken[each]

    def holds(self, argument: Argument) -> bool:
        """Whether a tensor lies in it."""
        if argument.address is None:
            return False
        start: int = self.memory.data_ptr()
        end: int = start + self.memory.numel()
        return start <= argument.address and argument.address + argument.nbytes <= end


def _shared_memory_left() -> int:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


class NpuTensor(Described):
    """A tensor in the memory of one rank's device; made by `NpuWorker.alloc_tensor`."""

    def __init__(self, worker: NpuWorker, shape: Sequence[int], dtype: str, rank: int):
        self.worker = worker
        self.shape = tuple(shape)
        self.dtype = dtype
        self.rank = rank
        self.nbytes = math.prod(shape) * DTYPES[dtype].size
        self.device: Any = None  # pypto's DeviceTensor, None once it is freed

    def __repr__(self) -> str:
        state = "" if self.device is not None else ", freed"
        return f"NpuTensor({self.shape}, {self.dtype}, rank {self.rank}{state})"

    def describe(self) -> tuple[Argument, object]:
        """Return what the contract checks; raise TensorError after `free`."""
        if self.device is None:
            raise TensorError(f"the tensor {self.shape} of {self.dtype} has been freed")
        # A device address: overlap with another of this rank is the same allocation.
        return Argument(self.dtype, self.shape), self

    def copy_from(self, host: Any) -> None:
        """Copy from `host`, a contiguous tensor of this shape and dtype; for bf16 also uint16."""
        self.describe()
        source, _keep = match_host(host, self.shape, self.dtype, writable=False)
        with self.worker.exclusive() as running:
            running.copy_to(self.device.data_ptr, source.address, self.nbytes, worker_id=self.rank)

    def copy_to(self, host: Any) -> None:
        """Copy to `host`, a writable contiguous tensor like those of `copy_from`."""
        self.describe()
        target, _keep = match_host(host, self.shape, self.dtype, writable=True)
        with self.worker.exclusive() as running:
            running.copy_from(
                target.address, self.device.data_ptr, self.nbytes, worker_id=self.rank
            )

    def free(self) -> None:
        """Give the memory back; twice is once."""
        with self.worker.exclusive() as running:
            device, self.device = self.device, None
            if device is not None:
                running.free_tensor(device, worker_id=self.rank)


class NpuWorker:
    """Runs programs; made by `NpuProgram.prepare`, closed by leaving its context.

    Called, it runs the program that it was prepared for. It runs one call at a time.
    """

    def __init__(self, programs: Sequence[NpuProgram], device_ids: Sequence[int], staging: int):
        from aotc.runtime.npu_host import start_worker

        self.programs = list(programs)
        self.device_ids = tuple(device_ids)
        self.lock = threading.Lock()
        # Before the workers are forked: they see it because they inherit it.
        self.staging = _Staging(staging)
        self._running: Any = start_worker([each.compiled for each in programs], device_ids)

    def __enter__(self) -> NpuWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *arguments: Any) -> Any:
        """Run the program once; see `NpuCall.__call__`."""
        return self.bind(*arguments)()

    def bind(self, *arguments: Any) -> NpuCall:
        """Check the arguments once, for many calls; see `LoadedNpuProgram.bind`."""
        return self.load(self.programs[0]).bind(*arguments)

    def load(self, program: NpuProgram) -> LoadedNpuProgram:
        """Return `program`, ready to be called; raise WorkerError for one not prepared for."""
        if not any(program is each for each in self.programs):
            raise WorkerError(
                "the worker was not prepared for this program",
                hint="name it when the worker is made: `prepare(also=[program])`",
            )
        return LoadedNpuProgram(self, program)

    def alloc_tensor(
        self,
        shape: Sequence[int],
        dtype: str,
        init: Any = None,
        *,
        parameter: str | None = None,
        rank: int = 0,
    ) -> NpuTensor:
        """Return a tensor on the device of `rank`: zeros, or a copy of the host tensor `init`.

        It is row-major, whatever `parameter` it is for. Raises TensorError where `init` is another
        type or shape, or there is no such rank.
        """
        import torch

        if dtype not in DTYPES:
            raise TensorError(f"unknown dtype `{dtype}`", hint=f"dtypes: {', '.join(DTYPES)}")
        if not shape or any(extent < 1 for extent in shape):
            raise TensorError(f"{tuple(shape)}: a device tensor has at least one element")
        if not 0 <= rank < len(self.device_ids):
            raise TensorError(f"rank {rank} of {len(self.device_ids)}")
        element = getattr(torch, _TORCH_NAMES.get(dtype, dtype))
        made = NpuTensor(self, shape, dtype, rank)
        with self.exclusive() as running:
            made.device = running.alloc_tensor(tuple(shape), element, worker_id=rank)
        made.copy_from(torch.zeros(tuple(shape), dtype=element) if init is None else init)
        return made

    def host_tensor(self, shape: Sequence[int], dtype: str) -> Any:
        """Return a torch tensor that a call reads and writes in place, without a copy.

        It lies in the staging memory, and stays there until the worker is closed.
        """
        return self.staging.tensor(self.staging.take(shape, dtype), shape, dtype)

    def close(self) -> None:
        """Stop the workers and free the device tensors; twice is once."""
        if self._running is None:
            return
        with self.exclusive() as running:
            self._running = None
            running.close()

    @contextlib.contextmanager
    def exclusive(self) -> Any:
        """Hold PyPTO's worker; raise WorkerError where it is closed, or running a call."""
        if not self.lock.acquire(blocking=False):
            raise busy()
        try:
            if self._running is None:
                raise WorkerError("the worker is closed")
            yield self._running
        finally:
            self.lock.release()


class LoadedNpuProgram:
    """A program on a worker."""

    def __init__(self, worker: NpuWorker, program: NpuProgram):
        self._worker = worker
        self._program = program

    def __call__(self, *arguments: Any) -> Any:
        """Bind and run once."""
        return self.bind(*arguments)()

    def bind(self, *arguments: Any) -> NpuCall:
        """Check `arguments`, one for each parameter in order, and return the call.

        They are as for `aotc.runtime.worker`; tensors that are neither on the device nor from
        `NpuWorker.host_tensor` are staged: copied before a call, and back after it. Raises
        ContractError where they are not what the contract says, and WorkerError.
        """
        return NpuCall(self._worker, self._program, arguments)


class NpuCall:
    """A program with its arguments, checked. `staged` names those that are copied in a call."""

    def __init__(self, worker: NpuWorker, program: NpuProgram, arguments: Sequence[Any]):
        contract = program.contract
        contract.check_count(len(arguments))
        bound = [
            bind_argument(parameter, argument)
            for parameter, argument in zip(contract.parameters, arguments, strict=True)
        ]
        self.symbols = contract.bind([argument for argument, _ in bound])
        self._worker = worker
        self._program = program
        self._keep = [keep for _, keep in bound]
        self._result = result_of(arguments, [contract.index(name) for name in contract.returns])
        self._passed: list[Any] = []
        self._before: list[tuple[int, int, int]] = []  # to, from, bytes
        self._after: list[tuple[int, int, int]] = []
        staged: list[str] = []
        room: list[int] = []
        # The memory of a call that cannot be made is given back like that of one no longer used.
        weakref.finalize(self, worker.staging.release, room)
        for parameter, value, (argument, _) in zip(
            contract.parameters, arguments, bound, strict=True
        ):
            if isinstance(value, NpuTensor):
                if value.worker is not worker:
                    raise ContractError(f"`{parameter.name}`: a tensor of another worker")
                self._passed.append(value)
                continue
            if not parameter.dims:
                self._passed.append(value)
                continue
            if worker.staging.holds(argument):
                self._passed.append(value)
                continue
            room.append(worker.staging.take(argument.shape, parameter.dtype))
            inside = worker.staging.tensor(room[-1], argument.shape, parameter.dtype)
            move = (inside.data_ptr(), argument.address or 0, argument.nbytes)
            if parameter.direction is not Direction.OUT:
                self._before.append(move)
            if parameter.direction is not Direction.IN:
                self._after.append((move[1], move[0], move[2]))
            self._passed.append(inside)
            staged.append(parameter.name)
        self.staged = tuple(staged)

    def __call__(self) -> Any:
        """Run; return the arguments that the program returns: none, one, or a tuple.

        Raises WorkerError where the worker is closed, runs another call, or PyPTO fails, and
        TensorError where a device tensor among the arguments was freed.
        """
        passed = []
        for each in self._passed:
            if isinstance(each, NpuTensor):
                each.describe()
            passed.append(each.device if isinstance(each, NpuTensor) else each)
        with self._worker.exclusive() as running:
            for target, source, nbytes in self._before:
                ctypes.memmove(target, source, nbytes)
            try:
                running.run(self._program.compiled, *passed)
            except Exception as error:
                raise WorkerError(f"PyPTO: {type(error).__name__}: {error}") from error
            for target, source, nbytes in self._after:
                ctypes.memmove(target, source, nbytes)
        return self._result
