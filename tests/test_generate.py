"""Generation with the golden functions: chunks, batches, page bounds, and wrong requests."""

from __future__ import annotations

import inspect

import pytest

from aotc.errors import AotcError
from aotc.generate import DECODE, PREFILL, Generator, Programs
from aotc.weights import host_memory, load_weights, random_weights

torch = pytest.importorskip("torch")


@pytest.fixture
def programs(golden):
    return Programs(golden.prefill, golden.decode, golden.greedy_sample)


@pytest.fixture
def weights(tiny):
    return random_weights(tiny, 0)


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(250, (length,), generator=generator).tolist()


def test_the_tensors_are_in_the_order_of_the_parameters(golden):
    assert tuple(inspect.signature(golden.prefill).parameters) == PREFILL
    assert tuple(inspect.signature(golden.decode).parameters) == DECODE


@pytest.mark.parametrize("chunk_tokens", [None, 5])
def test_tokens_are_those_of_transformers(
    golden, programs, tiny, hf_model, tmp_path, monkeypatch, chunk_tokens
):
    # Without roundings to bf16 there is no near tie that could pick another token.
    monkeypatch.setattr(golden, "_bf16", lambda x: x)
    model = hf_model()
    model.save_pretrained(tmp_path)
    ids = prompt(11)
    with torch.no_grad():
        theirs = model.generate(
            torch.tensor([ids]), max_new_tokens=32, do_sample=False, eos_token_id=None
        )

    def exact(name, shape, dtype):
        return torch.empty(shape) if name.endswith("cache") else host_memory(name, shape, dtype)

    generator = Generator(
        programs,
        tiny,
        load_weights(tmp_path, tiny),
        max_seq_len=43,
        chunk_tokens=chunk_tokens,
        allocate=exact,
    )
    assert generator.generate([ids], 32) == [theirs[0, 11:].tolist()]


@pytest.mark.parametrize("chunk_tokens", [1, 7, 64])
def test_a_ragged_batch_gives_what_each_prompt_gives_alone(programs, tiny, weights, chunk_tokens):
    prompts = [prompt(n, seed=n) for n in (1, 8, 30, 9)]
    alone = [
        Generator(programs, tiny, weights, max_seq_len=48).generate([ids], 9)[0] for ids in prompts
    ]
    batch = Generator(programs, tiny, weights, max_seq_len=40, chunk_tokens=chunk_tokens)
    assert batch.generate(prompts, 9) == alone
    assert batch.generate(prompts, 9) == alone  # nothing is left of the first time


@pytest.mark.parametrize(("length", "new"), [(1, 1), (7, 1), (8, 1), (9, 7), (127, 1), (1, 127)])
def test_a_sequence_may_fill_its_pages(programs, tiny, weights, length, new):
    generator = Generator(programs, tiny, weights, max_seq_len=length + new)
    (tokens,) = generator.generate([prompt(length)], new)
    assert len(tokens) == new
    assert all(0 <= token < 250 for token in tokens)


def test_a_stop_token_ends_its_row_alone(programs, tiny, weights):
    generator = Generator(programs, tiny, weights, max_seq_len=32)
    prompts = [prompt(5), prompt(6, seed=1)]
    free = generator.generate(prompts, 8)
    stop = free[0][2]
    expected = [row[: row.index(stop) + 1] if stop in row else row for row in free]
    assert generator.generate(prompts, 8, stop=[stop]) == expected
    assert len(expected[0]) < 8
    steps = list(generator.stream([prompts[0]], 8, stop=[stop]))
    assert steps == [[token] for token in expected[0]]


def test_memory_of_a_device_is_filled_and_passed_on(golden, tiny):
    class DeviceMemory:
        """What torch sees by DLPack alone, as a tensor of a worker."""

        def __init__(self, name, shape, dtype):
            self.tensor = host_memory(name, shape, dtype)
            self.shape = shape

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    def device(function):
        return lambda *tensors: function(*(getattr(t, "tensor", t) for t in tensors))

    programs = Programs(*map(device, (golden.prefill, golden.decode, golden.greedy_sample)))
    weights = random_weights(tiny, 0, DeviceMemory)
    assert all(isinstance(each, DeviceMemory) for each in weights.values())
    on_device = Generator(programs, tiny, weights, max_seq_len=24, allocate=DeviceMemory)
    on_host = Generator(
        Programs(golden.prefill, golden.decode, golden.greedy_sample),
        tiny,
        random_weights(tiny, 0),
        max_seq_len=24,
    )
    assert on_device.generate([prompt(9)], 6) == on_host.generate([prompt(9)], 6)


@pytest.mark.parametrize(
    ("prompts", "new", "message"),
    [
        ([], 1, "no prompt given"),
        ([[1], []], 1, "prompt 2 is empty"),
        ([[1]] * 9, 1, "the number of prompts must be from 1 to 8, got 9"),
        ([[1, 250]], 1, "prompt 1: id 250 is outside the vocabulary of 250"),
        ([[-1]], 1, "prompt 1: id -1 is outside the vocabulary of 250"),
        ([[1]], 0, "max_new_tokens must be at least 1, got 0"),
        ([[1], [1] * 20], 13, "prompt 2: 20 tokens and 13 new ones are 33, more than max_seq_len"),
    ],
)
def test_a_wrong_request(programs, tiny, weights, prompts, new, message):
    generator = Generator(programs, tiny, weights, max_seq_len=32)
    with pytest.raises(AotcError) as error:
        generator.stream(prompts, new)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"max_seq_len": 0}, "max_seq_len must be from 1 to 128, got 0"),
        ({"max_seq_len": 129}, "max_seq_len must be from 1 to 128, got 129"),
        ({"max_seq_len": 8, "chunk_tokens": 0}, "chunk_tokens must be from 1 to 64, got 0"),
        ({"max_seq_len": 8, "chunk_tokens": 65}, "chunk_tokens must be from 1 to 64, got 65"),
    ],
)
def test_a_wrong_bound(programs, tiny, weights, bounds, message):
    with pytest.raises(AotcError) as error:
        Generator(programs, tiny, weights, **bounds)
    assert str(error.value) == message
