"""Fold an inference batch-norm into the convolution that feeds it.

    bn(conv(x, W, b)) = conv(x, W * s, (b - mean) * s + beta),   s = gamma / sqrt(var + eps)

The folded weights are graph nodes over parameters only, so `graph.freeze` evaluates them once and again whenever a
parameter's version changes: nothing is baked in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.lower.contractions.nodes import Nodes, argument

aten = torch.ops.aten

# op -> position of (weight, bias) among its arguments; the output channel is dimension 0 of the weight when not
# transposed
CONVOLUTIONS: dict[Any, tuple[int, int]] = {
    aten.convolution.default: (1, 2),
    aten.conv1d.default: (1, 2),
    aten.conv2d.default: (1, 2),
    aten.conv3d.default: (1, 2),
}


def _batch_norm(node: fx.Node) -> tuple[Any, ...] | None:
    """(x, gamma, beta, mean, var, eps) of an inference batch-norm, else None."""
    if node.target is aten.batch_norm.default and not node.args[5]:
        return (*node.args[:5], node.args[7])
    if node.target is aten._native_batch_norm_legit_no_training.default:
        return (*node.args[:5], node.args[6])
    if node.target is aten.native_batch_norm.default and not node.args[5]:
        return (*node.args[:5], node.args[7])
    return None


def _foldable(conv: Any, parameters: tuple[Any, ...]) -> bool:
    if not isinstance(conv, fx.Node) or conv.target not in CONVOLUTIONS or len(conv.users) != 1:
        return False
    if conv.target is aten.convolution.default and conv.args[6]:  # transposed: channels sit elsewhere
        return False
    weight, bias = (argument(conv, i) for i in CONVOLUTIONS[conv.target])
    return all(p is None or is_parameter_expression(p) for p in (weight, bias, *parameters))


def _folded(graph: fx.Graph, conv: fx.Node, gamma: Any, beta: Any, mean: Any, var: Any,
            eps: float) -> tuple[fx.Node, fx.Node]:
    """Nodes for the folded weight and bias, inserted before `conv`. Of a convolution in half precision (autocast's),
    they are computed from the weight as it is kept, and rounded once."""
    add = Nodes(graph, conv)
    weight, bias = (_kept(argument(conv, i)) for i in CONVOLUTIONS[conv.target])
    shape = tuple(weight.meta["val"].shape)
    row = shape[:1]
    scale = add(aten.rsqrt.default, (add(aten.add.Scalar, (var, eps), row),), row)
    if gamma is not None:
        scale = add(aten.mul.Tensor, (scale, gamma), row)
    column = add(aten.reshape.default, (scale, [-1] + [1] * (len(shape) - 1)), (*row, *(1 for _ in shape[1:])))
    shift = mean if bias is None else add(aten.sub.Tensor, (mean, bias), row)
    shift = add(aten.neg.default, (add(aten.mul.Tensor, (shift, scale), row),), row)
    if beta is not None:
        shift = add(aten.add.Tensor, (shift, beta), row)
    folded = add(aten.mul.Tensor, (weight, column), shape)
    return _in_dtype(add, folded, conv, shape), _in_dtype(add, shift, conv, row)


def _kept(value: Any) -> Any:
    """Return a parameter as it was before it was cast for the convolution."""
    if isinstance(value, fx.Node) and value.target is aten._to_copy.default and set(value.kwargs) == {"dtype"}:
        return value.args[0]
    return value


def _in_dtype(add: Nodes, value: fx.Node, conv: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    """`value` in the dtype of the convolution."""
    dtype = conv.meta["val"].dtype
    if dtype is torch.float32 or dtype is torch.float64:
        return value
    cast = add(aten._to_copy.default, (value,), shape)
    cast.kwargs = {"dtype": dtype}
    return cast


def fold_batch_norm(graph: fx.Graph) -> fx.Graph:
    """Rewrite every foldable convolution + batch-norm pair in place; returns `graph`."""
    for node in list(graph.nodes):
        norm = _batch_norm(node) if node.op == "call_function" else None
        if norm is None:
            continue
        conv, gamma, beta, mean, var, eps = norm
        if not _foldable(conv, (gamma, beta, mean, var)):
            continue
        with graph.inserting_before(conv):
            weight, shift = _folded(graph, conv, gamma, beta, mean, var, eps)
        at_weight, at_bias = CONVOLUTIONS[conv.target]
        args = list(conv.args) + [None] * (at_bias + 1 - len(conv.args))
        args[at_weight], args[at_bias] = weight, shift
        with graph.inserting_before(node):
            fused = graph.call_function(conv.target, tuple(args), dict(conv.kwargs))
        fused.meta = dict(conv.meta)
        replace_first_output(node, fused)
        graph.erase_node(conv)
    return graph


def replace_first_output(node: fx.Node, value: fx.Node) -> None:
    """Replace `node` (or its output 0, when it has several) by `value` and erase it."""
    for user in list(node.users):
        if getattr(user.target, "__name__", "") == "getitem":
            if user.args[1] == 0:
                user.replace_all_uses_with(value)
            if not user.users:
                node.graph.erase_node(user)
    node.replace_all_uses_with(value)
    node.graph.erase_node(node)
