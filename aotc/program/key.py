"""Build keys: named components that cover everything that can change the output, and no more.

Deny by default: a field of the config or a variable of the environment enters the key unless it
is listed here as neutral, with the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from aotc import __version__
from aotc.expression import Expression
from aotc.program.model import canonical_json

if TYPE_CHECKING:
    from aotc.config import Config

KEY: None = None

# Every field of `aotc.config.Config`: KEY, or the reason why it is neutral.
CONFIG_FIELDS: dict[str, str | None] = {
    "model": KEY,
    "source": "a place; the files read there enter by relative name and digest",
    "kernels": "a place; the files read there enter by name and digest",
    "extents": KEY,
    "symbols": KEY,
    "tiling": KEY,
    "hyperparameters": KEY,
    "programs": "the wrapper built is a component of its own; a golden is not compiled",
    "targets": "the one target of the build is a component of its own",
    "device_ids": KEY,
    "runtime": KEY,
    "sub_workers": KEY,
    "aicpu_threads": KEY,
}

# Variables that could change a build: KEY, or the reason why one is neutral. A variable of aotc
# (`AOTC_*`) that is not listed enters the key too.
ENVIRONMENT: dict[str, str | None] = {
    "AOTC_STORE": "where artifacts lie, not what they are",
    "AOTC_STORE_LOWER": "where artifacts lie, not what they are",
    "AOTC_MODELS_DIR": "where configs lie; their content enters as the resolved config",
    "AOTC_NUM_THREADS": "read at run time, by the loader",
    "AOTC_PIN": "read at run time, by the loader",
    "NO_COLOR": "how messages look",
    # clang and zig read these, but they are run in an empty environment.
    "CCC_OVERRIDE_OPTIONS": "the toolchain does not see it",
    "COMPILER_PATH": "the toolchain does not see it",
    "CPATH": "the toolchain does not see it",
    "C_INCLUDE_PATH": "the toolchain does not see it",
    "LIBRARY_PATH": "the toolchain does not see it",
    "SOURCE_DATE_EPOCH": "no time enters an object",
    "ZIG_LIB_DIR": "the toolchain does not see it",
    "ZIG_GLOBAL_CACHE_DIR": "the toolchain does not see it",
    "ZIG_LOCAL_CACHE_DIR": "the toolchain does not see it",
    "PYTHONPATH": "the files read enter by content, the compiler by its own digest",
    "PYTHONHASHSEED": "no set is iterated into output; tests build under several seeds",
    "HOME": "no path enters an object",
    "TMPDIR": "no path enters an object",
    "PATH": "the toolchain is the pinned package, never looked up on PATH",
    "USER": "who builds does not matter",
    "LANG": "numbers and sorting are not locale-dependent",
    "LC_ALL": "numbers and sorting are not locale-dependent",
    "TZ": "no time enters an object",
}


@dataclass(frozen=True)
class Difference:
    """A component that differs: its values here and there, None where it is not given."""

    component: str
    mine: str | None
    other: str | None


@dataclass(frozen=True)
class BuildKey:
    """Named components of a build, and the one digest of them all."""

    components: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The sha256 of the components, as 64 hexadecimal digits; their order does not matter."""
        return text_digest(canonical_json(dict(self.components)))

    def explain(self, other: BuildKey) -> list[Difference]:
        """Return the components in which the keys differ, sorted by name."""
        mine, theirs = self.components, other.components
        return [
            Difference(name, mine.get(name), theirs.get(name))
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]


