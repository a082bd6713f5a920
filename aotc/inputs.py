"""Arguments to run a program with, where only its time matters.

Floating-point numbers are random, everything else is zero, unless the model has a module `samples`
beside its wrappers: there a function PROGRAM(symbols) returns, by parameter, the integers of one
call whose symbols have these values. The names of the config stand in it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from aotc.config import Config
from aotc.contract import Contract, Direction, Parameter
from aotc.dtypes import DTYPES
from aotc.errors import AotcError
from aotc.runtime import DeviceTensor, Worker
from aotc.verify import bindings

_SAMPLES = "samples"
# Elements that are repeated to fill a tensor: a number that no extent of a matrix is a multiple of.
_BLOCK = (1 << 23) + 7
_SCALE = 0.1

Integers = Mapping[str, Sequence[int]]


def symbol_values(contract: Contract, given: Mapping[str, int]) -> dict[str, int]:
    """Return a value for every symbol: the least that the constraints allow, unless given.

    Raises AotcError for an unknown symbol, and ContractError where a constraint does not hold.
    """
    known = [each.name for each in contract.symbols]
    for name in given:
        if name not in known:
            raise AotcError(
                f"the program has no symbol `{name}`",
                hint=f"its symbols: {', '.join(known) or 'none'}",
            )
    return bindings.bind(contract, bindings.least, given)


def integers(config: Config, program: str, platform: str, symbols: Mapping[str, int]) -> Integers:
    """Return what the model says that the integers of a call are; nothing where it does not.

    Raises AotcError where its module fails.
    """
    if not (config.source / f"{_SAMPLES}.py").is_file():
        return {}
    from aotc.frontend import source

    module, _ = source.load(config.source, _SAMPLES, config.environment(platform))
    function = getattr(module, program, None)
    return {} if function is None else function(dict(symbols))


def device_tensors(
    worker: Worker, contract: Contract, symbols: Mapping[str, int], known: Integers
) -> list[DeviceTensor]:
    """Return a device tensor for each parameter; equal for equal symbols.

    `known` has the contents of some. Raises AotcError where they do not fit.
    """
    return [_tensor(worker, each, dict(symbols), known) for each in contract.parameters]


def _tensor(
    worker: Worker, parameter: Parameter, symbols: dict[str, int], known: Integers
) -> DeviceTensor:
    import numpy

    shape = bindings.shape_of(parameter.dims, symbols)
    tensor = worker.alloc_tensor(shape, parameter.dtype)
    array = tensor.numpy().reshape(-1)
    if parameter.name in known:
        values = numpy.asarray(known[parameter.name], array.dtype).reshape(-1)
        if values.size != array.size:
            raise AotcError(
                f"`{parameter.name}` takes {array.size} elements, and the module `{_SAMPLES}` "
                f"of the model gives {values.size}"
            )
        array[:] = values
    elif parameter.direction is not Direction.OUT and DTYPES[parameter.dtype].is_float:
        block = _random(array.dtype, min(array.size, _BLOCK))
        address = tensor.memory.address or 0
        for start in range(0, tensor.nbytes, block.nbytes or 1):
            count = min(block.nbytes, tensor.nbytes - start)
            worker.copy(address + start, block.ctypes.data, count)
    tensor.pack(parameter.name)
    return tensor


@functools.cache
def _random(dtype: Any, count: int) -> Any:
    import numpy

    values = numpy.random.default_rng(0).standard_normal(count, numpy.float32)
    values *= _SCALE
    if dtype == numpy.uint16:  # bf16, truncated
        return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    return values.astype(dtype)
