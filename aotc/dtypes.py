"""Element types: the ones that PyPTO's user guide lists as byte-addressable, and INDEX scalars."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What arithmetic an element type follows."""

    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"


@dataclass(frozen=True, repr=False)
class DType:
    """An element type: its name in contracts and IR, size in bytes, kind and C storage type."""

    name: str
    size: int
    kind: Kind
    c_type: str

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)  # no two share one; every hash of an expression comes here

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    def get_byte(self) -> int:
        """Return the size of an element in bytes; PyPTO's spelling, which models use."""
        return self.size

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)


BOOL = DType("bool", 1, Kind.BOOL, "uint8_t")
INT8 = DType("int8", 1, Kind.SIGNED, "int8_t")
UINT8 = DType("uint8", 1, Kind.UNSIGNED, "uint8_t")
INT16 = DType("int16", 2, Kind.SIGNED, "int16_t")
UINT16 = DType("uint16", 2, Kind.UNSIGNED, "uint16_t")
INT32 = DType("int32", 4, Kind.SIGNED, "int32_t")
UINT32 = DType("uint32", 4, Kind.UNSIGNED, "uint32_t")
INT64 = DType("int64", 8, Kind.SIGNED, "int64_t")
UINT64 = DType("uint64", 8, Kind.UNSIGNED, "uint64_t")
FP16 = DType("fp16", 2, Kind.FLOAT, "_Float16")
BF16 = DType("bf16", 2, Kind.FLOAT, "aotc_bf16")
FP32 = DType("fp32", 4, Kind.FLOAT, "float")
# The type of loop variables, offsets and extents.
INDEX = DType("index", 8, Kind.SIGNED, "int64_t")

DTYPES = {
    each.name: each
    for each in (
        *(BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64),
        *(FP16, BF16, FP32, INDEX),
    )
}
