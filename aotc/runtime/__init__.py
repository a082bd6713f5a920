"""Run compiled programs: `load` one, `prepare` a worker, call it. Needs no compiler, no torch."""

from aotc.contract import ContractError
from aotc.runtime.library import LoadError
from aotc.runtime.loader import Program, load, load_program
from aotc.runtime.memory import OutOfMemoryError
from aotc.runtime.tensor import DeviceTensor, TensorError
from aotc.runtime.worker import BoundCall, LoadedProgram, Worker, WorkerError

__all__ = [
    "BoundCall",
    "ContractError",
    "DeviceTensor",
    "LoadError",
    "LoadedProgram",
    "OutOfMemoryError",
    "Program",
    "TensorError",
    "Worker",
    "WorkerError",
    "load",
    "load_program",
]
