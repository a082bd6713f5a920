"""`aotc push`."""

from __future__ import annotations

import click

from aotc.cli.delivery import plain_http_option
from aotc.cli.options import Project, needs_build, output_options, project_options, target_option
from aotc.cli.output import Printer, size_text


@click.command("push")
@click.argument("model")
@click.argument("reference", metavar="REF")
@target_option("CPU level to push; may be repeated.  [default: all in the store]", multiple=True)
@click.option("--replace", is_flag=True, help="Let the tag list nothing else.")
@plain_http_option
@project_options
@output_options
def command(
    model: str,
    reference: str,
    targets: tuple[str, ...],
    replace: bool,
    plain_http: bool | None,
    project: Project,
    printer: Printer,
) -> int:
    """Push the artifacts of MODEL to a registry.

    REF is HOST/REPOSITORY:TAG. Provenance and signatures go along; what the registry has already
    is not sent again, and the tag is set last. Programs and targets that it lists besides stay, so
    that several machines can push their shards to it. Credentials are those of `docker login`. The
    last line names by digest what the tag lists now, for whoever pulls it.
    """
    from aotc.registry import Reference, Transport, push

    transport = Transport(Reference.parse(reference), plain_http=plain_http)
    with printer.progress() as running, needs_build(model):
        running.start(f"pushing {model}")
        pushed = push(
            transport,
            project.store,
            model,
            targets or None,
            replace=replace,
            done=lambda stored: printer.note(f"{stored.program} {stored.target}: pushed"),
        )
    place = transport.reference.at(pushed.digest)
    if printer.as_json:
        programs = [
            {
                "program": each.program,
                "target": each.target,
                "manifest": str(each.manifest_digest),
            }
            for each in pushed.programs
        ]
        printer.document(
            {
                "model": model,
                "reference": str(place),
                "programs": programs,
                "referrers": pushed.referrers,
                "sent_bytes": pushed.sent,
            }
        )
    else:
        printer.note(f"{size_text(pushed.sent)} sent, {pushed.referrers} statements and signatures")
        printer.data(str(place))
    return 0
