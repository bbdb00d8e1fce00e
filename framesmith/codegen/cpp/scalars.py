"""Scalar operations as C++ text: one row an op that is not simply a call of its own name."""

from __future__ import annotations

import torch

from framesmith.codegen.cpp.types import NARROW, type_row

# Any operand type, vector or scalar.
_TEXT = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "neg": "-{}",
    "bitwise_not": "~{}",
    "bitwise_and": "{} & {}",
    "bitwise_or": "{} | {}",
    "bitwise_xor": "{} ^ {}",
    "logical_and": "{} & {}",
    "logical_or": "{} | {}",
    "logical_xor": "{} ^ {}",
    "lshift": "{} << {}",
    "rshift": "{} >> {}",
    "fma": "{} * {} + {}",
    "maximum": "max({}, {})",
    "minimum": "min({}, {})",
}
# Where operands are bool.
_BOOL = {"bitwise_not": "logical_not({})", "mul": "{} & {}", "add": "{} | {}"}
# Narrow integers are computed in 32 bits: these can leave their range.
_WRAPS = frozenset(("add", "sub", "mul", "neg", "abs", "square", "bitwise_not", "lshift", "pow", "fma", "floordiv",
                    "truncdiv"))


def by_power_of_two(name: str, operand: str, divisor: int, lanes: bool, dtype: torch.dtype) -> str | None:
    """Integer `floordiv` and `mod` by a power of two as a shift and a mask; None for anything else."""
    if name not in ("floordiv", "mod") or divisor <= 0 or divisor & (divisor - 1):
        return None
    number = divisor.bit_length() - 1 if name == "floordiv" else divisor - 1
    text = f"{number}{type_row(dtype).suffix}"
    return f"{operand} {'>>' if name == 'floordiv' else '&'} {f'splat({text})' if lanes else text}"


def scalar_text(name: str, operands: list[str], operand_type: torch.dtype, result: torch.dtype) -> str:
    """The operation on operands that are already texts of one shape (all vectors or all scalars)."""
    form = _BOOL.get(name) if operand_type is torch.bool else None
    form = form or _TEXT.get(name)
    text = form.format(*operands) if form else f"{name}({', '.join(operands)})"
    if result in NARROW and name in _WRAPS:
        return f"{type_row(result).convert}({text})"
    return text
