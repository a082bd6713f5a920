"""`aotc sign`."""

from __future__ import annotations

from pathlib import Path

import click

from aotc.cli.options import Project, needs_build, output_options, project_options, target_option
from aotc.cli.output import Printer
from aotc.errors import suggestion
from aotc.store.artifact import NotFoundError, find, list_programs
from aotc.store.oci import PLATFORMS


@click.command("sign")
@click.argument("model")
@click.argument("programs", metavar="[PROGRAM]...", nargs=-1)
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    required=True,
    help="File of an ed25519 private key, in PEM form.",
)
@target_option("CPU level to sign; may be repeated.  [default: all in the store]", multiple=True)
@project_options
@output_options
def command(
    model: str,
    programs: tuple[str, ...],
    key: Path,
    targets: tuple[str, ...],
    project: Project,
    printer: Printer,
) -> int:
    """Sign the artifacts of MODEL.

    All of them, or each PROGRAM named. What is signed is the provenance of each, which names it by
    digest; the signature is kept in the store, and goes along with `aotc push`. A key is made with
    `openssl genpkey -algorithm ed25519`.
    """
    from aotc import signing

    signer = signing.load_private_key(key)
    with needs_build(model):
        listed = [each for each in list_programs(project.store) if each.model == model]
        known = {each.program for each in listed}
        for name in programs:
            if name not in known:
                raise NotFoundError(
                    f"no program `{name}` of `{model}` in the store in {project.store}",
                    hint=suggestion(name, known),
                )
        chosen = [
            find(project.store, each.model, each.program, each.target)
            for each in listed
            if each.program in (programs or known) and each.target in (targets or PLATFORMS)
        ]
        if not chosen:
            raise NotFoundError(f"no programs of `{model}` in the store in {project.store}")
    added = signing.sign(chosen, signer)
    keyid = signer.public_key.keyid
    if printer.as_json:
        signed = [
            {
                "program": each.program,
                "target": each.target,
                "manifest": str(each.manifest_digest),
            }
            for each in chosen
        ]
        printer.document({"model": model, "keyid": keyid, "new": added, "programs": signed})
    else:
        for each in chosen:
            printer.result(f"{each.program} {each.target}: signed with {keyid[:12]}")
    return 0
