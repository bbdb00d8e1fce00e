"""Type promotion as eager does it: tensors with dimensions, then zero-dimensional tensors, then Python numbers."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.tensor import FakeTensor

_combined: dict[tuple, torch.dtype] = {}
_COMPLEX = {torch.float64: torch.complex128, torch.float16: torch.complex32}
_NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, torch.SymBool: torch.bool, int: torch.int64,
                                     torch.SymInt: torch.int64}


def result_type(values: Any) -> torch.dtype:
    """The dtype that operands (fakes and Python numbers) are computed in."""
    by_rank: list[torch.dtype | None] = [None, None, None]
    for value in values:
        if type(value) is FakeTensor:
            rank, dtype = (0 if value.dim() else 1), value.dtype
        elif value is None:
            continue
        else:
            rank, dtype = 2, number_type(value)
        seen = by_rank[rank]
        by_rank[rank] = dtype if seen is None or seen is dtype else torch.promote_types(seen, dtype)
    high, zero, number = by_rank
    if high is not None and zero is None and number is None:
        return high
    key = (high, zero, number)
    known = _combined.get(key)
    if known is None:
        known = _combine(high, _combine(zero, number))
        if known is None:
            raise TypeError("no operand to take a type from")
        _combined[key] = known
    return known


def number_type(value: Any) -> torch.dtype:
    kind = type(value)
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if isinstance(value, complex):
        return _COMPLEX.get(torch.get_default_dtype(), torch.complex64)
    return torch.get_default_dtype()


def _combine(high: torch.dtype | None, low: torch.dtype | None) -> torch.dtype | None:
    if high is None or low is None:
        return low if high is None else high
    if high.is_complex:
        return high
    if high.is_floating_point:
        return _COMPLEX.get(high, torch.complex64) if low.is_complex else high
    if high is torch.bool or low.is_floating_point or low.is_complex:
        return torch.promote_types(high, low)
    return high


def to_float(dtype: torch.dtype) -> torch.dtype:
    """Integers become the default float, as in `sin` or true division."""
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