def text_digest(content: bytes | str) -> str:
    """Return the sha256 of `content`, text as UTF-8, as 64 hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def inputs_key(
    *,
    config: Config,
    program: str,
    target: str,
    toolchain: str,
    flags: Sequence[str],
    abi_version: int,
    environment: Mapping[str, str],
    platform: str = "cpu",
    compiler: str | None = None,
) -> BuildKey:
    """Return the level-one key: what is known without running the front end.

    `config` is the resolved `aotc.config.Config`, `toolchain` names the compiler with its version
    and digest, `environment` is `os.environ`, and `compiler` the digest of aotc's own sources
    (`compiler_digest()` by default). On `platform` the program has its wrapper. The source files
    are no part of it: the cache compares those that the last build read. Raises ValueError for a
    config field that is not classified, and KeyError for an unknown program.
    """
    return BuildKey(
        {
            "aotc": __version__,
            "abi": str(abi_version),
            "compiler": compiler_digest() if compiler is None else compiler,
            "flags": json.dumps(list(flags)),
            "model": config.model,
            "program": program,
            # The front end reads sources through this version's `ast`.
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "target": target,
            "toolchain": toolchain,
            "wrapper": str(config.wrapper(program, platform)),
            **config_components(config),
            **environment_components(environment),
        }
    )


def canonical_key(
    *,
    model: str,
    program: str,
    contract: bytes,
    ir: str,
    target: str,
    toolchain: str,
    flags: Sequence[str],
    abi_version: int,
    environment: Mapping[str, str],
    device_ids: Sequence[int] = (0,),
    compiler: str | None = None,
) -> BuildKey:
    """Return the level-two key: what determines the output once the front end has run.

    `ir` is the printed canonical IR, without source locations, and `contract` the contract's JSON
    text. The components are the `identity` of the program that is built.
    """
    return BuildKey(
        {
            "aotc": __version__,
            "abi": str(abi_version),
            "compiler": compiler_digest() if compiler is None else compiler,
            "contract": text_digest(contract),
            "device_ids": json.dumps(list(device_ids)),
            "flags": json.dumps(list(flags)),
            "ir": text_digest(ir),
            "model": model,
            "program": program,
            "target": target,
            "toolchain": toolchain,
            **environment_components(environment),
        }
    )


def config_components(config: Config) -> dict[str, str]:
    """Return a component `config.FIELD` for each field of the config that is not neutral.

    Raises ValueError for a field that `CONFIG_FIELDS` does not classify.
    """
    names = [each.name for each in dataclasses.fields(config)]
    for name in names:
        if name not in CONFIG_FIELDS:
            raise ValueError(f"config field `{name}` is not classified in CONFIG_FIELDS")
    return {
        f"config.{name}": _plain_text(getattr(config, name))
        for name in names
        if CONFIG_FIELDS[name] is KEY
    }


def environment_components(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a component `environment.NAME` for each variable set that is not neutral."""
    return {
        f"environment.{name}": value
        for name, value in environment.items()
        if (name in ENVIRONMENT or name.startswith("AOTC_")) and ENVIRONMENT.get(name) is KEY
    }


def _plain_text(value: object) -> str:
    return canonical_json(_plain(value)).decode()


def _plain(value: object) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Expression():
            return value.text
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case Enum():
            return _plain(value.value)
        case msgspec.Struct():
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            # What does not count when values are compared, such as a place, does not count here.
            names = [each.name for each in dataclasses.fields(value) if each.compare]
            return {name: _plain(getattr(value, name)) for name in names}
    # A path, above all: in a key it would make every checkout differ.
    raise ValueError(f"a {type(value).__name__} has no place in a build key: {value!r}")


@functools.cache
def compiler_digest(package: Path | None = None) -> str:
    """Return the digest of aotc's own sources: every `.py` and `.h` by relative name and bytes.

    Computed once a process: the modules that are loaded do not change either. Raises ValueError
    where there are none, as in an installation of bytecode alone.
    """
    root = Path(__file__).parents[1] if package is None else package
    files = {
        path.relative_to(root).as_posix(): path
        for pattern in ("*.py", "*.h")
        for path in root.rglob(pattern)
    }
    if not files:
        raise ValueError(f"no sources in {root}")
    return text_digest(
        "".join(f"{name} {text_digest(files[name].read_bytes())}\n" for name in sorted(files))
    )
