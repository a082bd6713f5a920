"""Requests to a registry, over the transport of `oras`: retried, resumed, and checked.

Every answer is checked against the digest or size that it was asked for by; what goes wrong is a
`RegistryError` that says which registry refused what, and what to do.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

from aotc.errors import AotcError, ExitCode
from aotc.registry.reference import Reference
from aotc.store import oci
from aotc.store.digest import Digest
from aotc.store.layout import MAX_BLOB, IntegrityError
from aotc.store.oci import Descriptor

if TYPE_CHECKING:
    from requests import Response

Result = TypeVar("Result")

CHUNK = 16 << 20  # bytes sent in one request
_PIECE = 1 << 16  # bytes read at once
_TIMEOUT = (10, 60)  # seconds to connect, and without a byte
_TOO_MANY_OR_BROKEN = (429, 500, 502, 503, 504)
_ACCEPT = ", ".join((oci.INDEX_TYPE, oci.MANIFEST_TYPE))
_DOCKER_HUB = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}


class RegistryError(AotcError):
    """A registry cannot be reached, refuses, or breaks off; `transient` where it may not again."""

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = False):
        super().__init__(message, hint=hint)
        self.transient = transient


class UnknownReferenceError(AotcError):
    """A registry has no such repository, tag or digest."""


class MissingPackageError(AotcError):
    """Registries need packages that are not installed."""

    exit_code = ExitCode.ENVIRONMENT


class Transport:
    """Requests to the repository of one reference.

    `plain_http` is for registries without TLS; by default those of this machine. What fails for
    the network's or the server's sake is tried `retries` times more, after `backoff` seconds, twice
    as many, and so on, or after what the server asks for. Raises MissingPackageError where `oras`
    is not installed.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        plain_http: bool | None = None,
        retries: int = 4,
        backoff: float = 0.5,
    ):
        oras, requests, retry = _packages()
        self.reference = reference
        self.retries = retries
        self.backoff = backoff
        self.sent = 0  # bytes of blobs
        self.received = 0
        self._requests = requests
        self._oras = oras
        self._insecure = reference.is_local if plain_http is None else plain_http
        self._registry = oras.provider.Registry(insecure=self._insecure)
        self._session = self._registry.session
        policy = retry(
            total=retries,
            connect=min(retries, 2),
            backoff_factor=backoff,
            status_forcelist=_TOO_MANY_OR_BROKEN,
            allowed_methods=frozenset({"GET", "HEAD", "POST"}),
            raise_on_status=False,
        )
        for prefix in ("http://", "https://"):
            self._session.mount(prefix, requests.adapters.HTTPAdapter(max_retries=policy))
        host = _DOCKER_HUB.get(reference.host, reference.host)
        self._base = f"{'http' if self._insecure else 'https'}://{host}"
        self._authorization: dict[str, str] = {}
        self._keeps_referrers = True  # until it says otherwise
        self._has: set[Digest] = set()  # blobs that were sent or seen

    def manifest(self, name: str, expected: Descriptor | None = None) -> tuple[bytes, str]:
        """Return the text of the manifest `name`, a tag or digest, and its media type.

        Its digest is checked against `name`, where that is one, against `expected`, and against
        what the registry says. Raises UnknownReferenceError where there is none.
        """
        path = f"manifests/{name}"
        with self._request("GET", path, headers={"Accept": _ACCEPT}, missing=True) as response:
            if response.status_code == 404:
                raise self._unknown(name)
            text = self._read(response, oci.MAX_DOCUMENT, name)
            media_type = response.headers.get("Content-Type", "").partition(";")[0]
            declared = response.headers.get("Docker-Content-Digest")
        wanted = {each for each in (expected and expected.digest, declared) if each}
        if name.startswith("sha256:"):
            wanted.add(name)
        for each in wanted:
            self._check(text, each, f"manifest {name}")
        return text, media_type

    def has_manifest(self, digest: Digest) -> bool:
        """Tell whether the repository has the manifest of `digest`."""
        headers = {"Accept": _ACCEPT}
        with self._request("HEAD", f"manifests/{digest}", headers=headers, missing=True) as answer:
            return answer.status_code == 200

    def put_manifest(self, name: str, text: bytes, media_type: str) -> Mapping[str, str]:
        """Store a manifest under `name`, a tag or its digest; return the answer's headers."""

        def put() -> Mapping[str, str]:
            headers = {"Content-Type": media_type}
            with self._request("PUT", f"manifests/{name}", headers=headers, data=text) as response:
                return response.headers

        headers = self._persist(put)
        declared = headers.get("Docker-Content-Digest")
        if declared is not None:
            self._check(text, declared, f"manifest {name}")
        return headers

    def referrers(self, subject: Digest) -> tuple[bytes | None, bool]:
        """Return the text of the index of what refers to `subject`, and whether the registry
        keeps it; otherwise it is that of the tag which stands in for it, or None."""
        if self._keeps_referrers:
            with self._request("GET", f"referrers/{subject}", missing=True, any_=True) as response:
                kind = response.headers.get("Content-Type", "").partition(";")[0]
                if response.status_code == 200 and kind == oci.INDEX_TYPE:
                    return self._read(response, oci.MAX_DOCUMENT, f"referrers of {subject}"), True
            self._keeps_referrers = False
        try:
            return self.manifest(f"sha256-{subject.hex}")[0], False
        except UnknownReferenceError:
            return None, False

    def has_blob(self, digest: Digest) -> bool:
        """Tell whether the repository has the blob of `digest`."""
        if digest not in self._has:
            with self._request("HEAD", f"blobs/{digest}", missing=True) as response:
                if response.status_code == 200:
                    self._has.add(digest)
        return digest in self._has

    def get_blob(self, descriptor: Descriptor, partial: Path) -> bytes:
        """Return a blob, its size and digest checked.

        It is received into the file `partial`, goes on where that ends, and leaves it where it
        fails; the file is removed when the blob is whole.
        """
        if descriptor.size > MAX_BLOB:
            raise IntegrityError(
                f"blob {descriptor.digest} has {descriptor.size} bytes, expected at most {MAX_BLOB}"
            )
        try:
            with open(partial, "a+b") as file:
                resumed = file.tell() > 0
                content = self._whole(descriptor, file)
                if resumed and Digest.of(content) != descriptor.blob:
                    # What an earlier attempt has left may be what is wrong.
                    file.truncate(0)
                    content = self._whole(descriptor, file)
            self._check(content, descriptor.digest, "blob")
        except IntegrityError:
            partial.unlink(missing_ok=True)
            raise
        partial.unlink(missing_ok=True)
        return content

    def _whole(self, descriptor: Descriptor, file: BinaryIO) -> bytes:
        """Return what is in `file` after the rest of the blob was received into it."""
        self._receive(descriptor, file)
        file.seek(0)
        return file.read(descriptor.size)

    def put_blob(self, descriptor: Descriptor, content: bytes, chunk: int = CHUNK) -> None:
        """Store a blob, in requests of at most `chunk` bytes; go on where a broken one ended."""
        upload = _Upload(self, descriptor, content, chunk)
        self._persist(upload.run)
        self.sent += len(content)
        self._has.add(descriptor.blob)

    def _persist(self, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` gives; repeat it after faults of the network or the server."""
        for failures in itertools.count(1):
            try:
                return attempt()
            except RegistryError as error:
                if not error.transient or failures > self.retries:
                    raise
                self._wait(failures)
        raise AssertionError

    def _wait(self, failures: int) -> None:
        time.sleep(self.backoff * 2 ** (failures - 1))

    def _receive(self, descriptor: Descriptor, file: BinaryIO) -> None:
        """Append to `file` until it has the size of the blob."""
        if file.seek(0, os.SEEK_END) > descriptor.size:
            file.truncate(0)
        failures = 0
        while (start := file.seek(0, os.SEEK_END)) < descriptor.size:
            problem = self._receive_rest(descriptor, file, start)
            end = file.seek(0, os.SEEK_END)
            failures = 0 if end > start else failures + 1
            if failures > self.retries:
                raise RegistryError(
                    f"{self._base}: blob {descriptor.digest} ends after {end} of "
                    f"{descriptor.size} bytes{problem}",
                    hint="try again: it goes on from there",
                )
            if end < descriptor.size:
                self._wait(max(failures, 1))

    def _receive_rest(self, descriptor: Descriptor, file: BinaryIO, start: int) -> str:
        """Append one answer to `file`; return what was wrong with it, if anything."""
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        path = f"blobs/{descriptor.digest}"
        with self._request("GET", path, headers=headers, ok=(200, 206, 416), missing=True) as got:
            if got.status_code == 404:
                raise self._unknown(descriptor.digest)
            ours = got.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            if got.status_code == 416 or (start and not (got.status_code == 206 and ours)):
                file.truncate(0)
            if got.status_code == 416:
                return ""
            try:
                for piece in got.iter_content(_PIECE):
                    file.write(piece)
                    self.received += len(piece)
                    if file.tell() > descriptor.size:
                        raise IntegrityError(
                            f"{self._base}: blob {descriptor.digest} has more than the "
                            f"{descriptor.size} bytes that its manifest declares"
                        )
            except self._requests.RequestException as error:
                return f": {_reason(error)}"
            finally:
                file.flush()
        return ""

    def _read(self, response: Response, limit: int, name: str) -> bytes:
        """Return the body of an answer, if it has no more than `limit` bytes."""
        text = b""
        try:
            for piece in response.iter_content(_PIECE):
                text += piece
                if len(text) > limit:
                    raise IntegrityError(f"{self._base}: `{name}` has more than {limit} bytes")
        except self._requests.RequestException as error:
            raise RegistryError(f"{self._base}: `{name}` is truncated: {_reason(error)}") from None
        return text

    def _check(self, content: bytes, digest: str, what: str) -> None:
        found = Digest.of(content)
        if str(found) != digest:
            raise IntegrityError(
                f"{self._base} has answered with other bytes: {what} of digest {found}, "
                f"expected {digest}"
            )

    def _unknown(self, name: str) -> UnknownReferenceError:
        place = f"{self.reference.host}/{self.reference.repository}"
        return UnknownReferenceError(
            f"no `{name}` in {place}", hint="`aotc push MODEL REF` puts it there"
        )

    def _location(self, response: Response) -> str:
        return urljoin(str(response.url), response.headers.get("Location", ""))

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        ok: tuple[int, ...] = (200, 201, 202, 204),
        missing: bool = False,
        any_: bool = False,
    ) -> Iterator[Response]:
        """Make a request, with credentials where they are asked for, and give its answer.

        `path` is a URL, or relative to the repository. Raises RegistryError for an answer whose
        status is not `ok`; where `missing`, 404 is; with `any_` whatever is not a fault of the
        network or the credentials.
        """
        url = urljoin(f"{self._base}/v2/{self.reference.repository}/", path)
        try:
            response = self._send(method, url, headers or {}, data)
            if response.status_code in (401, 403) and self._authenticate(response):
                response.close()
                response = self._send(method, url, headers or {}, data)
        except self._requests.exceptions.SSLError as error:
            raise RegistryError(
                f"no secure connection to {self.reference.host}: {_reason(error)}",
                hint="--plain-http is for a registry without TLS; REQUESTS_CA_BUNDLE names a CA",
            ) from None
        except self._requests.RequestException as error:
            reason = _reason(error)
            raise RegistryError(f"cannot reach {self._base}: {reason}", transient=True) from None
        with response:
            status = response.status_code
            if status not in ok and not any_ and not (missing and status == 404):
                raise self._refusal(method, url, response)
            yield response

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], data: bytes | None
    ) -> Response:
        # Uploads may go to another host, which is no business of the credentials.
        same_host = urlsplit(url).netloc == urlsplit(self._base).netloc
        answer: Response = self._session.request(
            method,
            url,
            headers={**headers, **(self._authorization if same_host else {})},
            data=data,
            stream=True,
            timeout=_TIMEOUT,
        )
        return answer

    def _authenticate(self, response: Response) -> bool:
        """Answer the challenge of a response; return whether there is a new answer to it."""
        challenge = response.headers.get("Www-Authenticate", "")
        kind = challenge.partition(" ")[0].lower()
        if kind not in ("basic", "bearer"):
            return False
        backend = self._oras.auth.get_auth_backend(
            "basic" if kind == "basic" else "token", self._session, insecure=self._insecure
        )
        backend._auth_config = _docker_config()
        backend.load_configs(self._oras.container.Container(f"{self.reference.host}/unused"))
        if kind == "basic" and not getattr(backend, "_basic_auth", None):
            return False
        headers, changed = backend.authenticate_request(response, {})
        if not changed or headers == self._authorization:
            return False
        self._authorization = headers
        return True

    def _refusal(self, method: str, url: str, response: Response) -> AotcError:
        host, status = self.reference.host, response.status_code
        detail = _detail(response)
        if status in (401, 403):
            known = (
                "does not accept the credentials" if self._authorization else "wants credentials"
            )
            return RegistryError(
                f"{host} {known} for {self.reference.repository}{detail}",
                hint=f"`docker login {host}` stores them, in ~/.docker or DOCKER_CONFIG",
            )
        if status == 404:
            return UnknownReferenceError(f"no repository {self.reference.repository} in {host}")
        path = urlsplit(url).path
        message = f"{host} answers {method} {path} with {status}{detail}"
        return RegistryError(message, transient=status in _TOO_MANY_OR_BROKEN)


class _Upload:
    """A blob on its way: `run` sends what is missing, and may be called again after a fault."""

    def __init__(self, transport: Transport, descriptor: Descriptor, content: bytes, chunk: int):
        self.transport = transport
        self.descriptor = descriptor
        self.content = content
        self.chunk = chunk
        self.place: str | None = None

    def run(self) -> None:
        start = self._begin()
        assert self.place is not None
        while len(self.content) - start > self.chunk:
            piece = self.content[start : start + self.chunk]
            self._send("PATCH", self.place, piece, start)
            start += len(piece)
        separator = "&" if urlsplit(self.place).query else "?"
        end = f"{self.place}{separator}digest={self.descriptor.digest}"
        self._send("PUT", end, self.content[start:], start)

    def _begin(self) -> int:
        """Find or make the upload; return how many bytes it has."""
        request = self.transport._request
        if self.place is not None:
            with request("GET", self.place, ok=(204,), missing=True) as response:
                if response.status_code == 204:
                    self.place = self.transport._location(response)
                    last = response.headers.get("Range", "").rpartition("-")[2]
                    return int(last) + 1 if last.isdigit() and last != "0" else 0
        with request("POST", "blobs/uploads/", ok=(202,)) as response:
            self.place = self.transport._location(response)
        return 0

    def _send(self, method: str, place: str, piece: bytes, start: int) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if start or method == "PATCH":
            headers["Content-Range"] = f"{start}-{start + len(piece) - 1}"
        with self.transport._request(method, place, headers=headers, data=piece) as response:
            if method == "PATCH":
                self.place = self.transport._location(response)


def _docker_config() -> dict[str, Any]:
    """Return the credentials of the usual docker config, by host; empty where there is none."""
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_bytes())
        auths = {_host_of(name): value for name, value in config.get("auths", {}).items()}
    except FileNotFoundError:
        config, auths = {}, {}
    except OSError as error:
        raise RegistryError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, AttributeError):
        raise RegistryError(f"{path} is not a docker config") from None
    helpers = config.get("credHelpers") or {}
    return {"auths": auths, "credsStore": config.get("credsStore"), "credHelpers": helpers}


def _host_of(name: str) -> str:
    """Return the host of an entry, which old versions of docker write as a URL."""
    return name.partition("://")[2].partition("/")[0] if "://" in name else name


def _detail(response: Response) -> str:
    """Return what a registry says of its refusal."""
    try:
        text = response.raw.read(_PIECE, decode_content=True)
        first = json.loads(text)["errors"][0]
        return f": {first.get('message') or first['code']}"
    except Exception:  # whatever it has sent instead
        return f": {response.reason}" if response.reason else ""


def _reason(error: BaseException) -> str:
    """Return the innermost reason for a failed request, in words."""
    while True:
        nested = [getattr(error, "reason", None), error.__cause__, *error.args, error.__context__]
        inner = next((each for each in nested if isinstance(each, BaseException)), None)
        if inner is None:
            return str(getattr(error, "strerror", None) or error)
        error = inner


def _packages() -> tuple[Any, Any, Any]:
    try:
        import oras.auth
        import oras.container
        import oras.logger
        import oras.provider
        import requests
        from urllib3.util import Retry
    except ImportError as error:
        raise MissingPackageError(
            f"registries need the package `{(error.name or '').partition('.')[0]}`",
            hint="pip install 'aotc[registry]'",
        ) from None
    # What goes wrong is told here; its own messages go to stderr as they come.
    logging.getLogger(oras.logger.__name__).setLevel(logging.CRITICAL)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    return oras, requests, Retry
