"""Programs mean what PyPTO says: each is run by the reference interpreter against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aotc.contract import Direction, Parameter
from aotc.dtypes import INDEX, INT32
from aotc.ir.nodes import Block, For, If, LoopKind, Operation, Statement, While
from aotc.ir.scalar import ScalarVar


def rows(count: int = 3) -> np.ndarray[Any, Any]:
    return np.arange(count * 8, dtype=np.float32).reshape(count, 8) - 7


def zeros(count: int = 3) -> np.ndarray[Any, Any]:
    return np.full((count, 8), np.nan, np.float32)


def statements(block: Block) -> list[Statement]:
    found: list[Statement] = []
    for each in block.statements:
        found.append(each)
        match each:
            case For(body=body):
                found += statements(body)
            case While(head=head, body=body):
                found += [*statements(head), *statements(body)]
            case If(then=then, orelse=orelse):
                found += [*statements(then), *statements(orelse)]
    return found


def only(model: Any, kind: type) -> Any:
    (found,) = [each for each in statements(model.lower().program.body) if isinstance(each, kind)]
    return found


# Element-wise bodies: the text of a kernel, and what it computes from x.
BODIES = {
    "out[:] = pl.add(x, x)": lambda x: x + x,
    "out[:] = x * 2": lambda x: x * 2,
    "out[:] = 2 * x + 1": lambda x: 2 * x + 1,
    "out[:] = 1 - x": lambda x: 1 - x,
    "out[:] = -x": lambda x: -x,
    "out[:] = x / 4 - x * x": lambda x: x / 4 - x * x,
    "y = x\ny += 1\ny *= LIMIT\nout[:] = y": lambda x: (x + 1) * 3,
    "'''Doc.'''\npass\nout[:] = x": lambda x: x,
    "out = pl.add(x, 1.0)": lambda x: x + 1,
    "t = pl.load(x, [0, 0], [pl.tensor.dim(x, 0), H])\npl.store(t, [0, 0], out)": lambda x: x,
    "out[0:1, :] = x[1:2, :]\nout[1:3, :] = x[0:2, :]": lambda x: x[[1, 0, 1]],
    "out[0, :] = x[1, :]\nout[1:, ...] = x[:2]": lambda x: x[[1, 0, 1]],
    "out[0:3, 4:8] = x[0:3, 0:4]\nout[:, 0:4] = x[:, -4:]": lambda x: np.roll(x, 4, 1),
    "out[:] = x\nout[0, 1] = x[2, 3] + 1.0\npl.write(out, [1, 0], pl.read(x, [0, 0]))": (
        lambda x: np.where(
            np.eye(3, 8, 1) * [[1], [0], [0]] == 1,
            x[2, 3] + 1,
            np.where(np.eye(3, 8, -1) * [[0], [1], [0]] == 1, x[0, 0], x),
        )
    ),
    "if LIMIT > 2:\n    out[:] = x\nelse:\n    undefined_name": lambda x: x,
    "out[:] = x if LIMIT == 3 else undefined_name": lambda x: x,
    "for f in (1.0, 2.0):\n    x = x * f\nout[:] = x": lambda x: x * 2,
    "for i in range(LIMIT):\n    x = x + i\nout[:] = x": lambda x: x + 3,
    "for i in pl.unroll(1, 3):\n    x = x + i\nout[:] = x": lambda x: x + 3,
    "for i in pl.range(3):\n    x = pl.add(x, 1.0)\nout[:] = x": lambda x: x + 3,
    "for i in pl.range(1, 8, 3):\n    x = pl.add(x, 1.0)\nout[:] = x": lambda x: x + 3,
    "for i in pl.range(0):\n    x = pl.add(x, 1.0)\nout[:] = x": lambda x: x,
    "for i in pl.pipeline(3, stage=2):\n    out[i:i+1, :] = x[i:i+1, :]": lambda x: x,
    "for i in pl.parallel(B):\n    out[i:i+1, :] = x[i:i+1, :] * 2.0": lambda x: x * 2,
    "for i in pl.spmd(3):\n    pl.store(pl.load(x, [i, 0], [1, H]), [i, 0], out)": lambda x: x,
    "with pl.spmd(3):\n    i = pl.tile.get_block_idx()\n    out[i:i+1, :] = x[i:i+1, :]": (
        lambda x: x
    ),
    "for i in pl.split_aiv(3, mode=pl.SplitMode.NONE):\n    out[i, :] = x[i, :]": lambda x: x,
    # Carried values: a scalar, two tensors that change places, a literal that takes a type.
    "n = 0\nfor i in pl.range(4):\n    n = n + i\nout[:] = x + pl.cast(n, pl.FP32)": (
        lambda x: x + 6
    ),
    "a = x\nb = x * 2.0\nfor i in pl.range(3):\n    a, b = b, a\nout[:] = a": lambda x: x * 2,
    "n = 0\nfor i in pl.range(2):\n    n = n + pl.cast(i, pl.INT32)\n"
    "out[:] = x + pl.cast(n, pl.FP32)": lambda x: x + 1,
    "for i, (a, b) in pl.range(3, init_values=(x, x)):\n    c, d = pl.yield_(b, a + 1.0)\n"
    "out[:] = c": lambda x: x + 1,
    "i = 0\nwhile i < 3:\n    x = x + 1.0\n    i = i + 1\nout[:] = x": lambda x: x + 3,
    "for (i, y) in pl.while_(init_values=(0, x)):\n    pl.cond(i < 3)\n"
    "    j, z = pl.yield_(i + 1, y * 2.0)\nout[:] = z": lambda x: x * 8,
    # Branches.
    "for i in pl.range(3):\n    if i == 1:\n        out[i, :] = x[i, :]\n    elif i > 1:\n"
    "        out[i, :] = x[0, :]\n    else:\n        out[i, :] = x[2, :]": lambda x: x[[2, 1, 0]],
    "for i in pl.range(3):\n    if i == 1:\n        y = pl.yield_(x + 1.0)\n    else:\n"
    "        y = pl.yield_(x)\n    x = y\nout[:] = x": lambda x: x + 1,
    "n = 0\nfor i in pl.range(3):\n    if i > 0 and not i == 2:\n        n = 5\n"
    "out[:] = x + pl.cast(n, pl.FP32)": lambda x: x + 5,
    "n = 1 if pl.read(x, [0, 0]) < 0.0 else 2\nout[:] = x + pl.cast(n, pl.FP32)": lambda x: x + 1,
    "out[:] = x\nfor i in pl.range(3):\n    if pl.min(i, 1) == pl.max(i, 1):\n"
    "        pl.write(out, [i, 0], pl.const(0.5, pl.FP32))": (
        lambda x: np.where(np.eye(3, 8, -1) * [[0], [1], [0]] == 1, 0.5, x)
    ),
    # Scopes bind names for what comes after them.
    "with pl.at(level=pl.Level.CORE_GROUP, name_hint='a') as tid:\n    y = x * 3.0\n"
    "with pl.at(level=pl.Level.CORE_GROUP, deps=[tid]):\n    out[:] = y": lambda x: x * 3,
    "with pl.manual_scope():\n    tids = pl.array.create(2, pl.TASK_ID)\n"
    "    tids[0] = pl.system.task_dummy()\n    out[:] = x": lambda x: x,
    # What is read before an update stays what it was.
    "out[:] = x\nlow = out[:, 0:4]\nout[:, 0:4] = out[:, 4:8]\nout[:, 4:8] = low": (
        lambda x: np.roll(x, 4, 1)
    ),
    # Two names of one memory.
    "same = out\nfor i in pl.range(3):\n    out[i, :] = x[i, :]\n    same[i, 0] = same[i, 1]": (
        lambda x: np.concatenate([x[:, 1:2], x[:, 1:]], 1)
    ),
    "block = 2.0\nwith pl.spmd(1):\n    j = pl.tile.get_block_idx()\n    out[:] = x * block": (
        lambda x: x * 2
    ),
    # A comparison of tensors, and of their shape at compile time.
    "pl.static_assert(x.shape[1] == 8, 'width')\npl.static_print('x', x)\nout[:] = x": lambda x: x,
    "y: pl.Tensor[[B, H], pl.FP32] = x + 1.0\nout[:] = y": lambda x: x + 1,
    "a = pl.array.create(4, pl.FP32)\nfor i in pl.range(4):\n    a[i] = pl.cast(i, pl.FP32)\n"
    "pl.write(out, [0, 0], a[3])\nout[:] = x + a[3]": lambda x: x + 3,
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_computes(model: Any, body: str) -> None:
    x, out = rows(), zeros()
    expected = BODIES[body](x.copy()).astype(np.float32)
    (result,) = model.incore(body).run(x, out)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(out, expected)


def test_parameters_returns_and_names(model: Any) -> None:
    model.write(
        kernels="""
            from __future__ import annotations
            import pypto.language as L
            ROWS = L.dynamic("ROWS")

            @L.jit.incore
            def double(x: L.Tensor[[ROWS, H], L.FP32], out: L.Out[L.Tensor[[ROWS, H], L.FP32]]):
                hidden = x + x
                hidden = hidden * 1.0
                out[:] = hidden
                return out
            """,
        wrappers="""
            from pypto import language as pl
            from .kernels import double

            @pl.jit.host
            def host(x: pl.Tensor[[B, H], pl.FP32], n: pl.Scalar[pl.INT32] = pl.RUNTIME,
                     first: pl.Out[pl.Tensor[[B, H], pl.FP32]] = pl.RUNTIME,
                     second: pl.Out[pl.Tensor[[B, H], pl.FP32]] = pl.RUNTIME):
                local = double(x, second)
                other = double(x, first)
                return local, other
            """,
    )
    lowered = model.lower()
    assert lowered.contract.parameters == (
        Parameter("x", "fp32", ("B", 8), Direction.IN),
        Parameter("n", "int32", (), Direction.IN),
        Parameter("first", "fp32", ("B", 8), Direction.OUT),
        Parameter("second", "fp32", ("B", 8), Direction.OUT),
    )
    assert lowered.contract.returns == ("second", "first")
    assert [each.name for each in lowered.contract.symbols] == ["B"]
    assert [name for name, digest in lowered.files.items() if digest] == [
        "wrappers.py",
        "kernels.py",
    ]
    assert lowered.warnings == ()
    assert lowered.program.name == "host"
    assert lowered.program.parameters[1].variable == ScalarVar("n", INT32)
    named = [each.result.name for each in lowered.program.body.statements]
    assert named == ["hidden", "hidden_1", "out", "hidden_2", "hidden_3", "out_1"]
    update = lowered.program.body.statements[2]
    assert update.location.text == "out[:] = hidden"
    assert update.location.place.line == 10
    x = rows()
    results = model.run(x, 5, zeros(), zeros())
    np.testing.assert_array_equal(results, [x + x, x + x])


def test_a_loop_carries_only_what_lives_across_it(model: Any) -> None:
    model.incore(
        """
        t = x * 2.0
        for i in pl.range(3):
            t = x[i:i+1, :]
            u = t + 1.0
            out[i:i+1, :] = u
        """
    )
    loop = only(model, For)
    assert [each.initial.name for each in loop.carried] == ["out"]
    assert loop.kind is LoopKind.RANGE
    assert loop.index.dtype == INDEX


def test_the_same_name_carries_and_is_read_after(model: Any) -> None:
    model.incore("for i in pl.range(2):\n    x = x + 1.0\nout[:] = x")
    loop = only(model, For)
    assert [each.initial.name for each in loop.carried] == ["x"]
    assert loop.body.yields[0].name == "x_2"


def test_nested_loops_update_in_place_through_calls(model: Any) -> None:
    model.write(
        wrappers="""
            import pypto.language as pl

            @pl.jit.incore
            def put(x: pl.Tensor[[B, H], pl.FP32], row: pl.Scalar[pl.INT32], column: pl.INDEX,
                    out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
                pl.store(pl.load(x, [row, column], [1, 1]), [row, column], out)

            @pl.jit
            def kernel(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
                for i in pl.parallel(B):
                    for j in pl.range(H):
                        put(x, i, j, out)

            @pl.jit.host
            def host(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
                kernel(x, out)
                return out
            """
    )
    x, out = rows(), zeros()
    model.run(x, out)
    np.testing.assert_array_equal(out, x)
    outer, inner = [e for e in statements(model.lower().program.body) if isinstance(e, For)]
    assert outer.kind is LoopKind.PARALLEL
    assert len(outer.carried) == len(inner.carried) == 1


def test_a_store_leaves_a_loop_under_the_name_of_its_result(model: Any) -> None:
    x, out = rows(), zeros()
    model.incore(
        """
        for i in pl.range(3):
            done = pl.store(pl.load(x, [i, 0], [1, H]), [i, 0], out)
        out = done
        """
    ).run(x, out)
    np.testing.assert_array_equal(out, x)


def test_views_on_the_control_plane_share_memory(model: Any) -> None:
    model.write(
        wrappers="""
            import pypto.language as pl

            @pl.jit.incore
            def fill(part: pl.Out[pl.Tensor[[1, H], pl.FP32]], value: pl.Scalar[pl.FP32]):
                part[:] = pl.full([1, H], dtype=pl.FP32, value=0.0) + value
                return part

            @pl.jit.host
            def host(out: pl.Out[pl.Tensor[[4, H], pl.FP32]]):
                for i in pl.range(4):
                    fill(out[i:i+1, :], pl.cast(i, pl.FP32))
                flat = pl.reshape(out, [32])
                back = pl.reshape(flat, [4, H])
                fill(back[1:2, :], 9.0)
                return out
            """
    )
    out = np.zeros((4, 8), np.float32)
    model.run(out)
    np.testing.assert_array_equal(out[:, 0], [0, 9, 2, 3])
    np.testing.assert_array_equal(out, np.repeat(out[:, :1], 8, 1))


def test_a_program_class(model: Any) -> None:
    model.write(
        wrappers="""
            import pypto.language as pl

            def build(rows):
                @pl.program
                class Adder:
                    @pl.function(type=pl.FunctionType.InCore)
                    def add(self, x: pl.Tensor[[rows, H], pl.FP32],
                            out: pl.Out[pl.Tensor[[rows, H], pl.FP32]]):
                        t: pl.Tile[[rows, H], pl.FP32] = pl.load(x, [0, 0], [rows, H])
                        u = pl.tile.create([rows, H], dtype=pl.FP32,
                                           target_memory=pl.MemorySpace.Vec)
                        moved = pl.move(pl.add(t, 1.0), target_memory=pl.Mem.Vec)
                        out = pl.store(moved, [0, 0], out)
                        return out

                    @pl.function(type=pl.FunctionType.Orchestration)
                    def main(self, x: pl.Tensor[[rows, H], pl.FP32],
                             out: pl.Out[pl.Tensor[[rows, H], pl.FP32]]):
                        out, tid = pl.submit(self.add, x, out, deps=[])
                        out = self.add(out, out) if rows == 0 else out
                        return out
                return Adder

            Program = build(3)
            """
    )
    for wrapper in ("wrappers:Program", "wrappers:Program.main"):
        x, out = rows(), zeros()
        model.run(x, out, wrapper=wrapper)
        np.testing.assert_array_equal(out, x + 1)


def test_a_program_class_leaves_directions_to_the_compiler(model: Any) -> None:
    model.write(
        wrappers="""
            import pypto.language as pl

            @pl.program
            class P:
                @pl.function(type=pl.FunctionType.InCore)
                def copy(self, x: pl.Tensor[[3, H], pl.FP32],
                         out: pl.Out[pl.Tensor[[3, H], pl.FP32]]):
                    return pl.store(pl.load(x, [0, 0], [3, H]), [0, 0], out)

                @pl.function(type=pl.FunctionType.Orchestration)
                def main(self, x: pl.Tensor[[3, H], pl.FP32], out: pl.Tensor[[3, H], pl.FP32]):
                    out = self.copy(x, out)
                    return out
            """
    )
    lowered = model.lower("wrappers:P")
    expected = [Direction.IN, Direction.INOUT]
    assert [each.direction for each in lowered.contract.parameters] == expected
    assert [each.direction for each in lowered.program.parameters] == expected
    assert lowered.contract.returns == ("out",)


def test_spmd_runs_a_kernel_once_a_block(model: Any) -> None:
    model.write(
        wrappers="""
            import pypto.language as pl

            @pl.program
            class P:
                @pl.function(type=pl.FunctionType.InCore)
                def row(self, x: pl.Tensor[[3, H], pl.FP32],
                        out: pl.Out[pl.Tensor[[3, H], pl.FP32]]):
                    i = pl.tile.get_block_idx()
                    out = pl.store(pl.load(x, [i, 0], [1, H]), [i, 0], out)
                    return out

                @pl.function(type=pl.FunctionType.Orchestration)
                def main(self, x: pl.Tensor[[3, H], pl.FP32],
                         a: pl.Out[pl.Tensor[[3, H], pl.FP32]],
                         b: pl.Out[pl.Tensor[[3, H], pl.FP32]]):
                    with pl.spmd(3) as first:
                        a = self.row(x, a)
                    b, tid = pl.spmd_submit(self.row, x, b, core_num=3, deps=[first])
                    return a, b
            """
    )
    x, a, b = rows(), zeros(), zeros()
    model.run(x, a, b, wrapper="wrappers:P")
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, x)
    loops = [e for e in statements(model.lower("wrappers:P").program.body) if isinstance(e, For)]
    assert [each.kind for each in loops] == [LoopKind.PARALLEL] * 2


def test_helpers_in_python_and_closures_are_compile_time(model: Any) -> None:
    model.write(
        constants="""
            from dataclasses import dataclass
            @dataclass(frozen=True)
            class Tiling:
                rows: int = 2
            TILING = Tiling()
            def ceil_div(a, b):
                return -(-a // b)
            """,
        wrappers="""
            import math
            import pypto.language as pl
            from constants import TILING as T, ceil_div

            def make(step):
                @pl.jit.inline
                def scale(x: pl.Tensor):
                    return x * (step + 0.0)
                return scale

            scale = make(3)
            names = {"mode": "round"}

            @pl.jit
            def kernel(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
                with pl.at(level=pl.Level.CORE_GROUP):
                    y = pl.cast(scale(x), target_type=pl.BF16, **names)
                    y = pl.cast(y, target_type=pl.FP32)
                    out[:] = y + ceil_div(H, T.rows * 3) + math.sqrt(16) + max(1, *[2, 5])
                return out

            @pl.jit.host
            def host(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
                return kernel(out=out, x=x)
            """,
    )
    x, out = rows(), zeros()
    model.run(x, out)
    np.testing.assert_array_equal(out, x * 3 + 11)
    files = model.lower().files
    assert [name for name, digest in files.items() if digest] == ["wrappers.py", "constants.py"]


def test_bind_dynamic_names_an_extent(model: Any) -> None:
    x, out = rows(), zeros()
    model.write(
        wrappers="""
            import pypto.language as pl
            M = pl.dynamic("M")

            @pl.jit.incore
            def kernel(x: pl.Tensor, out: pl.Out[pl.Tensor]):
                x.bind_dynamic(0, M)
                for i in pl.range(M):
                    out[i, :] = x[i, :]
                return out

            @pl.jit.host
            def host(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
                return kernel(x, out)
            """
    )
    model.run(x, out)
    np.testing.assert_array_equal(out, x)
    loop = only(model, For)
    assert loop.stop.name == "B"


def test_deep_loops_lower_in_one_or_two_attempts_each(model: Any) -> None:
    depth = 12
    body = "".join(f"{'    ' * i}for i{i} in pl.range(2):\n" for i in range(depth))
    body += f"{'    ' * depth}pl.write(out, [0, 0], pl.const(1.0, pl.FP32))"
    model.incore(f"out[:] = x\n{body}")
    writes = [
        each
        for each in statements(model.lower().program.body)
        if isinstance(each, Operation) and each.op == "write"
    ]
    assert len(writes) == 1
    assert writes[0].result.name.startswith("out")


def test_names_do_not_depend_on_failed_attempts(model: Any) -> None:
    model.incore("for i in pl.range(2):\n    pl.store(pl.load(x, [0, 0], [1, H]), [0, 0], out)")
    names = [each.result.name for each in statements(model.lower().program.body)
             if isinstance(each, Operation)]  # fmt: skip
    assert names == ["load", "out_2"]
