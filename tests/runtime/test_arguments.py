"""Every kind of tensor is taken without a copy, and what does not fit is refused in words."""

import array
import ctypes
import struct
from typing import Any

import numpy
import pytest
from abi_programs import count, nothing, rotate
from hypothesis import given
from hypothesis import strategies as st

from aotc.contract import Direction, Parameter
from aotc.runtime import ContractError
from aotc.runtime.arguments import bind_argument, describe
from aotc.runtime.dlpack import is_row_major

torch = pytest.importorskip("torch")
NUMBERS = [0, 1, 2, 3, 4, 5]


class Exporter:
    """A tensor that is known by DLPack alone; `versions` says whether its library has them."""

    def __init__(self, tensor: Any, versions: bool = True):
        self.tensor = tensor
        self.versions = versions

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versions:
            raise TypeError("unexpected keyword")
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize(
    "make",
    [
        lambda values: numpy.array(values, numpy.float32),
        lambda values: torch.tensor(values, dtype=torch.float32),
        lambda values: Exporter(numpy.array(values, numpy.float32)),
        lambda values: Exporter(numpy.array(values, numpy.float32), versions=False),
        lambda values: Exporter(torch.tensor(values, dtype=torch.float32)),
        lambda values: array.array("f", values),
        lambda values: (ctypes.c_float * len(values))(*values),
    ],
)
def test_tensors_of_every_library(make: Any) -> None:
    x, y = make(NUMBERS), make([0] * 6)
    with rotate().prepare(threads=2) as worker:
        worker(x, 1, y)
    written = y.tensor if isinstance(y, Exporter) else y
    # Ten rotations by half are none; each adds 1.
    assert [float(each) for each in written] == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bfloat16, "bf16"),
        (torch.float16, "fp16"),
        (torch.float32, "fp32"),
        (torch.float64, "fp64"),
        (torch.bool, "bool"),
        (torch.int8, "int8"),
        (torch.uint8, "uint8"),
        (torch.int16, "int16"),
        (torch.int32, "int32"),
        (torch.int64, "int64"),
    ],
)
def test_dtypes_agree(dtype: Any, name: str) -> None:
    tensor = torch.zeros(2, 3, dtype=dtype)
    for value in (tensor, Exporter(tensor)):
        found, _ = describe("`x`", value)
        assert (found.dtype, found.shape, found.contiguous) == (name, (2, 3), True)
        assert found.address == tensor.data_ptr()
    if dtype not in (torch.bfloat16,):
        found, _ = describe("`x`", tensor.numpy())
        assert (found.dtype, found.nbytes) == (name, tensor.nbytes)
        found, _ = describe("`x`", memoryview(tensor.numpy()))
        assert (found.dtype, found.nbytes) == (name, tensor.nbytes)
        assert found.address == tensor.data_ptr()


FP32 = Parameter("x", "fp32", (2, 3), Direction.OUT)


def misaligned() -> numpy.ndarray:
    return numpy.frombuffer(bytearray(25), numpy.float32, 6, 1).reshape(2, 3)


def read_only() -> numpy.ndarray:
    result = numpy.zeros((2, 3), numpy.float32)
    result.flags.writeable = False
    return result


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (numpy.zeros((2, 3), numpy.float64), "`x`: expected dtype fp32, got fp64"),
        (numpy.zeros((2, 3), ">f4"), "`x`: expected dtype fp32, got byte-swapped fp32"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "`x`: expected dtype fp32, got bf16"),
        (numpy.zeros(6, numpy.float32), "`x`: expected 2 dimensions, got 1"),
        (numpy.zeros((2, 4), numpy.float32), "`x` dimension 1: expected 3, got 4"),
        (numpy.zeros((3, 2), numpy.float32).T, "`x`: not contiguous"),
        (torch.zeros(3, 2).T, "`x`: not contiguous"),
        (Exporter(torch.zeros(3, 2).T), "`x`: not contiguous"),
        (memoryview(numpy.zeros((3, 2), numpy.float32).T), "`x`: not contiguous"),
        (read_only(), "`x`: it is written, and read-only memory was given"),
        (memoryview(read_only()), "`x`: it is written, and read-only memory was given"),
        (Exporter(read_only()), "`x`: it is written, and read-only memory was given"),
        (misaligned(), "`x`: not aligned to its 4-byte elements"),
        (torch.zeros(2, 3, device="meta"), "`x`: expected a dense tensor in the memory of this"),
        (torch.eye(3).to_sparse(), "`x`: expected a dense tensor in the memory of this host"),
        ([1.0, 2.0], "`x`: expected a tensor, got list"),
        (None, "`x`: expected a tensor, got NoneType"),
        (1.5, "`x`: expected a tensor, got float"),
    ],
)
def test_what_is_refused(value: Any, message: str) -> None:
    with nothing(FP32).prepare(threads=1) as worker, pytest.raises(ContractError) as caught:
        worker(value)
    assert caught.value.message.startswith(message)


def test_a_tensor_of_another_device() -> None:
    class Remote(Exporter):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(ContractError, match="`x`: not in the memory of this host"):
        describe("`x`", Remote(numpy.zeros(1)))


