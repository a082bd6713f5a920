"""Run the command line as `python -m aotc`."""

from aotc.cli.main import run

run()
