"""The C text of reductions over the last dimension, each in an order that nothing changes."""

from __future__ import annotations

from aotc.codegen import ctext
from aotc.codegen.sharing import UNIT
from aotc.dtypes import DType
from aotc.ir.scalar import Scalar


def row_reduction(
    combine: str, initial: str, dtype: DType, extent: Scalar, element: str, result: str
) -> list[str]:
    """Return the reduction of `element`, over `j` below `extent`, into the statement `result`.

    `result` uses the name `total`. Sixteen interleaved partial results are combined as a tree, so
    the order does not depend on the target's vector width.
    """
    c_type = ctext.value_type(dtype)
    return [
        "{",
        f"    {c_type} lane[AOTC_LANES];",
        f"    for (int l = 0; l < AOTC_LANES; ++l) lane[l] = {initial};",
        f"    const int64_t n = {ctext.scalar(extent)};",
        "    int64_t first = 0;",
        "    for (; first + AOTC_LANES <= n; first += AOTC_LANES)",
        "        for (int l = 0; l < AOTC_LANES; ++l) {",
        "            const int64_t j = first + l;",
        f"            lane[l] = {combine}(lane[l], {element});",
        "        }",
        "    for (int l = 0; first + l < n; ++l) {",
        "        const int64_t j = first + l;",
        f"        lane[l] = {combine}(lane[l], {element});",
        "    }",
        "    for (int half = AOTC_LANES / 2; half > 0; half /= 2)",
        "        for (int l = 0; l < half; ++l)",
        f"            lane[l] = {combine}(lane[l], lane[l + half]);",
        f"    const {c_type} total = lane[0];",
        f"    {result}",
        "}",
    ]


def row_position(better: str, dtype: DType, extent: Scalar, element: str, result: str) -> list[str]:
    """Return the search for the lowest `j` whose element no other is `better` than.

    `better` is a C comparison operator; `result` uses the name `total`, the position.
    """
    c_type = ctext.value_type(dtype)
    return [
        "{",
        f"    {c_type} lane[AOTC_LANES];",
        "    int32_t at[AOTC_LANES];",
        f"    const int64_t n = {ctext.scalar(extent)};",
        "    for (int l = 0; l < AOTC_LANES; ++l) {",
        "        const int64_t j = l < n ? l : 0;",
        f"        lane[l] = {element};",
        "        at[l] = (int32_t)j;",
        "    }",
        "    int64_t first = AOTC_LANES;",
        "    for (; first + AOTC_LANES <= n; first += AOTC_LANES)",
        "        for (int l = 0; l < AOTC_LANES; ++l) {",
        "            const int64_t j = first + l;",
        f"            const {c_type} x = {element};",
        f"            const int take = x {better} lane[l];",
        "            lane[l] = take ? x : lane[l];",
        "            at[l] = take ? (int32_t)j : at[l];",
        "        }",
        "    for (int l = 0; first + l < n; ++l) {",
        "        const int64_t j = first + l;",
        f"        const {c_type} x = {element};",
        f"        if (x {better} lane[l]) {{ lane[l] = x; at[l] = (int32_t)j; }}",
        "    }",
        "    for (int l = 1; l < AOTC_LANES; ++l)",
        f"        if (lane[l] {better} lane[0] || (lane[l] == lane[0] && at[l] < at[0])) {{",
        "            lane[0] = lane[l];",
        "            at[0] = at[l];",
        "        }",
        "    const int32_t total = at[0];",
        f"    {result}",
        "}",
    ]


def unit_reduction(
    combine: str,
    initial: str,
    dtype: DType,
    extent: Scalar,
    span: tuple[str, str],
    element: str,
    result: str,
) -> list[str]:
    """Return the reductions of `element` over each unit of columns in `span`, all of one row.

    Each ends with the statement `result`, which uses the names `total`, and `j`, the first column
    of the unit. Within a unit the columns are combined as a tree; the last one may be short.
    """
    c_type = ctext.value_type(dtype)
    return [
        f"for (int64_t j = {span[0]}; j < {span[1]}; j += {UNIT}) {{",
        f"    {c_type} lane[{UNIT}];",
        f"    const int64_t first = j, n = {ctext.scalar(extent)};",
        f"    for (int l = 0; l < {UNIT}; ++l) lane[l] = {initial};",
        f"    if (first + {UNIT} <= n)",
        f"        for (int l = 0; l < {UNIT}; ++l) {{",
        "            const int64_t j = first + l;",
        f"            lane[l] = {combine}(lane[l], {element});",
        "        }",
        "    else",
        "        for (int l = 0; first + l < n; ++l) {",
        "            const int64_t j = first + l;",
        f"            lane[l] = {combine}(lane[l], {element});",
        "        }",
        f"    for (int half = {UNIT} / 2; half > 0; half /= 2)",
        "        for (int l = 0; l < half; ++l)",
        f"            lane[l] = {combine}(lane[l], lane[l + half]);",
        f"    const {c_type} total = lane[0];",
        f"    {result}",
        "}",
    ]
