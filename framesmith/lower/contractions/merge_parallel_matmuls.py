"""Layers beside each other that read one value (a query, a key, a value; a gate and what it lets through) are one
product.

    x @ w1, x @ w2 + b2  ->  y[:, :n1], y[:, n1:]      y = x @ cat(w1, w2) + cat(0, b2)

One call takes the place of several, and more tiles keep the machine busy. Weights that are kept between calls as they
are used, casts of parameters, are kept side by side instead; those that are read where the parameters lie stay there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.launch import OfOneGraph
from framesmith.lower.contractions.fuse_matmul_activation import LAYERS
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.lower.contractions.pad_strides import vector

aten = torch.ops.aten
_PRODUCTS: dict[Any, int] = {aten.mm.default: 0, aten.addmm.default: 1}
"""Of each, the place of the left operand."""
_OTHERS = LAYERS | {aten.scaled_dot_product_attention.default, aten._addmm_activation.default}


def merge_parallel_matmuls(graph: fx.Graph) -> None:
    """Rewrite each run of such products, in place. Nothing that stands between two of a run reads another matrix: none
    waits for long."""
    run: list[fx.Node] = []
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _OTHERS and not isinstance(node.target, OfOneGraph):
            continue
        if is_parameter_expression(node):
            continue
        if run and _joins(run[0], node):
            run.append(node)
            continue
        _join(graph, run)
        run = [node] if _is_layer(node) else []
    _join(graph, run)


def _left(node: fx.Node) -> Any:
    return node.args[_PRODUCTS[node.target]]


def _source(node: fx.Node) -> Any:
    """Return the tensor that the left operand is, looking through a reshape to a matrix, and the operand's shape."""
    left = _left(node)
    return (left.args[0], value_of(left).shape) if left.target is aten.reshape.default else (left, value_of(left).shape)


def _is_layer(node: fx.Node) -> bool:
    """Return whether a product has a weight of its own that is kept as it is used."""
    if node.target not in _PRODUCTS or node.kwargs:
        return False
    right: Any = node.args[_PRODUCTS[node.target] + 1]
    bias: Any = node.args[0] if node.target is aten.addmm.default else None
    good = is_parameter_expression(right) and _is_made(right) and static(value_of(_left(node)), value_of(node))
    fits = bias is None or is_parameter_expression(bias) and len(value_of(bias).shape) == 1
    # each part begins where vectors do
    return good and fits and value_of(node).shape[1] % vector(value_of(node).dtype) == 0


def _is_made(weight: fx.Node) -> bool:
    """Return whether a weight is not the memory of a parameter, and nobody else's."""
    while weight.target is aten.t.default and len(weight.users) == 1:
        (weight,) = weight.all_input_nodes
    return weight.target is aten._to_copy.default and len(weight.users) == 1


def _joins(first: fx.Node, node: fx.Node) -> bool:
    return _is_layer(node) and _source(node) == _source(first) and value_of(node).dtype is value_of(first).dtype


def _join(graph: fx.Graph, run: list[fx.Node]) -> None:
    if len(run) < 2:
        return
    first, left = run[0], _left(run[0])
    widths = [value_of(node).shape[1] for node in run]
    rows, total, depth = value_of(first).shape[0], sum(widths), value_of(left).shape[1]
    _bring(graph, run)
    add = Nodes(graph, first)
    with graph.inserting_before(first):
        weights = [node.args[_PRODUCTS[node.target] + 1] for node in run]
        if all(w.target is aten.t.default for w in weights):  # type: ignore[union-attr]
            lying = add(aten.cat.default, ([w.args[0] for w in weights], 0), (total, depth))  # type: ignore[union-attr]
            whole = add(aten.t.default, (lying,), (depth, total), (1, depth))
        else:
            whole = add(aten.cat.default, (weights, 1), (depth, total))
        if any(node.target is aten.addmm.default for node in run):
            biases = [node.args[0] if node.target is aten.addmm.default else _zeros(graph, node) for node in run]
            out = add(aten.addmm.default, (add(aten.cat.default, (biases, 0), (total,)), left, whole), (rows, total))
        else:
            out = add(aten.mm.default, (left, whole), (rows, total))
        start = 0
        for node, width in zip(run, widths):
            part = add(aten.slice.Tensor, (out, 1, start, start + width), (rows, width), (total, 1))
            start += width
            part.meta["stack"] = node.meta.get("stack", ())
            node.replace_all_uses_with(part)
    for node in run:
        graph.erase_node(node)


def _zeros(graph: fx.Graph, product: fx.Node) -> fx.Node:
    value = value_of(product)
    kwargs = {"dtype": value.dtype, "device": value.device}
    node = Nodes(graph, product)(aten.zeros.default, ([value.shape[1]],), (value.shape[1],))
    node.kwargs = kwargs
    return node


def _bring(graph: fx.Graph, run: list[fx.Node]) -> None:
    """Move the nodes that the weights of a run are computed from before its first product."""
    wanted: set[fx.Node] = set()
    # the first product's operand is all products'
    todo = [x for node in run for x in node.all_input_nodes if x is not _left(node)]
    while todo:
        x = todo.pop()
        if x not in wanted and x.op != "placeholder":
            wanted.add(x)
            todo += x.all_input_nodes
    behind = False
    for node in list(graph.nodes):
        behind = behind or node is run[0]
        if behind and node in wanted:
            run[0].prepend(node)


__all__ = ["merge_parallel_matmuls"]
