"""The three Qwen3 programs, lowered and run by the reference interpreter, against golden.py."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
from test_golden import Harness, prompt

from aotc import config as model_config
from aotc import reference
from aotc.contract import Direction
from aotc.frontend.lower import lower
from aotc.weights import random_weights

torch = pytest.importorskip("torch")

MODELS = Path(__file__).parents[2] / "models"
WRAPPERS = ("prefill", "decode", "greedy_sample")
# Of the largest value: a few roundings to bf16 that fall to the other side.
TOLERANCE = 6e-3

WEIGHTS = """input_rms_weight fp32 LAYER_DYN HIDDEN
wq bf16 LAYER_HIDDEN_ROWS_DYN Q_HIDDEN
wk bf16 LAYER_HIDDEN_ROWS_DYN KV_HIDDEN
wv bf16 LAYER_HIDDEN_ROWS_DYN KV_HIDDEN
q_norm_weight fp32 LAYER_DYN HEAD_DIM
k_norm_weight fp32 LAYER_DYN HEAD_DIM
"""
TAIL = """rope_cos fp32 ROPE_SEQ_DYN HEAD_DIM
rope_sin fp32 ROPE_SEQ_DYN HEAD_DIM
"""
CACHES = """k_cache bf16 KV_CACHE_ROWS_DYN HEAD_DIM inout
v_cache bf16 KV_CACHE_ROWS_DYN HEAD_DIM inout
wo bf16 LAYER_Q_ROWS_DYN HIDDEN
w_gate bf16 LAYER_HIDDEN_ROWS_DYN INTERMEDIATE
w_up bf16 LAYER_HIDDEN_ROWS_DYN INTERMEDIATE
w_down bf16 LAYER_INTER_ROWS_DYN HIDDEN
post_rms_weight fp32 LAYER_DYN HIDDEN
final_norm_weight fp32 1 HIDDEN
lm_head_weight bf16 VOCAB HIDDEN
out fp32 BATCH_DYN VOCAB out
"""
PARAMETERS = {
    "prefill": """hidden_states bf16 PREFILL_TOKENS_DYN HIDDEN
seq_lens int32 BATCH_DYN
chunk_lens int32 BATCH_DYN
chunk_offsets int32 BATCH_DYN
"""
    + WEIGHTS
    + TAIL
    + "block_table int32 BLOCK_TABLE_FLAT_DYN\nslot_mapping int32 PREFILL_TOKENS_DYN\n"
    + CACHES,
    "decode": WEIGHTS
    + """seq_lens int32 BATCH_DYN
block_table int32 BLOCK_TABLE_FLAT_DYN
slot_mapping int32 BATCH_DYN
"""
    + TAIL
    + CACHES
    + """embed_weight bf16 VOCAB HIDDEN
sampled_ids_in int32 BATCH_DYN SAMPLED_IDS_PAD
sampled_ids int32 BATCH_DYN SAMPLED_IDS_PAD out
next_hidden bf16 BATCH_DYN HIDDEN out
""",
    "greedy_sample": """logits fp32 BATCH_DYN VOCAB
sampled_ids int32 BATCH_DYN SAMPLED_IDS_PAD out
""",
}
RETURNS = {
    "prefill": ("out",),
    "decode": ("out", "sampled_ids", "next_hidden"),
    "greedy_sample": ("sampled_ids",),
}


def lowered(config, name):
    return lower(config, "cpu", f"wrappers:qwen3_{name}_host", None)


class Interpreted:
    """The programs as functions of torch tensors, as golden.py has them."""

    def __init__(self, config, reverse_parallel=False):
        self.programs = {name: lowered(config, name).program for name in WRAPPERS}
        self.reverse_parallel = reverse_parallel

    def __getattr__(self, name):
        def call(*tensors):
            program = self.programs[name]
            arrays = {
                parameter.name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
                for parameter, tensor in zip(program.parameters, tensors, strict=True)
            }
            reference.run(program, arrays, reverse_parallel=self.reverse_parallel)
            for parameter, tensor in zip(program.parameters, tensors, strict=True):
                if parameter.direction is not Direction.IN:
                    tensor.copy_(torch.from_numpy(arrays[parameter.name]))

        return call


def golden_of(names):
    module = types.ModuleType("golden")
    module.__dict__.update(names)
    path = MODELS / "qwen3" / "golden.py"
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The tiny Qwen3, but with a query width, 96, that is not its hidden size."""
    folder = tmp_path_factory.mktemp("models")
    text = (MODELS / "qwen3-tiny.yaml").read_text(encoding="utf-8")
    assert "NUM_HEADS: 4\n" in text
    (folder / "qwen3-tiny.yaml").write_text(text.replace("NUM_HEADS: 4\n", "NUM_HEADS: 6\n"))
    (folder / "qwen3").symlink_to(MODELS / "qwen3")
    return model_config.load("qwen3-tiny", folder)


