"""Embedding bags of several tables that are looked up together become one operator of csrc/embedding.cpp.

    a = embedding_bag(A, i, o)[0]; b = embedding_bag(B, j, p)[0]   ->   both = framesmith::embedding_bags([A, B], [i,
                                                                        j], [o, p], ...)
                                                                        a = both[:, 0]; b = both[:, 1]

in inference: sums and means of float32 rows without weights of their own, where nothing but the bags themselves is
used. In training,

    _embedding_bag_backward(g, i, o, ...)  ->  framesmith::embedding_bag_gradient(g, i, o, ...)

for the same: it adds where the gradient is to be, and neither sorts nor looks for the bag of each index.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import Choose, rewrites
from framesmith.prims.core import Spec, contiguous_strides

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

_SUM, _MEAN = 0, 1


def merge_embedding_bags(graph: fx.Graph) -> fx.Graph:
    """Group what can be computed at the place of the group's last member, in place; returns `graph`."""
    order = {node: k for k, node in enumerate(graph.nodes)}
    groups: dict[Any, list[fx.Node]] = {}
    for node in list(graph.nodes):
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
    if node.target is not aten._embedding_bag_forward_only.default or node.kwargs:
        return None
    given: tuple[Any, ...] = (*node.args, *_DEFAULTS[len(node.args) - 3 :])
    weight, indices, offsets, by_frequency, mode, _, weights, include_last, padding = given
    values = [n.meta["val"] for n in (weight, indices, offsets)]
    if by_frequency or mode not in (_SUM, _MEAN) or weights is not None or any(u.args[1] != 0
                                                                               for u in node.users if u.users):
        return None
    if any(v.device.type != "cpu" or any(type(n) is not int or not n for n in v.shape) for v in values):
        return None
    table, index, offset = values
    if table.dtype is not torch.float32 or index.dtype is not offset.dtype or len(index.shape) != 1:
        return None
    return index.dtype, tuple(offset.shape), table.shape[1], mode, include_last, padding


_DEFAULTS = (False, _SUM, False, None, False, -1)


@rewrites(aten._embedding_bag_backward.default)
def _rewrite_gradient(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    tangent, indices, offsets, _, _, _, count, by_frequency, mode, sparse, weights, *padding = node.args
    values = [n.meta["val"] for n in (tangent, indices, offsets)]  # type: ignore[union-attr]
    if (by_frequency or sparse or mode not in (_SUM, _MEAN) or weights is not None or node.kwargs
        or type(count) is not int):
        return None
    if any(v.device.type != "cpu" or any(type(n) is not int for n in v.shape)
           for v in values) or len(values[1].shape) != 1:
        return None
    if values[0].dtype is not torch.float32 or values[1].dtype is not values[2].dtype:
        return None
    args = (tangent, indices, offsets, count, mode == _MEAN, *(padding or [-1]))
    return Nodes(graph, node)(library.embedding_bag_gradient.default, args, (count, values[0].shape[1]))


def _bag_users(node: fx.Node) -> list[fx.Node]:
    return [user for item in node.users for user in item.users]


def _merge(graph: fx.Graph, group: list[fx.Node]) -> None:
    if not group:
        return
    last = group[-1]
    dtype, offsets, width, mode, include_last, padding = _key(last)
    shape = (offsets[0] - include_last, len(group), width)
    args = (*(list(column) for column in zip(*(n.args[:3] for n in group), strict=True)), mode == _MEAN, include_last,
            padding)
    with graph.inserting_before(last):
        new = graph.call_function(library.embedding_bags.default, args)
        device = last.args[0].meta["val"].device  # type: ignore[union-attr]
        new.meta = {"val": Spec(shape, torch.float32, device, contiguous_strides(shape)),
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
