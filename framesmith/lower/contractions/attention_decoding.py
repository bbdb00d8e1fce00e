"""Attention of one row in float32, a step of decoding, as sums, on a CUDA device: the library has one program for all
keys of a head.

    scaled_dot_product_attention(q, k, v, mask)  ->  weights = softmax(sum(k * q, -1) * s + mask);  sum(weights * v, -2)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.nodes import Nodes, argument
from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.prims.core import Spec, contiguous_strides

aten = torch.ops.aten
_OPTIONS = ("dropout_p", "is_causal", "scale", "enable_gqa")


def sum_decoded_rows(graph: fx.Graph) -> None:
    """Rewrite such calls in place."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.scaled_dot_product_attention.default:
            with graph.inserting_before(node):
                found = _summed(graph, node)
            if found is not None:
                node.replace_all_uses_with(found)
                graph.erase_node(node)


def _summed(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    given = {name: node.kwargs.get(name, argument(node, 4 + k)) for k, name in enumerate(_OPTIONS)}
    mask = argument(node, 3, node.kwargs.get("attn_mask"))
    q, k, v = map(value_of, node.args[:3])
    if given["dropout_p"] or given["is_causal"] or not _has_one_row(q, k, v):
        return None
    if mask is not None and (not static(value_of(mask)) or len(value_of(mask).shape) < 2
                             or value_of(mask).shape[-2] != 1):
        return None
    batch, heads, keys, width = k.shape
    wide = v.shape[3]
    add = Nodes(graph, node)
    query, key, value = node.args[:3]
    scores = add(aten.sum.dim_IntList, (add(aten.mul.Tensor, (key, query), tuple(k.shape)), [-1]), (batch, heads, keys))
    scale = width**-0.5 if given["scale"] is None else float(given["scale"])
    scores = add(aten.mul.Tensor, (scores, scale), (batch, heads, keys))
    if mask is not None:
        scores = _masked(add, scores, mask, (batch, heads, keys))
    weights = add(aten._safe_softmax.default, (scores, -1), (batch, heads, keys))
    column = add(aten.unsqueeze.default, (weights, -1), (batch, heads, keys, 1))
    whole = add(aten.mul.Tensor, (column, value), (batch, heads, keys, wide))
    return add(aten.sum.dim_IntList, (whole, [-2], True), (batch, heads, 1, wide))


def _masked(add: Nodes, scores: fx.Node, mask: Any, shape: tuple[int, ...]) -> fx.Node:
    value = value_of(mask)
    sizes = (*value.shape[:-2], value.shape[-1])
    row = add.of(aten.select.int, (mask, -2, 0), Spec(sizes, value.dtype, value.device, contiguous_strides(sizes)))
    if value.dtype is torch.bool:  # -inf is added, so that scores of NaN stay NaN
        number = Spec((), torch.float32, value.device, ())
        low, zero = [add.of(aten.full.default, ([], x), number, dtype=torch.float32, device=value.device)
                     for x in (-math.inf, 0.0)]
        row = add.of(aten.where.self, (row, zero, low),
                     Spec(sizes, torch.float32, value.device, contiguous_strides(sizes)))
    return add(aten.add.Tensor, (scores, row), shape)


def _has_one_row(q: Any, k: Any, v: Any) -> bool:
    values = q, k, v
    if any(len(x.shape) != 4 or x.dtype is not torch.float32 for x in values) or not static(*values):
        return False
    return (q.shape[2] == 1 and q.shape[:2] == k.shape[:2] == v.shape[:2] and k.shape[2] == v.shape[2]
            and min(*k.shape, *v.shape) > 0)


__all__ = ["sum_decoded_rows"]
