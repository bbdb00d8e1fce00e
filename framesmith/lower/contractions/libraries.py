"""Contractions on a CUDA device in the forms that its libraries compute fastest."""

from __future__ import annotations

import torch
from torch import fx

from framesmith.graph.patterns import Match, p, rewrite, tensors, values
from framesmith.lower.contractions.fold_batch_norm import convolution
from framesmith.lower.contractions.nodes import Nodes, as_eager
from framesmith.lower.contractions.pack_linear import sizes_of, static, surely_filled, value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import numel

aten = torch.ops.aten


x, y, w, b = tensors("x y w b")
bias, window = values("bias window")
PRODUCT, LAYER = x @ y, p.linear(x, w, bias) | p.matmul(x, w)
CONVOLUTION = convolution(x, w, b, *window)


def choose_library_calls(graph: fx.Graph) -> None:
    """Rewrite every contraction in place."""
    rewrite(graph, {PRODUCT: _outer, LAYER: _product, CONVOLUTION: _convolution})


@as_eager
def _outer(m: Match) -> fx.Node | None:
    """x * y, of one column and one row: a product without a sum. It fuses, and is not rounded to TF32."""
    vx, vy = map(value_of, m[x, y])
    if min(len(vx.shape), len(vy.shape)) < 2 or (sizes_of(vx)[-1], sizes_of(vy)[-2]) != (1, 1):
        return None
    return Nodes(m.graph, m.root)(aten.mul.Tensor, m[x, y], sizes_of(value_of(m.root)))


@as_eager
def _product(m: Match) -> fx.Node | None:
    """addmm(b, x as (m, k), w^T) as (..., n): one product, whose epilogue adds the bias."""
    vx, vw = map(value_of, m[x, w])
    if len(vw.shape) != 2 or len(vx.shape) < 2 or not static(vw) or not surely_filled(vx, vw):
        return None
    if m[bias] is not None and len(value_of(m[bias]).shape) != 1:
        return None
    add = Nodes(m.graph, m.root)
    shape = sizes_of(value_of(m.root))
    k, n = vw.shape[::-1] if m.root.target is aten.linear.default else vw.shape
    count = numel(shape[:-1])
    rows = m[x] if len(vx.shape) == 2 else add(aten.reshape.default, (m[x], [count, k]), (count, k))
    columns = m[w]
    if m.root.target is aten.linear.default:
        outer, inner = strides_of(vw)
        columns = add(aten.t.default, (columns,), (k, n), (inner, outer))
    if m[bias] is None:
        out = add(aten.mm.default, (rows, columns), (count, n))
    else:
        out = add(aten.addmm.default, (m[bias], rows, columns), (count, n))
    return out if len(shape) == 2 else add(aten.reshape.default, (out, list(shape)), shape)


@as_eager
def _convolution(m: Match) -> fx.Node | None:
    """conv2d(x, w) + b: eager adds the bias in a separate kernel, which here fuses with its users."""
    value = value_of(m.root)
    shape = sizes_of(value)
    if type(shape[1]) is not int or len(shape) != len(value_of(m[x]).shape):  # an image without a batch
        return None
    add = Nodes(m.graph, m.root)
    wide = (shape[1], *[1] * (len(shape) - 2))
    out = add.of(m.root.target, (*m[x, w], None, *m[window]), value)
    return add(aten.add.Tensor, (out, add(aten.reshape.default, (m[b], list(wide)), wide)), shape)
