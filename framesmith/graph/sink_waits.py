"""Waits for collectives are moved down to where their values are first read: what stands between runs meanwhile."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.graph.purity import is_view

WAIT: Any = torch.ops._c10d_functional.wait_tensor.default if torch.distributed.is_available() else None


def sink_waits(graph: Graph) -> int:
    """Move each wait, and views of its value, before its first user, in place; returns how many waits moved. One whose
    value nobody reads stands at the end."""
    if WAIT is None or not (waits := graph.find_nodes(op="call_function", target=WAIT)):
        return 0
    before = {wait: wait.next for wait in waits}
    for node in reversed(list(graph.nodes)):
        if node.target is WAIT or _is_view_of_wait(node):
            min(node.users or [graph.output_node()]).prepend(node)
    return sum(wait.next is not following for wait, following in before.items())


def _is_view_of_wait(node: Node) -> bool:
    while node.op == "call_function" and is_view(node.target) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node.target is WAIT
