"""Backwards by torch's own operators, for tangents that compiled code does not support: wrappers of a function
transform, dual tensors, tensor subclasses, tensors without memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith.graph.control import Control
from framesmith.graph.derivative import passed
from framesmith.graph.interpreter import run
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
_functorch = torch._C._functorch
_VMAP = torch._C._dispatch_key_parse("VmapMode")


@contextmanager
def untransformed() -> Iterator[None]:
    """Leave the active function transforms within the block."""
    layers = []
    while _functorch.maybe_current_level() is not None:
        layers.append(_functorch.pop_dynamic_layer_stack())
    try:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_VMAP)):
            yield
    finally:
        while layers:
            _functorch.push_dynamic_layer_stack(layers.pop())


def of_any_layout(graph: fx.Graph) -> fx.Graph:
    """Change the graph, in place, to accept values of any strides, and return it."""
    for node in graph.nodes:
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
    return graph


def evaluated(graph: fx.Graph, given: Sequence[Any]) -> tuple[Any, ...]:
    """Run `graph` on `given`, recorded by autograd in grad mode."""
    marked = [n for n in graph.nodes if n.target is passed or "straight" in n.meta]
    if torch.is_grad_enabled() and marked:
        raise Unsupported("a gradient within a function transform, or at a level of forward-mode AD, that is to be "
                          "differentiated "
                          "again, through compiled code with a derivative of its own or a region without gradients")
    return tuple(run(graph, given, call=_call))


def _call(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Return the results of a node, with history where it has a derivative."""
    if isinstance(node.target, Control):
        return tuple(node.target.run([partial(run, arm, call=_call) for arm in node.target.arms], args[0], args[1:]))
    if node.target is aten.copy.default:  # has no formula
        blank, value = args
        return torch.empty_strided(blank.shape, blank.stride(), dtype=blank.dtype, device=blank.device).copy_(value)
    with torch.set_grad_enabled(torch.is_grad_enabled() and "no_grad" not in node.meta):
        return node.target(*args, **kwargs)  # type: ignore[operator]


__all__ = ["evaluated", "of_any_layout", "untransformed"]
