"""`aotc pull`."""

from __future__ import annotations

from pathlib import Path

import click

from aotc.cli.delivery import plain_http_option, policy_option
from aotc.cli.options import Project, output_options, project_options, target_option
from aotc.cli.output import Printer, size_text
from aotc.runtime.host import Host


@click.command("pull")
@click.argument("reference", metavar="REF")
@target_option("CPU level to pull.  [default: the best that runs here]")
@click.option("--all-platforms", is_flag=True, help="Pull every CPU level that there is.")
@policy_option
@plain_http_option
@project_options
@output_options
def command(
    reference: str,
    target: str | None,
    all_platforms: bool,
    policy: Path | None,
    plain_http: bool | None,
    project: Project,
    printer: Printer,
) -> int:
    """Pull the artifacts of a model from a registry into the store.

    REF is HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST, of a model or of one program. What
    the store has already is not received again, a broken pull goes on where it ended, and nothing
    is listed before all of it is there, checked and, with --policy, trusted. It also serves later
    builds: they do not compile again what has the same key.
    """
    from aotc.registry import Reference, Transport, pull
    from aotc.signing import Policy

    if target is not None and all_platforms:
        raise click.UsageError("--target and --all-platforms exclude each other")
    trusted = None if policy is None else Policy.load(policy)
    transport = Transport(Reference.parse(reference), plain_http=plain_http)
    targets = [target] if target else None if all_platforms else list(Host.current().targets())
    with printer.progress() as running:
        running.start(f"pulling {reference}")
        pulled = pull(transport, project.store, targets, policy=trusted, warn=printer.warning)
    if printer.as_json:
        programs = [
            {
                "model": each.model,
                "program": each.program,
                "target": each.target,
                "manifest": str(each.manifest_digest),
            }
            for each in pulled.programs
        ]
        printer.document(
            {
                "reference": str(transport.reference.at(pulled.digest)),
                "programs": programs,
                "referrers": pulled.referrers,
                "received_bytes": pulled.received,
            }
        )
    else:
        for each in pulled.programs:
            printer.result(f"{each.model} {each.program} {each.target}: pulled")
        printer.note(
            f"{size_text(pulled.received)} received, {pulled.referrers} statements and signatures"
        )
    return 0
