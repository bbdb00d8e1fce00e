"""Names of types and literals in generated code: storage in memory, one value (scalar), one value a lane (vector)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from framesmith.util.errors import CompileError


@dataclass(frozen=True, slots=True)
class TypeRow:
    """The C++ types of a dtype's values: `storage` in memory, `scalar` and `vector` in registers; `convert` is the
    function that makes one."""

    storage: str
    scalar: str
    vector: str
    convert: str
    suffix: str
    low: str
    high: str


_INT32 = ("int", "vi")
TYPES: dict[torch.dtype, TypeRow] = {
    torch.float32: TypeRow("float", "float", "vf", "to_f32", "f", "-__builtin_inff()", "__builtin_inff()"),
    torch.float64: TypeRow("double", "double", "vd", "to_f64", "", "-__builtin_inf()", "__builtin_inf()"),
    torch.bfloat16: TypeRow("bf16", "float", "vf", "to_f32", "f", "-__builtin_inff()", "__builtin_inff()"),
    torch.float16: TypeRow("f16", "float", "vf", "to_f32", "f", "-__builtin_inff()", "__builtin_inff()"),
    torch.int64: TypeRow("i64", "i64", "vl", "to_i64", "L", "-0x7fffffffffffffffL - 1", "0x7fffffffffffffffL"),
    torch.int32: TypeRow("int", *_INT32, "to_i32", "", "-0x7fffffff - 1", "0x7fffffff"),
    torch.int16: TypeRow("i16", *_INT32, "to_i16", "", "-32768", "32767"),
    torch.int8: TypeRow("i8", *_INT32, "to_i8", "", "-128", "127"),
    torch.uint8: TypeRow("u8", *_INT32, "to_u8", "", "0", "255"),
    torch.uint16: TypeRow("u16", *_INT32, "to_u16", "", "0", "65535"),
    torch.bool: TypeRow("bool", "bool", "vm", "to_b8", "", "false", "true"),
}
NARROW = frozenset((torch.int16, torch.int8, torch.uint8, torch.uint16))


def type_row(dtype: torch.dtype) -> TypeRow:
    """Return the row of `dtype`; raise CompileError for an unsupported type (complex, 8-bit floats, wide unsigned)."""
    row = TYPES.get(dtype)
    if row is None:
        raise CompileError(f"generated code has no values of type {dtype}")
    return row


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Return `value` as a C++ literal of the compute type of `dtype`; floats round-trip exactly."""
    row = type_row(dtype)
    if dtype is torch.bool:
        return "true" if value else "false"
    if row.scalar in ("float", "double"):
        return _float_literal(float(value), row)
    value = int(value)
    if value == torch.iinfo(dtype).min:
        return f"({row.low})"
    return f"{value}{row.suffix}" if value >= 0 else f"({value}{row.suffix})"


def _float_literal(value: float, row: TypeRow) -> str:
    if math.isnan(value):
        return f'__builtin_nan{row.suffix}("")'
    if math.isinf(value):
        return row.high if value > 0 else f"({row.low})"
    if row.suffix:
        rounded = torch.tensor(value, dtype=torch.float32).item()
        if math.isinf(rounded):
            return row.high if rounded > 0 else f"({row.low})"
        text = f"{rounded:.9g}"
    else:
        text = repr(value)
    text = text if any(c in text for c in ".en") else text + ".0"
    return f"({text}{row.suffix})" if text[0] == "-" else text + row.suffix
