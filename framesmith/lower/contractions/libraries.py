"""Contractions on a CUDA device as its libraries compute them best.

    linear(x, w, b)  # x: (..., k)  ->  addmm(b, x as (m, k), w^T) as (..., n): one product, whose epilogue adds the
    bias x @ y, of one column and one row ->  x * y
    conv2d(x, w, b)                 ->  conv2d(x, w) + b: eager adds the bias in a pass of its own, which then fuses
                                        with what follows
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.fold_batch_norm import CONVOLUTIONS
from framesmith.lower.contractions.nodes import Nodes, argument
from framesmith.lower.contractions.pack_linear import static, value_of

aten = torch.ops.aten


def choose_library_calls(graph: fx.Graph) -> None:
    """Rewrite every contraction in place."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        with graph.inserting_before(node):
            new = _outer(graph, node) or _product(graph, node) or _convolution(graph, node)
        if new is not None:
            new.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def _outer(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    """A sum of one product is no sum: it fuses, and is not rounded to TF32."""
    if node.target not in (aten.matmul.default, aten.mm.default, aten.bmm.default):
        return None
    vx, vy = value_of(node.args[0]), value_of(node.args[1])
    if min(len(vx.shape), len(vy.shape)) < 2 or not static(vx, vy) or vx.shape[-1] != 1:
        return None
    return Nodes(graph, node)(aten.mul.Tensor, node.args[:2], tuple(node.meta["val"].shape))


def _product(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    if node.target not in (aten.linear.default, aten.matmul.default):
        return None
    x, other = node.args[:2]
    bias = argument(node, 2) if node.target is aten.linear.default else None
    vx, vw = value_of(x), value_of(other)
    if len(vw.shape) != 2 or len(vx.shape) < 2 or not static(vx, vw) or not prod(vx.shape) * prod(vw.shape):
        return None
    if bias is not None and len(value_of(bias).shape) != 1:
        return None
    add = Nodes(graph, node)
    shape = tuple(node.meta["val"].shape)
    m, k, n = prod(vx.shape[:-1]), vx.shape[-1], shape[-1]
    rows = x if len(vx.shape) == 2 else add(aten.reshape.default, (x, [m, k]), (m, k))
    columns = other
    if node.target is aten.linear.default:
        outer, inner = _strides(vw)
        columns = add(aten.t.default, (other,), (k, n), (inner, outer))
    if bias is None:
        out = add(aten.mm.default, (rows, columns), (m, n))
    else:
        out = add(aten.addmm.default, (bias, rows, columns), (m, n))
    return out if len(shape) == 2 else add(aten.reshape.default, (out, list(shape)), shape)


def _strides(value: Any) -> tuple[int, int]:
    return tuple(value.stride() if callable(value.stride) else value.stride)


def _convolution(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    places = CONVOLUTIONS.get(node.target)
    bias = argument(node, places[1]) if places is not None else None
    if bias is None or not static(value_of(node)):
        return None
    add = Nodes(graph, node)
    shape = tuple(node.meta["val"].shape)
    if len(shape) != len(value_of(node.args[0]).shape):  # an image without a batch
        return None
    args = list(node.args)
    args[places[1]] = None  # type: ignore[index]
    out = add(node.target, tuple(args), shape)
    out.meta["val"], out.kwargs = node.meta["val"], node.kwargs
    wide = (shape[1], *[1] * (len(shape) - 2))
    return add(aten.add.Tensor, (out, add(aten.reshape.default, (bias, list(wide)), wide)), shape)
