"""Merge parallel layers that read one value (a query, a key, a value; a gate and its input) into one product.

    x @ w1, x @ w2 + b2  ->  y[:, :n1], y[:, n1:]      y = x @ cat(w1, w2) + cat(0, b2)

One call replaces several, and more tiles keep the machine busy. Weights that are frozen casts of parameters are stored
side by side instead; those that are read from the parameters' own memory stay there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.graph.freeze import is_parameter_expression
from framesmith.graph.launch import OfOneGraph
from framesmith.graph.patterns import Match, Through, match, p, tensors
from framesmith.graph.traversal import ancestors
from framesmith.lower.contractions.fuse_matmul_activation import LAYERS
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import sizes_of, value_of
from framesmith.lower.contractions.pad_strides import vector

aten = torch.ops.aten
_OTHERS = LAYERS | {aten.scaled_dot_product_attention.default, aten._addmm_activation.default}


MADE = Through(p.t.targets, p._to_copy(*tensors("parameter"), ...))


def _is_made(weight: fx.Node) -> bool:
    """Return whether a weight is a frozen value, not a parameter's own memory, with no other user."""
    return match(MADE, weight) is not None and len(weight.users) == 1 and is_parameter_expression(weight)


def _is_row(bias: fx.Node) -> bool:
    return is_parameter_expression(bias) and len(value_of(bias).shape) == 1


def _has_width(node: fx.Node) -> bool:
    """Return whether the number of columns of a matrix is known."""
    return len(value_of(node).shape) == 2 and type(sizes_of(value_of(node))[1]) is int


def _is_whole(node: fx.Node) -> bool:
    """Return whether the parts of a product of this width begin at vector boundaries."""
    return _has_width(node) and sizes_of(value_of(node))[1] % vector(value_of(node).dtype) == 0


[left], [w], [b] = tensors("left", _has_width), tensors("w", _is_made), tensors("b", _is_row)
LAYER = (p.mm.default(left, w) | p.addmm.default(b, left, w)).where(_is_whole)


def merge_parallel_matmuls(graph: fx.Graph) -> None:
    """Rewrite each run of such products, in place. No product with another left operand is between two of a run, so
    none is delayed by much."""
    run: list[Match] = []
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _OTHERS and not isinstance(node.target, OfOneGraph):
            continue
        if is_parameter_expression(node):
            continue
        m = match(LAYER, node)
        if m is not None and run and _source(m) == _source(run[0]):
            run.append(m)
            continue
        _join(graph, run)
        run = [m] if (m := match(LAYER, node)) is not None else []
    _join(graph, run)


def _source(m: Match) -> Any:
    """Return the left operand, without a reshape to a matrix, the operand's shape and the result's type."""
    rows = m[left]
    source = rows.args[0] if rows.target is aten.reshape.default else rows
    return source, sizes_of(value_of(rows)), value_of(m.root).dtype


def _join(graph: fx.Graph, run: list[Match]) -> None:
    if len(run) < 2:
        return
    first, rows = run[0].root, run[0][left]
    widths: list[Any] = [sizes_of(value_of(m.root))[1] for m in run]
    (count, depth), total = sizes_of(value_of(rows)), sum(widths)
    _bring(graph, run)
    add = Nodes(graph, first)
    with graph.inserting_before(first):
        weights = [m[w] for m in run]
        if all(weight.target is aten.t.default for weight in weights):
            lying = add(aten.cat.default, ([weight.args[0] for weight in weights], 0), (total, depth))
            whole = add(aten.t.default, (lying,), (depth, total), (1, depth))
        else:
            whole = add(aten.cat.default, (weights, 1), (depth, total))
        if any(m[b] for m in run):
            biases = [m[b] or _zeros(graph, m.root) for m in run]
            out = add(aten.addmm.default, (add(aten.cat.default, (biases, 0), (total,)), rows, whole), (count, total))
        else:
            out = add(aten.mm.default, (rows, whole), (count, total))
        start = 0
        for m, width in zip(run, widths):
            part = add(aten.slice.Tensor, (out, 1, start, start + width), (count, width), (total, 1))
            start += width
            part.meta["stack"] = m.root.meta.get("stack", ())
            m.root.replace_all_uses_with(part)
    for m in run:
        graph.erase_node(m.root)


def _zeros(graph: fx.Graph, product: fx.Node) -> fx.Node:
    value = value_of(product)
    kwargs = {"dtype": value.dtype, "device": value.device}
    node = Nodes(graph, product)(aten.zeros.default, ([value.shape[1]],), (value.shape[1],))
    node.kwargs = kwargs
    return node


def _bring(graph: fx.Graph, run: list[Match]) -> None:
    """Move the nodes that the weights of a run are computed from before its first product."""
    # the first product's operand is all products'
    wanted = ancestors([x for m in run for x in m.root.all_input_nodes if x is not m[left]])
    behind = False
    for node in list(graph.nodes):
        behind = behind or node is run[0].root
        if behind and node in wanted and node.op != "placeholder":
            run[0].root.prepend(node)
