"""Each mistake is refused with one message, its place and what to do."""

from __future__ import annotations

from typing import Any

import pytest

# Bodies of the in-core kernel of `Model.incore`: the first line is line 5, column 5.
BODY_ERRORS = [
    # Python that is not supported is refused by name.
    ("try:\n    x = x\nfinally:\n    x = x", "5:5", "Python's `try` statement is not supported in "
     "a PyPTO function", "programs raise nothing"),
    ("assert LIMIT", "5:5", "Python's `assert` statement is not supported", "pl.static_assert"),
    ("import math", "5:5", "Python's `import` statement is not supported", "at module level"),
    ("def f(): ...", "5:5", "Python's `def` statement is not supported", "@pl.jit.inline"),
    ("for i in pl.range(2):\n    break", "6:9", "Python's `break` statement", "guard the body"),
    ("for i in pl.range(2):\n    continue", "6:9", "Python's `continue` statement", "with `if`"),
    ("del x", "5:5", "Python's `del` statement", "no deletion"),
    ("for i in pl.range(2):\n    pass\nelse:\n    pass", "8:9", "`else` of a loop", ""),
    ("y = [i for i in (1, 2)]", "5:9", "Python's list comprehension is not supported", ""),
    ("y = (lambda: 1)", "5:10", "Python's `lambda` is not supported", ""),
    ("y = (z := 1)", "5:10", "Python's `:=` is not supported", ""),
    ("a, *b = (1, 2)", "5:8", "`*` in an assignment is not supported", ""),
    ("x.y = 1", "5:5", "cannot assign to `x.y`", ""),
    ("x + 1", "5:5", "`x + 1` has no effect", "assign it"),
    ("y: pl.Tensor[[1], pl.FP32]", "5:5", "a declaration without a value", ""),
    ("with open('f'):\n    pass", "5:10", "`with open('f')` is not a PyPTO scope", "pl.at"),
    # Names.
    ("out[:] = hiden", "5:14", "unknown name `hiden`", "bind it before"),
    ("out[:] = LIMITS * x", "5:14", "unknown name `LIMITS`", "did you mean `LIMIT`?"),
    ("out[:] = pl.ad(x, x)", "5:14", "`pypto.language` has no `ad` that aotc knows",
     "did you mean `pl.add`?"),
    ("out[:] = pl.sort32(x, x)", "5:14", "`pl.sort32` is not supported yet", "pl.row_argmax"),
    ("y = pl.FP4", "5:9", "`pl.FP4` is not supported yet", "use BF16"),
    ("out[:] = x.T", "5:14", "a tensor has no `T`", "it has `shape`"),
    ("out[:] = open('f')", "5:14", "`open` cannot be called in a PyPTO function", ""),
    ("y = round(pl.read(x, [0, 0]))", "5:9", "`round` is Python, and its arguments are known at "
     "run time only", "@pl.jit.inline"),
    ("y = int('a')", "5:9", "ValueError: invalid literal", ""),
    ("y = LIMIT // 0", "5:9", "ZeroDivisionError", ""),
    # Operators and their arguments.
    ("out[:] = pl.add(x)", "5:14", "`pl.add` needs `rhs`", ""),
    ("out[:] = pl.add(x, x, x)", "5:14", "`pl.add` takes 2 arguments, got 3", ""),
    ("out[:] = pl.add(x, rsh=x)", "5:14", "`pl.add` has no parameter `rsh`", "did you mean `rhs`"),
    ("out[:] = pl.add(x, lhs=x)", "5:14", "`pl.add` got `lhs` twice", ""),
    ("out[:] = pl.add(x, 'a')", "5:14", "`pl.add`, `rhs` takes a number or scalar, got `'a'`", ""),
    ("out[:] = pl.exp(1)", "5:5", "takes a tensor, got", "pl.full"),
    ("out[:] = pl.slice(x, x, [0, 0])", "5:14", "takes a list of extents, got the tensor `x`", ""),
    ("out[:] = pl.slice(x, [1, 1.5], [0, 0])", "5:14", "`1.5` is not an integer", ""),
    ("out[:] = pl.cast(x, 'fp16')", "5:14", "takes a compile-time dtype, got `'fp16'`", ""),
    ("out[:] = pl.matmul(x, x)", "5:14", "`pl.matmul`: inner dimensions differ", ""),
    ("out[:] = pl.store(x, [0, 0], out, atomic=True)", "5:14",
     "`pl.store`: `atomic` is not supported yet", "leave it out"),
    ("y = pl.cast(x, pl.INT32) + 0.5", "5:9", "the literal 0.5 is not an int32 value", "pl.cast"),
    ("out[:] = x @ x", "5:14", "`a @ b` of tensors is not an operator", "pl.matmul"),
    ("out[:] = x // 2", "5:14", "`a // b` of tensors is not an operator", ""),
    ("if x:\n    pass", "5:8", "a tensor has no truth value", "pl.read"),
    # Scalars: no promotion.
    ("y = pl.read(x, [0, 0]) + pl.tensor.dim(x, 0)", "5:9", "scalars of fp32 and index",
     "there is no promotion"),
    ("y = pl.tensor.dim(x, 0) / 2", "5:9", "`/` of index scalars", "use `//`"),
    ("y = pl.tensor.dim(x, 0) * 0.5", "5:9", "the literal 0.5 is not an index value", "pl.cast"),
    ("y = pl.tensor.dim(x, 0) // 0", "5:9", "division by zero", ""),
    ("y = pl.tensor.dim(x, 2)", "5:9", "`x` has 2 dimensions, got 2", ""),
    # Subscripts.
    ("y = x[0, 0, 0]", "5:9", "3 subscripts for `x`, which has 2 dimensions", ""),
    ("y = x[:, ::2]", "5:16", "a slice step other than 1", ""),
    ("y = x[:, 4:4]", "5:14", "the slice has 0 elements", ""),
    ("y = x[:, 4:9]", "5:16", "the slice ends at 9, and dimension 1 of `x` has 8", ""),
    ("y = x[:, 'a']", "5:14", "`'a'` is not an integer index", ""),
    ("out[:, 0:4] = x", "5:5", "the region of `out` is [B, 4], and `x` is [B, 8]", ""),
    ("out[:] = 0.0", "5:5", "takes a tensor, got 0.0", "pl.full"),
    ("LIMIT[0] = 1", "5:5", "`LIMIT` is not a tensor", ""),
    ("a, b = (1, 2, 3)", "5:5", "2 names for 3 values", ""),
    ("a, b = 1", "5:5", "cannot unpack 1 to 2 names", ""),
    # Compile time.
    ("pl.static_assert(LIMIT > 3, 'too low')", "5:5", "static assertion failed: too low", ""),
    ("m = 'a'\npl.static_assert(LIMIT > 3, m)", "6:33", "is not a string literal", ""),
    ("pl.static_assert(pl.tensor.dim(x, 0) > 3, 'm')", "5:22", "known at run time only", "config"),
    ("y = pl.static_assert(True, 'm')", "5:9", "`pl.static_assert` cannot stand here", "statement"),
    ("y: pl.Tensor[[B, 4], pl.FP32] = x", "5:8", "`x` is annotated fp32[B, 4], and is fp32[B, 8]",
     ""),
    # Loops and branches.
    ("for i in pl.range(2):\n    x = x[:, 0:4]\nout[:] = x", "5:5",
     "the `pl.range` loop carries `x` as x: fp32[B, 8], and rebinds it to", "one type"),
    ("n = pl.const(0, pl.INT32)\nfor i in pl.range(2):\n    n = pl.read(x, [0, 0])\ny = n + n",
     "6:5", "carries `n` as an int32 scalar, and rebinds it to", "pl.cast"),
    ("for i in pl.parallel(2):\n    x = x + 1.0\nout[:] = x", "5:5",
     "a `pl.parallel` loop cannot carry `x` from one iteration to the next", "pl.range"),
    ("n = 0\nfor i in pl.parallel(2):\n    n = n + i\nm = n", "6:5",
     "a `pl.parallel` loop cannot carry `n`", "independent"),
    ("for i in pl.range(2):\n    y = x + 1.0\nout[:] = y", "7:14",
     "`y` is bound in the loop at line 5 only", "bind it before the loop"),
    ("for i in pl.pipeline(2):\n    pass", "5:14", "`pl.pipeline` needs `stage=`", ""),
    ("for i in pl.unroll(B):\n    pass", "5:14", "must be known at compile time", "pl.range"),
    ("for i in pl.unroll(2, init_values=(x,)):\n    pass", "5:14",
     "no parameter `init_values`", ""),
    ("for i in pl.range(0, 4, 0):\n    pass", "5:14", "the step of `pl.range` is 0", ""),
    ("for i in pl.range(1.5):\n    pass", "5:14", "a bound of `pl.range` is not an integer", ""),
    ("for i in pl.range(2, stage=2):\n    pass", "5:14", "no parameter `stage`", ""),
    ("for i in pl.range(1, 2, 3, 4):\n    pass", "5:14", "takes (stop), (start, stop)", ""),
    ("for i in range(pl.tensor.dim(x, 0)):\n    pass", "5:14", "known at run time only", ""),
    ("for i in x:\n    pass", "5:14", "a `for` over this is not supported", "pl.range"),
    ("for i, (a,) in pl.range(2, init_values=(x,)):\n    pass", "5:5",
     "has 1 `init_values` and yields 0 values", "pl.yield_"),
    ("for i, (a, b) in pl.range(2, init_values=(x,)):\n    pass", "5:9",
     "2 names for 1 `init_values`", ""),
    ("for (a,) in pl.while_(init_values=(0,)):\n    b = pl.yield_(a)", "6:9",
     "begins with `pl.cond(...)`", ""),
    ("for (a,) in pl.while_():\n    pass", "5:17", "`pl.while_` needs `init_values`", ""),
    ("while True:\n    pass", "5:11", "the condition is always True", ""),
    ("y = pl.yield_(x)", "5:9", "`pl.yield_` outside a loop or branch", ""),
    ("y = pl.range(3)", "5:9", "`pl.range` cannot stand here", "the iterable of a `for`"),
    ("if pl.tensor.dim(x, 0) > 2:\n    y = x + 1.0\nout[:] = y", "7:14",
     "`y` is bound in one branch of the `if` at line 5 only", "in both branches"),
    ("if pl.tensor.dim(x, 0) > 2:\n    y = x\nelse:\n    y = x[:, 0:4]\nout[:] = y", "9:14",
     "the branches at line 5 give `y` two types", "one shape and dtype"),
    ("if pl.tensor.dim(x, 0) > 2:\n    y = pl.yield_(x)\nelse:\n    y = x", "8:9",
     "one branch yields 1 values, the other 0", ""),
    ("if pl.tensor.dim(x, 0) > 2:\n    return x", "6:9", "`return` in a run-time loop or branch",
     "at the end of the function"),
    ("pl.at(level=1)", "5:5", "`pl.at` cannot stand here", "with pl.at"),
    ("with pl.at(level=pl.Level.CORE_GROUP, depends=[]):\n    pass", "5:10",
     "`pl.at` has no parameter `depends`", ""),
    ("i = pl.tile.get_block_idx()", "5:9", "there is no block here", "pl.spmd"),
    ("for i in pl.split_aiv(2, mode=pl.SplitMode.UP_DOWN):\n    pass", "5:14",
     "`pl.split_aiv` that halves tiles", "SplitMode.NONE"),
    # Updates.
    ("for i, (a,) in pl.range(3, init_values=(out,)):\n    a[i, :] = out[0, :]\n"
     "    b = pl.yield_(a)\nout = b", "5:5",
     "the `pl.range` loop updates `out` as `a`, and reads it under another name", "read `a`"),
    ("for i, (a, b) in pl.range(3, init_values=(out, out)):\n    a[i, :] = x[0, :]\n"
     "    c, d = pl.yield_(a, b)\nout = c", "5:5", "the `pl.range` loop updates `out` as `a`",
     "read `a`"),
    ("y = pl.create_tensor([2, 8], dtype=pl.FP32)\nz = pl.assemble(y, y, [0, 0])\nout[0:2, :] = y",
     "7:5", "`y` was updated through another name at wrappers.py:6:9", "use the name"),
    ("x[:] = x", "5:5", "`x` is an In parameter of `kernel`, and is written here", "pl.Out"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "where", "message", "hint"), BODY_ERRORS)
