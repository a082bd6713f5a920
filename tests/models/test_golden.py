"""The golden functions of Qwen3 against transformers, and against themselves in other chunks."""

from __future__ import annotations

import pytest

from aotc.weights import load_weights, random_weights, rope_tables

torch = pytest.importorskip("torch")

PAGES_PER_SEQUENCE = 8  # of 8 tokens
PREFILL_WEIGHTS = ("input_rms_weight", "wq", "wk", "wv", "q_norm_weight", "k_norm_weight")
LAYER_WEIGHTS = ("wo", "w_gate", "w_up", "w_down", "post_rms_weight")
TOLERANCE = 0.015
LAST_WEIGHTS = ("final_norm_weight", "lm_head_weight")


class Harness:
    """Calls the golden functions with a paged cache whose pages are scattered and NaN at first."""

    def __init__(self, golden, names, weights, batch, seed=0, cache_dtype=torch.bfloat16):
        self.golden, self.weights, self.batch = golden, weights, batch
        self.page_size = names["PAGE_SIZE"]
        layers = weights["input_rms_weight"].shape[0]
        pages = batch * PAGES_PER_SEQUENCE + 1
        shape = (layers * pages * self.page_size * names["NUM_KV_HEADS"], names["HEAD_DIM"])
        self.caches = [torch.full(shape, torch.nan, dtype=cache_dtype) for _ in range(2)]
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(pages, generator=generator)[: batch * PAGES_PER_SEQUENCE]
        self.tables = order.int().view(batch, PAGES_PER_SEQUENCE)
        self.rope = rope_tables(names, PAGES_PER_SEQUENCE * self.page_size)
        self.lens = [0] * batch

    def of(self, names):
        return [self.weights[name] for name in names]

    def slots(self, row, start, end):
        positions = torch.arange(start, end)
        pages = self.tables[row, positions // self.page_size]
        return (pages * self.page_size + positions % self.page_size).int()

    def prefill(self, chunks, gap=0):
        """Append `chunks`, one list of ids a row, with `gap` unused rows after each: the logits."""
        rows, offsets, slots = [], [], []
        for row, ids in enumerate(chunks):
            offsets.append(sum(len(each) for each in rows))
            rows.append(self.weights["embed_weight"][torch.tensor(ids, dtype=torch.long)])
            slots.append(self.slots(row, self.lens[row], self.lens[row] + len(ids)))
            rows.append(torch.full((gap, rows[-1].shape[1]), torch.nan, dtype=torch.bfloat16))
            slots.append(torch.zeros(gap, dtype=torch.int32))
            self.lens[row] += len(ids)
        out = torch.full((self.batch, self.weights["lm_head_weight"].shape[0]), torch.nan)
        self.golden.prefill(
            torch.cat(rows),
            torch.tensor(self.lens, dtype=torch.int32),
            torch.tensor([len(ids) for ids in chunks], dtype=torch.int32),
            torch.tensor(offsets, dtype=torch.int32),
            *self.of(PREFILL_WEIGHTS),
            *self.rope,
            self.tables.flatten(),
            torch.cat(slots),
            *self.caches,
            *self.of(LAYER_WEIGHTS),
            *self.of(LAST_WEIGHTS),
            out,
        )
        return out

    def decode(self, ids):
        """Run one token of each row; return logits, sampled ids and the embedded token."""
        slots = [self.slots(row, n, n + 1) for row, n in enumerate(self.lens)]
        self.lens = [n + 1 for n in self.lens]
        out = torch.full((self.batch, self.weights["lm_head_weight"].shape[0]), torch.nan)
        sampled_in = torch.full((self.batch, 8), -1, dtype=torch.int32)
        sampled_in[:, 0] = torch.tensor(ids, dtype=torch.int32)
        sampled = torch.full((self.batch, 8), -1, dtype=torch.int32)
        hidden = torch.full((self.batch, self.weights["wo"].shape[1]), torch.nan).bfloat16()
        self.golden.decode(
            *self.of(PREFILL_WEIGHTS),
            torch.tensor(self.lens, dtype=torch.int32),
            self.tables.flatten(),
            torch.cat(slots),
            *self.rope,
            *self.caches,
            *self.of(LAYER_WEIGHTS),
            *self.of(LAST_WEIGHTS),
            out,
            self.weights["embed_weight"],
            sampled_in,
            sampled,
            hidden,
        )
        return out, sampled, hidden

    def sample(self, logits):
        ids = torch.full((self.batch, 8), -1, dtype=torch.int32)
        self.golden.greedy_sample(logits, ids)
        return ids[:, 0].tolist()


@pytest.fixture
def weights(tiny):
    return random_weights(tiny, 0)


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(250, (length,), generator=generator).tolist()


def close(actual, expected):
    """Within what roundings to bf16 may make, relative to the largest logit."""
    return (actual - expected).abs().max() <= TOLERANCE * expected.abs().max()


def run_beside_transformers(harness, model, ids, check):
    """Decode 32 tokens that transformers picks; `check` gets the logits and theirs."""
    logits = harness.prefill([ids])
    with torch.no_grad():
        for _ in range(32):
            theirs = model(torch.tensor([ids])).logits[:, -1]
            check(logits[:, :250], theirs)
            ids = [*ids, theirs.argmax().item()]
            logits, sampled, _ = harness.decode(ids[-1:])
            assert sampled[0, 0] == logits[0, :250].argmax()


@pytest.mark.parametrize("tied", [False, True])
def test_without_roundings_it_is_transformers(golden, tiny, hf_model, tmp_path, monkeypatch, tied):
    model = hf_model(tied=tied)
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(golden, "_bf16", lambda x: x)
    weights = load_weights(tmp_path, tiny)
    harness = Harness(golden, tiny, weights, batch=1, cache_dtype=torch.float32)

    def check(ours, theirs):
        assert torch.allclose(ours, theirs, atol=1e-3)
        assert ours.argmax() == theirs.argmax()

    run_beside_transformers(harness, model, prompt(11), check)


@pytest.mark.parametrize("tied", [False, True])
def test_with_roundings_it_is_close_to_transformers(golden, tiny, hf_model, tmp_path, tied):
    model = hf_model(tied=tied)
    model.save_pretrained(tmp_path)
    harness = Harness(golden, tiny, load_weights(tmp_path, tiny), batch=1)
    clear = []

    def check(ours, theirs):
        assert close(ours, theirs)
        best, second = theirs[0].topk(2).values
        clear.append((best - second > 2 * TOLERANCE * theirs.abs().max()).item())
        if clear[-1]:
            assert ours.argmax() == theirs.argmax()

    run_beside_transformers(harness, model, prompt(11), check)
    assert sum(clear) >= 16


@pytest.mark.parametrize("pieces", [[1, 22], [8, 15], [7, 9, 7], [16, 7], [1] * 23, [22, 1]])
def test_a_prompt_in_chunks_is_the_prompt(golden, tiny, weights, pieces):
    ids = prompt(23)
    whole, parts = (Harness(golden, tiny, weights, batch=1) for _ in range(2))
    expected = whole.prefill([ids])
    for size in pieces:
        start = parts.lens[0]
        logits = parts.prefill([ids[start : start + size]])
    assert torch.allclose(logits[:, :250], expected[:, :250], atol=1e-4)
    for ours, theirs in zip(parts.caches, whole.caches, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.allclose(ours.float().nan_to_num(), theirs.float().nan_to_num(), atol=1e-3)


def test_prefill_and_decode_agree(golden, tiny, weights):
    ids = prompt(20)
    one, other = (Harness(golden, tiny, weights, batch=1) for _ in range(2))
    expected = one.prefill([ids])
    other.prefill([ids[:5]])
    for token in ids[5:]:
        logits, _, _ = other.decode([token])
    assert close(logits[:, :250], expected[:, :250])


def test_rows_of_a_batch_do_not_matter_to_each_other(golden, tiny, weights):
    prompts = [prompt(n, seed=n) for n in (1, 8, 21)]
    batch = Harness(golden, tiny, weights, batch=3)
    logits = batch.prefill(prompts, gap=2)
    after, sampled, _ = batch.decode(batch.sample(logits))
    for row, ids in enumerate(prompts):
        alone = Harness(golden, tiny, weights, batch=1, seed=row + 1)
        own = alone.prefill([ids])
        assert torch.allclose(logits[row], own[0], atol=1e-4)
        own_after, own_sampled, _ = alone.decode(alone.sample(own))
        assert torch.allclose(after[row], own_after[0], atol=1e-4)
        assert torch.equal(sampled[row], own_sampled[0])


def test_a_row_without_a_chunk_is_zero_and_keeps_its_cache(golden, tiny, weights):
    ids = prompt(9)
    harness = Harness(golden, tiny, weights, batch=2)
    first = harness.prefill([ids, []])
    assert not first[1].any()
    assert first[0].any()
    before = [cache.clone() for cache in harness.caches]
    second = harness.prefill([[], ids])
    assert not second[0].any()
    assert torch.allclose(second[1], first[0], atol=1e-4)
    for cache, old in zip(harness.caches, before, strict=True):
        kept = ~old.isnan()
        assert torch.equal(cache[kept], old[kept])


def test_the_cache_row_of_a_token(golden, tiny, weights):
    harness = Harness(golden, tiny, weights, batch=1)
    harness.prefill([prompt(10)])
    pages = PAGES_PER_SEQUENCE + 1
    written = {
        ((layer * pages + harness.tables[0, t // 8].item()) * 8 + t % 8) * 2 + head
        for layer in range(3)
        for t in range(10)
        for head in range(2)
    }
    for cache in harness.caches:
        rows = (~cache.isnan().any(dim=1)).nonzero().flatten().tolist()
        assert set(rows) == written


def test_fewer_layers(golden, tiny):
    one = Harness(golden, tiny, random_weights(tiny, 0, layers=1), batch=1)
    three = Harness(golden, tiny, random_weights(tiny, 0), batch=1)
    ids = prompt(9)
    assert not close(one.prefill([ids]), three.prefill([ids]))
    assert one.decode([1])[0].isfinite().all()


def test_the_embedding_of_the_token_comes_back(golden, tiny, weights):
    harness = Harness(golden, tiny, weights, batch=2)
    harness.prefill([[1], [2, 3]])
    _, sampled, hidden = harness.decode([249, 0])
    assert torch.equal(hidden, weights["embed_weight"][[249, 0]])
    assert not sampled[:, 1:].any()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({0: 1.0}, 0),
        ({249: 1.0}, 249),
        ({7: 2.0, 3: 2.0, 200: 2.0}, 3),
        ({250: 9.0, 255: 9.0, 11: 1.0}, 11),
        ({}, 0),
    ],
)
def test_greedy_sampling(golden, scores, expected):
    logits = torch.full((2, 256), -1.0)
    for token, value in scores.items():
        logits[1, token] = value
    ids = torch.full((2, 8), -1, dtype=torch.int32)
    golden.greedy_sample(logits, ids)
    assert ids.tolist() == [[0] * 8, [expected] + [0] * 7]
