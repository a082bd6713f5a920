"""The names of `pypto.language`, as data: what each stands for, and what is not supported yet."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from aotc.dtypes import DTYPES
from aotc.errors import AotcError, suggestion
from aotc.language import objects
from aotc.ops import registry, unsupported


class UnknownName(AotcError, AttributeError):
    """A name that `pypto.language` does not have, or that aotc does not support yet."""


def _enum(name: str, members: str) -> type[Enum]:
    return Enum(name, members)  # type: ignore[return-value]  # the functional form gives a class


Mem = _enum("MemorySpace", "DDR Vec Mat Left Right Acc Bias LeftScale RightScale")
_TensorLayout = _enum("TensorLayout", "ND DN NZ MX_A_ZZ MX_B_NN")
_MaskPattern = _enum("MaskPattern", "P0101 P1010 P0001 P0010 P0100 P1000 P1111")

# Words of control flow, placement and compile time: the front end gives them their meaning.
WORDS = (
    *("range", "parallel", "pipeline", "unroll", "spmd", "while_", "cond", "yield_", "split_aiv"),
    *("at", "scope", "manual_scope", "auto_scope", "cluster", "split", "cross_core_slot"),
    *("static_assert", "static_print", "func_attr", "const", "dim", "tensor.dim"),
    *("submit", "spmd_submit", "no_dep", "dump_tag", "task_dummy", "system.task_dummy"),
    *("get_block_idx", "get_block_num", "get_subblock_idx"),
    *("tile.get_block_idx", "tile.get_block_num", "tile.get_subblock_idx"),
    *("tensor.get_block_idx", "tensor.get_block_num", "tensor.get_subblock_idx"),
    *("system.syncall", "system.fence", "system.cacheinvalid"),
    *("aiv_shard", "aic_gather", "min", "max", "tile.min", "tile.max", "cast"),
    *("array.create", "array.get_element", "array.update_element"),
    *("system.available_cluster_count", "system.available_aiv_count"),
)

OBJECTS: dict[str, Any] = {
    "jit": objects.JIT,
    "function": objects.FUNCTION,
    "inline": objects.INLINE,
    "program": objects.program,
    "Tensor": objects.TENSOR,
    "Tile": objects.TILE,
    "Scalar": objects.SCALAR,
    "Tuple": objects.TUPLE,
    "Out": objects.OUT,
    "InOut": objects.INOUT,
    "dynamic": objects.Symbol,
    "DynVar": objects.Symbol,
    "RUNTIME": objects.RUNTIME,
    "TASK_ID": objects.TASK_ID,
    "TaskId": objects.ScalarAnnotation(None),
    "Mem": Mem,
    "MemorySpace": Mem,
    "Level": _enum("Level", "HOST CHIP CHIP_DIE CLUSTER CORE_GROUP AIC AIV CORE"),
    "Role": _enum("Role", "Orchestrator SubWorker Worker"),
    "FunctionType": _enum("FunctionType", "Opaque Orchestration InCore AIC AIV Group Spmd Inline"),
    "ForKind": _enum("ForKind", "Sequential Parallel Unroll Pipeline"),
    "ScopeMode": _enum("ScopeMode", "AUTO MANUAL"),
    "SplitMode": _enum("SplitMode", "NONE UP_DOWN LEFT_RIGHT"),
    "PadValue": _enum("PadValue", "null zero max min"),
    "CompactMode": _enum("CompactMode", "null normal"),
    "AtomicType": _enum("AtomicType", "None_ Add"),
    "PipeType": _enum("PipeType", "MTE1 MTE2 MTE3 M V S FIX ALL"),
    "TensorLayout": _TensorLayout,
    "TileLayout": _enum("TileLayout", "none_box row_major col_major"),
    "tile.MaskPattern": _MaskPattern,
    "MaskPattern": _MaskPattern,
    **{each.name: each for each in _TensorLayout},
    **{name.upper(): dtype for name, dtype in DTYPES.items()},
    **{path: objects.Word(path) for path in WORDS},
}

NAMESPACES = ("tensor", "tile", "system", "array", "optimizations")

_EXTENSION = "this element type has no cpu form; use BF16, FP16, FP32 or an integer type"
_CORES = "cores of an NPU exchange tiles with it; let one `pl.at` region compute both parts"
_TEXT = "programs are read from Python functions; put the function in a module"

# Names that PyPTO has and aotc does not: what to do instead.
UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(("INT4", "UINT4", "FP4", "HF4", "HF8"), _EXTENSION),
    **dict.fromkeys(("FP8E4M3FN", "FP8E5M2", "FP8E8M0"), _EXTENSION),
    **dict.fromkeys(("system.set_ffts", "system.sync_set", "system.sync_wait"), _CORES),
    **dict.fromkeys(("parse", "loads", "parse_program", "loads_program", "parser"), _TEXT),
    "prefetch": "the cpu has one memory; read the tensor directly",
    **dict.fromkeys(
        ("MemRef", "MemRefType", "Ptr", "PtrType", "TileView", "TensorView", "adir"),
        "annotate the row-major shape",
    ),
    "Array": "create it with `pl.array.create`; it needs no annotation",
}


def resolve(path: str) -> Any:
    """Return what `pl.PATH` stands for; raise UnknownName where it stands for nothing."""
    if path in OBJECTS:
        return OBJECTS[path]
    if path in NAMESPACES:
        return objects.Namespace(path, resolve)
    if registry.lookup(path) is not None:
        return objects.Word(path)
    if path in UNSUPPORTED:
        raise UnknownName(f"`pl.{path}` is not supported yet", hint=UNSUPPORTED[path])
    if unsupported.is_known(path):
        hint = unsupported.hint(path) or "write it with other operators, or pass it as a parameter"
        raise UnknownName(f"`pl.{path}` is not supported yet", hint=hint)
    raise UnknownName(f"`pypto.language` has no `{path}` that aotc knows", hint=_closest(path))


def names() -> Iterable[str]:
    """Yield the dotted path of every name that resolves."""
    yield from OBJECTS
    yield from NAMESPACES
    for row in registry.table().values():
        yield from row.spellings


def _closest(path: str) -> str:
    close = suggestion(path, [*names(), *UNSUPPORTED])
    if close is not None:
        return close.replace("`", "`pl.", 1)
    return "it may be of a newer PyPTO; write it with operators that aotc has"
