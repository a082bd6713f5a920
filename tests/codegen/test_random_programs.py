"""Random programs: element-wise chains, reductions, contractions, views, updates, control flow."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from compare import check, from_bf16, phases_agree, to_bf16
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FULL, COLUMN, ROW = "fp32[dim.M, dim.N]", "fp32[dim.M, 1]", "fp32[1, dim.N]"
WIDE = "fp32[dim.M, dim.K]"
STATE = "fp32[dim.P, dim.Q]"


@dataclass
class Writer:
    """Writes a program, drawing each statement from what has been defined before it."""

    draw: st.DrawFn
    contractions: bool = False
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
        if self.contractions:
            choices += ["up", "down", "down", "accumulate", "gate", "scale", "items"]
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
            case "up":
                self.up(indent, values, full)
            case "down":
                b = self.draw(st.sampled_from(["down, a_trans=False, b_trans=False", "turned"]))
                b = b if "," in b else "turned, a_trans=False, b_trans=True"
                narrow = self.narrowed(indent, WIDE, self.pick(values, WIDE))
                text = f"matmul({narrow}, {b}, out_dtype=fp32)"
                values[FULL].append(self.define(indent, FULL, text))
            case "accumulate":
                narrow = self.narrowed(indent, WIDE, self.pick(values, WIDE))
                text = f"matmul_acc({full}, {narrow}, down, [], a_trans=False, b_trans=False)"
                values[FULL].append(self.define(indent, FULL, text))
            case "gate":
                wide, other = self.pick(values, WIDE), self.pick(values, WIDE)
                values[WIDE].append(self.define(indent, WIDE, f"maximum({wide}, {other})"))
            case "scale":
                found = self.define(indent, COLUMN, f"mul({column}, fp32(0.5))")
                kind = self.draw(st.sampled_from([FULL, WIDE]))
                text = f"row_expand_sub({self.pick(values, kind)}, {found})"
                values[kind].append(self.define(indent, kind, text))
                values[COLUMN].append(found)
            case "items":
                return self.items(indent, full, column, state)
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
                kind = STATE
                return self.define(indent, kind, f"assemble({state}, {full}, [{row_offset}, 0])")
            case "loop":
                return self.loop(indent, values, state, depth)
            case "branch":
                return self.branch(indent, values, state, depth)
        return state

    def narrowed(self, indent: str, kind: str, value: str) -> str:
        narrow = kind.replace("fp32", "bf16")
        return self.define(indent, narrow, f'cast({value}, mode="rint", target_type=bf16)')

    def up(self, indent: str, values: dict[str, list[str]], full: str) -> None:
        """Write one or two contractions of one operand, and perhaps scale them by row."""
        narrow = self.narrowed(indent, FULL, full)
        for weight in self.draw(st.sampled_from([["up"], ["up", "gate"]])):
            text = f"matmul({narrow}, {weight}, a_trans=False, b_trans=False, out_dtype=fp32)"
            values[WIDE].append(self.define(indent, WIDE, text))

    def items(self, indent: str, full: str, column: str, state: str) -> str:
        """Write a parallel loop in which each row is taken, shifted, and put into the state."""
        result, inner = self.name(), indent + "    "
        row = self.name()
        self.lines.append(f"{indent}for {row} in parallel(0, dim.M, 1):")
        held, after = self.name(), self.name()
        self.lines.append(f"{inner}{held}: {STATE} = carry({state}, {result})")
        text = f"slice({full}, [1, dim.N], [{row}, 0], [], [], clamp=False)"
        taken = self.define(inner, ROW, text)
        text = f"slice({column}, [1, 1], [{row}, 0], [], [], clamp=False)"
        by = self.define(inner, "fp32[1, 1]", text)
        moved = self.define(inner, ROW, f"row_expand_sub({taken}, {by})")
        self.lines.append(f"{inner}{after}: {STATE} = assemble({held}, {moved}, [{row}, 1])")
        self.lines.append(f"{inner}yields({after})")
        return result

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
        kind = STATE
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
        kind = STATE
        self.lines += [f"{indent}{result}: {FULL}", f"{indent}{after}: {kind}"]
        for head in ("if dim.M > 2:", "else:"):
            self.lines.append(indent + head)
            local = {kind: list(names) for kind, names in values.items()}
            end = self.block(indent + "    ", local, state, depth - 1)
            self.lines.append(f"{indent}    yields({self.pick(local, FULL)}, {end})")
        values[FULL].append(result)
        return after


@st.composite
def programs(draw: st.DrawFn, contractions: bool = False) -> str:
    writer = Writer(draw, contractions)
    writer.lines = [
        'program("random")',
        f"x: In[{FULL}]",
        f"y: In[{FULL}]",
        f"c: In[{COLUMN}]",
        f"r: In[{ROW}]",
        f"s: InOut[{STATE}]",
        f"out: Out[{FULL}]",
    ]
    values = {FULL: ["x", "y"], COLUMN: ["c"], ROW: ["r"]}
    if contractions:
        writer.lines += [
            f"w: In[{WIDE}]",
            "up: In[bf16[dim.N, dim.K]]",
            "gate: In[bf16[dim.N, dim.K]]",
            "down: In[bf16[dim.K, dim.N]]",
            "turned: In[bf16[dim.N, dim.K]]",
        ]
        values[WIDE] = ["w"]
    state = writer.block("", values, "s", depth=2)
    state = writer.block("", values, state, depth=2)
    last = writer.define("", FULL, f"assemble(out, {writer.pick(values, FULL)}, [0, 0])")
    writer.lines.append(f"yields({state}, {last})")
    return "\n".join(writer.lines) + "\n"


def arguments(m: int, n: int, k: int | None = None) -> dict[str, np.ndarray]:
    """Return arguments; with `k` those of a program with contractions."""
    rng = np.random.default_rng(m * 100 + n)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def weight(*shape: int) -> np.ndarray:
        return from_bf16(to_bf16(draw(*shape) / np.float32(2 * max(n, k or 0) ** 0.5)))

    given = {
        "x": draw(m, n),
        "y": draw(m, n),
        "c": draw(m, 1),
        "r": draw(1, n),
        "s": draw(m + 1, n + 1),
        "out": np.zeros((m, n), np.float32),
    }
    if k is not None:
        given |= {"w": draw(m, k), "up": weight(n, k), "gate": weight(n, k)}
        given |= {"down": weight(k, n), "turned": weight(n, k)}
    return given


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(text=programs(), m=st.sampled_from([1, 3, 5]), n=st.sampled_from([1, 5, 19]))
def test_random_programs_agree_with_the_reference(text: str, m: int, n: int) -> None:
    check(text, arguments(m, n), rtol=2e-2, atol=2e-2, threads=(1, 2))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    text=programs(contractions=True),
    m=st.sampled_from([1, 3, 40]),
    n=st.sampled_from([1, 19, 70]),
    k=st.sampled_from([19, 33, 70]),
)
def test_random_contractions_agree_with_the_reference(text: str, m: int, n: int, k: int) -> None:
    """Whatever order the threads run in between the barriers."""
    given_arguments = arguments(m, n, k)
    check(text, given_arguments, rtol=3e-2, atol=5e-2, threads=(1, 2, 3, 5))
    for threads in (2, 3, 5):
        assert phases_agree(text, given_arguments, threads)
