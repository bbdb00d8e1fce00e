"""A value that is the same along a dimension is computed for one index of it.

    where(expand(c, [8, 1, n, n]), bias, low)  ->  where(c', bias, low) as [1, h, n, n]       for whoever broadcasts it
                                                                                              himself
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.prims.core import Spec

aten = torch.ops.aten
_ELEMENTWISE = frozenset(
    getattr(getattr(aten, name), overload)
    for overload, names in (
        ("default", "_to_copy clone neg minimum maximum bitwise_not logical_and logical_or logical_not"),
        ("self", "where"),
        ("Tensor", "masked_fill add sub mul div bitwise_and bitwise_or eq ne le lt ge gt"),
        ("Scalar", "masked_fill rsub eq ne le lt ge gt"),
    )
    for name in names.split()
)
_FILLED = {aten.zeros.default: 0, aten.ones.default: 0, aten.full.default: 0}
"""The position of the size argument, for operators that fill a tensor with one value."""


Known = dict[tuple[fx.Node, tuple[int, ...]], fx.Node]
"""The nodes made so far, by the original node and the shape."""


def uniform_dims(node: fx.Node) -> frozenset[int]:
    """Return the dimensions, counted from the last (-1), along which a value is the same, by how it is computed; also
    those of size 1."""
    value = value_of(node)
    if not static(value):
        return frozenset()
    rank = len(value.shape)
    single = frozenset(d for d in range(-rank, 0) if value.shape[d] == 1)
    if node.target in _FILLED:
        return frozenset(range(-rank, 0))
    if node.target is aten.expand.default:
        source = value_of(node.args[0])
        spread = frozenset(d for d in range(-rank, 0) if -d > len(source.shape) or source.shape[d] == 1)
        return single | spread | uniform_dims(node.args[0])  # type: ignore[arg-type]
    if node.target in _ELEMENTWISE:
        found = frozenset(range(-rank, 0))
        for x in node.all_input_nodes:
            found &= uniform_dims(x) | frozenset(range(-rank, -len(value_of(x).shape)))
        return found | single
    return single


def narrowed(graph: fx.Graph, node: fx.Node, known: Known) -> fx.Node:
    """Return `node` with one element along the dimensions in which it is uniform, computed from narrowed values, at the
    insertion point; `node` itself if there are none. `known`: nodes made earlier."""
    dims = frozenset(d for d in uniform_dims(node) if value_of(node).shape[d] != 1)
    return _narrowed(graph, node, dims, known) if dims else node


def _narrowed(graph: fx.Graph, node: fx.Node, dims: frozenset[int], known: Known) -> fx.Node:
    value = value_of(node)
    rank = len(value.shape)
    shape = tuple([1 if d in dims else value.shape[d] for d in range(-rank, 0)])
    if shape == tuple(value.shape):
        return node
    if (node, shape) in known:
        return known[node, shape]
    args: Any
    if node.target in _FILLED:
        args = (list(shape), *node.args[1:])
    elif node.target is aten.expand.default:
        inner = _narrowed(graph, node.args[0], dims, known)  # type: ignore[arg-type]
        if tuple(value_of(inner).shape) == shape:
            return inner
        args = (inner, list(shape))
    else:
        args = tuple([_narrowed(graph, x, dims, known) if isinstance(x, fx.Node) else x for x in node.args])
    made = graph.call_function(node.target, args, dict(node.kwargs))  # type: ignore[arg-type]
    made.meta = {"stack": node.meta.get("stack", ()), "val": Spec.dense(shape, value.dtype, value.device)}
    known[node, shape] = made
    return made