@pytest.fixture(scope="module")
def names(config):
    return config.environment("cpu")


@pytest.fixture(scope="module")
def programs(config):
    return Interpreted(config)


@pytest.fixture(scope="module")
def golden(names):
    return golden_of(names)


@pytest.fixture(scope="module")
def weights(names):
    return random_weights(names, 0, layers=2)


def assert_close(actual, expected):
    """Nothing is NaN in one alone, and nothing differs by more than some bf16 roundings."""
    actual, expected = actual.float(), expected.float()
    assert torch.equal(actual.isnan(), expected.isnan())
    actual, expected = actual.nan_to_num(), expected.nan_to_num()
    assert (actual - expected).abs().max() <= TOLERANCE * expected.abs().max()


def assert_caches_close(one, other):
    for actual, expected in zip(one.caches, other.caches, strict=True):
        assert_close(actual, expected)


def assert_equal_bits(one, other):
    assert torch.equal(one.view(torch.int16), other.view(torch.int16))


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("model", ["qwen3-14b", "qwen3-8b", "qwen3-0.6b", "qwen3-tiny"])
def test_the_contract_is_that_of_the_issue(model, name):
    config = model_config.load(model, MODELS)
    result = lowered(config, name)
    shown = []
    for parameter in result.contract.parameters:
        dims = [str(dim) for dim in parameter.dims]
        direction = "" if parameter.direction is Direction.IN else parameter.direction.value
        shown.append(" ".join([parameter.name, parameter.dtype, *dims, direction]).rstrip())
    expected = [
        " ".join(str(config.extents.get(word, word)) for word in line.split())
        for line in PARAMETERS[name].splitlines()
    ]
    assert shown == expected
    assert result.contract.returns == RETURNS[name]
    assert result.warnings == ()


# Pages have 16 tokens, the splits of decode four pages, and blocks of prefill 32 tokens.
CHUNKS = [
    [[1]],
    [[15, 1, 1]],
    [[16]],
    [[17, 15], [2, 3]],
    [[1, 30], [16, 0], [0, 21]],
    [[33, 5], [3, 16], [16, 27]],
]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("layers", [1, 2])
def test_prefill_and_decode_match_the_golden(golden, programs, names, chunks, layers):
    """`chunks` has the lengths of each sequence's chunks; after each round come two tokens."""
    weights = random_weights(names, 1, layers=layers)
    batch = len(chunks)
    expected, actual = (Harness(each, names, weights, batch) for each in (golden, programs))
    for turn in range(len(chunks[0])):
        ids = [prompt(lens[turn], seed=row + 10 * turn) for row, lens in enumerate(chunks)]
        logits = expected.prefill(ids, gap=turn)
        assert_close(actual.prefill(ids, gap=turn), logits)
        assert_caches_close(actual, expected)
    for token in (3, 249):
        logits, _, hidden = expected.decode([token] * batch)
        ours, sampled, our_hidden = actual.decode([token] * batch)
        assert_close(ours, logits)
        assert_caches_close(actual, expected)
        assert_equal_bits(our_hidden, hidden)
        assert sampled[:, 0].tolist() == ours[:, :250].argmax(dim=1).tolist()
        assert not sampled[:, 1:].any()


