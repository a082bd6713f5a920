"""The options of the commands that deliver artifacts: push, pull, verify."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Function = Callable[..., Any]


def plain_http_option(function: Function) -> Function:
    """Add `--plain-http/--tls`, passed as `plain_http`: None where neither is given."""
    return click.option(
        "--plain-http/--tls",
        default=None,
        help="Talk to the registry without or with TLS.  [default: without on this machine only]",
    )(function)


def policy_option(function: Function) -> Function:
    """Add `--policy`, passed as the path `policy`."""
    return click.option(
        "--policy",
        type=click.Path(path_type=Path, dir_okay=False),
        help="YAML file that says whose signatures are trusted.",
    )(function)
