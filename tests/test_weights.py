"""Weights: the stacked layout is that of the checkpoint, and every wrong checkpoint is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aotc.errors import AotcError
from aotc.weights import WeightsError, load_weights, random_weights, rope_tables

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture(scope="module")
def checkpoint(hf_model, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    hf_model().save_pretrained(directory)
    return directory


@pytest.fixture
def copy(checkpoint, tmp_path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def edit(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    tensors = safetensors.load(path.read_bytes())
    change(tensors)
    safetensors.save_file(tensors, path)


def edit_config(directory: Path, **fields) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_stacked_layout(checkpoint, tiny):
    weights = load_weights(checkpoint, tiny)
    source = safetensors.load((checkpoint / "model.safetensors").read_bytes())
    h, q, kv, inner = 64, 96, 32, 96
    assert {name: (tuple(t.shape), t.dtype) for name, t in weights.items()} == {
        "input_rms_weight": ((3, h), torch.float32),
        "wq": ((3 * h, q), torch.bfloat16),
        "wk": ((3 * h, kv), torch.bfloat16),
        "wv": ((3 * h, kv), torch.bfloat16),
        "q_norm_weight": ((3, 16), torch.float32),
        "k_norm_weight": ((3, 16), torch.float32),
        "wo": ((3 * q, h), torch.bfloat16),
        "w_gate": ((3 * h, inner), torch.bfloat16),
        "w_up": ((3 * h, inner), torch.bfloat16),
        "w_down": ((3 * inner, h), torch.bfloat16),
        "post_rms_weight": ((3, h), torch.float32),
        "final_norm_weight": ((1, h), torch.float32),
        "embed_weight": ((256, h), torch.bfloat16),
        "lm_head_weight": ((256, h), torch.bfloat16),
    }
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        for name, field, rows in (
            ("wq", "self_attn.q_proj", h),
            ("wk", "self_attn.k_proj", h),
            ("wv", "self_attn.v_proj", h),
            ("wo", "self_attn.o_proj", q),
            ("w_gate", "mlp.gate_proj", h),
            ("w_up", "mlp.up_proj", h),
            ("w_down", "mlp.down_proj", inner),
        ):
            block = weights[name][layer * rows : (layer + 1) * rows]
            assert torch.equal(block.float(), source[f"{prefix}{field}.weight"].T)
        for name, field in (
            ("input_rms_weight", "input_layernorm"),
            ("post_rms_weight", "post_attention_layernorm"),
            ("q_norm_weight", "self_attn.q_norm"),
            ("k_norm_weight", "self_attn.k_norm"),
        ):
            assert torch.equal(weights[name][layer], source[f"{prefix}{field}.weight"])
    for name, field in (("embed_weight", "model.embed_tokens"), ("lm_head_weight", "lm_head")):
        assert torch.equal(weights[name][:250].float(), source[f"{field}.weight"])
        assert not weights[name][250:].any()
    assert torch.equal(weights["final_norm_weight"][0], source["model.norm.weight"])


def test_the_first_layers(checkpoint, tiny):
    whole, part = load_weights(checkpoint, tiny), load_weights(checkpoint, tiny, layers=2)
    assert torch.equal(part["w_down"], whole["w_down"][: 2 * 96])
    assert part["input_rms_weight"].shape == (2, 64)


@pytest.mark.parametrize("layers", [0, 4, -1])
def test_a_layer_count_out_of_range(checkpoint, tiny, layers):
    with pytest.raises(AotcError, match=f"layers must be from 1 to 3, got {layers}"):
        load_weights(checkpoint, tiny, layers=layers)


def test_shards_give_the_same_weights(hf_model, checkpoint, tiny, tmp_path):
    hf_model().save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    single, sharded = load_weights(checkpoint, tiny), load_weights(tmp_path, tiny)
    assert all(torch.equal(single[name], sharded[name]) for name in single)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_float_type_is_rounded_to_bf16(copy, tiny, dtype):
    value = torch.full((96, 64), 1 + 3 / 512)  # exact in fp16, halfway between two bf16

    def change(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"] = value.to(dtype)

    edit(copy, change)
    loaded = load_weights(copy, tiny)["wq"][64:128]
    assert loaded.dtype == torch.bfloat16
    assert (loaded.float() == 1 + 4 / 512).all()


@pytest.mark.parametrize("stored", [False, True])
def test_tied_embeddings_are_one_tensor(hf_model, tiny, tmp_path, stored):
    hf_model(tied=True).save_pretrained(tmp_path)
    if stored:  # published checkpoints of tied models have the matrix a second time

        def change(tensors):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

        edit(tmp_path, change)
    weights = load_weights(tmp_path, tiny)
    assert weights["lm_head_weight"] is weights["embed_weight"]
    assert not weights["embed_weight"][250:].any()


def test_weights_are_written_into_the_callers_memory(checkpoint, tiny):
    asked = {}

    def allocate(name, shape, dtype):
        kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        asked[name] = torch.full(shape, torch.nan, dtype=kind)
        return asked[name]

    weights = load_weights(checkpoint, tiny, allocate)
    assert asked.keys() == weights.keys()
    assert all(weights[name] is asked[name] for name in asked)
    assert not any(t.isnan().any() for t in asked.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 65}, "`hidden_size` is 65, and HIDDEN is 64"),
        ({"intermediate_size": 1}, "`intermediate_size` is 1, and INTERMEDIATE is 96"),
        ({"num_hidden_layers": 4}, "`num_hidden_layers` is 4, and NUM_LAYERS is 3"),
        ({"num_attention_heads": 2}, "`num_attention_heads` is 2, and NUM_HEADS is 6"),
        ({"num_key_value_heads": 6}, "`num_key_value_heads` is 6, and NUM_KV_HEADS is 2"),
        ({"head_dim": 32}, "`head_dim` is 32, and HEAD_DIM is 16"),
        ({"vocab_size": 256}, "`vocab_size` is 256, and REAL_VOCAB is 250"),
        ({"rms_norm_eps": 1e-5}, "`rms_norm_eps` is 1e-05, and EPS is 1e-06"),
        ({"attention_bias": True}, "`attention_bias` is True, and only False is supported"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu', and only 'silu' is supported"),
        ({"model_type": "llama"}, "`model_type` is 'llama', and only 'qwen3' is supported"),
        ({"rope_parameters": None, "rope_theta": 1e4}, "`rope_theta` is 10000.0, and ROPE_THETA"),
        ({"rope_parameters": None}, "`rope_theta` is missing"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "`rope_type` is 'yarn', and only 'default' is supported",
        ),
    ],
)
def test_a_config_of_another_model(copy, tiny, fields, message):
    edit_config(copy, **fields)
    with pytest.raises(WeightsError) as error:
        load_weights(copy, tiny)
    assert message in str(error.value)
    assert str(copy / "config.json") in str(error.value)


def test_all_differences_are_named_at_once(copy, tiny):
    edit_config(copy, hidden_size=1, head_dim=2)
    with pytest.raises(WeightsError, match=r"hidden_size.*; .*head_dim"):
        load_weights(copy, tiny)


def test_rope_theta_where_older_checkpoints_have_it(copy, tiny):
    edit_config(copy, rope_parameters=None, rope_theta=1000000, rope_scaling=None)
    assert load_weights(copy, tiny)


def test_a_model_config_without_a_needed_name(checkpoint, tiny):
    del tiny["ROPE_THETA"], tiny["EPS"]
    with pytest.raises(AotcError, match="does not give `EPS`, `ROPE_THETA`"):
        load_weights(checkpoint, tiny)


def test_a_missing_tensor(copy, tiny):
    edit(copy, lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(WeightsError, match=r"`model.layers.2.mlp.up_proj.weight` is missing"):
        load_weights(copy, tiny)
    assert load_weights(copy, tiny, layers=2)


def test_a_missing_lm_head(copy, tiny):
    edit(copy, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(WeightsError, match=r"`lm_head.weight` is missing"):
        load_weights(copy, tiny)


def test_an_unknown_tensor(copy, tiny):
    name = "model.layers.0.self_attn.q_proj.bias"
    edit(copy, lambda tensors: tensors.update({name: torch.zeros(96)}))
    with pytest.raises(WeightsError, match=f"`{name}` is not a tensor of Qwen3"):
        load_weights(copy, tiny)


def test_a_tensor_of_another_shape(copy, tiny):
    name = "model.layers.0.mlp.down_proj.weight"
    edit(copy, lambda tensors: tensors.update({name: torch.zeros(96, 64)}))
    with pytest.raises(WeightsError) as error:
        load_weights(copy, tiny)
    assert f"`{name}` has shape [96, 64], expected [64, 96]" in str(error.value)


def test_a_tensor_of_another_dtype(copy, tiny):
    edit(copy, lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}))
    with pytest.raises(WeightsError, match=r"`model.norm.weight` is I8, expected one of BF16"):
        load_weights(copy, tiny)


def test_many_problems_are_cut_short(copy, tiny):
    edit(copy, lambda tensors: [tensors.pop(name) for name in list(tensors)[1:]])
    with pytest.raises(WeightsError, match=r"; and \d+ more$"):
        load_weights(copy, tiny)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "cannot read .*config.json: No such file"),
        ("config.json", b"{", "config.json is not JSON"),
        ("config.json", b"\xff", "config.json is not JSON"),
        ("config.json", b"[]", "config.json is not a JSON object"),
        ("model.safetensors", None, "cannot read .*model.safetensors: No such file"),
        ("model.safetensors", b"", "model.safetensors is not a safetensors file"),
        ("model.safetensors", b"\0" * 64, "model.safetensors is not a safetensors file"),
        ("model.safetensors.index.json", b"{}", "has no `weight_map`"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "gone"}}', "cannot read .*gone"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../x"}}', "outside its dir"),
    ],
)
def test_a_damaged_checkpoint(copy, tiny, file, content, message):
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        load_weights(copy, tiny)


def test_random_weights_have_the_shapes_of_loaded_ones(checkpoint, tiny):
    loaded, random = load_weights(checkpoint, tiny), random_weights(tiny, 0)
    assert {n: (t.shape, t.dtype) for n, t in loaded.items()} == {
        n: (t.shape, t.dtype) for n, t in random.items()
    }
    assert all(t.isfinite().all() for t in random.values())
    assert not random["lm_head_weight"][250:].any()
    assert not random["embed_weight"][250:].any()
    assert random["w_down"].float().std().item() == pytest.approx(96**-0.5, rel=0.05)
    assert random["wq"].float().std().item() == pytest.approx(64**-0.5, rel=0.05)


def test_random_weights_depend_on_the_seed_and_the_layer_alone(tiny):
    first, again, other = random_weights(tiny, 1), random_weights(tiny, 1), random_weights(tiny, 2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    part = random_weights(tiny, 1, layers=2)
    assert torch.equal(part["wo"], first["wo"][: 2 * 96])
    assert torch.equal(part["lm_head_weight"], first["lm_head_weight"])
    layers = first["w_up"].view(3, 64, 96)
    assert not torch.equal(layers[0], layers[1])


def test_rope_tables(tiny, hf_model):
    cos, sin = rope_tables(tiny, 128)
    assert cos.shape == sin.shape == (128, 16)
    theirs = hf_model().model.rotary_emb(torch.zeros(1), torch.arange(128)[None])
    assert torch.allclose(cos, theirs[0][0], atol=1e-4)
    assert torch.allclose(sin, theirs[1][0], atol=1e-4)
    assert rope_tables(tiny, 1)[0].tolist() == [[1.0] * 16]
