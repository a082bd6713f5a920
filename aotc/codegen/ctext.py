"""C text for scalars and identifiers."""

from __future__ import annotations

import math
import re
import struct

from aotc.dtypes import BF16, BOOL, FP16, FP32, DType, Kind
from aotc.ir.scalar import Binary, Constant, Convert, Scalar, ScalarVar, Symbol, Unary

# C's keywords, and the names that generated code uses for itself.
_RESERVED = frozenset(
    (
        *("auto", "break", "case", "char", "const", "continue", "default", "do", "double"),
        *("else", "enum", "extern", "float", "for", "goto", "if", "inline", "int", "long"),
        *("register", "restrict", "return", "short", "signed", "sizeof", "static", "struct"),
        *("switch", "typedef", "union", "unsigned", "void", "volatile", "while"),
        *("call", "thread", "threads", "symbols", "item", "last", "first", "half", "lane", "at"),
        *("total", "take", "matmul_scratch", "n", "j", "l", "r", "x"),
        *("n_first", "n_last", "shares", "after"),
    )
)
_RESERVED_FORM = re.compile(r"aotc_.*|i\d+|(shared|private|next)_.*|.*_t|.*_")
_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/"},
    **{"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
    **{"and": "&&", "or": "||", "bit_and": "&", "bit_or": "|", "bit_xor": "^"},
    **{"shl": "<<", "shr": ">>"},
}
_FLOAT_FUNCTIONS = {
    "abs": "__builtin_fabsf",
    "exp": "aotc_exp",
    "log": "aotc_log",
    "sqrt": "__builtin_sqrtf",
    "rsqrt": "aotc_rsqrt",
    "recip": "aotc_recip",
}


def identifier(name: str) -> str:
    """Return a C identifier for `name`; distinct names stay distinct."""
    reserved = name in _RESERVED or _RESERVED_FORM.fullmatch(name)
    return f"{name}_" if reserved else name


def value_type(dtype: DType) -> str:
    """Return the C type in which one element is computed: `float` for every float type."""
    return "float" if dtype.is_float else dtype.c_type


def number(value: int | float | bool, dtype: DType) -> str:
    """Return the literal of `value` as `dtype`."""
    if dtype == BOOL:
        return str(int(bool(value)))
    if not dtype.is_float:
        suffix = "u" if dtype.kind is Kind.UNSIGNED else ""
        if int(value) == -(2**63):
            return "INT64_MIN"
        return f"{int(value)}{suffix}{'ll' if abs(int(value)) > 2**31 - 1 else ''}"
    rounded = round_to(float(value), dtype)
    if math.isnan(rounded):
        return '__builtin_nanf("")'
    if math.isinf(rounded):
        return "__builtin_inff()" if rounded > 0 else "-__builtin_inff()"
    text = f"{rounded:.9g}"
    return f"{text}f" if any(c in text for c in ".e") else f"{text}.0f"


def round_to(value: float, dtype: DType) -> float:
    """Return `value` rounded to the nearest number of a float type, ties to even."""
    if dtype == FP16:
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype == BF16 and not math.isnan(value):
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def scalar(expression: Scalar) -> str:
    """Return the C expression of a scalar; parenthesized where it is not a single term."""
    match expression:
        case Constant(value=value, dtype=dtype):
            text = number(value, dtype)
            return f"({text})" if text.startswith("-") else text
        case Symbol(name=name) | ScalarVar(name=name):
            return identifier(name)
        case Convert(operand=operand, dtype=dtype):
            return _convert(operand, dtype)
        case Unary(op="not", operand=operand):
            return f"(!{scalar(operand)})"
        case Unary(op="neg", operand=operand):
            return f"(-{scalar(operand)})"
        case Unary(op="abs", operand=operand) if not operand.dtype.is_float:
            return f"aotc_abs_index({scalar(operand)})"
        case Unary(op=op, operand=operand):
            return _rounded(f"{_FLOAT_FUNCTIONS[op]}({scalar(operand)})", expression.dtype)
        case Binary(op=op, left=left, right=right):
            return _binary(op, scalar(left), scalar(right), left.dtype)
    raise AssertionError(expression)


def _binary(op: str, left: str, right: str, dtype: DType) -> str:
    if op in ("min", "max", "floordiv", "mod"):
        kind = "f32" if dtype.is_float else "index"
        text = f"aotc_scalar_{op}_{kind}({left}, {right})"
    else:
        text = f"({left} {_INFIX[op]} {right})"
    if op in ("add", "sub", "mul", "truediv") and dtype in (BF16, FP16):
        return _rounded(text, dtype)
    if op not in ("eq", "ne", "lt", "le", "gt", "ge") and dtype.is_integer and dtype.size < 8:
        return f"(({dtype.c_type}){text})"
    return text


def _convert(operand: Scalar, dtype: DType) -> str:
    text = scalar(operand)
    if dtype == BOOL:
        return f"({text} != 0)"
    if operand.dtype.is_float and dtype == FP32:
        return text
    return _rounded(f"(({value_type(dtype)}){text})", dtype)


def _rounded(text: str, dtype: DType) -> str:
    return f"aotc_round_{dtype.name}({text})" if dtype in (BF16, FP16) else text
