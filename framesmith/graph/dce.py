"""Dead code elimination."""

from __future__ import annotations

from torch.fx import Graph

from framesmith.graph.purity import is_needed


def dce(graph: Graph) -> int:
    """Remove, in place, each unused call without effects; return the number of removed nodes.

    Placeholders, writes, random draws and unknown calls stay. One pass from the end suffices.
    """
    gone = 0
    for node in reversed(graph.nodes):
        if not node.users and not is_needed(node):
            graph.erase_node(node)
            gone += 1
    return gone
