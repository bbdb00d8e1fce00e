"""The matmul family, reduced to mm, bmm, addmm, baddbmm, mv and dot, which stay extern calls."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import Spec, numel
from framesmith.prims.elementwise import broadcast_shapes
from framesmith.prims.registry import decomposes

aten = torch.ops.aten


def _product(b: Builder, op: Any, x: Value, y: Value, shape: tuple[Any, ...]) -> Value:
    return b.extern(op, (x, y), val=Spec.dense(shape, x.dtype, x.device))


def mm(b: Builder, x: Value, y: Value) -> Value:
    """(n, k) x (k, m)."""
    return _product(b, aten.mm.default, x, y, (x.shape[0], y.shape[1]))


def bmm(b: Builder, x: Value, y: Value) -> Value:
    """(p, n, k) x (p, k, m)."""
    return _product(b, aten.bmm.default, x, y, (x.shape[0], x.shape[1], y.shape[2]))


@decomposes(aten.matmul.default)
def matmul(b: Builder, x: Value, y: Value) -> Any:
    if x.dtype is not y.dtype or not x.ndim or not y.ndim:
        return NotImplemented
    if y.ndim == 1:
        return _times_vector(b, x, y)
    if x.ndim == 1:
        # v @ M -> (M^T @ v), batch by batch
        return _times_vector(b, b.transpose(y, y.ndim - 2, y.ndim - 1), x)
    if y.ndim == 2:
        rows = numel(x.shape[:-1])
        out = mm(b, b.reshape(x, (rows, x.shape[-1])), y)
        return b.reshape(out, (*x.shape[:-1], y.shape[1]))
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    count = numel(batch)
    x3, y3 = (b.reshape(b.expand(one, (*batch, *one.shape[-2:])), (count, *one.shape[-2:])) for one in (x, y))
    return b.reshape(bmm(b, x3, y3), (*batch, x.shape[-2], y.shape[-1]))


def _times_vector(b: Builder, x: Value, y: Value) -> Value:
    if x.ndim == 1:
        return _product(b, aten.dot.default, x, y, ())
    out = _product(b, aten.mv.default, b.reshape(x, (numel(x.shape[:-1]), x.shape[-1])), y, (numel(x.shape[:-1]),))
    return b.reshape(out, x.shape[:-1])


@decomposes(aten.linalg_cross.default)
def cross(b: Builder, x: Value, y: Value, dim: int = -1) -> Any:
    x, y = b.promote(x, y)
    shape = b.out.shape
    dim %= len(shape)
    x, y = b.expand(x, shape), b.expand(y, shape)

    def turned(one: Value, shift: int) -> Value:
        return b.roll(one, (shift,), (dim,))

    return turned(x, 2) * turned(y, 1) - turned(x, 1) * turned(y, 2)


