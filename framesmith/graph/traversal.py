"""Traversals of a graph: its last nodes, ancestors and descendants, copies of nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_aggregate, map_arg

from framesmith.graph.nodes import free_name, insert_node
from framesmith.graph.purity import is_view


def copy_node(graph: Graph, node: Node, made: Callable[[Node], Node]) -> Node:
    """Append a copy of a node of another graph, with arguments `made(n)` for each node `n` among the original's."""
    args, kwargs = map_arg(node.args, made), map_arg(node.kwargs, made)
    copy = insert_node(graph, node.op, free_name(graph, node.name), node.target, args, kwargs)
    copy.meta.update(node.meta)
    return copy


def copy_graph(graph: Graph, change: Callable[[Any], Any]) -> Graph:
    """Return a copy of a graph in which each argument and each value is changed."""
    made = Graph()
    nodes: dict[Node, Node] = {}
    for node in graph.nodes:
        nodes[node] = copy = copy_node(made, node, nodes.__getitem__)
        copy.args, copy.kwargs = map_aggregate((copy.args, copy.kwargs), change)  # type: ignore[misc, assignment]
        if "val" in copy.meta:
            copy.meta["val"] = map_aggregate(copy.meta["val"], change)
    return made


def placeholders_of(graph: Graph) -> list[Node]:
    """Return the placeholders of a graph, in order."""
    return [n for n in graph.nodes if n.op == "placeholder"]


def last_node(graph: Graph) -> Node | None:
    """Return the node that was recorded last; None for an empty graph."""
    return next(iter(reversed(graph.nodes)), None)


def nodes_after(graph: Graph, last: Node | None) -> list[Node]:
    """Return the nodes after `last`, in order; all of them for None."""
    return list(takewhile(lambda n: n is not last, reversed(graph.nodes)))[::-1]


def ancestors(nodes: Iterable[Node], unread: Mapping[Any, tuple[int, ...]] = MappingProxyType({}),
              stop: Collection[Node] = ()) -> set[Node]:
    """Return `nodes` and all nodes that they depend on. `unread`: places of arguments, by operator, that do not count.
    `stop`: nodes whose own arguments do not."""
    found, queue = set(nodes), list(nodes)
    while queue:
        node = queue.pop()
        if node in stop:
            continue
        fresh = [arg for arg in node.all_input_nodes if arg not in found]
        if fresh and unread:
            idle = [node.args[i] for i in unread.get(node.target, ())]
            fresh = [arg for arg in fresh if arg not in idle]
        found.update(fresh)
        queue += fresh
    return found


def descendants(nodes: Iterable[Node]) -> set[Node]:
    """Return `nodes` and all nodes that depend on them, except the output."""
    found, queue = set(nodes), list(nodes)
    while queue:
        for user in queue.pop().users:
            if user not in found and user.op != "output":
                found.add(user)
                queue.append(user)
    return found


def escaping(graph: Graph, is_view: Callable[[Any], bool] = is_view) -> set[Node]:
    """Return the nodes whose memory a result of the graph may share: outputs, and their bases if they are views."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or (node in found and is_view(node.target)):
            found.update(node.all_input_nodes)
    return found
