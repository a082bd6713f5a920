"""Toolchains, and which of them compiles for a target."""

from __future__ import annotations

from aotc.errors import AotcError, suggestion
from aotc.toolchain.base import Finding, Lowered, Toolchain, ToolchainError
from aotc.toolchain.native import Native
from aotc.toolchain.pypto import PyPTO

TOOLCHAINS: tuple[Toolchain, ...] = (Native(), PyPTO())


def toolchain_for(target: str) -> Toolchain:
    """Return the toolchain that compiles for `target`; raise AotcError for an unknown target."""
    for each in TOOLCHAINS:
        if target in each.targets:
            return each
    known = [target for each in TOOLCHAINS for target in each.targets]
    hint = suggestion(target, known) or f"known targets: {', '.join(known)}"
    raise AotcError(f"unknown target `{target}`", hint=hint)


__all__ = ["TOOLCHAINS", "Finding", "Lowered", "Toolchain", "ToolchainError", "toolchain_for"]
