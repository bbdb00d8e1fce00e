"""The invariants of a graph between stages."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from framesmith.symbolic.expr import Expr, Symbol
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import VerifyError

_OPS = frozenset(("placeholder", "call_function", "get_attr", "output", "call_method", "call_module"))


def verify(graph: Graph, *, values: bool = False, lowered: bool = False) -> Graph:
    """Return the graph if it is well formed; else raise VerifyError.

    Placeholders come first, one output last, names are unique, each argument is defined before its use and knows its
    user. `values`: every call has `meta["val"]`, and its symbols occur in a placeholder's sizes. `lowered`: calls are
    call_function only.
    """
    nodes = list(graph.nodes)
    if not nodes or nodes[-1].op != "output":
        raise VerifyError("a graph ends with its output")
    seen: set[Node] = set()
    names: set[str] = set()
    body = False
    for node in nodes:
        _node(node, seen, lowered)
        if node.name in names:
            raise VerifyError(f"two nodes are called {node.name}")
        if node.op == "placeholder" and body:
            raise VerifyError(f"placeholder {node.name} stands after a call")
        if node.op == "output" and node is not nodes[-1]:
            raise VerifyError("the output is not the last node")
        body = body or node.op != "placeholder"
        seen.add(node)
        names.add(node.name)
    if values:
        _values(nodes)
    return graph


def _node(node: Node, seen: set[Node], lowered: bool) -> None:
    if node.op not in _OPS:
        raise VerifyError(f"{node.name}: unknown op {node.op}")
    if node.op == "call_function" and not callable(node.target):
        raise VerifyError(f"{node.name}: its target {node.target!r} cannot be called")
    if lowered and node.op in ("call_method", "call_module"):
        raise VerifyError(f"{node.name}: {node.op} in a graph of operators")
    for arg in node.all_input_nodes:
        if arg not in seen:
            raise VerifyError(f"{node.name} uses {arg.name} before it is defined")
        if node not in arg.users:
            raise VerifyError(f"{arg.name} does not know its user {node.name}")


def _values(nodes: list[Node]) -> None:
    bound: set[Symbol] = set()
    for node in nodes:
        if node.op == "output":
            continue
        if "val" not in node.meta:
            raise VerifyError(f"{node.name} has no meta['val']")
        if node.op == "placeholder":
            bound |= free_symbols(node.meta["val"])
        elif missing := free_symbols(node.meta["val"]) - bound:
            raise VerifyError(f"{node.name}: no input's size gives {', '.join(sorted(s.name for s in missing))}")


def free_symbols(val: Any) -> frozenset[Symbol]:
    """Return the symbols in the sizes of a value, of a tuple of values, or in a symbolic scalar."""
    if isinstance(val, (tuple, list)):
        return frozenset().union(*map(free_symbols, val))
    if isinstance(val, (torch.SymInt, Expr)):
        return expr_of(val).free
    if isinstance(val, (torch.SymFloat, torch.SymBool)):
        return val.node.value.free
    return free_symbols(tuple(val.shape)) if hasattr(val, "shape") else frozenset()
