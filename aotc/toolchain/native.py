"""The embedded toolchain: aotc's own front end and code generator, and a pinned clang, for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aotc import outside
from aotc.config import Config
from aotc.contract import Argument, Contract
from aotc.errors import AotcError
from aotc.program.model import Layer, machine_code
from aotc.runtime.library import ABI_VERSION
from aotc.toolchain import zig
from aotc.toolchain.base import Finding, Lowered, Toolchain

if TYPE_CHECKING:
    from aotc import frontend

PLATFORM = "cpu"


def lower(
    config: Config, program: str, target: str, arguments: Sequence[Argument] | None = None
) -> frontend.Lowered:
    """Return what the code generator takes: IR after all passes, and what `target` packs.

    Raises as `frontend.lower` does.
    """
    from aotc import frontend
    from aotc.codegen.panels import panels
    from aotc.ops.verify import verify
    from aotc.passes import run_passes

    wrapper = str(config.wrapper(program, PLATFORM))
    lowered = frontend.lower(config, PLATFORM, wrapper, arguments)
    ir = run_passes(lowered.program, verify)
    contract = lowered.contract
    if zig.TARGETS[target].panels:
        contract = contract.with_panels(panels(ir))
    return replace(lowered, program=ir, contract=contract)


class Native(Toolchain):
    """See the module."""

    name = "native"
    targets = tuple(zig.TARGETS)
    abi_version = ABI_VERSION

    def platform(self, target: str) -> str:
        return PLATFORM

    def identity(self) -> str:
        return zig.identity()

    def flags(self, target: str) -> tuple[str, ...]:
        return zig.flags(target)

    def lower(
        self,
        config: Config,
        program: str,
        target: str,
        arguments: Sequence[Argument] | None = None,
    ) -> Lowered:
        from aotc.codegen.source import generate
        from aotc.ir.text import print_program

        with outside.watch(config.source, config.kernels_for(PLATFORM)) as reads:
            lowered = lower(config, program, target, arguments)
        return Lowered(
            lowered.contract,
            print_program(lowered.program),
            lambda: generate(lowered.program, lowered.contract),
            {**reads.files, **lowered.files},
            tuple(reads.others),
            lowered.warnings,
        )

    def contract(self, config: Config, program: str, target: str) -> Contract:
        # What is returned, and what is packed, comes from the body, so it is lowered, in 0.05 s.
        return self.lower(config, program, target).contract

    def compile(
        self, config: Config, program: str, target: str, lowered: Lowered
    ) -> tuple[Layer, ...]:
        source = lowered.source()
        built = zig.compile_shared_object(source, zig.TARGETS[target])
        return machine_code(built, lowered.ir, source)

    def findings(self) -> list[Finding]:
        try:
            found = zig.identity()
        except AotcError as error:
            return [Finding("ziglang", None, error.hint)]
        return [Finding("ziglang", found)]
