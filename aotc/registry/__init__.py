"""Programs in an OCI registry: pushed from a store, pulled into one, looked up by build key.

The transport is that of the package `oras` (the extra `registry`), which is imported when it is
used. A model is an image index under a tag, each program a manifest that it lists; statements and
signatures refer to those.
"""

from aotc.registry.pull import RemoteCache, fetcher, open_cache, pull
from aotc.registry.push import push
from aotc.registry.reference import Reference
from aotc.registry.transport import RegistryError, Transport

__all__ = [
    "Reference",
    "RegistryError",
    "RemoteCache",
    "Transport",
    "fetcher",
    "open_cache",
    "pull",
    "push",
]
