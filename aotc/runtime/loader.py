"""From an artifact to a program that runs: no compiler, no sources, no file written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from aotc import contract as contracts
from aotc.contract import Contract, ContractError
from aotc.runtime.host import Host, choose_pinning, choose_threads
from aotc.runtime.library import ABI_VERSION, Library, LoadError, check_abi_version, map_object
from aotc.runtime.worker import Worker
from aotc.store.artifact import StoredProgram, find

if TYPE_CHECKING:
    from aotc.runtime.npu import NpuProgram

STORE_VARIABLE = "AOTC_STORE"
DEFAULT_STORE = "artifacts"


@dataclass(frozen=True)
class Program:
    """A loaded program: its contract and its code."""

    contract: Contract
    target: str
    library: Library

    def prepare(self, threads: int | None = None, *, pin: bool | None = None) -> Worker:
        """Return a worker with a team of `threads`, for a `with` statement.

        Without `threads` the team has AOTC_NUM_THREADS, or else one thread for each core that
        this process may use. With `pin`, or else AOTC_PIN=1, each thread but the first, which is
        whoever calls, stays on a processor of its own. Raises AotcError for a number outside
        1..1024, or one that cannot be pinned, and WorkerError where the threads do not start.
        """
        return Worker(self, choose_threads(threads), pin=choose_pinning(pin))


def load_program(
    contract: Contract, object_bytes: bytes, target: str, abi_version: int = ABI_VERSION
) -> Program:
    """Map `object_bytes`, which the caller has verified, as the code of a program.

    `target` and `abi_version` say what the object was built for; they are checked before anything
    is mapped. Raises LoadError where this host or this loader cannot run it.
    """
    check_abi_version(abi_version)
    Host.current().check(target)
    return Program(contract, target, map_object(object_bytes))


def default_store() -> Path:
    """Return the store of AOTC_STORE, or else `artifacts` in the current directory."""
    return Path(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE)


@overload
def load(
    model: str,
    program: str,
    store: Path | str | None = None,
    *,
    target: None = None,
    policy: Path | str | None = None,
) -> Program: ...
@overload
def load(
    model: str,
    program: str,
    store: Path | str | None = None,
    *,
    target: str,
    policy: Path | str | None = None,
) -> Program | NpuProgram: ...
def load(
    model: str,
    program: str,
    store: Path | str | None = None,
    *,
    target: str | None = None,
    policy: Path | str | None = None,
) -> Program | NpuProgram:
    """Find `program` of `model` in `store`, verify it, and map it.

    Without `target` it is the best that is there for the CPU of this host; an NPU, or its
    simulator, is named. With the YAML file
    `policy` only what is signed as it wants (`aotc.signing`); that is checked before anything is
    mapped. Nothing is compiled or written. Raises AotcError where the store has no such program or
    a damaged one, PolicyError for one that is not trusted, and LoadError where this host cannot
    run it.
    """
    root = default_store() if store is None else Path(store)
    stored = find(root, model, program, target or Host.current().targets())
    if policy is not None:
        from aotc.signing import Policy, check_policy  # needs packages that a loader does not

        check_policy(Policy.load(policy), stored)
    return load_stored(stored)


def load_stored(stored: StoredProgram) -> Program | NpuProgram:
    """Map the code of a program that has been found, and so verified.

    Raises LoadError where this host cannot run it.
    """
    try:
        contract = contracts.from_json(stored.contract_json)
        files = stored.files()
        if files:
            from aotc.runtime.npu import load_folder  # torch, in the end

            return load_folder(contract, files, stored.target, stored.record.device_ids)
        if stored.record.ranks != 1:
            raise LoadError(f"it has {stored.record.ranks} ranks, this loader runs one")
        return load_program(contract, stored.object_bytes(), stored.target, stored.abi_version)
    except (LoadError, ContractError) as error:
        subject = f"`{stored.program}` of `{stored.model}`"
        message = f"{subject}, built by {stored.built_by}: {error.message}"
        raise LoadError(message, hint=error.hint) from None
