"""Copies of graphs with sizes as nodes, and of each node what a program keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.export.flow import of_copies, with_arms
from framesmith.export.sizes import SizeNodes, spec_of
from framesmith.graph.control import Control
from framesmith.prims.core import size_as_made, size_of
from framesmith.symbolic.expr import Expr
from framesmith.util.errors import ExportError
from framesmith.util.stack import user_frame


def copy_nodes(source: fx.Graph, into: fx.Graph, values: dict[fx.Node, Any], inputs: list[fx.Node]) -> list[Any]:
    """Copy the calls of a graph, with sizes as nodes; the values of its outputs."""
    sizes = SizeNodes(into, inputs)

    def read(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return values[x]
        if isinstance(x, tuple | list):
            return type(x)([read(v) for v in x]) if type(x) in (tuple, list) else tuple([read(v) for v in x])
        if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool | Expr):
            return sizes.of(x)
        return x

    for node in source.nodes:
        if node.op == "output":
            return [read(v) for v in node.args[0]]
        if node.op == "call_function":
            args, kwargs = read(node.args), {k: read(v) for k, v in node.kwargs.items()}
            target: Any = node.target
            if isinstance(target, Control):
                target = with_arms(target, lambda arm: of_copies(arm, spec_of, copy_nodes))
            made = values[node] = into.create_node("call_function", target, args, kwargs, name=node.name)
            made.meta["val"] = spec_of(node.meta.get("val"), size_as_made if "binds" in node.meta else size_of)
            sizes.add(made)
            stack = node.meta.get("stack")
            if stack:
                made.meta["stack"] = (user_frame(stack),)
                if modules := getattr(stack, "modules", node.meta.get("modules")):
                    made.meta["modules"] = modules
    raise ExportError("a graph without an output")
