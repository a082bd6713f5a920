"""A tiny Qwen3: its names, its golden functions, and checkpoints of it made by transformers."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# It hides what a user without it sees: output that is lost, or fails, in a buffer.
os.environ.pop("PYTHONUNBUFFERED", None)

GOLDEN = Path(__file__).parents[1] / "models" / "qwen3" / "golden.py"

TINY = {
    "HIDDEN": 64,
    "NUM_HEADS": 6,
    "NUM_KV_HEADS": 2,
    "HEAD_DIM": 16,
    "INTERMEDIATE": 96,
    "NUM_LAYERS": 3,
    "REAL_VOCAB": 250,
    "VOCAB": 256,
    "MAX_SEQ": 128,
    "MAX_BATCH": 8,
    "MAX_PREFILL_TOKENS": 64,
    "PAGE_SIZE": 8,
    "SAMPLED_IDS_PAD": 8,
    "EPS": 1e-6,
    "ROPE_THETA": 1e6,
}


@pytest.fixture
def tiny() -> dict[str, int | float]:
    """Names of a Qwen3 whose query width, 96, is not its hidden size."""
    return dict(TINY)


@pytest.fixture(scope="session")
def golden() -> types.ModuleType:
    """models/qwen3/golden.py with the names of `tiny`."""
    module = types.ModuleType("golden")
    module.__dict__.update(TINY)
    exec(compile(GOLDEN.read_text(encoding="utf-8"), str(GOLDEN), "exec"), module.__dict__)
    return module


@pytest.fixture(scope="session")
def hf_model() -> Callable[..., Any]:
    """Return a function that makes a random Qwen3 in fp32 with bf16 values; tied or not."""

    def make(*, tied: bool = False, seed: int = 0) -> Any:
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(seed)
        config = transformers.Qwen3Config(
            hidden_size=TINY["HIDDEN"],
            intermediate_size=TINY["INTERMEDIATE"],
            num_hidden_layers=TINY["NUM_LAYERS"],
            num_attention_heads=TINY["NUM_HEADS"],
            num_key_value_heads=TINY["NUM_KV_HEADS"],
            head_dim=TINY["HEAD_DIM"],
            vocab_size=TINY["REAL_VOCAB"],
            rms_norm_eps=TINY["EPS"],
            rope_theta=TINY["ROPE_THETA"],
            max_position_embeddings=TINY["MAX_SEQ"],
            tie_word_embeddings=tied,
        )
        model = transformers.Qwen3ForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.data.normal_(1.0, 0.1)
            else:
                scale = 1.0 if "embed" in name else parameter.shape[1] ** -0.5
                parameter.data.normal_(0.0, scale)
            parameter.data = parameter.data.bfloat16().float()
        return model

    return make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the totals that tests have recorded: how many faults were tried, for instance."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "total":
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {value}")
