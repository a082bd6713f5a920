"""Kernels in C++ (`pl.jit.extern`): PyPTO refers to them where they are, which is nowhere else.

Their entry files, and what was compiled of them, are taken into the program's folder, where they
are kernels like any other.
"""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

SUFFIXES = (".c", ".cc", ".cce", ".cpp", ".h", ".hh", ".hpp", ".inc")

# A line of `KERNELS` in `kernel_config.py` as PyPTO's backend writes it.
_ENTRY = re.compile(
    r'(?P<head>"func_id": (?P<id>\d+), "name": "(?P<name>\w+)", "source": )'
    r"(?P<source>'[^'\n]*'|\"[^\"\n]*\")"
    r'(?P<core>, "core_type": "(?P<type>\w+)"), "external": True'
    r'(?:, "extra_include_dirs": \[[^\]\n]*\])?'
)


def take_in(output: Path, platform: str) -> None:
    """Make every kernel in C++ below the folder `output` one of the folder itself."""
    for config in output.glob("next_levels/*/kernel_config.py"):
        chip = config.parent

        def inside(found: re.Match[str], chip: Path = chip) -> str:
            source = Path(ast.literal_eval(found["source"]))
            core, name = found["type"], found["name"]
            copy = chip / "kernels" / core / f"{name}.cpp"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            # PyPTO names a binary by the content of all that went into an external kernel.
            stem = f"incore_{found['id']}_{core}_"
            for binary in (chip / "cache").glob(f"{stem}{source.stem}_*.bin"):
                binary.rename(binary.with_name(f"{stem}{name}_{platform}.bin"))
            place = f'str(_ROOT_DIR / "kernels" / "{core}" / "{name}.cpp")'
            return f"{found['head']}{place}{found['core']}"

        text = config.read_text(encoding="utf-8")
        config.write_text(_ENTRY.sub(inside, text), encoding="utf-8")
