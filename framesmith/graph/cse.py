"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.graph.purity import EFFECT, is_pure, kind_of
from framesmith.graph.traversal import escaping


def cse(graph: Graph, own: Collection[Node] = (), apart: Collection[Node] = ()) -> int:
    """Merge equal pure calls into the first one's node, in place; return the number of removed nodes.

    Two calls are equal if target and arguments are, including types (1, 1.0 and True differ). Nothing is shared across
    a call that writes. Two values that both leave the graph are not merged, since the caller may write to one of them;
    nor are those of `own` with any others, nor those `apart` with the rest.
    """
    leaving = escaping(graph)
    seen: dict[Any, Node] = {}
    gone = 0
    for node in graph.nodes:
        if node.op == "call_function" and kind_of(node.target) == EFFECT:
            seen.clear()
            continue
        if node.op not in ("call_function", "get_attr") or not is_pure(node):
            continue
        key = None if node in own else _key((node in apart, node.op, node.target, node.args, node.kwargs))
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or (node in leaving and first in leaving):
            continue
        node.replace_all_uses_with(first)
        if node in leaving:
            leaving.add(first)
        graph.erase_node(node)
        gone += 1
    return gone


def value_key(x: Any, depth: int = 4) -> Any:
    """Return a hashable value that is equal for nodes (also among arguments) that compute the same value by up to that
    many pure operators on the same nodes; other nodes are themselves. So is a call without arguments, which stands for
    a value from elsewhere: a slice of a loop's operand, a tangent."""
    if isinstance(x, (tuple, list)):
        return tuple([value_key(v, depth) for v in x])
    if isinstance(x, dict):
        return tuple([(k, value_key(v, depth)) for k, v in sorted(x.items())])
    if isinstance(x, Node):
        if not depth or x.op != "call_function" or not (x.args or x.kwargs) or not is_pure(x):
            return x
        return x.target, value_key(x.args, depth - 1), value_key(x.kwargs, depth - 1)
    found = _key(x)
    return id(x) if found is None else found


_PLAIN = frozenset((Node, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None), type(...)))


def constant_key(x: Any) -> Any:
    """Return a value that is equal for equal constants of equal types: 0.0 and -0.0 differ, and nan is itself."""
    return type(x), repr(x) if isinstance(x, (float, complex)) else x


def _key(x: Any) -> Any:
    """Return a hashable value that is equal for equal arguments of equal types; None if there is none."""
    kind = type(x)
    if kind in _PLAIN:
        return x if x is not None else "None"
    if kind in (int, float, bool, complex):
        return constant_key(x)
    if isinstance(x, (tuple, list)):
        parts = tuple([_key(e) for e in x])
        return None if None in parts else parts
    if isinstance(x, dict):
        return _key(tuple(sorted(x.items())))
    if isinstance(x, slice):
        return _key(("slice", x.start, x.stop, x.step))
    if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return ("sym", x.node.expr) if isinstance(x, torch.SymInt) else None
    try:
        hash(x)
    except TypeError:
        return None
    return x
