"""`aotc show`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from aotc import contract as contracts
from aotc.cli.options import Project, needs_build, output_options, project_options, target_option
from aotc.cli.output import Printer, size_text, table
from aotc.contract import Contract, DynamicSymbol, Parameter
from aotc.errors import AotcError, suggestion
from aotc.program.model import IR_TYPE, OBJECT_TYPE, SOURCE_TYPE, folder_stage
from aotc.runtime.host import Host
from aotc.store.artifact import StoredProgram, find
from aotc.store.oci import PLATFORMS

_SIGNS = {"minimum": ">=", "maximum": "<=", "multiple_of": "multiple of", "equals": "="}
_LAYERS = {OBJECT_TYPE: "object", IR_TYPE: "IR", SOURCE_TYPE: "C source"}


@click.command("show")
@click.argument("model")
@click.argument("program")
@click.option("--contract", "part", flag_value="contract", help="Print its contract, as JSON.")
@click.option("--ir", "part", flag_value="ir", help="Print its IR.")
@click.option("--source", "part", flag_value="source", help="Print the C generated for it.")
@click.option("--file", "path", metavar="PATH", help="Print one file of an NPU program.")
@target_option("CPU level or NPU platform.  [default: the best that runs here, else any]")
@project_options
@output_options
def command(
    model: str,
    program: str,
    part: str | None,
    path: str | None,
    target: str | None,
    project: Project,
    printer: Printer,
) -> None:
    """Show PROGRAM of MODEL as it is in the store.

    What it takes and returns, what it was built for, and by what.
    """
    wanted = target or [*Host.current().targets(), *PLATFORMS]
    with needs_build(model, names_are_known=False):
        stored = find(project.store, model, program, wanted)
    if part == "contract":
        printer.document(json.loads(stored.contract_json))
    elif path is not None:
        _print_file(stored, path, printer)
    elif part is not None:
        text = stored.ir() if part == "ir" else stored.source()
        if printer.as_json:
            printer.document({part: text})
        else:
            printer.data(text.removesuffix("\n"))
    elif printer.as_json:
        printer.document(_document(stored))
    else:
        printer.data("\n".join(_summary(stored)))


def _print_file(stored: StoredProgram, path: str, printer: Printer) -> None:
    files = stored.files()
    if path not in files:
        hint = suggestion(path, files) or f"its files: {', '.join(files) or 'none'}"
        raise AotcError(f"`{stored.program}` for {stored.target} has no file `{path}`", hint=hint)
    try:
        text = files[path].decode()
    except UnicodeDecodeError:
        raise AotcError(f"`{path}` is not text", hint="it is machine code") from None
    if printer.as_json:
        printer.document({"file": path, "text": text})
    else:
        printer.data(text.removesuffix("\n"))


def _summary(stored: StoredProgram) -> Iterator[str]:
    record = stored.record
    yield f"{stored.program} of {stored.model} for {stored.target}"
    yield ""
    rows = [
        ("built by", stored.built_by),
        ("ABI", str(stored.abi_version)),
        ("devices", ", ".join(map(str, record.device_ids))),
        ("manifest", str(stored.manifest_digest)),
    ]
    files = stored.files()
    if files:
        rows.append(("stage", folder_stage(files)))
    for layer in stored.manifest.layers:
        name = _LAYERS.get(layer.media_type, layer.part)
        rows.append((name, f"{layer.digest}, {size_text(layer.size)}"))
    yield table(rows)
    yield from _contract(contracts.from_json(stored.contract_json))


def _contract(contract: Contract) -> Iterator[str]:
    yield ""
    rows = [_parameter(each) for each in contract.parameters]
    yield table([("PARAMETER", "", "DTYPE", "DIMENSIONS"), *rows])
    if contract.symbols:
        yield ""
        yield table([("SYMBOL", "MUST BE"), *map(_symbol, contract.symbols)])
    yield ""
    yield f"returns {', '.join(contract.returns) or 'nothing'}"


def _parameter(parameter: Parameter) -> tuple[str, ...]:
    dims = f"[{', '.join(map(str, parameter.dims))}]" if parameter.dims else "scalar"
    if parameter.panels is not None:
        dims += ", faster packed"
    return (parameter.name, parameter.direction.value, parameter.dtype, dims)


def _symbol(symbol: DynamicSymbol) -> tuple[str, str]:
    given = symbol.constraints().items()
    return symbol.name, ", ".join(f"{_SIGNS[name]} {value}" for name, value in given) or "any"


def _document(stored: StoredProgram) -> dict[str, Any]:
    return {
        "model": stored.model,
        "program": stored.program,
        "target": stored.target,
        "abi_version": stored.abi_version,
        "device_ids": list(stored.record.device_ids),
        "built_by": stored.built_by,
        "identity": stored.record.identity,
        "manifest": str(stored.manifest_digest),
        "layers": [
            {
                "media_type": each.media_type,
                "digest": each.digest,
                "size": each.size,
                **({"path": each.part} if each.part != each.media_type else {}),
            }
            for each in stored.manifest.layers
        ],
        "stage": folder_stage(stored.files()) if stored.files() else None,
        "contract": json.loads(stored.contract_json),
    }
