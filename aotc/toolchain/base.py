"""What a toolchain does: from the wrapper of a program to what runs on its targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aotc.config import Config
from aotc.contract import Argument, Contract
from aotc.errors import AotcError, ExitCode
from aotc.program.model import Layer


class ToolchainError(AotcError):
    """A compiler is missing, or refused its input; the message carries what it printed."""

    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True)
class Lowered:
    """A program as the front end leaves it.

    `ir` is its canonical text: equal programs have equal texts, in any checkout and however they
    were compiled. `source` returns what the rest of the compiler takes. `files` has the digest of
    each source file that it came from, None for one that is not there; `outside` says what else it
    may have come from.
    """

    contract: Contract
    ir: str
    source: Callable[[], str]
    files: Mapping[str, str | None]
    outside: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """What `aotc doctor` tells of one thing that a toolchain needs, or could use.

    `found` says what is there, None where it is missing; `remedy` how to get it.
    """

    subject: str
    found: str | None
    remedy: str | None = None
    required: bool = True


class Toolchain(ABC):
    """A compiler for some targets; it keeps no state.

    `name` is how users know it. `abi_version` is the version of what the loader is given: the C
    ABI, or the layout of a folder.
    """

    name: str
    targets: tuple[str, ...]
    abi_version: int

    @abstractmethod
    def platform(self, target: str) -> str:
        """Return the platform of the model config that `target` belongs to."""

    @abstractmethod
    def identity(self) -> str:
        """Return version and digest of all of the compiler; raise ToolchainError where absent."""

    @abstractmethod
    def flags(self, target: str) -> tuple[str, ...]:
        """Return all that `target` is compiled with, apart from the program."""

    @abstractmethod
    def lower(
        self,
        config: Config,
        program: str,
        target: str,
        arguments: Sequence[Argument] | None = None,
    ) -> Lowered:
        """Run the front end on the wrapper of `program`.

        With `arguments` the types come from samples, else from the wrapper's signature. Raises
        AotcError for a mistake in the sources, with its place, and ToolchainError.
        """

    @abstractmethod
    def contract(self, config: Config, program: str, target: str) -> Contract:
        """Return the contract as the sources declare it; raise AotcError for a mistake there."""

    @abstractmethod
    def compile(
        self, config: Config, program: str, target: str, lowered: Lowered
    ) -> tuple[Layer, ...]:
        """Run the rest of the compiler on what `lower` returned.

        Raises ToolchainError where it fails.
        """

    @abstractmethod
    def findings(self) -> list[Finding]:
        """Return what this toolchain needs or could use, and what of it is here."""
