"""The census of a captured graph: its operators, the user's lines, and the lifetimes of their results."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from framesmith.graph.digest import target_name
from framesmith.graph.launch import OfOneGraph
from framesmith.graph.purity import is_view
from framesmith.symbolic.node import hint_of
from framesmith.util.events import Operator
from framesmith.util.stack import user_frame


def short_name(target: Any) -> str:
    """Return the name of an operator for a list of those of a graph."""
    return target.__name__ if isinstance(target, OfOneGraph) else target_name(target)  # type: ignore[attr-defined]


def operators_of(graph: fx.Graph) -> tuple[Operator, ...]:
    """Return the operators of `graph` in order, with the bytes of their results at the sizes of this call."""
    calls = [n for n in graph.nodes if n.op == "call_function"]
    known = {target: (short_name(target), is_view(target)) for target in {n.target for n in calls}}
    number = {n: k for k, n in enumerate(calls)}
    last = [max([number.get(u, len(calls)) for u in n.users], default=k) for k, n in enumerate(calls)]
    views = [known[n.target][1] and bool(n.all_input_nodes) for n in calls]
    for k in reversed(range(len(calls))):  # a view keeps its base alive
        if views[k] and (base := number.get(calls[k].all_input_nodes[0])) is not None:
            last[base] = max(last[base], last[k])
    return tuple([Operator(known[n.target][0], user_frame(stack) if (stack := n.meta.get("stack")) else None,
                           0 if views[k] else bytes_of(n), last[k]) for k, n in enumerate(calls)])


def bytes_of(node: fx.Node) -> int:
    """Return the bytes of a node's value at the sizes of this call, as if its elements were dense."""
    value = node.meta.get("val")
    return sum(_bytes(x) for x in (value if isinstance(value, (tuple, list)) else (value,)))


def _bytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return value.dtype.itemsize * math.prod([n if type(n) is int else hint_of(n) for n in value.shape])
