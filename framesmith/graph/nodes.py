"""Nodes, added to a graph in a fifth of the time that `Graph.create_node` takes, and without its warnings of arguments
that are `torch.SymInt`s."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node


def insert_node(graph: Graph, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """A node with a name that no other has, at the place where the graph inserts."""
    space = graph._graph_namespace
    node = Node(graph, name, op, target, args, kwargs)
    space._used_names.add(name)
    space._obj_to_name[node] = name
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def free_name(graph: Graph, name: str) -> str:
    """`name`, or with another number if a node has that."""
    space = graph._graph_namespace
    return space.create_name(name, None) if name in space._used_names else name


def insert_call(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """A call, named after what is called."""
    name = graph._graph_namespace.create_name(graph._target_to_str(target), None)
    return insert_node(graph, "call_function", name, target, args, kwargs)
