"""Waits for collectives are moved down to where their values are first read: what stands between runs meanwhile."""

from __future__ import annotations

from torch.fx import Graph, Node

from framesmith.graph.purity import COLLECTIVE, is_view, kind_of


def sink_waits(graph: Graph) -> int:
    """Move each wait, and views of its value, before its first user, in place; returns how many waits moved. One whose
    value nobody reads stands at the end."""
    following = {node: node.next for node in graph.nodes if _waits(node)}
    if not following:
        return 0
    for node in reversed(list(graph.nodes)):
        if node in following or _source(node) in following:
            min(node.users or [graph.output_node()]).prepend(node)
    return sum(wait.next is not node for wait, node in following.items())


def _waits(node: Node) -> bool:
    return (node.op == "call_function" and kind_of(node.target) == COLLECTIVE
            and getattr(node.target, "_opname", "") == "wait_tensor")


def _source(node: Node) -> Node:
    """Return the value that a chain of views begins with."""
    while node.op == "call_function" and is_view(node.target) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node
