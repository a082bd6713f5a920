"""Content digests, parsed before any path is built from one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_FORM = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, order=True)
class Digest:
    """A sha256 digest; `hex` is 64 lower-case hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if _FORM.fullmatch(f"sha256:{self.hex}") is None:
            raise ValueError(f"not a sha256 digest: {self.hex!r}")

    def __str__(self) -> str:
        return f"sha256:{self.hex}"

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Parse `sha256:HEX`; raise ValueError for any other algorithm, length or character."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"not a sha256 digest: {text!r}")
        return cls(match[1])

    @classmethod
    def of(cls, content: bytes) -> Digest:
        """Return the digest of `content`."""
        return cls(hashlib.sha256(content).hexdigest())
