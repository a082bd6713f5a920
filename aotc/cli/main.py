"""Entry point: the commands, and the one place that maps errors to exit codes."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import click

from aotc import __version__, config
from aotc.errors import AotcError, ExitCode


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotc")
def cli() -> None:
    """Compile PyPTO models ahead of time."""


@cli.command()
def schema() -> None:
    """Print the JSON Schema of a model config."""
    click.echo(json.dumps(config.json_schema(), indent=2, sort_keys=True))


@cli.command("config")
@click.argument("model")
@click.option(
    "--models-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("models"),
    show_default=True,
    help="Folder of the model configs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_config(model: str, models_dir: Path, as_json: bool) -> None:
    """Check MODEL's config and print its resolved extents and dynamic symbols."""
    resolved = config.load(model, models_dir)
    symbols = {
        name: {
            field: str(value)
            for field, value in (
                ("min", symbol.minimum),
                ("max", symbol.maximum),
                ("multiple_of", symbol.multiple_of),
                ("equals", symbol.equals),
            )
            if value is not None
        }
        for name, symbol in resolved.symbols.items()
    }
    if as_json:
        document = {
            "model": resolved.model,
            "extents": dict(resolved.extents),
            "dynamic": symbols,
        }
        click.echo(json.dumps(document, indent=2))
        return
    for name, extent in resolved.extents.items():
        click.echo(f"{name} = {extent}")
    for name, constraints in symbols.items():
        text = ", ".join(f"{field} {value}" for field, value in constraints.items())
        click.echo(f"{name}: {text or 'any'}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        cli.main(args=arguments, prog_name="aotc", standalone_mode=False)
    except AotcError as error:
        click.echo(error.render(), err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except click.Abort:
        return 130
    except Exception:
        traceback.print_exc()
        click.echo("error: a fault in aotc, not in your input; please report it", err=True)
        return ExitCode.INTERNAL
    return ExitCode.OK


def run() -> None:
    """Run the command line and exit."""
    sys.exit(main())
