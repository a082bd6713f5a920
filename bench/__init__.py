"""How fast aotc is on this machine, against what the machine can do: `python -m bench --help`."""
