"""Type promotion as eager does it: tensors with dims outrank 0-dim tensors, which outrank Python numbers, within a
category."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.precision import HALF

BOOL, INTEGER, FLOAT, COMPLEX = range(4)

_CATEGORY: dict[Any, int] = {torch.bool: BOOL, bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}


def category(kind: torch.dtype | type) -> int:
    """Return BOOL, INTEGER, FLOAT or COMPLEX for a dtype or a Python number's type (an integer expression counts as
    int)."""
    known = _CATEGORY.get(kind)
    if known is None:
        if not isinstance(kind, torch.dtype):
            known = INTEGER
        else:
            known = COMPLEX if kind.is_complex else FLOAT if kind.is_floating_point else INTEGER
        _CATEGORY[kind] = known
    return known


_COMPLEX = {torch.float64: torch.complex128, torch.float16: torch.complex32}
_combined: dict[tuple[torch.dtype | None, ...], torch.dtype] = {}


def result_dtype(*operands: Any) -> torch.dtype:
    """Return the common dtype of tensors (anything with `dtype` and `ndim`) and Python numbers; None is no operand."""
    ranked: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        dtype = getattr(operand, "dtype", None)
        if dtype is not None:
            rank = 0 if operand.ndim else 1
        elif operand is None:
            continue
        else:
            rank, dtype = 2, _number_dtype(operand)
        seen = ranked[rank]
        ranked[rank] = dtype if seen is None or seen is dtype else torch.promote_types(seen, dtype)
    sized, scalar, number = ranked
    if sized is not None and scalar is None and number is None:
        return sized
    known = _combined.get((sized, scalar, number))
    if known is None:
        known = _outranked(sized, _outranked(scalar, number))
        if known is None:
            raise TypeError("no operand to take a type from")
        _combined[sized, scalar, number] = known
    return known


def _number_dtype(number: Any) -> torch.dtype:
    """Return the default dtype of a Python number; an expression or `torch.SymInt` is an integer."""
    if isinstance(number, (bool, torch.SymBool)):
        return torch.bool
    default = torch.get_default_dtype()
    if isinstance(number, complex):
        return _COMPLEX.get(default, torch.complex64)
    return default if isinstance(number, (float, torch.SymFloat)) else torch.int64


def _outranked(high: torch.dtype | None, low: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of operands where those of `low` count only by their category."""
    if high is None or low is None:
        return low if high is None else high
    if category(low) <= category(high):
        return high
    if category(high) == FLOAT:
        return _COMPLEX.get(high, torch.complex64)
    return torch.promote_types(high, low)


def floating(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype, or the default float dtype for an integer or bool one."""
    return dtype if category(dtype) >= FLOAT else torch.get_default_dtype()


_COERCE = {BOOL: bool, INTEGER: int, FLOAT: float, COMPLEX: complex}


def coerce(number: Any, dtype: torch.dtype) -> Any:
    """Convert a Python number to the dtype's category, round it to a 16-bit float, or wrap it into an integer type's
    range; an integer expression is unchanged."""
    if not isinstance(number, (bool, int, float, complex)):
        return number
    if dtype in HALF:
        return torch.tensor(number, dtype=dtype, device="cpu").item()
    rank = category(dtype)
    number = _COERCE[rank](number)  # type: ignore[operator]
    if rank == INTEGER and dtype.itemsize < 8:
        least = torch.iinfo(dtype).min
        return (number - least) % (1 << 8 * dtype.itemsize) + least
    return number
