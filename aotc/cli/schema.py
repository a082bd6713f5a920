"""`aotc schema`."""

from __future__ import annotations

import json

import click

from aotc import config
from aotc.cli.output import Printer


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of a model config."""
    Printer().data(json.dumps(config.json_schema(), indent=2, sort_keys=True))
