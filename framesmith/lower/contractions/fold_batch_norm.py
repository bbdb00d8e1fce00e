"""Fold an inference batch-norm into the convolution that feeds it.

The folded weights are graph nodes over parameters only, so `graph.freeze` evaluates them once and again whenever a
parameter's version changes: nothing is baked in.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.patterns import Match, Operator, p, rewrite, tensors, values
from framesmith.lower.contractions.nodes import Nodes

aten = torch.ops.aten
[x], [w], [eps, window] = tensors("x"), tensors("w", is_parameter_expression), values("eps window")
b, gamma, beta, mean, var = values("b gamma beta mean var", lambda v: v is None or is_parameter_expression(v))
convolution = Operator(aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
# transposed, its channels sit elsewhere
conv = convolution(x, w, b, *window).where(
    lambda node: node.target is not aten.convolution.default or not node.args[6])
norm = conv, gamma, beta, mean, var
NORMED = (p.batch_norm(*norm, False, ..., eps, ...)
          | Operator(operator.getitem)(p._native_batch_norm_legit_no_training(*norm, ..., eps)
                                       | p.native_batch_norm(*norm, False, ..., eps), 0))


def fold_batch_norm(graph: fx.Graph) -> fx.Graph:
    """Rewrite every foldable convolution + batch-norm pair in place; returns `graph`."""
    rewrite(graph, {NORMED: _folded})
    return graph


def _folded(m: Match) -> fx.Node:
    """conv(x, w * s, (b - mean) * s + beta),   s = gamma / sqrt(var + eps)

    The folded weight and bias of a convolution in half precision (autocast's) are computed from the weight as it is
    kept, and rounded once."""
    add = Nodes(m.graph, m[conv])
    weight, bias = map(_kept, m[w, b])
    shape = tuple(weight.meta["val"].shape)
    row = shape[:1]
    scale = add(aten.rsqrt.default, (add(aten.add.Scalar, m[var, eps], row),), row)
    if m[gamma] is not None:
        scale = add(aten.mul.Tensor, (scale, m[gamma]), row)
    column = add(aten.reshape.default, (scale, [-1] + [1] * (len(shape) - 1)), (*row, *(1 for _ in shape[1:])))
    shift = m[mean] if bias is None else add(aten.sub.Tensor, (m[mean], bias), row)
    shift = add(aten.neg.default, (add(aten.mul.Tensor, (shift, scale), row),), row)
    if m[beta] is not None:
        shift = add(aten.add.Tensor, (shift, m[beta]), row)
    folded = add(aten.mul.Tensor, (weight, column), shape)
    args = (m[x], _in_dtype(add, folded, shape), _in_dtype(add, shift, row), *m[window])
    return add.of(m[conv].target, args, m[conv].meta["val"])


def _kept(value: Any) -> Any:
    """Return a parameter before its cast for the convolution."""
    if isinstance(value, fx.Node) and value.target is aten._to_copy.default and set(value.kwargs) == {"dtype"}:
        return value.args[0]
    return value


def _in_dtype(add: Nodes, value: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    """`value` in the dtype of the convolution."""
    dtype = add.like.meta["val"].dtype
    if dtype is torch.float32 or dtype is torch.float64:
        return value
    cast = add(aten._to_copy.default, (value,), shape)
    cast.kwargs = {"dtype": dtype}
    return cast