def test_a_body_is_refused(model: Any, body: str, where: str, message: str, hint: str) -> None:
    error = model.incore(body).error()
    assert message in error.message
    assert hint in (error.hint or "")
    assert model.where(error) == f"wrappers:{where}"


HEAD = "import pypto.language as pl\n"
IN = "x: pl.Tensor[[B, H], pl.FP32]"
OUT = "out: pl.Out[pl.Tensor[[B, H], pl.FP32]]"


def host(body: str, parameters: str = f"{IN}, {OUT}") -> str:
    """A module whose wrapper's body begins at line 4, column 5."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{HEAD}@pl.jit.host\ndef host({parameters}):\n{lines}\n"


def kernel(parameters: str, body: str = "out[:] = x\nreturn out", kind: str = ".incore") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{HEAD}M = pl.dynamic('M')\n@pl.jit{kind}\ndef kernel({parameters}):\n{lines}\n"


CALL = "from kernels import kernel\n" + host("return kernel(x, out)")

CALL_ERRORS = [
    # (kernels.py, wrappers.py, where, message, hint)
    (
        kernel(f"x: pl.Tensor[[B, 4], pl.FP32], {OUT}"),
        CALL,
        "wrappers:5:19",
        "shape mismatch between `host` and `kernel` (kernels.py:4:15): `x` dimension 1 is 8 here, "
        "and 4 there",
        "same extents",
    ),
    (
        kernel(f"x: pl.Tensor[[3, H], pl.FP32], {OUT}"),
        CALL,
        "wrappers:5:19",
        "`x` dimension 0 is B here, and 3 there",
        "or make the kernel's dynamic",
    ),
    (
        kernel(f"x: pl.Tensor[[B, H], pl.BF16], {OUT}"),
        CALL,
        "wrappers:5:19",
        "dtype mismatch between `host` and `kernel` (kernels.py:4:15): `x` is fp32 here, and bf16",
        "no promotion",
    ),
    (
        kernel(f"x: pl.Tensor[[B], pl.FP32], {OUT}"),
        CALL,
        "wrappers:5:19",
        "rank mismatch between `host` and `kernel` (kernels.py:4:15): `x` has 2 dimensions here",
        "",
    ),
    (
        kernel("x: pl.Tensor[[M, H], pl.FP32], out: pl.Out[pl.Tensor[[H, M], pl.FP32]]"),
        "from kernels import kernel\n"
        + host("return kernel(x, out)", f"{IN}, out: pl.Out[pl.Tensor[[H, T], pl.FP32]]"),
        "wrappers:5:22",
        "conflicting symbol bindings in the call of `kernel`: `M` is B by `x` dimension 0, and T "
        "by `out` dimension 1",
        "one name is one extent",
    ),
    (kernel(f"{IN}, {OUT}"), CALL.replace("(x, out)\n", "(x)\n"), "wrappers:5:12",
     "`kernel` needs `out`", ""),
    (kernel(f"{IN}, {OUT}"), CALL.replace("(x, out)\n", "(x, out, x)\n"), "wrappers:5:12",
     "`kernel` takes 2 arguments, got 3", ""),
    (kernel(f"{IN}, {OUT}"), CALL.replace("(x, out)\n", "(x, y=out)\n"), "wrappers:5:24",
     "`kernel` has no parameter `y`", ""),
    (kernel(f"{IN}, {OUT}"), CALL.replace("(x, out)\n", "(x, out, device=0)\n"), "wrappers:5:34",
     "`device=` places a call on a rank", "without it"),
    (kernel(f"{IN}, {OUT}"), CALL.replace("(x, out)\n", "(1, out)\n"), "wrappers:5:19",
     "`kernel`, `x`: takes a tensor, got 1", ""),
    (kernel(f"x: pl.Scalar[pl.INT32], {OUT}"), CALL.replace("(x, out)\n", "(1.5, out)\n"),
     "wrappers:5:19", "`x` of `kernel` (kernels.py:4:15) is a int32 scalar, got 1.5", "pl.cast"),
    (kernel(f"{IN}, {OUT}", kind=".incore") + "@pl.jit.incore\ndef other(x: pl.Tensor):\n"
     "    return kernel(x, x)\n", CALL.replace("import kernel", "import other as kernel").replace(
         "(x, out)\n", "(out)\n"), "kernels:5:5", "`x` is an In parameter of `other`", "pl.Out"),
    (kernel(f"{IN}, {OUT}", "return kernel(x, out)", ".inline"), CALL, "kernels:5:12",
     "`kernel` calls itself", "loop"),
    (kernel(f"{IN}, {OUT}", kind="") + "@pl.jit\ndef outer(x: pl.Tensor, out: pl.Out[pl.Tensor]):\n"
     "    return kernel(x, out)\n",
     CALL.replace("import kernel", "import outer as kernel"), "kernels:9:12",
     "`@pl.jit` function `outer` cannot call `@pl.jit` function `kernel`", "@pl.jit.inline"),
    (kernel(f"{IN}, {OUT}", "out[:] = x + x", ""), CALL, "kernels:5:14",
     "misplaced tensor op `add` in `kernel`: it should be inside an InCore block", "pl.at("),
    (kernel(f"{IN}, *rest", kind=""), CALL, "kernels:4:44", "`*` and `**` parameters", ""),
    (kernel(f"{IN}, {OUT}", "pass"), CALL.replace("return kernel(x, out)", "y = kernel(x, out)"),
     "wrappers:5:9", "`kernel(x, out)`" and "`kernel` gives no value to assign", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kernels", "wrappers", "where", "message", "hint"), CALL_ERRORS)
def test_a_call_is_refused(
    model: Any, kernels: str, wrappers: str, where: str, message: str, hint: str
) -> None:
    error = model.write(kernels=kernels, wrappers=wrappers).error()
    assert message in error.message
    assert hint in (error.hint or "")
    assert model.where(error) == where


HOST_ERRORS = [
    (host("out[:] = pl.add(x, x)\nreturn out"), "4:14",
     "misplaced tensor op `add` in `host`", "pl.jit.incore"),
    (host("return x"), "4:5", "wrapper `host` returns x: fp32[B, 8], which is no Out or InOut "
     "parameter", "out[:] ="),
    (host("return 3"), "4:5", "wrapper `host` returns 3", ""),
    (host("y = pl.create_tensor([B, H], dtype=pl.FP32)\nreturn y"), "5:5", "returns y: fp32[B, 8]",
     ""),
    (host("return out"), f"3:{12 + len(IN)}", "the Out parameter `out` is never written", ""),
    (host("pass", "x: pl.Tensor[[B, HH], pl.FP32]"), "3:27", "wrapper `host`, parameter `x`, "
     "dimension 1: the config of `small` does not give `HH`", "did you mean `H`?"),
    (host("pass", "x: pl.Tensor"), "3:13", "wrapper `host`, parameter `x`: a bare `pl.Tensor` has "
     "no shape", "pl.Tensor[[dims], pl.DTYPE]"),
    (host("pass", "x: pl.Out[pl.Tensor]"), "3:20", "a bare `pl.Tensor` has no shape", ""),
    (host("pass", "x"), "3:10", "wrapper `host`, parameter `x`: no annotation", "pl.Tensor[["),
    (host("pass", "x: pl.Tensor[[B, 1.5], pl.FP32]"), "3:13", "dimension 1: `1.5` is not an "
     "extent", ""),
    (host("pass", "x: pl.Tensor[[B * 2], pl.FP32]"), "3:24", "`B` is a dynamic dimension: it has "
     "no value while the module is loaded", "`equals`"),
    (host("pass", "x: pl.Tensor[B, pl.FP32]"), "3:13", "takes a list of dims and a dtype", ""),
    (host("pass", "x: pl.Tensor[[B], pl.FLOAT]"), "3:28", "`pypto.language` has no `FLOAT`", ""),
    (host("pass", "x: pl.Tensor[[B, H], pl.FP32, pl.DN]"), "3:13", "layouts and views", ""),
    (host("pass", "*, x: pl.Tensor[[B], pl.FP32]"), "3:13", "is not a positional parameter", ""),
    (host("x[:] = x", IN), "4:5", "`x` is an In parameter of wrapper `host`, and is written here",
     "pl.InOut"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "where", "message", "hint"), HOST_ERRORS)
def test_a_wrapper_is_refused(model: Any, text: str, where: str, message: str, hint: str) -> None:
    error = model.write(wrappers=text).error()
    assert message in error.message
    assert hint in (error.hint or "")
    assert model.where(error) == f"wrappers:{where}"


def test_a_stale_view_names_the_update(model: Any) -> None:
    model.write(
        kernels=kernel(f"{IN}, {OUT}"),
        wrappers="from kernels import kernel\n"
        + host("flat = pl.reshape(out, [B * H])\nkernel(x, out)\ny = pl.reshape(flat, [B, H])"),
    )
    error = model.error()
    assert "was updated through another name at wrappers.py:6:5" in error.message
    assert model.where(error) == "wrappers:7:9"


def test_a_column_counts_characters(model: Any) -> None:
    error = model.incore("é = 'ü'; out[:] = é.ö").error()
    assert model.where(error) == "wrappers:5:23"
