"""Shared parts of the derivatives of nodes made of graphs: copying arms, cutting them, recording them again, and laying
out gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith.autograd.joint import laid_out
from framesmith.fake import FakeTensor, Recorder
from framesmith.fake.layout import preserved_strides
from framesmith.fake.outputs import memory_of
from framesmith.fake.tensor import dense, metadata_of, new_fake
from framesmith.graph.control import Branch, Control, append, append_blank, close, results_of
from framesmith.graph.traversal import ancestors, copy_node
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
Way = tuple[str, int]
"""The place of a value that a backward reads: ("input", operand) or ("result", result of the forward); of one arm also
("extra", number)."""


def copied(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Return a copy that is not closed yet, and its nodes by the original's."""
    copy = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "output":
            made[node] = copy_node(copy, node, made.__getitem__)
    return copy, made


def completed(arm: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Return a copy, not closed yet, whose branches give zeros for missing gradients, and its nodes by the original's:
    a loop sums and stacks gradients of its body, and needs one in each round."""
    copy, made = copied(arm)
    for node in copy.nodes:
        if isinstance(node.target, Branch):
            ways = [completed(way) for way in node.target.arms]
            no, yes = [close(way, [own.get(r, r) for r in results_of(old)])
                       for (way, own), old in zip(ways, node.target.arms)]
            node.target = Branch(yes, no, True)
    return copy, made


def owned(graph: fx.Graph, result: fx.Node, stacked: bool = False) -> fx.Node:
    """Return a result in memory of its own, to which history belongs. `stacked`: its layout does not matter."""
    val = result.meta["val"]
    if memory_of(result)[0].op != "placeholder" or not isinstance(val, FakeTensor):
        return result
    if stacked:
        val = new_fake(tuple(val.shape), preserved_strides(val), val.dtype, val.device)
    elif preserved_strides(val) != val.stride():
        raise Unsupported("an arm of a branch that passes on a tensor whose elements share memory, or have gaps")
    return append(graph, aten.clone.default, (result,), val)


def part_of(arm: fx.Graph, given: Sequence[fx.Node],
          results: Sequence[fx.Node]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """Return a graph, not closed yet, that computes `results` from `given`, and its nodes by those of the arm."""
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in given:
        made[node] = graph.placeholder(node.name)
        made[node].meta["val"] = node.meta["val"]
    needed = ancestors(results, stop=made)
    for node in arm.nodes:
        if node in needed and node not in made:
            made[node] = copy_node(graph, node, made.__getitem__)
    return graph, made


def zeros_like(graph: fx.Graph, val: FakeTensor) -> fx.Node:
    """Append zeros in the layout of `val`."""
    zeros = append(graph, aten.full.default, (list(val.shape), 0), dense(val, tuple(val.shape)), dtype=val.dtype,
                   device=val.device)
    return in_layout(graph, zeros, val)


def in_layout(graph: fx.Graph, grad: fx.Node, val: FakeTensor) -> fx.Node:
    """Return a value in the layout of `val`."""
    if grad.meta["val"].stride() == val.stride():
        return grad
    return append(graph, aten.copy.default, (append_blank(graph, val), grad), val)


def sized(val: FakeTensor, other: FakeTensor) -> FakeTensor:
    """Return metadata like `val` with the sizes of `other`: an arm may have symbols or numbers of its own for them."""
    same = [*map(expr_of, val.shape)] == [*map(expr_of, other.shape)]
    return val if same else dense(val, tuple(other.shape))


def tangents_of(grads: Sequence[Any], vals: Sequence[FakeTensor]) -> list[Any]:
    """Return gradients of results in the layouts that a backward takes; zeros for None."""
    return [laid_out(aten.zeros.default(val.shape, dtype=val.dtype, device=val.device) if g is None else g, val)
            for g, val in zip(grads, vals, strict=True)]


def emitted(recorder: Recorder, target: Control, vals: Sequence[FakeTensor], args: Sequence[Any],
            binds: Any = None) -> tuple[FakeTensor, ...]:
    """Record control flow with results like `vals` that defines `binds`, and return its results."""
    made = tuple(map(metadata_of, vals))
    node = recorder.emit(target, tuple(map(recorder.nodes, args)), made)
    if binds is not None:
        node.meta["binds"] = binds
    return recorder.results(node, made)  # type: ignore[no-any-return]


__all__ = ["Way", "completed", "copied", "emitted", "in_layout", "owned", "part_of", "sized", "tangents_of",
           "zeros_like"]
