"""The C library's functions over whole ranges, against float64."""

import ctypes
import time
from importlib import resources

import numpy as np
import pytest

from aotc.dtypes import BF16, DTYPES, FP16
from aotc.ops.values import rounded, saturated
from aotc.toolchain.zig import TARGETS, compile_shared_object

UNARY = {
    **{"exp": "aotc_exp", "log": "aotc_log", "rsqrt": "aotc_rsqrt", "recip": "aotc_recip"},
    **{"rint": "aotc_rint", "round": "aotc_round", "sqrt": "aotc_sqrt"},
    **{"bf16": "aotc_round_bf16", "fp16": "aotc_round_fp16"},
}
BINARY = {name: f"aotc_{name}_f32" for name in ("max", "min", "fmod", "rem")}
BITS = (8, 16, 32, 64)


def _source() -> str:
    folder = resources.files("aotc")
    names = ("runtime/include/aotc_abi.h", "codegen/library/core.h", "codegen/library/math.h")
    text = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    head = "AOTC_EXPORT void {}(const float *restrict x, const float *restrict y, {} *restrict z,"
    loop = " int64_t n) {{ (void)y; for (int64_t i = 0; i < n; ++i) z[i] = {}; }}\n"
    for name, call in UNARY.items():
        text += head.format(name, "float") + loop.format(f"{call}(x[i])")
    for name, call in BINARY.items():
        text += head.format(name, "float") + loop.format(f"{call}(x[i], y[i])")
    for bits in BITS:
        for letter, kind in (("i", "int"), ("u", "uint")):
            name = f"to_{letter}{bits}"
            text += head.format(name, f"{kind}{bits}_t") + loop.format(f"aotc_{name}(x[i])")
    return text


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("math") / "math.so"
    path.write_bytes(compile_shared_object(_source(), TARGETS["x86_64_v3"]))
    return ctypes.CDLL(str(path))


def _call(library, name: str, x, y=None, dtype=np.float32) -> np.ndarray:
    x = np.ascontiguousarray(x, np.float32)
    y = x if y is None else np.ascontiguousarray(y, np.float32)
    out = np.empty(x.shape, dtype)
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (x, y, out)]
    getattr(library, name)(*pointers, ctypes.c_int64(x.size))
    return out


def _spread() -> np.ndarray:
    """Floats of every exponent and sign, and the special ones."""
    bits = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, 3.4028235e38, 88.722839, -103.97208]
    return np.concatenate((bits.view(np.float32), np.array(edges, np.float32)))


SPREAD = _spread()
EXPONENTS = np.linspace(-105, 90, 1_000_001).astype(np.float32)
SIGNIFICANDS = np.linspace(0.25, 4, 1_000_001).astype(np.float32)


def _error(got: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest error in ulp; the results must agree on infinities and NaN."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        finite = np.isfinite(nearest)
        np.testing.assert_array_equal(got[~finite], nearest[~finite])
        unit = np.spacing(np.abs(nearest[finite])).astype(np.float64)
        return float(np.max(np.abs(got[finite].astype(np.float64) - exact[finite]) / unit))


@pytest.mark.parametrize(
    ("name", "function", "bound", "where"),
    [
        ("exp", np.exp, 2.0, SPREAD),
        ("exp", np.exp, 2.0, EXPONENTS),
        ("log", np.log, 2.0, SPREAD),
        ("log", np.log, 2.0, SIGNIFICANDS),
        ("rsqrt", lambda x: 1 / np.sqrt(x), 1.5, SPREAD),
        ("sqrt", np.sqrt, 0.5, SPREAD),
        ("recip", lambda x: 1 / x, 0.5, SPREAD),
    ],
)
def test_error_bounds(library, name, function, bound, where) -> None:
    with np.errstate(all="ignore"):
        exact = function(where.astype(np.float64))
    assert _error(_call(library, name, where), exact) <= bound


def test_the_largest_finite_exponential(library) -> None:
    x = np.array([88.72283, 88.72284, -103.97, -103.98], np.float32)
    got = _call(library, "exp", x)
    assert np.isfinite(got[0])
    assert np.isinf(got[1])
    assert got[2] == np.float32(1e-45)
    assert got[3] == 0


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_rounding_to_nearest_even(library, dtype) -> None:
    halves = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11], np.float32)
    x = np.concatenate((SPREAD, halves, -halves))
    with np.errstate(all="ignore"):
        expected = rounded(x, dtype).astype(np.float32)
    np.testing.assert_array_equal(_call(library, dtype.name, x), expected)


def test_a_signalling_nan_stays_a_nan_in_bf16(library) -> None:
    signalling = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    assert np.isnan(_call(library, "bf16", signalling)).all()


@np.errstate(all="ignore")
def test_rounding_to_integers(library) -> None:
    edges = np.array([0.49999997, 8388609], np.float32)
    x = np.concatenate((SPREAD, np.arange(-4, 4.25, 0.25, np.float32), edges))
    np.testing.assert_array_equal(_call(library, "rint", x), np.rint(x))
    exact = x.astype(np.float64)
    away = np.copysign(np.floor(np.abs(exact) + 0.5), exact).astype(np.float32)
    np.testing.assert_array_equal(_call(library, "round", x), away)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["int", "uint"])
def test_conversion_to_integers_saturates(library, bits: int, kind: str) -> None:
    with np.errstate(all="ignore"):
        ends = np.array([2.0 ** (bits - 1), 2.0**bits], np.float32)
        x = np.trunc(np.concatenate((SPREAD, ends, -ends, np.nextafter(ends, np.float32(0)))))
        expected = saturated(x, DTYPES[f"{kind}{bits}"])
    got = _call(library, f"to_{kind[0]}{bits}", x, dtype=expected.dtype)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("name", "function"), [("fmod", np.fmod), ("rem", np.mod)])
def test_remainders_are_exact(library, name: str, function) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.permutation(SPREAD), generator.permutation(SPREAD)
    with np.errstate(all="ignore"):
        expected = function(x, y)
    got = _call(library, name, x, y)
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])


def test_extrema_give_a_nan_where_one_is(library) -> None:
    x = np.array([1, np.nan, 1, np.nan, np.inf, -np.inf], np.float32)
    y = np.array([2, 1, np.nan, np.nan, 1, 1], np.float32)
    np.testing.assert_array_equal(_call(library, "max", x, y), np.maximum(x, y))
    np.testing.assert_array_equal(_call(library, "min", x, y), np.minimum(x, y))


@pytest.mark.parametrize("name", ["exp", "log"])
def test_loops_vectorize(library, name: str) -> None:
    """A scalar loop takes more than 5 ns an element, a vector one about 1."""
    x = np.linspace(0.5, 8, 1 << 14).astype(np.float32)
    best = min(_seconds(library, name, x) for _ in range(20))
    assert best / x.size < 3e-9


def _seconds(library, name: str, x: np.ndarray) -> float:
    start = time.perf_counter()
    _call(library, name, x)
    return time.perf_counter() - start
