"""Random small arguments for every operator of the registry."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotc.dtypes import BF16, BOOL, FP16, FP32, INT8, INT16, INT32, INT64, UINT8, UINT32, DType
from aotc.ir.nodes import TensorType, TensorVar
from aotc.ir.scalar import Constant, index
from aotc.ops.registry import OpDef
from aotc.ops.rules import FLOATS, INTEGERS, NUMBERS
from aotc.ops.values import Array, rounded, storage

Arguments = dict[str, Any]
Case = Callable[[random.Random], Arguments]


def tensor(
    rng: random.Random,
    name: str,
    dtype: DType,
    shape: Sequence[int],
    valid: Sequence[int] | None = None,
    space: str = "ddr",
) -> TensorVar:
    """Return a tensor of constant extents."""
    region = None if valid is None or tuple(valid) == tuple(shape) else tuple(map(index, valid))
    return TensorVar(name, TensorType(dtype, tuple(map(index, shape)), region, space))


def values(rng: random.Random, dtype: DType, shape: Sequence[int]) -> Array:
    """Return an array of `dtype`, some elements at the edges of its range."""
    generator = np.random.default_rng(rng.randrange(2**32))
    if dtype == BOOL:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        array = generator.normal(0, 3, shape).astype(np.float32)
        edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-30], np.float32)
        chosen = generator.integers(0, 40, shape)
        array = np.where(chosen < len(edges), edges[np.minimum(chosen, len(edges) - 1)], array)
        return rounded(array, dtype)
    limits = np.iinfo(storage(dtype))
    array = generator.integers(-5 if limits.min else 0, 100, shape).astype(storage(dtype))
    edges = np.array([limits.min, limits.max, limits.max - 1, 0], storage(dtype))
    chosen = generator.integers(0, 20, shape)
    return np.where(chosen < 4, edges[np.minimum(chosen, 3)], array)


def _extent(rng: random.Random) -> int:
    return rng.choice((0, 1, 2, 3, 7))


def _valid(rng: random.Random, shape: Sequence[int]) -> list[int] | None:
    return [rng.randint(0, each) for each in shape] if rng.random() < 0.3 else None


def _scalar(rng: random.Random, dtype: DType) -> Constant:
    if dtype.is_float:
        return Constant(rng.choice((0.0, 1.0, -2.5, 0.1)), FP32)
    return Constant(rng.choice((0, 1, 3, 7)), dtype)


def _same(names: Sequence[str], allowed: Sequence[DType], scalars: bool = True) -> Case:
    """Operands of one dtype that broadcast; the last may be a scalar."""

    def case(rng: random.Random) -> Arguments:
        dtype = rng.choice(allowed)
        shape = [_extent(rng) for _ in range(rng.randint(1, 3))]
        valid = _valid(rng, shape)
        found: Arguments = {}
        for position, name in enumerate(names):
            ones = [1 if rng.random() < 0.2 else each for each in shape]
            if position and scalars and rng.random() < 0.3:
                found[name] = _scalar(rng, dtype)
            elif position and ones != shape:
                found[name] = tensor(rng, name, dtype, ones)
            else:
                found[name] = tensor(rng, name, dtype, shape, valid)
        return found

    return case


def _vector(row: bool, allowed: Sequence[DType]) -> Case:
    def case(rng: random.Random) -> Arguments:
        dtype = rng.choice(allowed)
        shape = [_extent(rng) for _ in range(rng.randint(2, 3))]
        narrow = list(shape)
        narrow[-1 if row else -2] = 1
        return {
            "lhs": tensor(rng, "lhs", dtype, shape, _valid(rng, shape)),
            "rhs": tensor(rng, "rhs", dtype, narrow),
        }

    return case


def _select(*names: str) -> Case:
    def case(rng: random.Random) -> Arguments:
        found = _same(names, NUMBERS)(rng)
        found["mask"] = tensor(rng, "mask", rng.choice((BOOL, INT8, FP32)), _shape(found[names[0]]))
        if names[-1] == "scalar":
            found["scalar"] = _scalar(rng, found["src"].dtype)
        return found

    return case


def _shape(variable: TensorVar) -> list[int]:
    return [each.value for each in variable.shape]  # type: ignore[union-attr,misc]


def _cast(rng: random.Random) -> Arguments:
    shape = [_extent(rng), _extent(rng)]
    source = rng.choice((*NUMBERS, BOOL))
    target = rng.choice((*NUMBERS, BOOL))
    modes = ("none", "rint", "round")
    if source.is_float and target.is_integer:
        modes = ("none", "rint", "round", "floor", "ceil", "trunc")
    return {
        "input": tensor(rng, "input", source, shape, _valid(rng, shape)),
        "target_type": target,
        "mode": rng.choice(modes),
    }


def _reduction(rng: random.Random) -> Arguments:
    shape = [_extent(rng) for _ in range(rng.randint(2, 3))]
    return {"input": tensor(rng, "input", rng.choice(NUMBERS), shape, _valid(rng, shape))}


def _product(*more: str) -> Case:
    def case(rng: random.Random) -> Arguments:
        dtype = rng.choice((*FLOATS, INT8))
        rows, inner, columns = _extent(rng), _extent(rng), _extent(rng)
        found: Arguments = {}
        left, right = [rows, inner], [inner, columns]
        if "trans" in more:
            found = {"a_trans": rng.random() < 0.5, "b_trans": rng.random() < 0.5}
            left = left[::-1] if found["a_trans"] else left
            right = right[::-1] if found["b_trans"] else right
        valid = _valid(rng, left)
        if "batch" in more and dtype != INT8 and rng.random() < 0.3:
            batch = _extent(rng)
            left, right = [batch, *left], [batch, *right]
            valid = [batch, *valid] if valid else valid
        found["lhs"] = tensor(rng, "lhs", dtype, left, valid)
        found["rhs"] = tensor(rng, "rhs", dtype, right)
        wide = INT32 if dtype == INT8 else FP32
        if "acc" in more:
            found["acc"] = tensor(rng, "acc", wide, [rows, columns])
        if "bias" in more:
            found["bias"] = tensor(rng, "bias", wide, [1, columns])
        if "cond" in more and rng.random() < 0.6:
            found["init_cond"] = Constant(rng.random() < 0.5, BOOL)
        return found

    return case


def _window(rng: random.Random) -> Arguments:
    source = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    offset = [rng.randint(0, each - 1) for each in source]
    shape = [rng.randint(1, each - at) for each, at in zip(source, offset, strict=True)]
    found: Arguments = {"input": tensor(rng, "input", FP32, source, _valid(rng, source))}
    if rng.random() < 0.3:
        found["clamp"] = True
        shape = [each + rng.randint(0, 2) for each in shape]
    if rng.random() < 0.4:
        found["valid_shape"] = tuple(index(rng.randint(0, each)) for each in shape)
    ones = [a for a, each in enumerate(shape) if each == 1]
    if ones and "valid_shape" not in found and found["input"].type.valid is None:
        found["drop_dims"] = (index(rng.choice(ones)),)
    return {**found, "shape": tuple(map(index, shape)), "offset": tuple(map(index, offset))}


def _load(rng: random.Random) -> Arguments:
    found = _window(rng)
    found.pop("drop_dims", None)
    renamed = {"input": "tensor", "shape": "shapes", "offset": "offsets"}
    memory = rng.choice(("Vec", "Mat"))
    found["input"] = TensorVar("tensor", found["input"].type)
    return {renamed.get(k, k): v for k, v in found.items()} | {"target_memory": memory}


def _update(target: str, source: str, offset: str) -> Case:
    def case(rng: random.Random) -> Arguments:
        dtype = rng.choice(NUMBERS)
        into = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
        at = [rng.randint(0, each - 1) for each in into]
        size = [rng.randint(1, each - start) for each, start in zip(into, at, strict=True)]
        space = "vec" if source == "tile" else "ddr"
        return {
            target: tensor(rng, target, dtype, into),
            source: tensor(rng, source, dtype, size, _valid(rng, size), space),
            offset: tuple(map(index, at)),
        }

    return case


def _element(name: str) -> Case:
    def case(rng: random.Random) -> Arguments:
        dtype = rng.choice(NUMBERS)
        shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
        at = tuple(index(rng.randrange(each)) for each in shape)
        found: Arguments = {name: tensor(rng, name, dtype, shape), "offset": at}
        return found | ({"value": _scalar(rng, dtype)} if name == "dst" else {})

    return case


def _creation(rng: random.Random) -> Arguments:
    dtype = rng.choice(NUMBERS)
    return {"shape": (index(_extent(rng)), index(_extent(rng))), "dtype": dtype}


def _full(rng: random.Random) -> Arguments:
    found = _creation(rng)
    value = rng.choice((-1.5, 0.0, 2, 3.0e38)) if found["dtype"].is_float else rng.choice((0, 5))
    return found | {"value": value}


def _sequence(rng: random.Random) -> Arguments:
    dtype = rng.choice((INT16, INT32, UINT32, INT64))
    return {
        "start": _scalar(rng, dtype),
        "shape": (index(1), index(_extent(rng))),
        "dtype": dtype,
        "descending": rng.random() < 0.5,
    }


def _reshape(rng: random.Random) -> Arguments:
    factors = [rng.randint(1, 3) for _ in range(4)]

    def grouped() -> list[int]:
        extents, product = [], 1
        for each in factors:
            product *= each
            if rng.random() < 0.5:
                extents.append(product)
                product = 1
        return [*extents, product]

    found: Arguments = {"input": tensor(rng, "input", FP32, grouped())}
    return found | {"shape": tuple(map(index, grouped()))}


def _transpose(rng: random.Random) -> Arguments:
    shape = [_extent(rng) for _ in range(rng.randint(2, 3))]
    first, second = rng.sample(range(len(shape)), 2)
    source = tensor(rng, "input", INT16, shape, _valid(rng, shape))
    return {"input": source, "axis1": first - len(shape), "axis2": second}


def _move(rng: random.Random) -> Arguments:
    shape = [_extent(rng), _extent(rng)]
    source = tensor(rng, "tile", FP16, shape, _valid(rng, shape), "mat")
    return {"tile": source, "target_memory": rng.choice(("Left", "Right", "Vec"))}


def _validity(rng: random.Random) -> Arguments:
    shape = [_extent(rng), _extent(rng)]
    rows, columns = (index(rng.randint(0, each)) for each in shape)
    found: Arguments = {"input": tensor(rng, "input", BF16, shape)}
    return found | {"valid_rows": rows, "valid_cols": columns}


def _padding(rng: random.Random) -> Arguments:
    shape = [_extent(rng), _extent(rng)]
    source = tensor(rng, "value", rng.choice(NUMBERS), shape, _valid(rng, shape))
    return {"value": source, "pad_value": rng.choice(("zero", "min", "max"))}


def _padding_larger(rng: random.Random) -> Arguments:
    found = _padding(rng)
    larger = tuple(index(each + rng.randint(0, 3)) for each in _shape(found["value"]))
    return found | {"shape": larger}


def _concat(rng: random.Random) -> Arguments:
    rows, dtype = _extent(rng), rng.choice(NUMBERS)
    return {name: tensor(rng, name, dtype, [rows, _extent(rng)], None) for name in ("src0", "src1")}


def _gather(rng: random.Random) -> Arguments:
    rows = rng.randint(1, 4)
    return {
        "input": tensor(rng, "input", rng.choice((FP32, INT32)), [rows, rng.randint(1, 5)]),
        "dim": -1,
        "index": tensor(rng, "index", INT32, [rows, rng.randint(1, 6)]),
    }


def _flat_gather(rng: random.Random) -> Arguments:
    return {
        "src": tensor(rng, "src", UINT8, [rng.randint(1, 4), rng.randint(1, 5)]),
        "indices": tensor(rng, "indices", INT32, [2, 3]),
    }


def _expands(rng: random.Random) -> Arguments:
    target = tensor(rng, "target", rng.choice(NUMBERS), [_extent(rng), _extent(rng)])
    return {"target": target, "scalar": _scalar(rng, target.dtype)}


def _clone(rng: random.Random) -> Arguments:
    shape = [_extent(rng), _extent(rng)]
    narrow = [rng.choice((1, each)) for each in shape]
    return {
        "src": tensor(rng, "src", FP32, narrow),
        "target": tensor(rng, "target", FP32, shape, _valid(rng, shape)),
    }


_PAIR = ("lhs", "rhs")
_BITS = (*INTEGERS, BOOL)
_CASES: dict[str, Case] = {
    **{
        name: _same(_PAIR, NUMBERS)
        for name in ("add", "sub", "mul", "div", "rem", "fmod", "maximum", "minimum")
    },
    **{name: _same(_PAIR, INTEGERS) for name in ("shl", "shr")},
    **{name: _same(_PAIR, _BITS, scalars=False) for name in ("and_", "or_", "xor")},
    **{name: _same(("input",), NUMBERS) for name in ("neg", "abs", "relu")},
    **{name: _same(("input",), FLOATS) for name in ("exp", "log", "sqrt", "rsqrt", "recip")},
    "not_": _same(("input",), _BITS),
    **{name: _same(("input", "slope"), FLOATS) for name in ("lrelu", "prelu")},
    **{name: _same(("lhs", "rhs", "rhs2"), NUMBERS) for name in ("addc", "subc")},
    "cmp": lambda rng: _same(_PAIR, NUMBERS)(rng) | {"cmp_type": rng.randrange(6)},
    "sel": _select("lhs", "rhs"),
    "sels": _select("src", "scalar"),
    "cast": _cast,
    **{
        f"{kind}_expand_{name}": _vector(kind == "row", allowed)
        for kind in ("row", "col")
        for name, allowed in (
            *((each, NUMBERS) for each in ("add", "sub", "mul", "max", "min")),
            *((each, FLOATS) for each in ("div", "expdif")),
        )
    },
    "row_expand": _vector(True, NUMBERS),
    "col_expand": _vector(False, NUMBERS),
    "expands": _expands,
    "expand_clone": _clone,
    **{
        f"{kind}_{name}": _reduction
        for kind in ("row", "col")
        for name in ("sum", "prod", "max", "min", "argmax", "argmin")
    },
    "matmul": _product("trans", "batch"),
    "matmul_acc": _product("trans", "acc", "cond"),
    "matmul_bias": _product("bias"),
    "gemv": _product(),
    "gemv_acc": _product("acc"),
    "gemv_bias": _product("bias"),
    "create_tensor": _creation,
    "create_tile": _creation,
    "full": _full,
    "tile_full": _full,
    "slice": _window,
    "load": _load,
    "move": _move,
    "reshape": _reshape,
    "transpose": _transpose,
    "transpose_view": lambda rng: {"input": _transpose(rng)["input"]},
    "set_validshape": _validity,
    "assemble": _update("target", "source", "offset"),
    "store": _update("output_tensor", "tile", "offsets"),
    "write": _element("dst"),
    "read": _element("src"),
    "fillpad": _padding,
    "fillpad_expand": _padding_larger,
    "concat": _concat,
    "arange": _sequence,
    "tile_arange": _sequence,
    "gather": _gather,
    "tile_gather": _flat_gather,
}


def arguments(row: OpDef, rng: random.Random) -> Arguments:
    """Return complete random arguments of `row`; KeyError where it has no case."""
    return {p.name: p.default for p in row.parameters} | _CASES[row.name](rng)


def arrays(row: OpDef, given: Arguments, rng: random.Random) -> dict[str, Array]:
    """Return an array of the valid region of every tensor in `given`."""
    found: dict[str, Array] = {}
    for name, each in given.items():
        if isinstance(each, TensorVar):
            shape = [extent.value for extent in each.type.valid_shape]  # type: ignore[union-attr]
            found[name] = values(rng, each.dtype, shape)
    if row.name == "gather":
        found["index"] %= found["input"].shape[1]
    if row.name == "tile_gather":
        found["indices"] %= found["src"].size
    return found
