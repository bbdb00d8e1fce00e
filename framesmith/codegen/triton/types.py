"""Names of types and constants in Triton text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from framesmith.util.errors import CompileError


@dataclass(frozen=True, slots=True)
class TypeRow:
    """`pointer`: the type of a pointer in a signature; `name`: of a value in the text; `low`, `high`: literals of the
    extremes."""

    pointer: str
    name: str
    low: str
    high: str


def _integer(pointer: str, name: str, bits: int, signed: bool) -> TypeRow:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return TypeRow(f"*{pointer}", f"tl.{name}", str(low), str(high))


def _floating(pointer: str, name: str) -> TypeRow:
    return TypeRow(f"*{pointer}", f"tl.{name}", 'float("-inf")', 'float("inf")')


TYPES: dict[torch.dtype, TypeRow] = {
    torch.float32: _floating("fp32", "float32"),
    torch.float64: _floating("fp64", "float64"),
    torch.float16: _floating("fp16", "float16"),
    torch.bfloat16: _floating("bf16", "bfloat16"),
    torch.int64: _integer("i64", "int64", 64, True),
    torch.int32: _integer("i32", "int32", 32, True),
    torch.int16: _integer("i16", "int16", 16, True),
    torch.int8: _integer("i8", "int8", 8, True),
    torch.uint8: _integer("u8", "uint8", 8, False),
    torch.uint16: _integer("u16", "uint16", 16, False),
    torch.uint32: _integer("u32", "uint32", 32, False),
    torch.uint64: _integer("u64", "uint64", 64, False),
    torch.bool: TypeRow("*i1", "tl.int1", "False", "True"),
}
_TINY, _HUGE = 2.0**-126, 3.4028234663852886e38  # the normal numbers of float32


def type_row(dtype: torch.dtype) -> TypeRow:
    """Return the row of `dtype`; raise CompileError for an unsupported type (complex, 8-bit floats)."""
    row = TYPES.get(dtype)
    if row is None:
        raise CompileError(f"generated code has no values of type {dtype}")
    return row


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return `value` as a Python literal, without an explicit type."""
    if dtype is torch.bool:
        return "True" if value else "False"
    if not dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def typed(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return `value` as a scalar of type `dtype`."""
    return f"tl.full([], {literal(value, dtype)}, {type_row(dtype).name})"


def operand(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return `value` as an operand together with one of the same type: a plain literal if Triton gives it that type."""
    if dtype in (torch.bool, torch.int32):
        return literal(value, dtype)
    plain = dtype is torch.float32 and not math.isfinite(value) or is_plain(value, dtype)
    return literal(value, dtype) if plain else typed(value, dtype)


def is_plain(value: bool | int | float, dtype: torch.dtype) -> bool:
    """Return whether it is zero or a normal number of float32."""
    return dtype is torch.float32 and (value == 0 or _TINY <= abs(value) <= _HUGE)
