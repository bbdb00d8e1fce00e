"""Views as data: for each view operator, how a value written through the view updates the viewed tensor.

A row takes `(base, value, args, val)`: `base` is the node of the viewed tensor, `value` the node written through the
view, `args` the view's arguments after the first, `val` the viewed tensor's metadata; it returns the operator and the
arguments that give the viewed tensor's new value (None: the argument itself is it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.tensor import FakeTensor

aten = torch.ops.aten

PutBack = Callable[[Node, Node, tuple, FakeTensor], tuple[Any, tuple]]


def _scattered(scatter: Any) -> PutBack:
    return lambda base, value, args, val: (scatter, (base, value, *args))


def _unpermuted(base: Node, value: Node, args: tuple, val: FakeTensor) -> tuple[Any, tuple]:
    dims = [d % len(args[0]) for d in args[0]]
    return aten.permute.default, (value, sorted(range(len(dims)), key=dims.__getitem__))


def _unexpanded(base: Node, value: Node, args: tuple, val: FakeTensor) -> tuple[Any, tuple]:
    """Write through an expansion: one to no elements writes nothing; one that repeats elements is refused before it
    comes here."""
    if 0 in value.meta["val"].shape and 0 not in val.shape:
        return None, (base,)
    return aten.reshape.default, (value, list(val.shape))


_SAME_ELEMENTS = (
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default,
)
PUT_BACK: dict[Any, PutBack] = {
    aten.select.int: _scattered(aten.select_scatter.default),
    aten.slice.Tensor: _scattered(aten.slice_scatter.default),
    aten.diagonal.default: _scattered(aten.diagonal_scatter.default),
    aten.as_strided.default: _scattered(aten.as_strided_scatter.default),
    **dict.fromkeys(_SAME_ELEMENTS, lambda base, value, args, val: (aten.reshape.default, (value, list(val.shape)))),
    aten.expand.default: _unexpanded,
    aten.alias.default: lambda base, value, args, val: (None, (value,)),
    aten.detach.default: lambda base, value, args, val: (None, (value,)),
    aten.transpose.int: lambda base, value, args, val: (aten.transpose.int, (value, *args)),
    aten.t.default: lambda base, value, args, val: (aten.t.default, (value,)),
    aten.permute.default: _unpermuted,
    aten.view.dtype: lambda base, value, args, val: (aten.view.dtype, (value, val.dtype)),
    aten.view_as_real.default: lambda base, value, args, val: (aten.view_as_complex.default, (value,)),
    aten.view_as_complex.default: lambda base, value, args, val: (aten.view_as_real.default, (value,)),
}


def derives_otherwise(func: Any, dtype: torch.dtype) -> bool:
    """Return whether a write has another derivative in autograd than the operator `func` that stands for it: of complex
    numbers those of slices have none."""
    return func is aten.as_strided_scatter.default or dtype.is_complex and func in (
        aten.slice_scatter.default, aten.select_scatter.default)
