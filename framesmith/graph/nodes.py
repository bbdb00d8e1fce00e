"""Fast creation of nodes: five times as fast as `Graph.create_node`, and without its warnings about `torch.SymInt`
arguments."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node


def insert_node(graph: Graph, op: str, name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """Insert a node with a unique name at the graph's insertion point."""
    space = graph._graph_namespace
    node = Node(graph, name, op, target, args, kwargs)
    space._used_names.add(name)
    space._obj_to_name[node] = name
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


def free_name(graph: Graph, name: str) -> str:
    """Return `name`, with a number appended if a node has it."""
    space = graph._graph_namespace
    return space.create_name(name, None) if name in space._used_names else name


def insert_call(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """Insert a call, named after its target."""
    name = graph._graph_namespace.create_name(graph._target_to_str(target), None)
    return insert_node(graph, "call_function", name, target, args, kwargs)