def test_a_context_of_many_pages(golden, programs, names, weights):
    expected, actual = (Harness(each, names, weights, 1) for each in (golden, programs))
    for size in (40, 1, 55):
        ids = prompt(size, seed=size)
        assert_close(actual.prefill([ids]), expected.prefill([ids]))
    for token in range(5):
        assert_close(actual.decode([token])[0], expected.decode([token])[0])


@pytest.mark.parametrize("pieces", [[1, 36], [16, 21], [32, 5], [17, 3, 17], [36, 1]])
def test_a_prompt_in_chunks_is_the_prompt(programs, names, weights, pieces):
    ids = prompt(37)
    whole, parts = (Harness(programs, names, weights, 1) for _ in range(2))
    expected = whole.prefill([ids])
    for size in pieces:
        start = parts.lens[0]
        logits = parts.prefill([ids[start : start + size]])
    assert_equal_bits(logits, expected)
    for ours, theirs in zip(parts.caches, whole.caches, strict=True):
        assert_equal_bits(ours, theirs)


def test_a_row_is_the_same_alone_and_in_a_batch(programs, names, weights):
    prompts = [prompt(n, seed=n) for n in (1, 63, 100)]
    batch = Harness(programs, names, weights, 3)
    logits = batch.prefill(prompts, gap=2)
    after, sampled, _ = batch.decode([5, 6, 7])
    for row, ids in enumerate(prompts):
        alone = Harness(programs, names, weights, 1, seed=row + 1)
        assert_equal_bits(alone.prefill([ids])[0], logits[row])
        own_after, own_sampled, _ = alone.decode([5 + row])
        assert_equal_bits(own_after[0], after[row])
        assert torch.equal(own_sampled[0], sampled[row])


def test_parallel_iterations_in_any_order_give_the_same_bits(config, programs, names, weights):
    backwards = Interpreted(config, reverse_parallel=True)
    one, other = (Harness(each, names, weights, 2) for each in (programs, backwards))
    for ids in ([prompt(18), prompt(33)], [prompt(2), []]):
        assert_equal_bits(one.prefill(ids), other.prefill(ids))
    for ours, theirs in zip(one.decode([1, 2]), other.decode([1, 2]), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(one.caches, other.caches, strict=True):
        assert_equal_bits(ours, theirs)


def test_a_row_without_a_chunk_is_zero_and_keeps_its_cache(programs, names, weights):
    harness = Harness(programs, names, weights, 2)
    first = harness.prefill([prompt(17), []])
    assert first[0].any()
    assert not first[1].any()
    before = [cache.clone() for cache in harness.caches]
    second = harness.prefill([[], prompt(17)])
    assert not second[0].any()
    assert_equal_bits(second[1], first[0])
    for cache, old in zip(harness.caches, before, strict=True):
        kept = ~old.isnan()
        assert torch.equal(cache[kept], old[kept])


def test_no_sequence_has_a_chunk(programs, names, weights):
    harness = Harness(programs, names, weights, 2)
    assert not harness.prefill([[], []], gap=1).any()
    assert all(cache.isnan().all() for cache in harness.caches)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({0: 1.0}, 0),
        ({249: 1.0}, 249),
        ({7: 2.0, 3: 2.0, 200: 2.0}, 3),
        ({250: 9.0, 255: 9.0, 11: 1.0}, 11),
        ({4: -0.5, 5: -0.25}, 5),
        ({}, 0),
    ],
)
def test_greedy_sampling(golden, programs, names, scores, expected):
    logits = torch.full((3, names["VOCAB"]), -1.0)
    for token, value in scores.items():
        logits[1, token] = value
    logits[2] = logits[1] * 2
    for implementation in (golden, programs):
        ids = torch.full((3, names["SAMPLED_IDS_PAD"]), -1, dtype=torch.int32)
        implementation.greedy_sample(logits, ids)
        assert ids.tolist() == [[0] * 8, [expected] + [0] * 7, [expected] + [0] * 7]
