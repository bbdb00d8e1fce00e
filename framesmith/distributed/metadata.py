"""Metadata rows of collectives: no kernel may run for them, since it would communicate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.distributed.operators import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COALESCED,
    REDUCE_SCATTER,
    WAIT,
    ops,
)
from framesmith.fake.handlers import HANDLERS, refused
from framesmith.fake.infer import rule
from framesmith.fake.tensor import FakeTensor, new_fake
from framesmith.symbolic.layout import contiguous_strides
from framesmith.util.errors import Unsupported


def _dense(like: FakeTensor, shape: tuple[Any, ...]) -> FakeTensor:
    return new_fake(shape, contiguous_strides(shape), like.dtype, like.device)


def _checked(x: FakeTensor) -> FakeTensor:
    """`x`, if no group would refuse it: the error is eager's to raise."""
    if not x.is_contiguous():
        raise Unsupported("a collective of a tensor that is not contiguous")
    return x


@rule(ALL_REDUCE, BROADCAST)
def same_shape(x: FakeTensor, *how: Any) -> FakeTensor:
    return _dense(x, tuple(x.shape))


@rule(ALL_GATHER)
def gathered(x: FakeTensor, size: int, group: Any) -> FakeTensor:
    first, *rest = _split(x)
    return _dense(x, (first * size, *rest))


@rule(REDUCE_SCATTER)
def scattered(x: FakeTensor, op: str, size: int, group: Any) -> FakeTensor:
    first, *rest = _split(x)
    if first % size != 0:
        raise Unsupported("reduce_scatter of a size that the group does not divide")
    return _dense(x, (first // size, *rest))


@rule(ALL_TO_ALL)
def exchanged(x: FakeTensor, received: Any, sent: Any, group: Any) -> FakeTensor:
    _, *rest = _split(x)
    return _dense(x, (sum(received), *rest))


@rule(WAIT)
def waited(x: FakeTensor) -> FakeTensor:
    return new_fake(tuple(x.shape), x.stride(), x.dtype, x.device)


def _split(x: FakeTensor) -> tuple[Any, ...]:
    """Return the sizes of a tensor whose first dimension is divided among processes."""
    if not x.dim():
        raise Unsupported("a collective that divides a tensor of no dimension")
    return tuple(_checked(x).shape)


def _coalesced(row: Callable[..., FakeTensor]) -> Callable[..., tuple[FakeTensor, ...]]:
    return lambda tensors, *how: tuple([row(x, *how) for x in tensors])


for _several, _one in COALESCED.items():
    rule(_several)(_coalesced({ALL_REDUCE: same_shape, ALL_GATHER: gathered, REDUCE_SCATTER: scattered}[_one]))

for _writing in ("all_reduce_", "broadcast_", "all_reduce_coalesced_", "all_gather_into_tensor_out",
                 "reduce_scatter_tensor_out"):
    if hasattr(ops, _writing):  # memory that a collective still writes would be an input's
        HANDLERS[getattr(ops, _writing).default] = refused
