"""Type promotion as eager does it: tensors with dims outrank 0-dim tensors, which outrank Python numbers, within a
category."""

from __future__ import annotations

from typing import Any

import torch

BOOL, INTEGER, FLOAT, COMPLEX = range(4)

_CATEGORY: dict[Any, int] = {torch.bool: BOOL, bool: BOOL, int: INTEGER, float: FLOAT, complex: COMPLEX}


def category(kind: torch.dtype | type) -> int:
    """BOOL, INTEGER, FLOAT or COMPLEX, of a dtype or of a Python number's type (an integer expression counts as
    int)."""
    known = _CATEGORY.get(kind)
    if known is None:
        if not isinstance(kind, torch.dtype):
            known = INTEGER
        else:
            known = COMPLEX if kind.is_complex else FLOAT if kind.is_floating_point else INTEGER
        _CATEGORY[kind] = known
    return known


def default_of(rank: int) -> torch.dtype:
    """The dtype that a Python number of a category has by default."""
    if rank == FLOAT:
        return torch.get_default_dtype()
    return (torch.bool, torch.int64, None, torch.complex64)[rank]  # type: ignore[return-value]


def _join(first: torch.dtype | None, second: torch.dtype) -> torch.dtype:
    return second if first is None or first is second else torch.promote_types(first, second)


def result_dtype(*operands: Any) -> torch.dtype:
    """The common dtype of tensors (anything with `dtype` and `shape`) and Python numbers."""
    sized: torch.dtype | None = None
    scalars: torch.dtype | None = None
    numbers = -1
    for operand in operands:
        dtype = getattr(operand, "dtype", None)
        if dtype is None:
            numbers = max(numbers, category(type(operand)))
        elif operand.shape:
            sized = _join(sized, dtype)
        else:
            scalars = _join(scalars, dtype)
    result = sized
    if scalars is not None and (result is None or category(scalars) > category(result)):
        result = _join(result, scalars)
    if result is None or numbers > category(result):
        default = default_of(numbers)
        result = default if result is None or category(result) < FLOAT else torch.promote_types(result, default)
    return result


def floating(dtype: torch.dtype) -> torch.dtype:
    """The dtype, or the default float dtype in place of an integer or bool one."""
    return dtype if category(dtype) >= FLOAT else torch.get_default_dtype()


HALF = (torch.bfloat16, torch.float16)


def computing(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager's kernels compute: float32 for 16-bit floats, else itself."""
    return torch.float32 if dtype in HALF else dtype


_COERCE = {BOOL: bool, INTEGER: int, FLOAT: float, COMPLEX: complex}


def coerce(number: Any, dtype: torch.dtype) -> Any:
    """A Python number as one of the dtype's category, for a 16-bit float as one of the dtype's, for an integer type
    wrapped into its range; an integer expression stays what it is."""
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
