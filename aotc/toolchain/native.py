"""The embedded toolchain: aotc's own front end and code generator, and a pinned clang, for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from aotc import outside
from aotc.config import Config
from aotc.contract import Argument, Contract
from aotc.errors import AotcError
from aotc.program.model import Layer, machine_code
from aotc.runtime.library import ABI_VERSION
from aotc.toolchain import zig
from aotc.toolchain.base import Finding, Lowered, Toolchain

PLATFORM = "cpu"


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
        from aotc import frontend
        from aotc.codegen.source import generate
        from aotc.ir.text import print_program
        from aotc.ops.verify import verify
        from aotc.passes import run_passes

        wrapper = str(config.wrapper(program, PLATFORM))
        with outside.watch(config.source, config.kernels_for(PLATFORM)) as reads:
            lowered = frontend.lower(config, PLATFORM, wrapper, arguments)
        ir = run_passes(lowered.program, verify)
        symbols = [symbol.name for symbol in lowered.contract.symbols]
        return Lowered(
            lowered.contract,
            print_program(ir),
            lambda: generate(ir, symbols),
            {**reads.files, **lowered.files},
            tuple(reads.others),
            lowered.warnings,
        )

    def contract(self, config: Config, program: str, target: str) -> Contract:
        from aotc import frontend

        # The parameters that are returned come from the body, so it is lowered, in 0.05 s.
        wrapper = str(config.wrapper(program, PLATFORM))
        return frontend.lower(config, PLATFORM, wrapper, None).contract

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