@pytest.mark.parametrize(
    ("x", "y", "refused"),
    [
        (slice(0, 4), slice(4, 8), False),
        (slice(0, 4), slice(2, 6), True),
        (slice(2, 6), slice(0, 4), True),
        (slice(0, 4), slice(0, 4), True),
        (slice(2, 2), slice(2, 2), False),
    ],
)
def test_an_output_that_overlaps(x: slice, y: slice, refused: bool) -> None:
    buffer = numpy.arange(8, dtype=numpy.float32)
    with rotate().prepare(threads=1) as worker:
        if refused:
            with pytest.raises(ContractError, match="`y` is written, and shares memory with `x`"):
                worker(buffer[x], 1, buffer[y])
            assert buffer.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
        else:
            worker(buffer[x], 1, buffer[y])


def test_inputs_may_overlap() -> None:
    buffer = numpy.zeros(4, numpy.int8)
    with nothing(*(Parameter(name, "int8", (4,)) for name in "ab")).prepare(threads=1) as worker:
        worker(buffer, buffer)


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (5, "`x` dimension 0: `N` must be a multiple of 2, got 5"),
        (4098, "`x` dimension 0: `N` must be at most 4096, got 4098"),
    ],
)
def test_a_symbol_out_of_range(n: int, message: str) -> None:
    x, y = numpy.ones(n, numpy.float32), numpy.zeros(n, numpy.float32)
    with rotate().prepare(threads=2) as worker:
        with pytest.raises(ContractError) as caught:
            worker(x, 1, y)
        with pytest.raises(ContractError, match="`N` is 4 here, and 6 in `x` dimension 0"):
            worker(numpy.ones(6, numpy.float32), 1, y[:4])
    assert caught.value.message == message
    assert not y.any()


@pytest.mark.parametrize(
    ("dtype", "value", "encoded"),
    [
        ("bool", True, b"\x01"),
        ("int8", -128, b"\x80"),
        ("uint8", 255, b"\xff"),
        ("int16", -2, struct.pack("=h", -2)),
        ("uint16", 65535, b"\xff\xff"),
        ("int32", -(2**31), struct.pack("=i", -(2**31))),
        ("uint32", 2**32 - 1, b"\xff" * 4),
        ("int64", -(2**63), struct.pack("=q", -(2**63))),
        ("uint64", 2**64 - 1, b"\xff" * 8),
        ("index", 7, struct.pack("=q", 7)),
        ("fp16", 1.5, struct.pack("=e", 1.5)),
        ("fp32", 3, struct.pack("=f", 3.0)),
        ("bf16", float("inf"), struct.pack("=H", 0x7F80)),
    ],
)
def test_scalars(dtype: str, value: Any, encoded: bytes) -> None:
    argument, keep = bind_argument(Parameter("s", dtype, ()), value)
    assert ctypes.string_at(argument.address, argument.nbytes) == encoded
    del keep


@given(st.floats(width=32, allow_nan=True))
def test_bf16_scalars_round_as_torch_does(value: float) -> None:
    argument, keep = bind_argument(Parameter("s", "bf16", ()), value)
    (bits,) = struct.unpack("=H", ctypes.string_at(argument.address, 2))
    del keep
    expected = torch.tensor(value, dtype=torch.float32).bfloat16()
    got = torch.tensor([bits], dtype=torch.int32).to(torch.int16).view(torch.bfloat16)[0]
    assert torch.equal(got, expected) or (got.isnan() and expected.isnan())


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int8", 128, "`s`: 128 is out of the range of int8"),
        ("uint8", -1, "`s`: -1 is out of the range of uint8"),
        ("bool", 2, "`s`: 2 is out of the range of bool"),
        ("int32", 1.0, "`s`: expected int32, got the float 1.0"),
        ("fp16", 1e6, "`s`: 1000000.0 is out of the range of fp16"),
        ("fp32", 1e39, "`s`: 1e+39 is out of the range of fp32"),
        ("bf16", 10**400, "is out of the range of bf16"),
    ],
)
def test_scalars_out_of_range(dtype: str, value: Any, message: str) -> None:
    with pytest.raises(ContractError) as caught:
        bind_argument(Parameter("s", dtype, ()), value)
    assert message in caught.value.message


@pytest.mark.parametrize("scale", [numpy.float32(2), numpy.array(2, numpy.float32), 2, 2.0, True])
def test_a_scalar_may_be_a_tensor_without_dimensions(scale: Any) -> None:
    x, y = numpy.ones(2, numpy.float32), numpy.zeros(2, numpy.float32)
    with rotate().prepare(threads=1) as worker:
        worker(x, scale, y)
    assert y.tolist() == [10 + float(scale)] * 2


def test_bound_arguments_stay_alive() -> None:
    with count().prepare(threads=1) as worker:
        tensor = torch.zeros(16, dtype=torch.int32)
        call = worker.bind(Exporter(tensor))
        del tensor
        others = [torch.ones(16, dtype=torch.int32) for _ in range(100)]
        call()
    assert all(bool((each == 1).all()) for each in others)


@given(st.lists(st.integers(0, 3), max_size=4), st.randoms())
def test_row_major_is_what_numpy_says(shape: list[int], random: Any) -> None:
    base = numpy.zeros(shape, numpy.int8)
    order = list(range(len(shape)))
    random.shuffle(order)
    view = base.transpose(order)
    assert is_row_major(view.shape, view.strides) == view.flags.c_contiguous
    assert is_row_major(view.shape, None)
