"""`aotc config`."""

from __future__ import annotations

from pathlib import Path

import click

from aotc import config
from aotc.cli.options import models_option, output_options
from aotc.cli.output import Printer
from aotc.contract import DynamicSymbol


@click.command("config")
@click.argument("model")
@click.option("--platform", default="cpu", show_default=True, help="Whose tiling to take.")
@models_option
@output_options
def command(model: str, platform: str, models_dir: Path, printer: Printer) -> None:
    """Check MODEL's config and print what it resolves to.

    That is every extent, hyperparameter and dynamic symbol, as its sources see them.
    """
    resolved = config.load(model, models_dir)
    extents = resolved.names(platform)
    symbols = {name: _constraints(symbol) for name, symbol in resolved.symbols.items()}
    if printer.as_json:
        printer.document(
            {
                "model": resolved.model,
                "platform": platform,
                "extents": extents,
                "hyperparameters": dict(resolved.hyperparameters),
                "dynamic": symbols,
                "programs": {
                    name: {
                        "wrapper": str(program.wrapper),
                        "golden": None if program.golden is None else str(program.golden),
                    }
                    for name, program in resolved.programs.items()
                },
            }
        )
        return
    for name, extent in extents.items():
        printer.data(f"{name} = {extent}")
    for name, value in resolved.hyperparameters.items():
        printer.data(f"{name} = {value}")
    for name, constraints in symbols.items():
        text = ", ".join(f"{field} {value}" for field, value in constraints.items())
        printer.data(f"{name}: {text or 'any'}")


def _constraints(symbol: DynamicSymbol) -> dict[str, str]:
    """Return the constraints under the names that a config gives them."""
    fields = {
        "min": symbol.minimum,
        "max": symbol.maximum,
        "multiple_of": symbol.multiple_of,
        "equals": symbol.equals,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}
