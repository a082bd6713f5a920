"""A worker: the threads, the workspace and the device tensors that programs run with."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from aotc.contract import ContractError
from aotc.errors import AotcError, ExitCode
from aotc.runtime.arguments import bind_argument
from aotc.runtime.host import team_processors
from aotc.runtime.library import Call, Library
from aotc.runtime.memory import Memory
from aotc.runtime.tensor import DeviceTensor, fits_panels

if TYPE_CHECKING:
    from aotc.runtime.loader import Program


_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)  # aotc_run_function
LARGE = 1 << 20  # bytes from which a copy is worth the whole team


class WorkerError(AotcError):
    """The worker is closed, is running a call in another thread, or cannot be started."""

    exit_code = ExitCode.ENVIRONMENT


class Worker:
    """Runs programs; made by `Program.prepare`, closed by leaving its context.

    Called, it runs the program that it was prepared for; `load` puts further programs on it, which
    share its threads, workspace and device tensors. It runs one call at a time: two Python
    threads need a lock, or a worker each.
    """

    def __init__(self, program: Program, threads: int, *, pin: bool = False):
        self.threads = threads
        self.workspace = Memory(0)
        self.closed: str | None = None
        self.lock = threading.Lock()
        self.team = _Team(program.library, threads, pin) if threads > 1 else None
        self._tensors: weakref.WeakSet[DeviceTensor] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, self.team.stop) if self.team else None
        self._programs: list[Program] = []
        self._own = self.load(program)
        _workers.add(self)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *arguments: Any) -> Any:
        """Run the program once; see `LoadedProgram.__call__`."""
        return self._own(*arguments)

    def bind(self, *arguments: Any) -> BoundCall:
        """Check the arguments once, for many calls; see `LoadedProgram.bind`."""
        return self._own.bind(*arguments)

    def load(self, program: Program) -> LoadedProgram:
        """Return `program`, ready to be called on this worker."""
        if not any(each is program for each in self._programs):
            self._programs.append(program)
        return LoadedProgram(self, program)

    def alloc_tensor(
        self,
        shape: Sequence[int],
        dtype: str,
        init: Any = None,
        *,
        parameter: str | None = None,
    ) -> DeviceTensor:
        """Return a tensor on the device: zeros, or a copy of the host tensor `init`.

        Where it is large it lies on huge pages, and all threads copy it. It is row-major like those
        of the host, which programs take as well, with the same result, unless it is for a
        `parameter` with which the programs loaded until now are faster when it is packed: a weight.
        Where they ask for different things it is row-major.

        `dtype` is a name as in contracts; `init` has this dtype and shape, for bf16 it may also be
        uint16. Raises TensorError where it has not, and OutOfMemoryError.
        """
        with self.exclusive():
            tensor = DeviceTensor(self, shape, dtype)
            if parameter is not None:
                tensor.panels = self.panels_of(parameter, tensor.shape, dtype)
            self._tensors.add(tensor)
        if init is not None:
            tensor.copy_from(init)
        return tensor

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy memory that does not overlap: on all threads where it is large and they are free."""
        function = self.team.copies if self.team and nbytes >= LARGE else None
        if function is not None and self._move(function, target, source, (nbytes,)):
            return
        ctypes.memmove(target, source, nbytes)

    def panels_of(self, parameter: str, shape: tuple[int, ...], dtype: str) -> int | None:
        """Return how a tensor for `parameter` is packed for the programs here, if it is."""
        asked = {
            each.panels
            for program in self._programs
            for each in program.contract.parameters
            if each.name == parameter
        }
        panels = asked.pop() if len(asked) == 1 else None
        return panels if panels is not None and fits_panels(shape, dtype, panels) else None

    def repack(
        self, target: int, source: int, shape: tuple[int, ...], panels: int, *, packing: bool
    ) -> None:
        """Copy a matrix that becomes packed, or row-major: on all threads where they are free."""
        # A program that takes packed weights can pack them.
        library = next(each.library for each in self._programs if each.library.pack_address)
        address = library.pack_address if packing else library.unpack_address
        assert address is not None
        symbols = (*shape, panels)
        if self._move(address, target, source, symbols):
            return
        call = _move_call(target, source, symbols)
        _RUN(address)(ctypes.addressof(call), 0)

    def _move(self, function: int, target: int, source: int, symbols: Sequence[int]) -> bool:
        """Have the team move memory; return False where there is none, or it is not free."""
        if self.team is None or not self.lock.acquire(blocking=False):
            return False
        try:
            if self.closed:
                return False
            self.team.move(function, target, source, symbols)
            return True
        finally:
            self.lock.release()

    def close(self) -> None:
        """Stop the threads and free the device tensors; twice is once.

        Raises WorkerError while a call runs in another thread.
        """
        if self.closed:
            return
        with self.exclusive():
            self.closed = "the worker is closed"
            if self._finalizer is not None:
                self._finalizer()
            for tensor in list(self._tensors):
                tensor.drop()
            self.workspace = Memory(0)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the worker; raise WorkerError where it is closed, or running a call."""
        if not self.lock.acquire(blocking=False):
            raise busy()
        try:
            if self.closed:
                raise WorkerError(self.closed)
            yield
        finally:
            self.lock.release()

    def abandon(self) -> None:
        """In a forked child: the threads exist in the parent alone."""
        self.closed = "the worker belongs to the parent process"
        if self._finalizer is not None:
            self._finalizer.detach()


class LoadedProgram:
    """A program on a worker."""

    def __init__(self, worker: Worker, program: Program):
        self._worker = worker
        self._program = program

    def __call__(self, *arguments: Any) -> Any:
        """Bind and run once; see `bind` for errors, and `BoundCall.__call__` for the result."""
        return self.bind(*arguments)()

    def bind(self, *arguments: Any) -> BoundCall:
        """Check `arguments`, one for each parameter in order, and return the call.

        They are tensors of numpy or torch, device tensors, anything with DLPack or the buffer
        protocol, and Python numbers for scalars. The call reads and writes their memory when it
        runs; a number keeps its value. They must not be resized meanwhile. Raises ContractError
        where they are not what the contract says, and WorkerError.
        """
        with self._worker.exclusive():
            return BoundCall(self._worker, self._program, arguments)


class BoundCall:
    """A program with its arguments, checked: calling it runs it, in microseconds of overhead."""

    def __init__(self, worker: Worker, program: Program, arguments: Sequence[Any]):
        contract, library = program.contract, program.library
        contract.check_count(len(arguments))
        bound = [
            bind_argument(parameter, argument)
            for parameter, argument in zip(contract.parameters, arguments, strict=True)
        ]
        symbols = contract.bind([argument for argument, _ in bound])
        for parameter, argument in zip(contract.parameters, arguments, strict=True):
            if isinstance(argument, DeviceTensor):
                if argument.worker is not worker:
                    raise ContractError(f"`{parameter.name}`: a tensor of another worker")
                argument.used_by(self)

        self._worker = worker
        self._invalid: str | None = None
        self._keep: object = (arguments, [keep for _, keep in bound], library)
        self._result = result_of(arguments, [contract.index(name) for name in contract.returns])
        self._pointers = (ctypes.c_void_p * len(bound))(*(each.address for each, _ in bound))
        self._symbols = (ctypes.c_int64 * len(symbols))(*symbols.values())
        team = worker.team
        packed = bytes(each.panels is not None for each, _ in bound)
        self._call = Call(
            arguments=self._pointers,
            symbols=self._symbols,
            team=team.address if team else None,
            threads=worker.threads,
            packed=packed if any(packed) else None,
        )
        address = ctypes.addressof(self._call)
        if team:
            self._run = partial(team.dispatch, team.address, library.run_address, address)
        else:
            self._run = partial(library.run, address, 0)
        needed = library.workspace_bytes(ctypes.addressof(self._symbols), worker.threads)
        if needed > worker.workspace.nbytes:
            worker.workspace = Memory(needed)

    def __call__(self) -> Any:
        """Run; return the arguments that the program returns: none, one, or a tuple.

        Raises WorkerError where the worker is closed or runs another call, and where a device
        tensor among the arguments was freed.
        """
        worker = self._worker
        if not worker.lock.acquire(blocking=False):
            raise busy()
        try:
            if worker.closed or self._invalid:
                raise WorkerError(worker.closed or self._invalid or "")
            self._call.workspace = worker.workspace.address
            self._run()
        finally:
            worker.lock.release()
        return self._result

    def invalidate(self, reason: str) -> None:
        """Refuse to run from now on, and let go of the arguments."""
        self._invalid = reason
        self._keep = self._result = None


def _move_call(target: int, source: int, symbols: Sequence[int]) -> Call:
    """Return the call of one thread that moves memory."""
    return Call(
        arguments=(ctypes.c_void_p * 2)(target, source),
        symbols=(ctypes.c_int64 * len(symbols))(*symbols),
        threads=1,
    )


def busy() -> WorkerError:
    """Return the error of a worker that is running a call."""
    return WorkerError(
        "the worker is running a call in another thread",
        hint="use a lock, or a worker for each Python thread",
    )


def result_of(arguments: Sequence[Any], returned: Sequence[int]) -> Any:
    """Return the arguments at the positions `returned`: none, one, or a tuple."""
    results = tuple(arguments[index] for index in returned)
    return results if len(results) > 1 else (results[0] if results else None)


class _Team:
    """A pool and the threads in it, all but thread 0: that is whoever calls."""

    def __init__(self, library: Library, threads: int, pin: bool):
        processors = team_processors(threads) if pin else []
        self.dispatch = library.pool_dispatch
        self.copies = library.copy_address
        self._size = threads
        self._stop = library.pool_stop
        self._memory = Memory(library.pool_bytes(threads))
        self.address = self._memory.address
        library.pool_init(self.address, threads)
        self._threads: list[threading.Thread] = []
        for index in range(1, threads):
            # A daemon, so that it never keeps a process alive. It holds no worker, so that a
            # worker without a user stops it.
            thread = threading.Thread(
                target=library.pool_enter,
                args=(self.address, index),
                name=f"aotc-{index}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError as error:
                self.stop()
                raise WorkerError(
                    f"thread {index + 1} of {threads} does not start: {error}",
                    hint="prepare the program with fewer threads",
                ) from None
            self._threads.append(thread)
            if processors:
                self._pin(thread, processors[index])

    def _pin(self, thread: threading.Thread, processor: int) -> None:
        assert thread.native_id is not None
        try:
            os.sched_setaffinity(thread.native_id, {processor})
        except OSError as error:
            self.stop()
            raise WorkerError(
                f"a thread cannot be pinned to processor {processor}: {error.strerror}"
            ) from None

    def move(self, function: int, target: int, source: int, symbols: Sequence[int]) -> None:
        """Run a function that moves memory, each thread its part; the team is not running."""
        call = _move_call(target, source, symbols)
        call.team, call.threads = self.address, self._size
        self.dispatch(self.address, function, ctypes.addressof(call))

    def stop(self) -> None:
        """Make the threads leave, and wait for them."""
        self._stop(self.address)
        for thread in self._threads:
            thread.join()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _abandon_all() -> None:
    for worker in list(_workers):
        worker.abandon()


os.register_at_fork(after_in_child=_abandon_all)
