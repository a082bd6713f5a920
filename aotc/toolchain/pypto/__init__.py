"""The toolchain of the NPUs: the PyPTO that is installed, in a process of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from aotc import child
from aotc.config import Config
from aotc.contract import Argument, Contract, DynamicSymbol
from aotc.errors import AotcError
from aotc.program.key import text_digest
from aotc.program.model import FILE_TYPE, Layer
from aotc.toolchain.base import Finding, Lowered, Toolchain, ToolchainError
from aotc.toolchain.pypto import installed
from aotc.toolchain.pypto.canonical import program_files, readable
from aotc.toolchain.pypto.place import fixed_folder, neutral
from aotc.toolchain.pypto.task import Answer, Compiled, Sample, Task

_NEUTRAL = {"PYPTO_PROG_BUILD_DIR"}  # a place

# Source places would put paths into the MLIR.
_WITHOUT_PLACES = {"PYPTO_EMIT_PTO_LOC": "0"}
_WITHOUT_PTOAS = {"PTOAS_ROOT": os.devnull}


class PyPTO(Toolchain):
    """See the module. `abi_version` is the schema of PyPTO's `distributed_meta.json`."""

    name = "pypto"
    targets = ("a2a3", "a5", "a2a3sim", "a5sim")
    abi_version = 2

    def platform(self, target: str) -> str:
        return target

    def identity(self) -> str:
        package = installed.require()
        parts = {
            "ptoas": installed.ptoas(),
            "runtime": installed.runtime(),
        }
        found = [f"{name} {'none' if part is None else part}" for name, part in parts.items()]
        return ", ".join([f"pypto {package}", *found, f"pto-isa {installed.pto_isa() or 'none'}"])

    def flags(self, target: str) -> tuple[str, ...]:
        compiler = installed.compiler(target)
        variables = [
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(installed.VARIABLES) and name not in _NEUTRAL
        ]
        return (f"compiler={compiler or 'none'}", f"stage={installed.stage(target)}", *variables)

    def lower(
        self,
        config: Config,
        program: str,
        target: str,
        arguments: Sequence[Argument] | None = None,
    ) -> Lowered:
        """Compile as far as MLIR, which takes no assembler and no C++ compiler."""
        with tempfile.TemporaryDirectory(prefix="aotc-pypto-") as folder:
            answer, files = self._run(config, program, target, "pto", Path(folder), arguments)
        text = readable(files) + "".join(f"// {each}\n" for each in answer.sources)
        return Lowered(
            _contract(config, target, answer),
            text,
            lambda: text,
            answer.files,
            tuple(answer.outside),
            (),
        )

    def contract(self, config: Config, program: str, target: str) -> Contract:
        return self.lower(config, program, target).contract

    def compile(
        self, config: Config, program: str, target: str, lowered: Lowered
    ) -> tuple[Layer, ...]:
        with fixed_folder(text_digest(lowered.ir)) as folder:
            _, files = self._run(config, program, target, installed.stage(target), folder)
            files = {path: neutral(content, folder) for path, content in files.items()}
        return tuple(Layer(FILE_TYPE, content, path) for path, content in files.items())

    def findings(self) -> list[Finding]:
        return installed.findings()

    def _run(
        self,
        config: Config,
        program: str,
        target: str,
        stage: str,
        folder: Path,
        arguments: Sequence[Argument] | None = None,
    ) -> tuple[Compiled, Mapping[str, bytes]]:
        """Compile in `folder` as far as `stage`; return the files that are the program."""
        installed.require()
        kernels = config.kernels_for(target)
        if kernels is not None and not kernels.is_dir():
            raise AotcError(
                f"the kernels of `{config.model}` for {target} are not here: there is no "
                f"{kernels.resolve()}",
                hint="check out there what has them, or name another folder under `kernels` in "
                f"{config.wrapper(program, target).place.path.name}",
            )
        output = folder / "program"
        task = Task(
            model=config.model,
            source=str(config.source.resolve()),
            kernels=None if kernels is None else str(kernels.resolve()),
            wrapper=str(config.wrapper(program, target)),
            names=config.environment(target),
            symbols=list(config.symbols),
            platform=target,
            device_ids=config.device_ids,
            runtime=config.runtime,
            sub_workers=config.sub_workers,
            threads=config.aicpu_threads,
            output=str(output),
            stage=stage,
            samples=None
            if arguments is None
            else [Sample(each.dtype, each.shape) for each in arguments],
        )
        environment = {**_WITHOUT_PLACES, **(_WITHOUT_PTOAS if stage == "pto" else {})}
        try:
            (answer,) = child.run(
                "aotc.toolchain.pypto", task, Answer, folder=folder, environment=environment
            )
        except child.ChildError as error:
            raise ToolchainError(f"PyPTO failed: {error.message}", hint=error.hint) from None
        if isinstance(answer, child.Failed):
            refused = answer.error()
            refused.place = refused.place or config.wrapper(program, target).place
            raise refused
        files = {
            path.relative_to(output).as_posix(): path.read_bytes()
            for path in output.rglob("*")
            if path.is_file()
        }
        return answer, program_files(files)


def _contract(config: Config, target: str, answer: Compiled) -> Contract:
    symbols = {
        dim: config.symbols.get(dim, DynamicSymbol(dim))
        for parameter in answer.parameters
        for dim in parameter.dims
        if isinstance(dim, str)
    }
    return Contract.of(answer.parameters, symbols, config.names(target), answer.returns)
