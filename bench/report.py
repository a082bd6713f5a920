"""`python -m bench.report FILE.json`: tables and a plot from what `python -m bench --json` wrote.

Replaces what is between the two markers of docs/performance.md, and writes docs/performance.svg.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bench.measure import short

BEGIN = "<!-- what `python -m bench.report` writes begins here -->"
END = "<!-- and ends here -->"
_DOCS = Path(__file__).parents[1] / "docs"
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
_INCOMPLETE = "**Not complete**: the run ended early, and what it did not come to is missing."

Record = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """What a number should be: at least `least`, or at most `most`."""

    name: str
    find: Callable[[Sequence[Record]], list[float]]
    least: float | None = None
    most: float | None = None
    unit: str = ""

    def row(self, rows: Sequence[Record]) -> list[str]:
        """Return cells: the name, the goal, the worst number found and whether it will do."""
        found = self.find(rows)
        if self.least is not None:
            limit, worst = f"at least {self.least:g}", min(found, default=None)
            met = worst is not None and worst >= self.least
        else:
            limit, worst = f"under {self.most:g}", max(found, default=None)
            met = worst is not None and self.most is not None and worst < self.most
        if worst is None:
            return [self.name, f"{limit} {self.unit}".strip(), "not measured", ""]
        shown = f"{short(worst)} {self.unit}".strip()
        return [self.name, f"{limit} {self.unit}".strip(), shown, "yes" if met else "no"]


def _values(field: str, start: str, group: str = "") -> Callable[[Sequence[Record]], list[float]]:
    def find(rows: Sequence[Record]) -> list[float]:
        return [
            row[field]
            for row in rows
            if row["name"].strip().startswith(start)
            and row["group"].startswith(group)
            and (bool(row["peer"]) == group.startswith("against"))
            and row[field] is not None
        ]

    return find


def _memory(
    field: str, start: str, end: str, which: str
) -> Callable[[Sequence[Record]], list[float]]:
    """Find a value of the rows about memory that follow the row of a build."""

    def find(rows: Sequence[Record]) -> list[float]:
        found, inside = [], False
        for row in rows:
            name = row["name"].strip()
            if name.startswith(which) and inside:
                found.append(row[field])
            elif row["unit"] != "MB":
                inside = name.startswith(start) and name.endswith(end)
        return found

    return find


def _cold(suffix: str) -> Callable[[Sequence[Record]], list[float]]:
    def find(rows: Sequence[Record]) -> list[float]:
        return [
            row["value"]
            for row in rows
            if row["name"].startswith("build of") and row["name"].endswith(suffix)
        ]

    return find


_LAYER = "one layer of decode by AOTInductor"
GOALS = (
    Goal("decode, batch 1, over the read", _values("ratio", "decode, batch 1,", "decode"), 0.90),
    Goal("decode, batch 4, over the roof", _values("ratio", "decode, batch 4,", "decode"), 0.75),
    Goal("decode, batch 16, over the roof", _values("ratio", "decode, batch 16,", "decode"), 0.85),
    Goal("prefill, 512 tokens, over FMA", _values("ratio", "prefill, 512", "prefill"), 0.85),
    Goal("prefill, 128 tokens, over FMA", _values("ratio", "prefill, 128", "prefill"), 0.80),
    Goal("decode attention over the read of K and V", _values("ratio", "decode attention"), 0.80),
    Goal("decode over the best peer", _values("ratio", "decode", "against"), 1.3),
    Goal("prefill over the best peer", _values("ratio", "prefill", "against"), 1.5),
    Goal("dispatch of a bound call", _values("value", "bound call"), most=5, unit="us"),
    Goal("load to a ready handle", _values("value", "load to"), most=50, unit="ms"),
    Goal("build of the programs, cold", _cold("cold"), most=3, unit="s"),
    Goal("build of the programs, warm", _cold("warm"), most=0.2, unit="s"),
    Goal(
        "the same, largest process",
        _memory("value", "build of", "cold", "largest"),
        most=200,
        unit="MB",
    ),
    Goal(
        "the same, all processes together",
        _memory("value", "build of", "cold", "all"),
        most=200,
        unit="MB",
    ),
    Goal("build of a layer, times as fast as AOTInductor's", _values("ratio", _LAYER), 20),
    Goal("the same, largest process", _memory("ratio", _LAYER, "", "largest"), 5),
    Goal("the same, all processes together", _memory("ratio", _LAYER, "", "all"), 5),
)


def markdown(document: Record) -> str:
    """Return the tables of a run."""
    rows = document["rows"]
    command = f"`{document['command']}`"
    heading = ["work", "value", "ratio", "against", "others"]
    own = [row for row in rows if not row["peer"]]
    parts = [
        f"All of it by {command}: {document['model']}, {document['layers']} layers.",
        "" if document.get("complete", True) else _INCOMPLETE,
        "![share of the roof](performance.svg)",
        "### Goals",
        _table(["what", "goal", "measured", "met"], [goal.row(rows) for goal in GOALS]),
        "### Machine",
        _table(["", ""], [[name, _plain(value)] for name, value in document["machine"].items()]),
    ]
    titles = {
        **{"": "Limits", "attention": "Attention alone"},
        **{"build": "Builds", "inductor": "A layer by AOTInductor"},
    }
    for group in dict.fromkeys(row["group"] for row in own):
        title = titles.get(group, group.capitalize())
        parts += [f"### {title}", f"`{_part(document, group)}`" if group else ""]
        parts.append(_table(heading, [_cells(row) for row in own if row["group"] == group]))
    theirs = [row for row in rows if row["peer"]]
    if theirs:
        parts += [
            "### Peers",
            "Speed, and in brackets how many times as fast aotc was in the same rounds. By "
            f"`{_part(document, 'decode,prefill')} --peers`.",
            _peer_table(own, theirs),
        ]
    if document["notes"]:
        parts += ["### Not measured", "\n".join(f"* {note}" for note in document["notes"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def _part(document: Record, group: str) -> str:
    peers = " --peers" if group == "inductor" else ""
    return f"python -m bench --model {document['model']} --only {group}{peers}"


def _cells(row: Record) -> list[str]:
    name = row["name"]
    # Markdown would drop the indentation that says what belongs to what.
    shown = "&emsp;" * ((len(name) - len(name.lstrip())) // 2) + name.lstrip()
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    others = "" if row["others"] is None else f"{row['others']:.0%}"
    return [shown, f"{short(row['value'])} {row['unit']}", ratio, row["against"], others]


def _peer_table(own: Sequence[Record], theirs: Sequence[Record]) -> str:
    peers = list(dict.fromkeys(row["peer"] for row in theirs))
    lines = []
    for ours in own:
        found = {row["peer"]: row for row in theirs if row["name"] == ours["name"]}
        if found:
            cells = [
                f"{short(found[peer]['value'])} ({found[peer]['ratio']:.2f})"
                if peer in found
                else ""
                for peer in peers
            ]
            lines.append([ours["name"], ours["unit"], short(ours["value"]), *cells])
    return _table(["work", "unit", "aotc", *peers], lines)


def _table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "/")


def plot(document: Record) -> str:
    """Return an SVG of bars: the share of the roof that each engine reaches in each case."""
    rows = document["rows"]
    own = [row for row in rows if row["group"] in ("decode", "prefill") and row["ratio"]]
    peers = list(dict.fromkeys(row["peer"] for row in rows if row["peer"]))
    colours = dict(zip(["aotc", *peers], _COLOURS * (1 + len(peers)), strict=False))
    bars: list[tuple[str, list[tuple[str, float]]]] = []
    for ours in own:
        shares = [("aotc", ours["ratio"])]
        shares += [
            # How many times slower it was in its own rounds.
            (row["peer"], ours["ratio"] / row["ratio"])
            for row in rows
            if row["peer"] and row["name"] == ours["name"]
        ]
        bars.append((ours["name"], shares))
    most = max((share for _, shares in bars for _, share in shares), default=1.0)
    left, scale = 230, 560 / max(1.0, most)
    parts, y = [], 30 + 18 * len(colours)
    for number, (engine, colour) in enumerate(colours.items()):
        parts.append(
            f'<rect x="{left}" y="{8 + 18 * number}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(f'<text x="{left + 18}" y="{18 + 18 * number}">{escape(engine)}</text>')
    top = y
    for name, shares in bars:
        middle = y + 7 * len(shares) + 4
        parts.append(f'<text x="{left - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>')
        for engine, share in shares:
            width = share * scale
            parts.append(
                f'<rect x="{left}" y="{y}" width="{width:.1f}" height="12"'
                f' fill="{colours[engine]}"/>'
            )
            parts.append(f'<text x="{left + width + 4:.1f}" y="{y + 10}">{share:.2f}</text>')
            y += 14
        y += 10
    roof = left + scale
    parts.append(
        f'<line x1="{roof:.1f}" y1="{top - 6}" x2="{roof:.1f}" y2="{y}" stroke="black"'
        ' stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text x="{roof:.1f}" y="{y + 14}" text-anchor="middle">roof</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="850" height="{y + 24}"'
        ' font-family="sans-serif" font-size="11">\n'
        f'<rect width="850" height="{y + 24}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Write page and plot, and return the exit code."""
    parser = argparse.ArgumentParser("python -m bench.report", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m bench --json` wrote")
    parser.add_argument("--docs", type=Path, default=_DOCS, help="folder of performance.md")
    options = parser.parse_args(arguments)
    document = json.loads(options.file.read_text(encoding="utf-8"))
    page = options.docs / "performance.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"error: {page} has no markers to write between", file=sys.stderr)
        return 1
    page.write_text(f"{before}{BEGIN}\n\n{markdown(document)}\n{END}{after}", encoding="utf-8")
    (options.docs / "performance.svg").write_text(plot(document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
