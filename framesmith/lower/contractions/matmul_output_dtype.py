"""Products of halves whose results are wanted in float32 alone, as gradients of weights under autocast: the library
writes them so.

    _to_copy(mm(a, b), float32)  ->  mm(a, b, float32)       views between them stay
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from framesmith.lower.contractions.fuse_matmul_activation import HALF, VIEWS
from framesmith.lower.contractions.pack_linear import value_of
from framesmith.prims.core import Spec, size_of

aten = torch.ops.aten
WIDE: dict[Any, Any] = {aten.mm.default: aten.mm.dtype, aten.bmm.default: aten.bmm.dtype}
"""Of a product, the operator that gives it in another type."""


def widen_matmul_results(graph: fx.Graph) -> None:
    """Rewrite such products in place, where the cast would be a pass of its own; what computes with a result reads a
    half faster."""
    for cast in [n for n in graph.nodes if n.target is aten._to_copy.default]:
        if value_of(cast).dtype is not torch.float32 or not all(map(_leaves, cast.users)) or not _same_place(cast):
            continue
        views: list[fx.Node] = []
        node: Any = cast.args[0]
        while node.target in VIEWS and len(node.users) == 1:
            views.append(node)
            node = node.args[0]
        if node.target not in WIDE or len(node.users) != 1 or value_of(node).dtype not in HALF:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(WIDE[node.target], (*node.args, torch.float32))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        for changed in (new, *views):
            changed.meta["val"] = _in_float32(value_of(changed))
        cast.replace_all_uses_with(views[0] if views else new)
        graph.erase_node(cast)


def _leaves(user: fx.Node) -> bool:
    """Return whether a user only hands the value on, out of the graph."""
    return user.op == "output" or user.target in VIEWS and all(map(_leaves, user.users))


def _same_place(cast: fx.Node) -> bool:
    """Return whether a cast changes neither device nor layout of memory."""
    before, after = value_of(cast.args[0]), value_of(cast)
    return before.device == after.device and cast.kwargs.get("memory_format") in (None, torch.preserve_format)


def _in_float32(value: Any) -> Spec:
    stride = value.stride() if callable(value.stride) else value.stride
    return Spec(tuple(map(size_of, value.shape)), torch.float32, value.device, tuple(map(size_of, stride)))


__all__ = ["widen_matmul_results"]
