"""Value numbering: equal expressions of equal inputs have the same number, in a graph and in others with the same
table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from framesmith.graph.cse import constant_key
from framesmith.graph.derivative import behind
from framesmith.graph.purity import is_pure
from framesmith.symbolic.node import expr_of

Table = dict[Any, int]


def numbered(nodes: Iterable[fx.Node], table: Table) -> dict[fx.Node, int]:
    """Return the number of each node except the output. Inputs, and nodes that draw or write, are distinguished by
    names."""
    numbers: dict[fx.Node, int] = {}

    def key(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return fx.Node, numbers[value]
        if isinstance(value, (list, tuple)):
            return tuple([key(v) for v in value])
        if isinstance(value, dict):
            return tuple([(k, key(v)) for k, v in value.items()])
        if isinstance(value, torch.SymInt) or type(value) is int:  # a size may be known by now
            return expr_of(value)
        if isinstance(value, (torch.SymFloat, torch.SymBool)):
            return type(value), value.node.expr
        return constant_key(value) if value.__hash__ is not None else (type(value), repr(value))

    for node in nodes:
        if node.op == "output":
            continue
        if (value := behind(node)) is not node:
            numbers[node] = numbers[value]
            continue
        what = (node.target, key(node.args), key(node.kwargs)) if is_pure(node) else node.name
        numbers[node] = table.setdefault(what, len(table))
    return numbers


__all__ = ["Table", "numbered"]
