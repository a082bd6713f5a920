"""Sample tensors as the compiler sees them: element type and shape, never content.

A program is compiled from its signature, or from the tensors that a caller would pass:

    arguments = arguments_of(tensors)
    compiled = aotc.driver.lower(config, "decode", target, arguments)

Both give the same program, digest for digest. The tensors may lie anywhere and need no content:
`torch.empty(..., device="meta")` and `numpy.empty` cost no memory that is never touched.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from aotc.contract import Argument, Parameter
from aotc.runtime.arguments import describe
from aotc.runtime.dlpack import Capsule, is_row_major

_TORCH_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


def arguments_of(tensors: Sequence[Any], parameters: Sequence[Parameter] = ()) -> list[Argument]:
    """Return what the compiler needs to know of `tensors`, one for each parameter in order.

    They are torch tensors on any device, meta included, numpy arrays, device tensors, or anything
    with DLPack or the buffer protocol. numpy has no bf16: with the `parameters` of the wrapper a
    uint16 array stands for one. Raises ContractError for what is no tensor.
    """
    found = [_argument(f"sample {number}", each) for number, each in enumerate(tensors)]
    for number, parameter in enumerate(parameters[: len(found)]):
        if parameter.dtype == "bf16" and found[number].dtype == "uint16":
            found[number] = dataclasses.replace(found[number], dtype="bf16")
    return found


def _argument(subject: str, value: Any) -> Argument:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return Argument(
            _TORCH_NAMES.get(name, name), tuple(value.shape), contiguous=value.is_contiguous()
        )
    if _is_elsewhere(value):
        capsule = Capsule(value.__dlpack__())
        shape = capsule.shape
        return Argument(capsule.dtype, shape, contiguous=is_row_major(shape, capsule.strides))
    argument, _ = describe(subject, value)
    # Where a sample lies says nothing about the tensors of a call.
    return Argument(argument.dtype, argument.shape, contiguous=argument.contiguous)


def _is_elsewhere(value: Any) -> bool:
    """Return whether `value` offers its description by DLPack, and not the memory of this host."""
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) != 1
