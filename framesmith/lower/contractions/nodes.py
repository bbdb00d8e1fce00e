"""Adding nodes with metadata to a recorded graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from framesmith.graph.nodes import insert_call
from framesmith.graph.patterns import Match
from framesmith.prims.core import Size, Spec, size_of


class Nodes:
    """Adds nodes with metadata and the user's line of `like`."""

    def __init__(self, graph: fx.Graph, like: fx.Node) -> None:
        self.graph, self.like = graph, like

    def __call__(self, target: Any, args: tuple[Any, ...], shape: tuple[Size, ...],
                 stride: tuple[Size, ...] | None = None) -> fx.Node:
        """Add a node with a result of the dtype and device of `like`."""
        value, shape = self.like.meta["val"], tuple(map(size_of, shape))
        spec = Spec.dense(shape, value.dtype, value.device)
        spec.stride = spec.stride if stride is None else stride
        return self.of(target, args, spec)

    def of(self, target: Any, args: tuple[Any, ...], value: Any, **kwargs: Any) -> fx.Node:
        """Add a node with the metadata `value`."""
        node = insert_call(self.graph, target, args, kwargs)
        node.meta.update(val=value, stack=self.like.meta.get("stack", ()))
        return node


def replace_result(node: fx.Node, place: int, target: Any, args: tuple[Any, ...], shape: tuple[Size, ...]) -> None:
    """Replace one of the results of `node` by a call of `target`."""
    for item in [user for user in node.users if user.args[1] == place]:
        with node.graph.inserting_before(item):
            new = Nodes(node.graph, item)(target, args, shape)
        new.meta["val"] = item.meta["val"]
        item.replace_all_uses_with(new)
        node.graph.erase_node(item)


def as_eager(rule: Callable[..., fx.Node | None]) -> Callable[..., fx.Node | None]:
    """Decorate a rewrite whose result must have eager's strides if it is a result of the graph."""

    def run(m: Match, *context: Any) -> fx.Node | None:
        new = rule(m, *context)
        if new is not None:
            new.meta["val"] = m.root.meta["val"]
        return new

    return run
