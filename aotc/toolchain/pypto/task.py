"""What goes to the process that has PyPTO in it, and what comes back."""

from __future__ import annotations

import msgspec

from aotc import child
from aotc.contract import Parameter


class Sample(msgspec.Struct):
    """The dtype and shape of an argument to compile for."""

    dtype: str
    shape: tuple[int, ...]


class Task(msgspec.Struct):
    """Compile a wrapper, `module:function`, into the folder `output`, as far as `stage`.

    `names` and `symbols` are what the config gives to the modules.
    """

    model: str
    source: str
    kernels: str | None
    wrapper: str
    names: dict[str, int | float | bool]
    symbols: list[str]
    platform: str
    device_ids: tuple[int, ...]
    runtime: str
    sub_workers: int
    threads: int
    output: str
    stage: str
    samples: list[Sample] | None = None


class Compiled(msgspec.Struct, tag="compiled"):
    """What the wrapper takes, by its annotations, and what was read for it.

    `sources` has name and digest of each file of kernels in C++.
    """

    parameters: list[Parameter]
    returns: list[str]
    files: dict[str, str | None]
    sources: list[str]
    outside: list[str]


Answer = Compiled | child.Failed
