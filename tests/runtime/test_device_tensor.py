"""Device tensors hold what was copied in, are seen without a copy, and end cleanly."""

import gc
from collections.abc import Iterator

import numpy
import pytest
from abi_programs import HOST_TARGET, NOTHING, PRELUDE, count, nothing
from compare import compiled, to_bf16
from test_generator import matmul_text

from aotc.contract import Contract, Direction, Parameter
from aotc.dtypes import DTYPES
from aotc.runtime import (
    ContractError,
    OutOfMemoryError,
    TensorError,
    Worker,
    WorkerError,
    load_program,
)
from aotc.runtime.memory import HUGE_PAGE, Memory, huge_pages
from aotc.runtime.worker import LARGE
from aotc.toolchain.zig import TARGETS, compile_shared_object

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


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shift", [0, 1, 63])
@pytest.mark.parametrize("nbytes", [LARGE - 1, LARGE, HUGE_PAGE, HUGE_PAGE + 1, 7 * HUGE_PAGE - 3])
def test_large_copies_are_whole(threads: int, shift: int, nbytes: int) -> None:
    source = numpy.random.default_rng(0).integers(0, 256, nbytes + shift).astype(numpy.uint8)
    back = numpy.zeros(nbytes + shift + 1, numpy.uint8)
    with count().prepare(threads=threads) as worker:
        tensor = worker.alloc_tensor((nbytes,), "uint8", init=source[shift:])
        numpy.testing.assert_array_equal(tensor.numpy(), source[shift:])
        tensor.copy_to(back[shift : shift + nbytes])
        numpy.testing.assert_array_equal(back[shift : shift + nbytes], source[shift:])
        assert not back[:shift].any()
        assert back[-1] == 0


def test_a_copy_while_a_call_runs_is_this_threads_alone() -> None:
    source = numpy.arange(LARGE, dtype=numpy.uint8)
    with count().prepare(threads=2) as worker:
        tensor = worker.alloc_tensor((LARGE,), "uint8")
        with worker.exclusive():
            tensor.copy_from(source)
        numpy.testing.assert_array_equal(tensor.numpy(), source)


def test_an_object_that_copies_nothing() -> None:
    prelude = PRELUDE.replace("void aotc_copy(", "static inline void aotc_copy(").replace(
        "AOTC_EXPORT static", "static"
    )
    content = compile_shared_object(prelude + NOTHING, TARGETS[HOST_TARGET])
    source = numpy.arange(LARGE, dtype=numpy.uint8)
    program = load_program(Contract(()), content, HOST_TARGET)
    assert program.library.copy_address is None
    with program.prepare(threads=2) as worker:
        tensor = worker.alloc_tensor((LARGE,), "uint8", init=source)
        numpy.testing.assert_array_equal(tensor.numpy(), source)


def test_host_and_device_tensors_give_the_same_bits() -> None:
    """Also where the host's lie at any address that suits their elements."""
    generator = numpy.random.default_rng(1)
    m, n, k = 3, 2100, 520
    a = to_bf16(generator.standard_normal((m, k)).astype(numpy.float32))
    b = to_bf16(generator.standard_normal((k, n)).astype(numpy.float32))
    _, program = compiled(matmul_text(False), HOST_TARGET)
    results = []
    with program.prepare(threads=2) as worker:
        device = [worker.alloc_tensor(each.shape, "bf16", init=each) for each in (a, b)]
        odd = []
        for each in (a, b):
            memory = numpy.zeros(each.nbytes + 2, numpy.uint8)
            memory[2:] = each.reshape(-1).view(numpy.uint8)
            view = memory[2:].view(numpy.uint16).reshape(each.shape)
            odd.append(torch.from_numpy(view.view(numpy.int16)).view(torch.bfloat16))
        for pair in (device, odd, (odd[0], device[1])):
            out = numpy.zeros((m, n), numpy.float32)
            worker(*pair, out)
            results.append(out.tobytes())
    assert results[0] == results[1] == results[2]


def test_huge_pages_are_counted() -> None:
    before = huge_pages()
    memory = Memory(8 * HUGE_PAGE)
    view = memory.view()
    view[:] = bytes(len(view))
    assert huge_pages() - before in range(0, 9 * HUGE_PAGE, 4096)
