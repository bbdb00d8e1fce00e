"""Scalar operations as C++ text."""

from __future__ import annotations

import torch

from framesmith.codegen.cpp.types import NARROW, type_row
from framesmith.prims.scalars import SCALAR_OPS


def by_power_of_two(name: str, operand: str, divisor: int, lanes: bool, dtype: torch.dtype) -> str | None:
    """Return integer `floordiv` and `mod` by a power of two as a shift and a mask; None for other operations."""
    if name not in ("floordiv", "mod") or divisor <= 0 or divisor & (divisor - 1):
        return None
    number = divisor.bit_length() - 1 if name == "floordiv" else divisor - 1
    text = f"{number}{type_row(dtype).suffix}"
    return f"{operand} {'>>' if name == 'floordiv' else '&'} {f'splat({text})' if lanes else text}"


def scalar_text(name: str, operands: list[str], operand_type: torch.dtype, result: torch.dtype) -> str:
    """Return the text of an operation on operands that are texts of one shape (all vectors or all scalars)."""
    op = SCALAR_OPS[name]
    form = (op.cpp_bool if operand_type is torch.bool else "") or op.cpp
    text = form.format(*operands) if form else f"{name}({', '.join(operands)})"
    return f"{type_row(result).convert}({text})" if result in NARROW and op.wraps else text
