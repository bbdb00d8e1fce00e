"""The size symbols of a graph, and the environment that has the guards on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Symbol
from framesmith.symbolic.node import env_of, expr_of

_CONVOLUTIONS = frozenset(
    getattr(torch.ops.aten, name).default for name in ("convolution", "conv1d", "conv2d", "conv3d"))


def symbols_of(nodes: Iterable[fx.Node]) -> set[Symbol]:
    """The symbols in the sizes of the nodes' values."""
    return {s for node in nodes for n in _sizes(node) if type(n) is not int for s in expr_of(n).free}


def argument_symbols(node: fx.Node) -> set[Symbol]:
    """The symbols among the arguments of a node."""
    kinds = torch.SymInt, torch.SymFloat, torch.SymBool
    symbolic: list[Any] = [v for v in flat((node.args, node.kwargs)) if isinstance(v, kinds)]
    return {s for v in symbolic for s in v.node.expr.free}


def symbols_held(node: fx.Node) -> list[Any]:
    """The sizes of a node's results, or the number that it gives."""
    vals = flat(node.meta["val"])
    return [n for v in vals for n in (v.shape if isinstance(v, torch.Tensor) else (v,))]


def flat(value: Any) -> list[Any]:
    """The values in lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        return [v for part in value for v in flat(part)]
    return [v for part in value.values() for v in flat(part)] if isinstance(value, dict) else [value]


def size_sources(graph: fx.Graph) -> dict[Symbol, tuple[int, int]]:
    """For each symbol that is a size of an input: (number of the placeholder, dimension)."""
    found: dict[Symbol, tuple[int, int]] = {}
    for place, node in enumerate(n for n in graph.nodes if n.op == "placeholder"):
        for dim, size in enumerate(_sizes(node)):
            if isinstance(symbol := expr_of(size), Symbol):
                found.setdefault(symbol, (place, dim))
    return found


def varying_convolutions(graph: fx.Graph) -> bool:
    """Return whether a convolution reads images of sizes that vary."""
    return any(type(n) is not int for node in graph.nodes if node.target in _CONVOLUTIONS
               for n in _sizes(node.args[0]))


def environment(graph: fx.Graph) -> ShapeEnv | None:
    """The environment of the sizes of a graph's inputs, if some vary."""
    return env_of(*[n for node in graph.nodes if node.op == "placeholder" for n in _sizes(node)])


def close_guards(graph: fx.Graph) -> None:
    """Refuse further guards on the sizes of a graph: those of its inputs are all that its code may assume."""
    if (env := environment(graph)) is not None:
        env.closed = True


def _sizes(node: fx.Node) -> tuple[int | torch.SymInt, ...]:
    return tuple(getattr(node.meta.get("val"), "shape", ()))
