"""Entry point: the table of commands, and the one place that maps errors to exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import click

from aotc import __version__
from aotc.cli.output import Printer
from aotc.errors import AotcError, ExitCode, suggestion

# The command of each is `command` in its module, which is imported when it is called.
COMMANDS = {
    "build": ("aotc.cli.build", "Compile programs of each MODEL into the store."),
    "ls": ("aotc.cli.ls", "List the programs in the store."),
    "show": ("aotc.cli.show", "Show PROGRAM of MODEL as it is in the store."),
    "explain": ("aotc.cli.explain", "Tell why programs of MODEL are up to date, stale or missing."),
    "verify": ("aotc.cli.verify", "Check that the artifacts of MODEL are what its sources say."),
    "run": ("aotc.cli.run", "Run PROGRAM of MODEL on sample arguments, and time it."),
    "sign": ("aotc.cli.sign", "Sign the artifacts of MODEL."),
    "push": ("aotc.cli.push", "Push the artifacts of MODEL to a registry."),
    "pull": ("aotc.cli.pull", "Pull the artifacts of a model from a registry into the store."),
    "gc": ("aotc.cli.gc", "Remove from the store what nothing needs."),
    "du": ("aotc.cli.du", "Show what takes room in the store."),
    "generate": ("aotc.cli.generate", "Generate tokens greedily with the artifacts of MODEL."),
    "config": ("aotc.cli.config", "Check MODEL's config and print what it resolves to."),
    "doctor": (
        "aotc.cli.doctor",
        "Tell what the toolchains need, and what of it is here.",
    ),
    "schema": ("aotc.cli.schema", "Print the JSON Schema of a model config."),
}

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
CLOSED_OUTPUT = 141  # 128 + SIGPIPE


class UnknownCommandError(AotcError):
    """There is no command of that name."""

    exit_code = ExitCode.USAGE


class _Commands(click.Group):
    """The commands of the table, each imported when it is used; `--help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = suggestion(name, COMMANDS) or f"commands: {', '.join(COMMANDS)}"
            raise UnknownCommandError(f"unknown command `{name}`", hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aotc")
def cli() -> None:
    """Compile PyPTO models ahead of time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # An error in the options themselves is also reported as it was asked for.
    printer = Printer(as_json="--json" in given)
    try:
        code = cli.main(args=given, prog_name="aotc", standalone_mode=False)
    except AotcError as error:
        printer.error(error)
        return error.exit_code
    except click.ClickException as error:
        if printer.as_json:
            message = error.format_message()
            printer.error(AotcError(message), ExitCode.USAGE)
        else:
            error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        printer.error(AotcError("interrupted"), INTERRUPTED)
        return INTERRUPTED
    except SystemExit as error:
        # click exits for shell completion, and where whoever reads stdout has closed it.
        return int(error.code or 0) if "_AOTC_COMPLETE" in os.environ else CLOSED_OUTPUT
    except OSError as error:
        # A full disk or a missing permission where nobody expected one.
        subject = f": {error.filename}" if error.filename else ""
        printer.error(AotcError(f"{error.strerror or error}{subject}"), ExitCode.ENVIRONMENT)
        return ExitCode.ENVIRONMENT
    except Exception:
        traceback.print_exc()
        fault = AotcError("a fault in aotc, not in your input; please report it")
        printer.error(fault, ExitCode.INTERNAL)
        return ExitCode.INTERNAL
    return int(code or 0)


def run() -> None:
    """Run the command line and exit."""
    sys.exit(main())
