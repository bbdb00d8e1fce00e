"""Dtypes that an operator does not support, and numbers that do not fit them. Only its kernel knows these: shape rules
and meta kernels do not check, and generated code would compute a result. So a call with dtypes other than a single
floating-point one runs once, on zeros, for each combination, and one with a number beyond a dtype's range runs so each
time."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import torch

from framesmith.fake.infer import true_error
from framesmith.fake.layout import is_of_data
from framesmith.fake.tensor import FakeTensor, tensors_in
from framesmith.symbolic.node import hint_of

_FLOATING = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
_LARGEST = 1 << 20
"""The maximal number of elements of a trial call."""
_ABOUT_DTYPES = re.compile(r"dtype|type|not implemented|not supported|[Bb]ool|[Cc]omplex|Half|Float|Double|Long|Int\b")
_NUMBERS = frozenset(("number", "Optional[number]", "Optional[float]"))
"""Types of arguments that operators convert to the dtype of their operands."""
_taken: set[Any] = set()


def refuse_dtypes(func: Any, args: tuple, kwargs: dict, results: Any) -> None:
    """Raise eager's error if the operator does not support these dtypes."""
    found = list(tensors_in((*args, *kwargs.values()) if kwargs else args))
    dtypes = tuple([x.dtype for x in found])
    if not dtypes or dtypes[0] in _FLOATING and all(d is dtypes[0] for d in dtypes):
        return
    key = (func, dtypes, tuple([type(a) for a in args if not isinstance(a, FakeTensor)]))
    if key in _taken or func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
        return
    every = (*found, *tensors_in((results,)))
    if any(type(n) is not int for x in every for n in x.shape) or any(x.numel() > _LARGEST for x in every):
        return
    try:
        true_error(func, tuple([hint_of(a) if is_of_data(a) else a for a in args]), kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if _ABOUT_DTYPES.search(str(error)):
            raise
    _taken.add(key)


def refuse_numbers(func: Any, args: tuple, kwargs: dict) -> None:
    """Raise eager's error if a number is beyond the range of the dtype that the operator converts it to."""
    given = [args[at] if at < len(args) else kwargs.get(name) for at, name in _numbers(func)]
    numbers = [a for a in given if isinstance(a, (int, float))]
    if not numbers:
        return
    found = list(tensors_in((*args, *kwargs.values())))
    dtypes = [d for d in (kwargs.get("dtype"), *[x.dtype for x in found]) if d is not None and d is not torch.bool]
    if not all(_has(d, n) for d in dtypes for n in numbers) and not any(is_of_data(n) for x in found for n in x.shape):
        true_error(func, args, kwargs)


@cache
def _numbers(func: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of each argument that is a number of any type."""
    arguments = func._schema.arguments if func.namespace == "aten" else ()
    return tuple([(at, a.name) for at, a in enumerate(arguments) if str(a.real_type) in _NUMBERS])


def _has(dtype: torch.dtype, number: float) -> bool:
    """Return whether a number is within the range of a dtype."""
    if dtype.is_floating_point or dtype.is_complex:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max
