"""Views as data: for each view operator, how a value written through the view goes back into what it views.

A row takes `(emit, base, value, args, val)`: `base` is the node of the viewed tensor, `value` the node written through
the view, `args` the view's arguments after the first, `val` the viewed tensor's metadata; it returns the node of the
viewed tensor's new value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.tensor import FakeTensor

aten = torch.ops.aten

Emit = Callable[[Any, tuple, Any], Node]
PutBack = Callable[[Emit, Node, Node, tuple, FakeTensor], Node]

PUT_BACK: dict[Any, PutBack] = {}


def _scatter(view: Any, scatter: Any) -> None:
    def put(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
        return emit(scatter, (base, value, *args), val)

    PUT_BACK[view] = put


_scatter(aten.select.int, aten.select_scatter.default)
_scatter(aten.slice.Tensor, aten.slice_scatter.default)
_scatter(aten.diagonal.default, aten.diagonal_scatter.default)


def _into_memory(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    """A write has another derivative than the operator `as_strided_scatter` has in autograd."""
    node = emit(aten.as_strided_scatter.default, (base, value, *args), val)
    node.meta["written"] = True
    return node


PUT_BACK[aten.as_strided.default] = _into_memory


def _reshaped(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return emit(aten.reshape.default, (value, list(val.shape)), val)


for _same_elements in (
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.expand.default,  # a write through a stretched dimension is refused before it comes here
):
    PUT_BACK[_same_elements] = _reshaped


def _identity(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return value


def _transposed(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return emit(aten.transpose.int, (value, *args), val)


def _t(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return emit(aten.t.default, (value,), val)


def _unpermuted(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    dims = [d % len(args[0]) for d in args[0]]
    inverse = sorted(range(len(dims)), key=dims.__getitem__)
    return emit(aten.permute.default, (value, inverse), val)


def _viewed_back_dtype(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return emit(aten.view.dtype, (value, val.dtype), val)


def _as_complex(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return emit(aten.view_as_complex.default, (value,), val)


def _as_real(emit: Emit, base: Node, value: Node, args: tuple, val: FakeTensor) -> Node:
    return emit(aten.view_as_real.default, (value,), val)


PUT_BACK[aten.alias.default] = _identity
PUT_BACK[aten.detach.default] = _identity
PUT_BACK[aten.transpose.int] = _transposed
PUT_BACK[aten.t.default] = _t
PUT_BACK[aten.permute.default] = _unpermuted
PUT_BACK[aten.view.dtype] = _viewed_back_dtype
PUT_BACK[aten.view_as_real.default] = _as_complex
PUT_BACK[aten.view_as_complex.default] = _as_real
