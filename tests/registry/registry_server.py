"""The registry server of Debian's `docker-registry` package, on a loopback port, and faults."""

from __future__ import annotations

import http.client
import http.server
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aotc.program.key import BuildKey
from aotc.store.artifact import StoredProgram

# What the programs of `make_store` were built from, as their statements say.
FILES = {"wrappers.py": "1" * 64, "missing.py": None}

SERVER = shutil.which("docker-registry")
USER, PASSWORD = "builder", "secret"
# bcrypt of PASSWORD, as `htpasswd -B` writes it.
HTPASSWD = "builder:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"

_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
_AUTHENTICATION = "auth: {{htpasswd: {{realm: aotc, path: {root}/htpasswd}}}}\n"


@contextmanager
def registry(root: Path, *, authenticated: bool = False) -> Iterator[str]:
    """Run a registry with its data in `root`; give its `host:port`."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "htpasswd").write_text(HTPASSWD, encoding="utf-8")
    port = free_port()
    text = _CONFIG + (_AUTHENTICATION if authenticated else "")
    config = root / "config.yml"
    config.write_text(text.format(root=root, port=port), encoding="utf-8")
    assert SERVER is not None
    with open(root / "log", "wb") as log:
        process = subprocess.Popen([SERVER, "serve", str(config)], stdout=log, stderr=log)
        try:
            _await(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=10)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert process.poll() is None, "the registry has ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the registry does not answer")


class Answer:
    """What the registry behind a proxy has answered, for a fault to change."""

    def __init__(self, method: str, path: str, status: int, headers: dict[str, str], body: bytes):
        self.method = method
        self.path = path
        self.status = status
        self.headers = headers
        self.body = body
        self.cut = False  # end the connection after the body, whatever length was declared


# Is given each answer; one that returns True for a request drops it before the registry sees it.
Fault = Callable[[Answer], None]
Drop = Callable[[str, str, bytes], bool]


@contextmanager
def proxy(
    upstream: str, fault: Fault = lambda _: None, drop: Drop = lambda *_: False
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Run a proxy to `upstream` that makes faults; give its `host:port` and its requests."""
    requests: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests.append((self.command, self.path))
            if drop(self.command, self.path, body):
                self.close_connection = True
                return
            connection = http.client.HTTPConnection(upstream, timeout=10)
            try:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                got = connection.getresponse()
                answer = Answer(
                    self.command, self.path, got.status, dict(got.getheaders()), got.read()
                )
            finally:
                connection.close()
            fault(answer)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("connection", "date", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)
            if answer.cut:
                self.close_connection = True

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = forward

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def inputs_of(stored: StoredProgram, **changes: str) -> BuildKey:
    """Return the level-one key of a program of `make_store`."""
    names = {"model": stored.model, "program": stored.program, "target": stored.target}
    return BuildKey({**names, "flags": "[]", **changes})


def get(url: str, accept: str) -> bytes:
    """Return what is at `url`, without any of the code that is tested."""
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept})) as answer:
        content: bytes = answer.read()
        return content
