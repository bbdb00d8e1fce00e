"""The census of a captured graph: its operators, the user's lines, and how long their results live."""

from __future__ import annotations

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
    """The name of an operator for a list of those of a graph."""
    return target.__name__ if isinstance(target, OfOneGraph) else target_name(target)  # type: ignore[attr-defined]


def operators_of(graph: fx.Graph) -> tuple[Operator, ...]:
    """The operators of `graph` in order, with the bytes of their results at the sizes of this call."""
    calls = [n for n in graph.nodes if n.op == "call_function"]
    number = {n: k for k, n in enumerate(calls)}
    last = {n: max([number.get(u, len(calls)) for u in n.users], default=k) for n, k in number.items()}
    for n in reversed(calls):  # a view keeps its base alive
        if _shares(n) and (base := n.all_input_nodes[0]) in last:
            last[base] = max(last[base], last[n])
    return tuple([Operator(short_name(n.target), user_frame(stack) if (stack := n.meta.get("stack")) else None,
                           0 if _shares(n) else bytes_of(n), last[n]) for n in calls])


def _shares(node: fx.Node) -> bool:
    return is_view(node.target) and bool(node.all_input_nodes)


def bytes_of(node: fx.Node) -> int:
    """Bytes of a node's value at the sizes of this call, as if its elements were dense."""
    value = node.meta.get("val")
    return sum(_bytes(x) for x in (value if isinstance(value, (tuple, list)) else (value,)))


def _bytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    total: int = value.dtype.itemsize
    for n in value.shape:
        total *= hint_of(n)
    return total
