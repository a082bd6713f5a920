"""What an adapter makes of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.work import Action


@dataclass
class Engine:
    """The cases that an engine runs, by name, and why it does not run others.

    `label` is the setting that it chose, for instance a dtype. `logits` returns what the last run
    computed, where the adapter has it: fp32, with VOCAB values last.
    """

    label: str
    cases: Mapping[str, Action]
    refused: Mapping[str, str] = field(default_factory=dict)
    logits: Callable[[], Any] | None = None
