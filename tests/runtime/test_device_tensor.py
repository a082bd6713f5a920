"""Device tensors hold what was copied in, are seen without a copy, and end cleanly."""

import gc
from collections.abc import Iterator

import numpy
import pytest
from abi_programs import count, nothing

from aotc.contract import Direction, Parameter
from aotc.dtypes import DTYPES
from aotc.runtime import ContractError, OutOfMemoryError, TensorError, Worker, WorkerError
from aotc.runtime.memory import HUGE_PAGE, Memory

torch = pytest.importorskip("torch")


@pytest.fixture
def worker() -> Iterator[Worker]:
    with count().prepare(threads=1) as worker:
        yield worker


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3), (1024, 300)])
def test_zeros_and_copies(worker: Worker, dtype: str, shape: tuple[int, ...]) -> None:
    tensor = worker.alloc_tensor(shape, dtype)
    view = tensor.numpy()
    assert (view.shape, view.nbytes) == (shape, tensor.nbytes)
    assert not view.any()
    if dtype == "index":
        return
    host = numpy.ones(shape, view.dtype)
    tensor.copy_from(host)
    numpy.testing.assert_array_equal(view, host)
    back = numpy.zeros(shape, view.dtype)
    worker.alloc_tensor(shape, dtype, init=tensor).copy_to(back)
    numpy.testing.assert_array_equal(back, host)


def test_torch_sees_the_same_memory(worker: Worker) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.int32):
        name = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "int32"}[dtype]
        host = torch.tensor([[1, 2, 3]], dtype=dtype)
        tensor = worker.alloc_tensor((1, 3), name, init=host)
        seen = torch.from_dlpack(tensor)
        assert torch.equal(seen, host)
        assert seen.dtype == dtype
        assert seen.data_ptr() == tensor.memory.address
        seen += 1
        tensor.copy_to(host)
        assert host.tolist() == [[2, 3, 4]]


@pytest.mark.parametrize("nbytes", [1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
def test_memory_is_aligned_and_whole(nbytes: int) -> None:
    memory = Memory(nbytes)
    assert memory.address is not None
    assert memory.address % (HUGE_PAGE if nbytes >= HUGE_PAGE else 4096) == 0
    view = memory.view()
    assert len(view) == nbytes
    assert view[0] == view[-1] == 0
    view[-1] = 1
    assert Memory(0).address is None


def test_not_enough_memory(worker: Worker) -> None:
    with pytest.raises(OutOfMemoryError, match=f"not enough memory for {2**60} bytes"):
        worker.alloc_tensor((2**60,), "int8")
    with pytest.raises(OutOfMemoryError):
        worker.alloc_tensor((2**70,), "int8")


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (numpy.zeros((2, 3), numpy.float32), "expected (2, 3) of bf16, got (2, 3) of fp32"),
        (numpy.zeros((3, 2), numpy.uint16), "expected (2, 3) of bf16, got (3, 2) of uint16"),
        (numpy.zeros((3, 2), numpy.uint16).T, "not contiguous"),
    ],
)
def test_init_that_does_not_fit(worker: Worker, host: numpy.ndarray, message: str) -> None:
    with pytest.raises(TensorError) as caught:
        worker.alloc_tensor((2, 3), "bf16", init=host)
    assert caught.value.message == message


def test_other_mistakes(worker: Worker) -> None:
    with pytest.raises(TensorError, match="unknown dtype `float32`"):
        worker.alloc_tensor((1,), "float32")
    with pytest.raises(TensorError, match=r"a negative extent in \(-1, 2\)"):
        worker.alloc_tensor((-1, 2), "fp32")
    with pytest.raises(TensorError, match="the host tensor is read-only"):
        worker.alloc_tensor((1,), "uint8").copy_to(b"a")
    with pytest.raises(ContractError, match="expected a tensor, got list"):
        worker.alloc_tensor((1,), "uint8", init=[1])


def test_use_after_free(worker: Worker) -> None:
    tensor = worker.alloc_tensor((16,), "int32")
    call = worker.bind(tensor)
    assert call() is None
    view = tensor.numpy()
    tensor.free()
    tensor.free()
    with pytest.raises(WorkerError, match=r"the tensor \(16,\) of int32, was freed"):
        call()
    for use in (
        tensor.numpy,
        lambda: worker(tensor),
        lambda: tensor.copy_from(numpy.zeros(16, numpy.int32)),
        lambda: tensor.copy_to(numpy.zeros(16, numpy.int32)),
        lambda: tensor.__dlpack__(),
    ):
        with pytest.raises(TensorError, match=r"the tensor \(16,\) of int32 has been freed"):
            use()
    assert repr(tensor) == "DeviceTensor((16,), int32, freed)"
    gc.collect()
    assert view.tolist() == [1] + [0] * 15  # a view keeps the memory


def test_a_bound_call_keeps_a_dropped_tensor(worker: Worker) -> None:
    tensor = worker.alloc_tensor((16,), "int32")
    view = tensor.numpy()
    call = worker.bind(tensor)
    del tensor
    gc.collect()
    call()
    assert view[0] == 1


def test_a_tensor_of_another_worker(worker: Worker) -> None:
    with count().prepare(threads=1) as other:
        tensor = other.alloc_tensor((16,), "int32")
        with pytest.raises(ContractError, match="`counts`: a tensor of another worker"):
            worker(tensor)


def test_bf16_argument(worker: Worker) -> None:
    parameter = Parameter("w", "bf16", (2,), Direction.INOUT)
    loaded = worker.load(nothing(parameter))
    loaded(worker.alloc_tensor((2,), "bf16", init=numpy.zeros(2, numpy.uint16)))
    loaded(torch.zeros(2, dtype=torch.bfloat16))
    with pytest.raises(ContractError, match="`w`: expected dtype bf16, got uint16"):
        loaded(numpy.zeros(2, numpy.uint16))
