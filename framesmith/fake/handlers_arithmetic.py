"""Recording of arithmetic and logic for which the schema is not enough."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.handlers import classify, functional, handles, positional, store
from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor
from framesmith.util.errors import Unsupported

aten = torch.ops.aten


@handles(aten.logical_not_.default, aten.logical_and_.default, aten.logical_or_.default, aten.logical_xor_.default)
def logical_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write a logical result. Autograd ignores these operators: the target keeps its history."""
    if rec.keeps_history and rec.keeps_history(args[0]):
        raise Unsupported(f"{func} on a tensor that requires grad", hint="make a new tensor")
    return classify(func)(rec, func, args, kwargs)


@handles(aten.polygamma_.default)
def polygamma_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write the functional form, whose first argument is the order."""
    x, order = positional(func, args, kwargs)
    store(rec, x, functional(rec, aten.polygamma.default, (order, x), {}), func, args, kwargs)
    return x


_CONJUGATED = {aten.dot.default: (True, True), aten.vdot.default: (False, True)}
"""Patterns of conjugate operands for which eager returns a conjugate view of another product."""


@handles(*_CONJUGATED)
def dot(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record a product of conjugates as the conjugate of a product."""
    x, y = positional(func, args, kwargs)
    if any(type(v) is not FakeTensor for v in (x, y)) or (x.is_conj(), y.is_conj()) != _CONJUGATED[func]:
        return functional(rec, func, args, kwargs)
    return rec.inside(lambda: torch.dot(x.conj() if x.is_conj() else x, y.conj()).conj())
