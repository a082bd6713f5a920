"""The process of a peer: `python -m bench.peers.serve MODULE DESCRIPTOR`.

Reads the work from standard input, then names of cases, one JSON value a line; answers each on the
descriptor. Standard output and error are left to the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.engine import Engine
from bench.work import Action, Plan, Work

_PR_SET_PDEATHSIG = 1


def main(module: str, descriptor: str) -> None:
    """Answer until standard input ends."""
    # However the benchmark ends, this process does not outlive it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # Where memory does not suffice, it is this process that should end.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    engine: Engine | None = None
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as replies:
        for line in sys.stdin:
            question = json.loads(line)
            answer: dict[str, Any]
            try:
                if engine is None:
                    start = importlib.import_module(module).start
                    engine = start(work_of(question))
                    answer = {
                        "answer": {
                            "label": engine.label,
                            "cases": list(engine.cases),
                            "refused": dict(engine.refused),
                        }
                    }
                else:
                    answer = {"answer": timed(engine.cases[question])}
            except Exception as error:
                first = str(error).strip().split("\n", 1)[0]
                answer = {"error": f"{type(error).__name__}: {first[:300]}"}
            replies.write(json.dumps(answer) + "\n")
            replies.flush()


def work_of(document: dict[str, Any]) -> Work:
    """Return the work that a JSON document describes."""
    return Work(**{**document, "plan": Plan(**document["plan"])})


def timed(action: Action) -> float:
    """Run once, and return the seconds."""
    begin = time.perf_counter()
    reported = action()
    took = time.perf_counter() - begin
    return reported if isinstance(reported, float) else took


if __name__ == "__main__":
    main(*sys.argv[1:])
