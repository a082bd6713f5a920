"""Sample tensors of every kind describe themselves to the compiler."""

from __future__ import annotations

import array
from typing import Any

import pytest

from aotc.contract import Argument, ContractError, Parameter
from aotc.samples import arguments_of

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

BF16 = Parameter("x", "bf16", ("ROWS", 8))


class Exporter:
    """A tensor of a library that offers DLPack alone."""

    def __init__(self, tensor: Any):
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"), ("int32", "int32")],
)
def test_torch_tensors(device: str, dtype: str, name: str) -> None:
    tensor = torch.empty((3, 8), dtype=getattr(torch, dtype), device=device)
    assert arguments_of([tensor]) == [Argument(name, (3, 8))]
    assert arguments_of([tensor.t()]) == [Argument(name, (8, 3), contiguous=False)]


def test_a_meta_tensor_takes_no_memory() -> None:
    (found,) = arguments_of([torch.empty((1 << 40, 8), dtype=torch.bfloat16, device="meta")])
    assert found == Argument("bf16", (1 << 40, 8))


def test_numpy_arrays_stand_for_bf16_where_the_parameter_is() -> None:
    samples = [numpy.empty((2, 8), "uint16"), numpy.empty((4,), "float32")]
    plain = [Argument("uint16", (2, 8)), Argument("fp32", (4,))]
    assert arguments_of(samples) == plain
    as_bf16 = [Argument("bf16", (2, 8)), Argument("fp32", (4,))]
    assert arguments_of(samples, [BF16, Parameter("y", "fp32", (4,))]) == as_bf16
    assert arguments_of(samples, [Parameter("x", "uint16", (2, 8))]) == plain


def test_dlpack_and_buffers() -> None:
    exported = Exporter(torch.empty((2, 0), dtype=torch.bfloat16))
    assert arguments_of([exported]) == [Argument("bf16", (2, 0))]
    assert arguments_of([array.array("i", [1, 2, 3])]) == [Argument("int32", (3,))]


def test_one_sample_for_two_parameters_overlaps_nothing() -> None:
    tensor = torch.empty(4)
    found = arguments_of([tensor, tensor])
    assert [each.address for each in found] == [None, None]


def test_what_is_no_tensor() -> None:
    with pytest.raises(ContractError, match="sample 1: expected a tensor, got list"):
        arguments_of([torch.empty(2), [1, 2]])
    assert arguments_of([]) == []
