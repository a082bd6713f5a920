"""What a registry and a network do wrong: told in words, retried, resumed, never believed."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from registry_server import PASSWORD, SERVER, USER, Answer, free_port, proxy, registry
from tiny_programs import build_key, build_program

from aotc.errors import AotcError, ExitCode
from aotc.program.model import OBJECT_TYPE
from aotc.registry import (
    Reference,
    RegistryError,
    RemoteCache,
    Transport,
    fetcher,
    open_cache,
    pull,
    push,
)
from aotc.registry.transport import UnknownReferenceError
from aotc.store import oci
from aotc.store.artifact import list_programs, publish, write_program
from aotc.store.layout import IntegrityError, Layout
from aotc.store.validate import validate

pytest.importorskip("oras")

PAYLOAD = bytes(range(256)) * 2048  # larger than what is read or sent at once
PIECE = len(PAYLOAD) // 4
TARGET = "aarch64"


def to(reference: str, **options: object) -> Transport:
    return Transport(Reference.parse(reference), **{"backoff": 0.01, "retries": 2, **options})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one program, whose code is large."""
    layout = Layout.create(tmp_path / "store")
    publish(layout, "tiny", [write_program(layout, build_program(target=TARGET, code=PAYLOAD))])
    return layout.root


@pytest.fixture
def pushed(store: Path, reference: str) -> str:
    push(to(reference), store, "tiny")
    return reference


def through(host: str, reference: str) -> str:
    """Return `reference` by way of the proxy at `host`."""
    return f"{host}/{reference.partition('/')[2]}"


def blobs(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in (root / "blobs" / "sha256").iterdir()]


# What it says.


def test_nobody_listens(tmp_path: Path) -> None:
    reference = f"127.0.0.1:{free_port()}/team/tiny:v1"
    with pytest.raises(RegistryError, match=r"cannot reach http://127.*: Connection refused"):
        pull(to(reference), tmp_path / "back", None)


def test_no_such_host(tmp_path: Path) -> None:
    transport = to("registry.invalid/team/tiny:v1", retries=0)
    with pytest.raises(
        RegistryError, match=r"cannot reach https://registry\.invalid: .*[nN]ame"
    ) as e:
        pull(transport, tmp_path / "back", None)
    assert "object at" not in e.value.message


def test_no_tls(registry_host: str, tmp_path: Path) -> None:
    transport = to(f"{registry_host}/team/tiny:v1", plain_http=False, retries=0)
    with pytest.raises(RegistryError, match="no secure connection") as caught:
        pull(transport, tmp_path / "back", None)
    assert "--plain-http" in str(caught.value.hint)


def test_unknown_tag_and_repository(pushed: str, tmp_path: Path) -> None:
    for reference in (pushed.replace(":v1", ":v2"), pushed.replace("team/", "nobody/")):
        with pytest.raises(UnknownReferenceError, match=r"no `v[12]` in 127\.0\.0\.1") as caught:
            pull(to(reference), tmp_path / "back", None)
        assert caught.value.exit_code is ExitCode.INPUT


def test_an_unknown_digest(pushed: str, tmp_path: Path) -> None:
    other = str(Reference.parse(pushed).at(oci.describe("", b"other").blob))
    with pytest.raises(UnknownReferenceError, match=r"no `sha256:[0-9a-f]{64}` in 127"):
        pull(to(other), tmp_path / "back", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a registry reference"),
        ("tiny", "is not a registry reference"),
        ("tiny:v1", "is not a registry reference"),
        ("team/tiny:v1", "names no registry: `team` is not a host"),
        ("ghcr.io/team/Tiny:v1", "is not a registry reference"),
        ("ghcr.io/team/tiny:v 1", "is not a registry reference"),
        ("ghcr.io/team/../tiny", "is not a registry reference"),
        ("https://ghcr.io/team/tiny", "is not a registry reference"),
        ("ghcr.io/team/tiny@sha256:12", "not a sha256 digest"),
        ("ghcr.io/team/tiny@sha512:" + "0" * 128, "not a sha256 digest"),
    ],
)
def test_not_a_reference(text: str, problem: str) -> None:
    with pytest.raises(AotcError, match=problem):
        Reference.parse(text)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("localhost/tiny:latest", True),
        ("localhost:5000/team/tiny:v1", True),
        ("127.0.0.1:5000/team/tiny:v1", True),
        ("[::1]:5000/team/tiny:v1", True),
        ("ghcr.io/team/sub/tiny_x-y.z:V1.0_a", False),
        ("localhost.example.org/tiny:v1", False),
        ("127.0.0.1.example.org/tiny:v1", False),
        ("ghcr.io/team/tiny@sha256:" + "0" * 64, False),
    ],
)
def test_references(text: str, local: bool) -> None:
    reference = Reference.parse(text)
    assert (str(reference), reference.is_local) == (text, local)


