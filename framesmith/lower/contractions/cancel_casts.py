"""Casts there and back are none: a value that is widened for a layer, and narrowed again by autocast, is as it was.

    _to_copy(_to_copy(x, wider), x.dtype)  ->  x
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.pack_linear import value_of

_CAST = torch.ops.aten._to_copy.default
WIDER = {
    torch.bfloat16: frozenset((torch.float32, torch.float64)), torch.float16: frozenset((torch.float32, torch.float64)),
    torch.float32: frozenset((torch.float64,)),
}
"""The types that hold all values of a type."""


def cancel_casts(graph: fx.Graph) -> None:
    """Leave such casts out, in place. A cast that is a result stays: it is memory of its own."""
    for node in list(graph.nodes):
        wide: Any = node.args[0] if _is_cast(node) else None
        if not _is_cast(wide) or any(user.op == "output" for user in node.users):
            continue
        start: Any = wide.args[0]
        dtype = value_of(start).dtype
        if (value_of(node).dtype is dtype and value_of(wide).dtype in WIDER.get(dtype, ())
            and start.op == "call_function"):
            node.replace_all_uses_with(start)
            graph.erase_node(node)
            if not wide.users:
                graph.erase_node(wide)


def _is_cast(node: Any) -> bool:
    """Return whether a node changes the type alone."""
    return isinstance(node, fx.Node) and node.target is _CAST and not {name for name, x in node.kwargs.items()
                                                                       if x is not None} - {"dtype"}


__all__ = ["cancel_casts"]
