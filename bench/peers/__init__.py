"""Other engines on the same work, each in a process of its own, which may fail as it likes.

`pip install -e '.[peers]'` has them all. An engine is a module with a function
`start(work) -> Engine`; `ENGINES` lists them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from bench.work import Work


@dataclass(frozen=True)
class Kind:
    """The module of an engine, the packages that it needs, and the environment that suits it."""

    module: str
    packages: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


ENGINES: dict[str, Kind] = {
    "llama.cpp": Kind("bench.peers.llama", ("xllamacpp", "gguf")),
    "torch eager": Kind("bench.peers.torch_eager", ("torch",)),
    "torch.compile": Kind("bench.peers.torch_compiled", ("torch",)),
    "AOTInductor": Kind("bench.peers.torch_aot", ("torch",)),
    "OpenVINO": Kind("bench.peers.openvino_graph", ("openvino",)),
    "ONNX Runtime": Kind("bench.peers.onnx_graph", ("onnxruntime", "onnx")),
}


class PeerError(Exception):
    """An engine is not installed, refused the work, or failed; the message is one line."""


def missing(name: str) -> list[str]:
    """Return the packages of an engine that are not installed."""
    return [each for each in ENGINES[name].packages if importlib.util.find_spec(each) is None]


class Peer:
    """An engine at work, for `seconds` in all; leaving the context ends it and all that it started.

    `label` is its name with the setting that it chose, `cases` what it runs, `refused` why it does
    not run the others, `deadline` when it is ended, by `time.perf_counter`. Raises PeerError where
    it cannot start.
    """

    def __init__(self, name: str, work: Work, seconds: float):
        kind = ENGINES[name]
        lacking = missing(name)
        if lacking:
            raise PeerError(f"not installed: {', '.join(lacking)}")
        self.name, self._seconds = name, seconds
        self.deadline = time.perf_counter() + seconds
        self._errors = tempfile.TemporaryFile()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        replies, theirs = os.pipe()
        self._replies = os.fdopen(replies, "rb", buffering=0)
        self._pending = b""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(work.threads),
            # Large blocks of glibc's malloc on huge pages, as those of aotc are.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "TMPDIR": self._folder.name,  # an engine that is killed leaves its files behind
            **kind.environment,
        }
        command = [sys.executable, "-m", "bench.peers.serve", kind.module, str(theirs)]
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[theirs],
            process_group=0,
            env=environment,
        )
        os.close(theirs)
        try:
            answer = self._ask(dataclasses.asdict(work))
        except BaseException:
            self.close()
            raise
        self.label: str = f"{name} ({answer['label']})" if answer["label"] else name
        self.cases: list[str] = answer["cases"]
        self.refused: dict[str, str] = answer["refused"]

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, case: str) -> float:
        """Run a case once and return its seconds; raise PeerError where it fails."""
        return float(self._ask(case))

    def close(self) -> None:
        """End the process, and all that it started; twice is once."""
        if self._replies.closed:
            return
        self._kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._replies.close()
        self._errors.close()
        self._folder.cleanup()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, question: Any) -> Any:
        assert self._process.stdin is not None
        late = PeerError(f"no result in {self._seconds:g} s")
        if time.perf_counter() > self.deadline:
            raise late
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except OSError:
            raise PeerError(self._last_words()) from None
        while b"\n" not in self._pending:
            left = max(0.0, self.deadline - time.perf_counter())
            if not select.select([self._replies], [], [], left)[0]:
                self._kill()
                raise late
            part = self._replies.read(1 << 16)
            if not part:
                raise PeerError(self._last_words())
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer["answer"]

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        return f"{ended}: {last[:300]}"