# Credentials.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `host:port` of a registry that wants a name and a password."""
    if SERVER is None:
        pytest.skip("no docker-registry: apt-get install docker-registry")
    with registry(tmp_path_factory.mktemp("guarded"), authenticated=True) as host:
        yield host


def log_in(folder: Path, monkeypatch: pytest.MonkeyPatch, host: str, password: str) -> None:
    folder.mkdir(exist_ok=True)
    token = base64.b64encode(f"{USER}:{password}".encode()).decode()
    text = json.dumps({"auths": {host: {"auth": token}}})
    (folder / "config.json").write_text(text, encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def test_without_credentials(store: Path, guarded: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RegistryError, match="wants credentials for team/tiny") as caught:
        push(to(f"{guarded}/team/tiny:v1"), store, "tiny")
    assert f"docker login {guarded}" in str(caught.value.hint)
    assert capfd.readouterr() == ("", "")


def test_with_false_credentials(
    store: Path, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(tmp_path / "docker", monkeypatch, guarded, "wrong")
    with pytest.raises(RegistryError, match="does not accept the credentials for team/tiny"):
        push(to(f"{guarded}/team/tiny:v1"), store, "tiny")


@pytest.mark.parametrize("form", ["{}", "https://{}/v1/", "http://{}"])
def test_with_credentials(
    store: Path, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    log_in(tmp_path / "docker", monkeypatch, form.format(guarded), PASSWORD)
    reference = f"{guarded}/team/tiny:v1"
    push(to(reference), store, "tiny")
    pull(to(reference), tmp_path / "back", None)
    assert list_programs(tmp_path / "back") == list_programs(store)


def test_with_a_credential_helper(
    store: Path, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "bin" / "docker-credential-test"
    helper.parent.mkdir()
    answer = json.dumps({"Username": USER, "Secret": PASSWORD})
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{answer}'\n", encoding="utf-8")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(helper.parent), prepend=":")
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text('{"credsStore": "test"}', encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    push(to(f"{guarded}/team/helped:v1"), store, "tiny")


def test_a_docker_config_that_is_none(
    store: Path, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("", "[]", '{"auths": 3}'):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        with pytest.raises(RegistryError, match=r"config\.json is not a docker config"):
            push(to(f"{guarded}/team/tiny:v1"), store, "tiny")


def test_bearer_tokens(store: Path, pushed: str, tmp_path: Path) -> None:
    """A registry of the kind that sends to another place for tokens, which last for one request."""
    given: list[str] = []

    def challenge(answer: Answer) -> None:
        if answer.path.startswith("/token"):
            given.append(f"token-{len(given)}")
            answer.status = 200
            answer.body = json.dumps({"token": given[-1]}).encode()
            answer.headers = {"Content-Length": str(len(answer.body))}
        elif given.count("used") < len(given) and given[-1] != "used":
            given.append("used")
        else:
            answer.status = 401
            answer.body = b""
            answer.headers = {
                "Content-Length": "0",
                "Www-Authenticate": f'Bearer realm="http://{host}/token",service="aotc"',
            }

    with proxy(pushed.partition("/")[0], challenge) as (host, requests):
        pull(to(through(host, pushed)), tmp_path / "back", None)
    assert list_programs(tmp_path / "back") == list_programs(store)
    assert sum(path.startswith("/token?service=aotc") for _, path in requests) > 2


# Faults on the way.


@contextmanager
def first(count: int) -> Iterator[list[int]]:
    left = [count]
    yield left
    assert left == [0], "the fault was not made"


def test_busy_for_a_while(store: Path, pushed: str, tmp_path: Path) -> None:
    with first(4) as left:

        def busy(answer: Answer) -> None:
            if left[0] and answer.method in ("GET", "PUT", "POST"):
                left[0] -= 1
                answer.status = (503, 429, 502, 500)[left[0]]

        with proxy(pushed.partition("/")[0], busy) as (host, _):
            pull(to(through(host, pushed), retries=4), tmp_path / "back", None)
    assert list_programs(tmp_path / "back") == list_programs(store)


def test_busy_for_ever(pushed: str, tmp_path: Path) -> None:
    def busy(answer: Answer) -> None:
        answer.status = 503

    with proxy(pushed.partition("/")[0], busy) as (host, requests):
        with pytest.raises(RegistryError, match=r"answers GET /v2/team/tiny.* with 503"):
            pull(to(through(host, pushed)), tmp_path / "back", None)
    assert len(requests) == 3


def test_cut_off_downloads_go_on_where_they_ended(store: Path, pushed: str, tmp_path: Path) -> None:
    pieces: list[int] = []

    def cut(answer: Answer) -> None:
        if answer.method == "GET" and "/blobs/" in answer.path and len(answer.body) > PIECE:
            answer.body = answer.body[:PIECE]
            answer.cut = True
            pieces.append(answer.status)

    with proxy(pushed.partition("/")[0], cut) as (host, _):
        pulled = pull(to(through(host, pushed)), tmp_path / "back", None)
    assert pieces == [200, 206, 206]
    assert pulled.received < len(PAYLOAD) + 4096
    assert PAYLOAD in blobs(tmp_path / "back")
    assert validate(tmp_path / "back") == []


def test_a_pull_goes_on_where_another_has_failed(store: Path, pushed: str, tmp_path: Path) -> None:
    back = tmp_path / "back"
    broken = [False]

    def cut(answer: Answer) -> None:
        if answer.method == "GET" and "/blobs/" in answer.path and len(answer.body) > 100_000:
            answer.body = b"" if broken[0] else answer.body[: 2 * PIECE]
            broken[0] = answer.cut = True

    with proxy(pushed.partition("/")[0], cut) as (host, _):
        with pytest.raises(RegistryError, match="ends after 262144 of 524288 bytes: ") as caught:
            pull(to(through(host, pushed)), back, None)
    assert caught.value.hint == "try again: it goes on from there"
    assert list_programs(back) == []
    pulled = pull(to(pushed), back, None)
    assert pulled.received < 2 * PIECE + 4096
    assert PAYLOAD in blobs(back)
    assert list((back / "staging").iterdir()) == []


@pytest.mark.parametrize("left", [PAYLOAD[:1000][::-1], b"x" * len(PAYLOAD), PAYLOAD + b"x"])
def test_what_is_left_of_a_pull_may_be_damaged(
    store: Path, pushed: str, tmp_path: Path, left: bytes
) -> None:
    back = Layout.create(tmp_path / "back")
    partial = back.root / "staging" / f"pull-{oci.describe('', PAYLOAD).blob.hex}"
    partial.parent.mkdir(exist_ok=True)
    partial.write_bytes(left)
    pull(to(pushed), back.root, None)
    assert PAYLOAD in blobs(back.root)


def test_a_server_that_cannot_go_on(store: Path, pushed: str, tmp_path: Path) -> None:
    """It sends the whole blob again, where the rest was asked for."""
    bodies: dict[str, bytes] = {}

    def cut(answer: Answer) -> None:
        if answer.method == "GET" and "/blobs/" in answer.path:
            whole = bodies.setdefault(answer.path, answer.body)
            if len(whole) > 100_000:
                first_time = answer.status == 200
                answer.status = 200
                answer.headers = {"Content-Length": str(len(whole))}
                answer.body = whole[:200_000] if first_time else whole
                answer.cut = first_time

    with proxy(pushed.partition("/")[0], cut) as (host, _):
        pull(to(through(host, pushed)), tmp_path / "back", None)
    assert PAYLOAD in blobs(tmp_path / "back")


@pytest.mark.parametrize("kind", ["manifests/v1", "manifests/sha256", "blobs/"])
def test_other_bytes_than_asked_for(pushed: str, tmp_path: Path, kind: str) -> None:
    changed: list[bytes] = []

    def flip(answer: Answer) -> None:
        if answer.method == "GET" and kind in answer.path and answer.body:
            answer.body = answer.body[:-1] + bytes([answer.body[-1] ^ 1])
            changed.append(answer.body)

    back = tmp_path / "back"
    with proxy(pushed.partition("/")[0], flip) as (host, _):
        with pytest.raises(IntegrityError, match="has answered with other bytes: ") as caught:
            pull(to(through(host, pushed)), back, None)
    assert caught.value.exit_code is ExitCode.INTEGRITY
    assert changed
    assert not set(changed) & set(blobs(back))
    assert list_programs(back) == []


def test_more_bytes_than_declared(pushed: str, tmp_path: Path) -> None:
    def more(answer: Answer) -> None:
        if answer.method == "GET" and "blobs/" in answer.path:
            answer.body += b"x"
            answer.headers = {"Content-Length": str(len(answer.body))}

    with proxy(pushed.partition("/")[0], more) as (host, _):
        with pytest.raises(IntegrityError, match=r"has more than the [0-9]+ bytes"):
            pull(to(through(host, pushed)), tmp_path / "back", None)
    assert list((tmp_path / "back" / "staging").iterdir()) == []


def test_a_manifest_without_end(pushed: str, tmp_path: Path) -> None:
    def endless(answer: Answer) -> None:
        if "manifests/" in answer.path:
            answer.body = b" " * (oci.MAX_DOCUMENT + 1)
            answer.headers = {"Content-Length": str(len(answer.body))}

    with proxy(pushed.partition("/")[0], endless) as (host, _):
        with pytest.raises(IntegrityError, match="has more than 4194304 bytes"):
            pull(to(through(host, pushed)), tmp_path / "back", None)


def test_an_upload_goes_on_where_it_was_broken(store: Path, reference: str, tmp_path: Path) -> None:
    patches: list[int] = []

    def drop(method: str, path: str, body: bytes) -> bool:
        if method == "PATCH":
            patches.append(len(body))
        return method == "PATCH" and len(patches) == 3

    with proxy(reference.partition("/")[0], drop=drop) as (host, _):
        push(to(through(host, reference)), store, "tiny", chunk=100_000)
    assert patches == [100_000] * 6  # five make the blob, and the third was sent twice
    pull(to(reference), tmp_path / "back", None)
    assert PAYLOAD in blobs(tmp_path / "back")


def test_no_tag_before_all_is_there(store: Path, reference: str) -> None:
    def full(answer: Answer) -> None:
        if answer.method == "PUT" and "manifests/sha256" in answer.path:
            answer.status = 507

    with proxy(reference.partition("/")[0], full) as (host, requests):
        with pytest.raises(RegistryError, match=r"answers PUT /v2/team/tiny.* with 507"):
            push(to(through(host, reference)), store, "tiny")
    assert not any(path.endswith("manifests/v1") for method, path in requests if method == "PUT")
    with pytest.raises(UnknownReferenceError):
        to(reference).manifest("v1")


def test_pulls_side_by_side(pushed: str, tmp_path: Path) -> None:
    back = tmp_path / "back"
    received: list[int] = []
    threads = [
        threading.Thread(target=lambda: received.append(pull(to(pushed), back, None).received))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(map(bool, received)) == [False, False, False, True]
    assert validate(back) == []


def test_without_the_package(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['oras'] = None\n"
        "from aotc.cli.main import main\n"
        f"sys.exit(main(['pull', 'localhost:1/tiny:v1', '--store', {str(tmp_path / 'store')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "error: registries need the package `oras`\nhint: pip install 'aotc[registry]'\n"
    )


def test_a_build_that_cannot_reach_it() -> None:
    with pytest.raises(RegistryError, match="Connection refused"):
        RemoteCache.open(f"127.0.0.1:{free_port()}/team/tiny:v1")


def test_a_build_with_a_registry(reference: str, store: Path, tmp_path: Path) -> None:
    """It takes what is there, and finds nothing where it cannot ask or trust."""
    key = build_key(target=TARGET)
    said: list[str] = []
    layout = Layout.create(tmp_path / "mine")
    place = reference

    def find() -> bytes | None:
        remote = open_cache(place, warn=said.append)
        found = fetcher(remote, layout, said.append)(key)
        return None if found is None else found.content(OBJECT_TYPE)

    push(to(reference), store, "tiny")
    assert (find(), said) == (PAYLOAD, [])
    place = f"127.0.0.1:{free_port()}/team/tiny:v1"
    assert find() is None
    assert said.pop().endswith("Connection refused; building without it")

    def flip(answer: Answer) -> None:
        if answer.method == "GET" and "/blobs/" in answer.path:
            answer.body = answer.body[::-1]

    with proxy(reference.partition("/")[0], flip) as (host, _):
        place = through(host, reference)
        assert find() is None
    assert "has answered with other bytes" in said[0]
    assert said.pop().endswith("; compiling instead")
    assert said == []
    for wrong in ("nowhere", "nowhere/tiny:v1"):
        with pytest.raises(AotcError, match=r"not a registry reference|names no registry"):
            open_cache(wrong, warn=said.append)
