"""References to a registry: `HOST/REPOSITORY:TAG`, or `HOST/REPOSITORY@sha256:DIGEST`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from aotc.errors import AotcError
from aotc.store.digest import Digest

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_FORM = re.compile(
    r"(?P<host>(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(?::[0-9]+)?)"
    rf"/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>.+))?"
)
_EXAMPLES = "for instance ghcr.io/team/qwen3-14b:v1, or ...@sha256:DIGEST"
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")


@dataclass(frozen=True)
class Reference:
    """A place in a registry; `digest` counts where both are given, and `latest` where neither."""

    host: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference; raise AotcError where it is none, or names no host."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise AotcError(f"`{text}` is not a registry reference", hint=_EXAMPLES)
        host = match["host"]
        if "." not in host and ":" not in host and host != "localhost":
            raise AotcError(f"`{text}` names no registry: `{host}` is not a host", hint=_EXAMPLES)
        try:
            digest = None if match["digest"] is None else Digest.parse(match["digest"])
        except ValueError as error:
            raise AotcError(f"`{text}`: {error}", hint=_EXAMPLES) from None
        tag = match["tag"] or ("latest" if digest is None else None)
        return cls(host, match["repository"], tag, digest)

    def at(self, digest: Digest) -> Reference:
        """Return the reference to `digest` in the same repository."""
        return replace(self, tag=None, digest=digest)

    @property
    def name(self) -> str:
        """The tag or digest that is asked for."""
        return str(self.digest or self.tag)

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, by its loopback address."""
        return _LOOPBACK.fullmatch(self.host) is not None

    def __str__(self) -> str:
        place = f"{self.host}/{self.repository}"
        return f"{place}:{self.tag}" if self.digest is None else f"{place}@{self.digest}"
