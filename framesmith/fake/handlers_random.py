"""Recording of operators that draw random numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from framesmith.fake.handlers import composite, functional, handles, positional, store
from framesmith.fake.layout import dense_order
from framesmith.fake.recording import Recording

aten = torch.ops.aten


@handles(aten.dropout.default)
def dropout(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    source, p, train = positional(func, args, kwargs)
    if p == 0 or not train and 0 <= p <= 1:
        return source
    return composite(rec, func, args, kwargs)


@handles(aten.bernoulli_.float)
def bernoulli_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the functional form, which has no default probability and draws for a contiguous tensor."""
    target, p = (*positional(func, args, {}), 0.5)[:2]
    outwards = dense_order(target.shape, [target.stride()])
    if outwards == sorted(outwards) or not _draws_as_in_memory():
        drawn = functional(rec, aten.bernoulli.p, (target, p), kwargs)
    else:
        back = [outwards.index(dim) for dim in range(len(outwards))]
        drawn = rec.inside(lambda: torch.ops.aten.bernoulli.p(target.permute(outwards), p, **kwargs).permute(back))
    store(rec, target, drawn, func, args, kwargs)
    return target


@cache
def _draws_as_in_memory() -> bool:
    """Return whether `bernoulli_` draws in memory order: it does unless MKL draws (on one vendor's processors)."""
    with torch._C._DisableTorchDispatch():
        columns, rows = (
            torch.empty_strided((8, 8), strides).bernoulli_(0.5, generator=torch.Generator().manual_seed(0))
            for strides in ((1, 8), (8, 1))
        )
        return torch.equal(columns.t(), rows)


@handles(aten.rrelu_with_noise.default)
def rrelu_with_noise(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Record the functional form, and in training the write of the slopes drawn to `noise`."""
    given = positional(func, args, kwargs)
    filled: tuple = (*given[:5], *(0.125, 1 / 3, False)[len(given) - 2 :])
    x, noise, lower, upper, training = filled
    if not training:
        return functional(rec, aten.leaky_relu.default, (x, (lower + upper) / 2), {})
    out, drawn = functional(rec, aten.rrelu_with_noise_functional.default, (x, noise, lower, upper, True), {})
    store(rec, noise, drawn, func, args, kwargs)
    return out


@handles(aten.rrelu_with_noise_.default)
def rrelu_with_noise_(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Write the result of the form that writes `noise` only."""
    store(rec, args[0], rrelu_with_noise(rec, func, args, kwargs), func, args, kwargs)
    return args[0]
