"""Dtypes that an operator does not support. Only its kernel knows them: shape rules and meta kernels do not check, and
generated code would compute a result. So a call with dtypes other than a single floating-point one runs once, on zeros,
for each combination."""

from __future__ import annotations

import re
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
