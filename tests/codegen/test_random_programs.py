"""Random programs: element-wise chains, reductions, views, updates, loops and branches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from compare import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FULL, COLUMN, ROW = "fp32[dim.M, dim.N]", "fp32[dim.M, 1]", "fp32[1, dim.N]"


@dataclass
class Writer:
    """Writes a program, drawing each statement from what has been defined before it."""

    draw: st.DrawFn
    count: int = 0
    lines: list[str] = field(default_factory=list)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, values: dict[str, list[str]], kind: str) -> str:
        return self.draw(st.sampled_from(values[kind]))

    def define(self, indent: str, kind: str, text: str) -> str:
        name = self.name()
        self.lines.append(f"{indent}{name}: {kind} = {text}")
        return name

    def statement(self, indent: str, values: dict[str, list[str]], state: str, depth: int) -> str:
        """Write one statement; return the state of the InOut parameter after it."""
        full, column, row = (self.pick(values, kind) for kind in (FULL, COLUMN, ROW))
        other = self.pick(values, FULL)
        choices = ["binary", "scalar", "unary", "reduce", "expand", "column", "cast", "update"]
        choices += ["half", "window"] + (["loop", "branch"] if depth else [])
        match self.draw(st.sampled_from(choices)):
            case "binary":
                op = self.draw(st.sampled_from(["add", "sub", "maximum", "minimum"]))
                values[FULL].append(self.define(indent, FULL, f"{op}({full}, {other})"))
            case "scalar":
                values[FULL].append(self.define(indent, FULL, f"mul({full}, fp32(0.5))"))
            case "unary":
                op = self.draw(st.sampled_from(["neg", "abs"]))
                values[FULL].append(self.define(indent, FULL, f"{op}({full})"))
            case "reduce":
                op = self.draw(st.sampled_from(["row_max", "row_sum", "row_min"]))
                text = f"{op}({full}, tmp_tile=None)"
                values[COLUMN].append(self.define(indent, COLUMN, text))
            case "expand":
                op = self.draw(st.sampled_from(["row_expand_sub", "row_expand_add"]))
                scratch = ", tmp=None" if op == "row_expand_add" else ""
                text = f"{op}({full}, {column}{scratch})"
                values[FULL].append(self.define(indent, FULL, text))
            case "column":
                op = self.draw(st.sampled_from(["col_max", "col_min"]))
                found = self.define(indent, ROW, f"{op}({full}, tmp_tile=None)")
                values[ROW] += [found, self.define(indent, ROW, f"add({found}, {row})")]
                values[FULL].append(self.define(indent, FULL, f"col_expand_add({full}, {row})"))
            case "cast":
                kind = FULL.replace("fp32", "bf16")
                narrow = self.define(indent, kind, f'cast({full}, mode="rint", target_type=bf16)')
                text = f'cast({narrow}, mode="rint", target_type=fp32)'
                values[FULL].append(self.define(indent, FULL, text))
            case "half":
                # Every element from its own row, at another column.
                text = f"slice({state}, [dim.M, dim.N], [0, 1], [], [], clamp=False)"
                values[FULL].append(self.define(indent, FULL, text))
            case "window":
                # Every element from another row of the storage that updates write.
                text = f"slice({state}, [dim.M, dim.N], [1, 0], [], [], clamp=False)"
                values[FULL].append(self.define(indent, FULL, text))
            case "update":
                row_offset = self.draw(st.sampled_from([0, 1]))
                kind = "fp32[dim.P, dim.Q]"
                return self.define(indent, kind, f"assemble({state}, {full}, [{row_offset}, 0])")
            case "loop":
                return self.loop(indent, values, state, depth)
            case "branch":
                return self.branch(indent, values, state, depth)
        return state

    def block(self, indent: str, values: dict[str, list[str]], state: str, depth: int) -> str:
        for _ in range(self.draw(st.integers(1, 5))):
            state = self.statement(indent, values, state, depth)
        return state

    def loop(self, indent: str, values: dict[str, list[str]], state: str, depth: int) -> str:
        argument, result = self.name(), self.name()
        held, after = self.name(), self.name()
        initial = self.pick(values, FULL)
        trips = self.draw(st.integers(0, 3))
        self.lines.append(f"{indent}for i{argument} in range(0, {trips}, 1):")
        inner = indent + "    "
        kind = "fp32[dim.P, dim.Q]"
        self.lines.append(f"{inner}{argument}: {FULL} = carry({initial}, {result})")
        self.lines.append(f"{inner}{held}: {kind} = carry({state}, {after})")
        local = {kind: list(names) for kind, names in values.items()}
        local[FULL].append(argument)
        end = self.block(inner, local, held, depth - 1)
        self.lines.append(f"{inner}yields({self.pick(local, FULL)}, {end})")
        values[FULL].append(result)
        return after

    def branch(self, indent: str, values: dict[str, list[str]], state: str, depth: int) -> str:
        result, after = self.name(), self.name()
        kind = "fp32[dim.P, dim.Q]"
        self.lines += [f"{indent}{result}: {FULL}", f"{indent}{after}: {kind}"]
        for head in ("if dim.M > 2:", "else:"):
            self.lines.append(indent + head)
            local = {kind: list(names) for kind, names in values.items()}
            end = self.block(indent + "    ", local, state, depth - 1)
            self.lines.append(f"{indent}    yields({self.pick(local, FULL)}, {end})")
        values[FULL].append(result)
        return after


@st.composite
def programs(draw: st.DrawFn) -> str:
    writer = Writer(draw)
    writer.lines = [
        'program("random")',
        f"x: In[{FULL}]",
        f"y: In[{FULL}]",
        f"c: In[{COLUMN}]",
        f"r: In[{ROW}]",
        "s: InOut[fp32[dim.P, dim.Q]]",
        f"out: Out[{FULL}]",
    ]
    values = {FULL: ["x", "y"], COLUMN: ["c"], ROW: ["r"]}
    state = writer.block("", values, "s", depth=2)
    state = writer.block("", values, state, depth=2)
    last = writer.define("", FULL, f"assemble(out, {writer.pick(values, FULL)}, [0, 0])")
    writer.lines.append(f"yields({state}, {last})")
    return "\n".join(writer.lines) + "\n"


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(text=programs(), m=st.sampled_from([1, 3, 5]), n=st.sampled_from([1, 5, 19]))
def test_random_programs_agree_with_the_reference(text: str, m: int, n: int) -> None:
    rng = np.random.default_rng(m * 100 + n)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    arguments = {
        "x": draw(m, n),
        "y": draw(m, n),
        "c": draw(m, 1),
        "r": draw(1, n),
        "s": draw(m + 1, n + 1),
        "out": np.zeros((m, n), np.float32),
    }
    check(text, arguments, rtol=2e-2, atol=2e-2, threads=(1, 2))
