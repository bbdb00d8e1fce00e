"""The backward of some of a graph's results, from that of all.

Autograd computes a gradient by one formula for each operator, and adds up the gradients of a value that several
operators read. Without a tangent, the formulas that only it reaches do not run, and a sum is the other of its terms:

    g = a(tangent_0) + b(tangent_1)    ->    g = a(tangent_0)

No other node has operands that depend on different tangents, unless an operator has several results of which some have
no gradient then (`Joint.uneven`): its formula differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from torch import fx

from framesmith.autograd.joint import Joint
from framesmith.graph.repetition import RepeatedGraph, Repetition, find_repetition
from framesmith.graph.symbols import symbols_of
from framesmith.graph.traversal import copy_node, descendants, placeholders_of
from framesmith.graph.unrolling import NotUnrolled, Slots, Unrolling, mark

aten = torch.ops.aten


def without_tangents(backward: fx.Graph, joint: Joint, there: Sequence[bool]) -> tuple[fx.Graph, list[bool]] | None:
    """Return a copy of a backward graph that only reads the tangents that are `there`, the last of its inputs, and
    which of its other inputs it takes; None if it has to be traced, as where sizes vary."""
    given = bits(there)
    if any(len({bool(found & given) for found in found_of}) > 1 for found_of in joint.uneven):
        return None
    if isinstance(backward, RepeatedGraph) and (found := find_repetition(backward)) is not None:
        try:
            return _of_parts(backward, found, there)
        except NotUnrolled:
            pass  # the whole graph is to be looked at
    return _of_graph(backward, there)


def _of_parts(backward: fx.Graph, of: Repetition, there: Sequence[bool]) -> tuple[fx.Graph, list[bool]] | None:
    """Return the same by a few of the graph's equal parts. Raises `NotUnrolled`."""
    mark(of.short)
    changed = _of_graph(of.short, there)
    if changed is None:
        return None
    short, reads = changed
    taken = [*reads, *[True] * len(there)]
    reading = [at is not None and taken[at] for at in of.inputs]
    for chain in of.input_chains:
        if len({taken[at] for at in chain.short}) > 1:
            raise NotUnrolled("a value that only some parts read")
        for place in chain.places:
            reading[place] = taken[chain.short[0]]
    inputs = Slots.of(of.inputs, of.input_chains).only(taken, reading)
    nodes = list(backward.nodes)
    places = [(node.name, node.meta) for node, read in zip(nodes, reading, strict=False) if read]
    outputs = Slots.of(of.outputs, of.output_chains)
    return Unrolling(of, short, inputs).whole(outputs, places, nodes), reading[:-len(there)]


def _of_graph(backward: fx.Graph, there: Sequence[bool]) -> tuple[fx.Graph, list[bool]] | None:
    nodes = list(backward.nodes)
    grads: Any = nodes[-1].args[0]
    if symbols_of(nodes):
        return None
    places = placeholders_of(backward)
    kept, tangents = places[:-len(there)], places[-len(there):]
    dependent = descendants(tangents)
    if any(isinstance(g, fx.Node) and g not in dependent for g in grads):
        return None
    replacements = _replacements([n for n in nodes if n in dependent], dependent, tangents, there)
    if replacements is None:
        return None
    results = [replacements.get(g) if isinstance(g, fx.Node) else None for g in grads]
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        return made[replacements.get(node) or node]

    needed, queue = set(tangents), [n for n in results if n is not None]
    while queue:
        node = queue.pop()
        if node not in needed:
            needed.add(node)
            queue += [replacements.get(a) or a for a in node.all_input_nodes]
    for node in nodes:
        if node in needed:
            made[node] = copy_node(graph, node, copied)
    out = graph.output(tuple([n if n is None else made[n] for n in results]))
    out.meta["val"] = tuple([n if n is None else n.meta["val"] for n in results])
    return graph, [n in needed for n in kept]


def _replacements(nodes: Sequence[fx.Node], dependent: set[fx.Node], tangents: Sequence[fx.Node],
                  there: Sequence[bool]) -> dict[fx.Node, fx.Node] | None:
    """Return the node that each of `nodes` becomes: itself, or the other term of a sum; those that depend only on
    missing tangents have none. None if a node other than a sum depends on a missing one."""
    replacements = {n: n for n in compress(tangents, there)}
    for node in nodes:
        operands = [a for a in node.all_input_nodes if a in dependent]
        left = [replacements[a] for a in operands if a in replacements]
        if node.op == "placeholder":
            continue
        if _is_sum(node) and len(operands) < len(node.all_input_nodes):
            return None  # a term without tangents is of unknown origin
        if not left:
            continue
        if len(left) == len(operands):
            replacements[node] = node
        elif _is_sum(node) and _is_like(left[0], node):
            replacements[node] = left[0]
        else:
            return None
    return replacements


def _is_sum(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and not node.kwargs


def _is_like(one: fx.Node, other: fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype


def bits(there: Sequence[bool]) -> int:
    """Return a set of places as bits."""
    return sum(1 << k for k, given in enumerate(there) if given)


__all__ = ["bits", "without_tangents"]
