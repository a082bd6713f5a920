"""Other engines on the same work: each runs cases of `bench.inference` by their names.

They are optional (`pip install -e '.[peers]'`), and imported where they are asked for alone.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from aotc.runtime import Worker
from bench.inference import Peers, Plan, decode_case, prefill_case
from bench.measure import Action
from bench.qwen import Names, random_bf16

_LLAMA_TOKENS = 8  # generated in a run of llama.cpp, beside the first


def peers(worker: Worker, names: Names, layers: int, plan: Plan, stack: ExitStack) -> Peers:
    """Return the cases of every peer that is installed; say which is not."""
    found: dict[str, Mapping[str, Action]] = {}
    for name, packages, make in (
        ("torch F.linear, products alone", ("torch",), torch_linear),
        ("llama.cpp", ("xllamacpp", "gguf"), llama),
    ):
        missing = [each for each in packages if importlib.util.find_spec(each) is None]
        if missing:
            print(f"no {name}: `pip install {' '.join(missing)}`")
        else:
            suffix, cases = make(worker, names, layers, plan, stack)
            found[f"{name}{suffix}"] = cases
    return found


def torch_linear(
    worker: Worker, names: Names, layers: int, plan: Plan, stack: ExitStack
) -> tuple[str, Mapping[str, Action]]:
    """The matrix products of a step by `F.linear`, [N, K] on huge pages; in bf16 or fp32.

    It takes the dtype that is faster on this machine, decode and prefill added up. Norms and
    attention, which cost torch more than that, are left out.
    """
    import torch

    torch.set_num_threads(worker.threads)
    linear = torch.nn.functional.linear

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values = random_bf16(rows * columns).reshape(rows, columns)
        tensor = worker.alloc_tensor((rows, columns), "bf16", init=values)
        stack.callback(tensor.free)
        return torch.utils.dlpack.from_dlpack(tensor)

    hidden, q, kv = int(names["HIDDEN"]), int(names["Q_HIDDEN"]), int(names["KV_HIDDEN"])
    inner = int(names["INTERMEDIATE"])
    shapes = [(q, hidden), (kv, hidden), (kv, hidden), (hidden, q)]
    shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
    weights = [matrix(*shape) for _ in range(layers) for shape in shapes]
    head = matrix(int(names["VOCAB"]), hidden)
    dtype = min((torch.bfloat16, torch.float32), key=lambda each: _seconds(weights[4], each))
    if dtype != torch.bfloat16:
        weights, head = [each.to(dtype) for each in weights], head.to(dtype)

    def step(rows: int, sampled: int) -> Action:
        inputs = {width: torch.randn(rows, width).to(dtype) for width in {hidden, q, inner}}
        last = torch.randn(sampled, hidden).to(dtype)

        @torch.inference_mode()
        def run() -> None:
            for weight in weights:
                linear(inputs[weight.shape[1]], weight)
            linear(last, head)

        return run

    cases = {decode_case(batch, plan.contexts[0]): step(batch, batch) for batch in plan.batches}
    cases |= {prefill_case(tokens): step(tokens, 1) for tokens in plan.prompts}
    return f" ({str(dtype).removeprefix('torch.')})", cases


def _seconds(weight: Any, dtype: Any) -> float:
    """Return what a token of decode and one of prefill cost."""
    import torch

    weight = weight.to(dtype)
    total = 0.0
    for rows in (1, 128):
        inputs = torch.ones(rows, weight.shape[1], dtype=dtype)
        torch.nn.functional.linear(inputs, weight)
        begin = time.perf_counter()
        torch.nn.functional.linear(inputs, weight)
        total += (time.perf_counter() - begin) / rows
    return total


def llama(
    worker: Worker, names: Names, layers: int, plan: Plan, stack: ExitStack
) -> tuple[str, Mapping[str, Action]]:
    """The whole model by llama.cpp in bf16, one sequence; it reports its own times.

    The wheel on PyPI is built for AVX2, whatever the machine has.
    """
    import xllamacpp

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    path = folder / "model.gguf"
    _write_gguf(path, names, layers)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = max(plan.prompts) + 2 * _LLAMA_TOKENS
    parameters.n_batch = parameters.n_ubatch = max(plan.prompts)
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = worker.threads
    parameters.cpuparams_batch.n_threads = worker.threads
    parameters.cache_ram_mib = 0
    server = xllamacpp.Server(parameters)

    def complete(tokens: int, new: int) -> dict[str, float]:
        ids = np.random.default_rng(tokens).integers(1, int(names["REAL_VOCAB"]), tokens)
        answer = server.handle_completions(
            {
                "prompt": ids.tolist(),
                "max_tokens": new,
                "ignore_eos": True,
                "cache_prompt": False,
                "temperature": 0.0,
                "samplers": ["top_k"],
                "top_k": 1,
            }
        )
        if isinstance(answer, str):
            answer = json.loads(answer)
        timings: dict[str, float] = answer["timings"]
        return timings

    def decode() -> float:
        # A short prompt, for time: what it adds to a step is nothing beside the weights.
        return complete(4, 1 + _LLAMA_TOKENS)["predicted_per_token_ms"] / 1e3

    def prefill(tokens: int) -> Callable[[], float]:
        return lambda: complete(tokens, 1)["prompt_ms"] / 1e3

    cases: dict[str, Action] = {decode_case(1, plan.contexts[0]): decode}
    cases |= {prefill_case(tokens): prefill(tokens) for tokens in plan.prompts}
    return "", cases


def _write_gguf(path: Path, names: Names, layers: int) -> None:
    """Write random weights as a Qwen3 of llama.cpp, with a tokenizer of no meaning."""
    import gguf

    hidden, q, kv = int(names["HIDDEN"]), int(names["Q_HIDDEN"]), int(names["KV_HIDDEN"])
    inner, dim, vocab = int(names["INTERMEDIATE"]), int(names["HEAD_DIM"]), int(names["VOCAB"])
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(layers)
    writer.add_context_length(int(names["MAX_SEQ"]))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(int(names["NUM_HEADS"]))
    writer.add_head_count_kv(int(names["NUM_KV_HEADS"]))
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(float(names["EPS"]))
    writer.add_rope_freq_base(float(names["ROPE_THETA"]))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{index}" for index in range(vocab)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)

    values = random_bf16(max(vocab, inner) * hidden)

    def matrix(name: str, rows: int, columns: int) -> None:
        content = values[: rows * columns].reshape(rows, columns).view(np.uint8)
        writer.add_tensor(name, content, raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name: str, width: int) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    # Without `output.weight` it uses this matrix for both.
    matrix("token_embd.weight", vocab, hidden)
    norm("output_norm.weight", hidden)
    for layer in range(layers):
        for part, rows, columns in _matrices(hidden, q, kv, inner):
            matrix(f"blk.{layer}.{part}.weight", rows, columns)
        for part, width in (
            *(("attn_norm", hidden), ("ffn_norm", hidden)),
            *(("attn_q_norm", dim), ("attn_k_norm", dim)),
        ):
            norm(f"blk.{layer}.{part}.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _matrices(hidden: int, q: int, kv: int, inner: int) -> Sequence[tuple[str, int, int]]:
    return (
        ("attn_q", q, hidden),
        ("attn_k", kv, hidden),
        ("attn_v", kv, hidden),
        ("attn_output", hidden, q),
        ("ffn_gate", inner, hidden),
        ("ffn_up", inner, hidden),
        ("ffn_down", hidden, inner),
    )
