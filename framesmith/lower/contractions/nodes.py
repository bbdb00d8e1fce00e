"""Adding nodes with metadata to a recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from framesmith.graph.patterns import Match
from framesmith.prims.core import Size, Spec, contiguous_strides, size_of


class Nodes:
    """Adds nodes with metadata that carry the user's line of `like`."""

    def __init__(self, graph: fx.Graph, like: fx.Node) -> None:
        self.graph, self.like = graph, like

    def __call__(self, target: Any, args: tuple[Any, ...], shape: tuple[Size, ...],
                 stride: tuple[Size, ...] | None = None) -> fx.Node:
        """A value of the type of `like`."""
        value, shape = self.like.meta["val"], tuple(map(size_of, shape))
        return self.of(target, args,
                       Spec(shape, value.dtype, value.device, contiguous_strides(shape) if stride is None else stride))

    def of(self, target: Any, args: tuple[Any, ...], value: Any, **kwargs: Any) -> fx.Node:
        """Any `value`, as its metadata says."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {"val": value, "stack": self.like.meta.get("stack", ())}
        return node


def as_eager(rule: Callable[..., fx.Node | None]) -> Callable[..., fx.Node | None]:
    """Decorate a rewrite whose result is to have eager's strides, should it be one of the graph."""

    def run(m: Match, *context: Any) -> fx.Node | None:
        new = rule(m, *context)
        if new is not None:
            new.meta["val"] = m.root.meta["val"]
        return new

    return run
