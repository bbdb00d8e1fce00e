"""Embedding bags of several tables that are looked up together become one operator of csrc/embedding.cpp.

In inference: sums and means of float32 rows without per-sample weights, where only the bags themselves are used. In
training, their gradient is accumulated in place, without sorting, and without a search for the bag of each index.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.patterns import Match, match, p, tensors, values
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import Choose, rewrites, sizes_of, static, surely_filled
from framesmith.prims.core import Spec

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

_SUM, _MEAN = 0, 1
table, indices, offsets, tangent = tensors("table indices offsets tangent")
count, include_last, padding = values("count include_last padding")
[mode] = values("mode", lambda x: x in (_SUM, _MEAN))
BAG = p._embedding_bag_forward_only(table, indices, offsets, False, mode, ..., None, include_last, padding)
GRADIENT = p._embedding_bag_backward(tangent, indices, offsets, ..., ..., ..., count, False, mode, False, None, padding)


def merge_embedding_bags(graph: fx.Graph) -> fx.Graph:
    """a = embedding_bag(A, i, o)[0]; b = embedding_bag(B, j, p)[0]

    becomes both = framesmith::embedding_bags([A, B], [i, j], [o, p], ...); a = both[:, 0]; b = both[:, 1], in place, at
    the place of the last one. Returns `graph`."""
    order = {node: k for k, node in enumerate(graph.nodes)}
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten._embedding_bag_forward_only.default):
        key = _key(node)
        if key is None:
            continue
        group = groups.setdefault(key, [])
        if any(order[user] < order[node] for member in group for user in _bag_users(member)):
            _merge(graph, group)
            group.clear()
        group.append(node)
    for group in groups.values():
        _merge(graph, group)
    return graph


def _key(node: fx.Node) -> Any:
    """Return what members of a group have in common; None where the merged operator cannot take `node`."""
    m = match(BAG, node)
    if m is None or any(u.args[1] != 0 for u in node.users if u.users):
        return None
    rows, index, offset = kinds = [n.meta["val"] for n in m[table, indices, offsets]]
    if any(v.device.type != "cpu" for v in kinds) or not static(rows) or not surely_filled(*kinds):
        return None
    if rows.dtype is not torch.float32 or index.dtype is not offset.dtype or len(index.shape) != 1:
        return None
    return index.dtype, sizes_of(offset), rows.shape[1], *m[mode, include_last, padding]


@rewrites(GRADIENT)
def _rewrite_gradient(m: Match, choose: Choose) -> fx.Node | None:
    """framesmith::embedding_bag_gradient(tangent, indices, offsets, ...)"""
    rows, index, offset = kinds = [n.meta["val"] for n in m[tangent, indices, offsets]]
    if any(v.device.type != "cpu" or not static(v) for v in kinds) or type(m[count]) is not int:
        return None
    if rows.dtype is not torch.float32 or index.dtype is not offset.dtype or len(index.shape) != 1:
        return None
    args = (*m[tangent, indices, offsets, count], m[mode] == _MEAN, m[padding])
    return Nodes(m.graph, m.root)(library.embedding_bag_gradient.default, args, (m[count], rows.shape[1]))


def _bag_users(node: fx.Node) -> list[fx.Node]:
    return [user for item in node.users for user in item.users]


def _merge(graph: fx.Graph, group: list[fx.Node]) -> None:
    if not group:
        return
    last = group[-1]
    _, size, width, kind, last_too, pads = _key(last)
    shape = (size[0] - last_too, len(group), width)
    args = (*(list(column) for column in zip(*(n.args[:3] for n in group), strict=True)), kind == _MEAN, last_too,
            pads)
    with graph.inserting_before(last):
        new = graph.call_function(library.embedding_bags.default, args)
        device = last.args[0].meta["val"].device  # type: ignore[union-attr]
        new.meta = {"val": Spec.dense(shape, torch.float32, device),
                    "stack": last.meta.get("stack", ())}
        add = Nodes(graph, new)
        parts = [add(aten.select.int, (new, 1, t), (shape[0], width), (len(group) * width, 1))
                 for t in range(len(group))]
    for node, part in zip(group, parts, strict=True):
        for item in list(node.users):
            assert item.target is operator.getitem
            if item.users:
                part.meta["stack"] = item.meta.get("stack", ())
                item.replace_all_uses_with(part)
            graph.erase_node(item)
        graph.erase_node(node)
