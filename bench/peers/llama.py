"""llama.cpp in bf16, by the xllamacpp wheel, which reports its own times.

The wheel is built for AVX2, whatever the machine has.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp

from bench.peers.engine import Engine
from bench.work import Action, Work

_TOKENS = 8  # generated in a run, beside the first
_PROMPT = 4  # before a decode: what it adds to a step is nothing beside the weights
_MATRICES = {
    **{"attn_q": "wq", "attn_k": "wk", "attn_v": "wv", "attn_output": "wo"},
    **{"ffn_gate": "w_gate", "ffn_up": "w_up", "ffn_down": "w_down"},
}


def start(work: Work) -> Engine:
    """Return the engine, its model in a temporary file while it starts."""
    path = Path(tempfile.mkdtemp()) / "model.gguf"
    _write(path, work)
    plan = work.plan
    most = max(plan.batches)
    server = _server(path, work, most)
    path.unlink()
    pool = ThreadPoolExecutor(most)

    def complete(seed: int, tokens: int, new: int) -> dict[str, float]:
        ids = np.random.default_rng(seed).integers(1, work.size("REAL_VOCAB"), tokens)
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
        if "timings" not in answer:
            raise RuntimeError(f"llama.cpp answered {str(answer)[:200]}")
        timings: dict[str, float] = answer["timings"]
        return timings

    def decode(batch: int) -> Action:
        def run() -> float:
            jobs = [pool.submit(complete, seed, _PROMPT, 1 + _TOKENS) for seed in range(batch)]
            # The sequences run together, but for the steps in which some had not begun.
            return statistics.median(job.result()["predicted_per_token_ms"] / 1e3 for job in jobs)

        return run

    def prefill(tokens: int) -> Action:
        return lambda: complete(tokens, tokens, 1)["prompt_ms"] / 1e3

    short = min(plan.contexts)
    cases: dict[str, Action] = {}
    refused = {}
    for name, (batch, context) in plan.decodes().items():
        if context == short:
            cases[name] = decode(batch)
        else:
            refused[name] = "its cache can only be filled by computing it, which takes minutes"
    cases |= {name: prefill(tokens) for name, tokens in plan.prefills().items()}
    return Engine("bf16, AVX2", cases, refused)


def _server(path: Path, work: Work, sequences: int) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    # Read, not mapped: memory of its own may lie on huge pages.
    parameters.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_NONE
    parameters.kv_unified = True  # of all sequences together, one may take all of it
    parameters.n_ctx = _context(work)
    parameters.n_batch = parameters.n_ubatch = max(*work.plan.prompts, 32)
    parameters.n_parallel = sequences
    parameters.cpuparams.n_threads = work.threads
    parameters.cpuparams_batch.n_threads = work.threads
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    return xllamacpp.Server(parameters)


def _context(work: Work) -> int:
    """Return the tokens of all sequences together."""
    return max(*work.plan.prompts, 32 * max(work.plan.batches)) + 64


def _write(path: Path, work: Work) -> None:
    """Write the model as a Qwen3 of llama.cpp, with a tokenizer of no meaning."""
    hidden, dim, vocab = work.size("HIDDEN"), work.size("HEAD_DIM"), work.size("VOCAB")
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(work.layers)
    writer.add_context_length(max(work.size("MAX_SEQ"), _context(work)))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(work.size("INTERMEDIATE"))
    writer.add_head_count(work.size("NUM_HEADS"))
    writer.add_head_count_kv(work.size("NUM_KV_HEADS"))
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(float(work.names["EPS"]))
    writer.add_rope_freq_base(float(work.names["ROPE_THETA"]))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{index}" for index in range(vocab)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)

    def matrix(name: str, values: Any) -> None:
        writer.add_tensor(name, values.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name: str, width: int) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    # Without `output.weight` it uses this matrix for both.
    matrix("token_embd.weight", work.head())
    norm("output_norm.weight", hidden)
    for layer in range(work.layers):
        for theirs, ours in _MATRICES.items():
            matrix(f"blk.{layer}.{theirs}.weight", work.transposed(ours, layer))
        for name, width in (
            *(("attn_norm", hidden), ("ffn_norm", hidden)),
            *(("attn_q_norm", dim), ("attn_k_norm", dim)),
        ):
            norm(f"blk.{layer}.{name}.weight", width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
