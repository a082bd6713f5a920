"""The cases of Qwen3 reach the corners of the dynamic dimensions, within the contract."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from aotc import config, frontend
from aotc.frontend import source
from aotc.samples import arguments_of

torch = pytest.importorskip("torch")
MODELS = Path(__file__).parents[2] / "models"
CORNERS = {
    "prefill": {
        "BATCH_DYN": {1, 3, 8},
        "PREFILL_TOKENS_DYN": {1, 128},
        "LAYER_DYN": {1, 4},
        "ROPE_SEQ_DYN": {1, 48, 128},
    },
    "decode": {"BATCH_DYN": {1, 3, 8}, "LAYER_DYN": {1, 4}, "ROPE_SEQ_DYN": {1, 48, 128}},
    "greedy_sample": {"BATCH_DYN": {1, 8}},
}


@pytest.mark.parametrize("program", CORNERS)
def test_corners_are_reached(program: str) -> None:
    model = config.load("qwen3-tiny", MODELS)
    cases, _ = source.load(model.source, "cases", model.environment("cpu"))
    contract = frontend.lower(model, "cpu", model.programs[program].wrapper).contract
    reached = defaultdict(set)
    names = []
    for case in getattr(cases, f"{program}_cases")(0):
        names.append(case.name)
        for arguments in [case.arguments, *({**case.arguments, **a.arguments} for a in case.alone)]:
            tensors = [arguments[each.name] for each in contract.parameters]
            for symbol, value in contract.bind(arguments_of(tensors)).items():
                reached[symbol].add(value)
    assert len(set(names)) == len(names)
    for symbol, corners in CORNERS[program].items():
        assert reached[symbol] >= corners, symbol


def test_cases_are_equal_for_equal_seeds() -> None:
    model = config.load("qwen3-tiny", MODELS)
    cases, _ = source.load(model.source, "cases", model.environment("cpu"))
    first, second, other = ([*cases.decode_cases(seed)][-1] for seed in (3, 3, 4))
    assert "seed 3" in first.name
    assert first.name == second.name
    for name, tensor in first.arguments.items():
        if name not in ("out", "sampled_ids", "next_hidden"):
            same = second.arguments[name]
            assert torch.equal(tensor.nan_to_num(), same.nan_to_num()), name
    assert first.name != other.name
