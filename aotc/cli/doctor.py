"""`aotc doctor`."""

from __future__ import annotations

import click

from aotc.cli.options import output_options
from aotc.cli.output import Printer
from aotc.errors import ExitCode


@click.command("doctor")
@click.argument("names", metavar="[TOOLCHAIN]...", nargs=-1)
@output_options
def command(names: tuple[str, ...], printer: Printer) -> int:
    """Tell what the toolchains need, and what of it is here.

    The exit code is 4 where a TOOLCHAIN that is named, or else `native`, lacks what it needs.
    """
    from aotc.errors import AotcError, suggestion
    from aotc.toolchain import TOOLCHAINS

    known = [each.name for each in TOOLCHAINS]
    for name in names:
        if name not in known:
            hint = suggestion(name, known) or f"toolchains: {', '.join(known)}"
            raise AotcError(f"unknown toolchain `{name}`", hint=hint)
    documents = []
    code = ExitCode.OK
    for toolchain in TOOLCHAINS:
        if names and toolchain.name not in names:
            continue
        findings = toolchain.findings()
        lacking = [each for each in findings if each.required and each.found is None]
        if lacking and (toolchain.name in names or toolchain is TOOLCHAINS[0]):
            code = ExitCode.ENVIRONMENT
        state = "not usable" if lacking else "ready"
        if not printer.as_json:
            printer.data(f"{toolchain.name} ({', '.join(toolchain.targets)}): {state}")
            for each in findings:
                if each.found is not None:
                    printer.data(f"  {each.subject}: {each.found}")
                else:
                    printer.data(f"  {each.subject}: missing; {each.remedy}")
        documents.append(
            {
                "toolchain": toolchain.name,
                "targets": list(toolchain.targets),
                "usable": not lacking,
                "findings": [
                    {
                        "subject": each.subject,
                        "found": each.found,
                        "required": each.required,
                        "remedy": None if each.found is not None else each.remedy,
                    }
                    for each in findings
                ],
            }
        )
    if printer.as_json:
        printer.document({"toolchains": documents})
    return code
