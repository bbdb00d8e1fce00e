"""Split a graph into pieces: where it defines a symbol, so that in each piece all sizes are those of its inputs, and
where it branches or loops.

An operator with a data-dependent result size (`meta["binds"]`: the symbol) is a step by itself, and so is a branch or
loop. Nodes that do not depend on the step are computed before it, the others after it. A view is recomputed in each
piece that reads it, so no piece receives two tensors of one memory; the last piece writes the graph's inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from framesmith.graph.control import Control
from framesmith.graph.purity import is_needed, is_view
from framesmith.graph.raising import may_raise
from framesmith.graph.symbols import argument_symbols, size_sources, symbols_held, symbols_of
from framesmith.graph.traversal import copy_node
from framesmith.symbolic.expr import Rel, Symbol
from framesmith.symbolic.node import env_of, expr_of, symint
from framesmith.util.errors import CompileError

_COPY = torch.ops.aten.copy_.default
Place = fx.Node | Symbol
"""A value of the graph that is passed between steps."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`graph` computes `gives` from `takes`."""

    graph: fx.Graph
    takes: tuple[Place, ...]
    gives: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A call of an operator, `node`, and the symbol that it defines: `size(dim)` of its result, or of the tensor
    `gives[at]`; with dim < 0 the result itself, a number. `checks`: assumptions on the symbols defined so far."""

    node: fx.Node
    gives: tuple[fx.Node | None, ...]
    symbol: Symbol
    at: int
    dim: int
    checks: tuple[Rel, ...] = ()


@dataclass(frozen=True, slots=True)
class Controlled:
    """Control flow, `node`, and the places of its results."""

    node: fx.Node
    gives: tuple[fx.Node | None, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps in order, and the symbols of the graph's inputs that they take as numbers: (place, dimension),
    or (place, -1) where the input is the number. `terms`: for each output that is a sum of results of control flow, or
    one, these: if all are gradients that were not given, the output is none, too."""

    steps: tuple[Piece | Binding | Controlled, ...]
    sizes: dict[Symbol, tuple[int, int]]
    outputs: tuple[Any, ...]
    terms: tuple[tuple[fx.Node, ...], ...]


def is_cut(graph: fx.Graph) -> bool:
    """Return whether the graph defines symbols, branches or loops."""
    return any(map(_is_step, graph.nodes))


def pieces(graph: fx.Graph) -> Steps:
    """Return the graph as steps."""
    nodes = list(graph.nodes)
    levels = _levels(nodes)
    top = max(levels.values(), default=0)
    outputs: Any = nodes[-1].args[0]
    given = size_sources(graph)
    binders = [n for n in nodes if _is_step(n)]
    needs = set(nodes[-1].all_input_nodes).union(*[n.all_input_nodes for n in binders])
    steps: list[Piece | Binding | Controlled] = []
    places = [n for n in nodes if n.op == "placeholder"]
    given.update({expr_of(n.meta["val"]): (k, -1) for k, n in enumerate(places)  # type: ignore[misc]
                  if isinstance(n.meta["val"], torch.SymInt) and expr_of(n.meta["val"]) not in given})
    cut = _Cut(levels, needs, env_of(*[x for n in (*binders, *places) for x in symbols_held(n)]))
    for level in range(top + 1):
        piece = cut.piece([n for n in nodes if levels.get(n) == level and not _is_of_step(n)], level)
        if piece is not None:
            steps.append(piece)
        steps += [_step(n) for n in binders if levels[n] == level]
    if cut.env is not None and not any("again" in n.meta for n in binders):
        numbers = [expr_of(n.meta["val"]) for n in places if isinstance(n.meta["val"], torch.SymInt)]
        within = {s for n in binders if isinstance(n.target, Control) for s in _bound_within(n.target)}
        _check(steps, [rel for rel in cut.env.assumed if rel.free.isdisjoint(within)], {*given, *numbers})
    read = {p for step in steps if isinstance(step, Piece) for p in step.takes if isinstance(p, Symbol)}
    for step in steps:
        if isinstance(step, Binding | Controlled):
            read |= argument_symbols(step.node)
        if isinstance(step, Controlled):
            read |= symbols_of([n for n in step.gives if n is not None])
        if isinstance(step, Binding):
            read = read.union(*[rel.free for rel in step.checks])
    bound = {step.node.meta["binds"] for step in steps if not isinstance(step, Piece) and "binds" in step.node.meta}
    if unknown := read - bound - given.keys():
        raise CompileError(f"sizes {unknown} that nothing gives")
    return Steps(tuple(steps), {s: given[s] for s in read - bound}, tuple(outputs), tuple(map(_terms, outputs)))


def _terms(output: Any) -> tuple[fx.Node, ...]:
    """Return the terms of a sum of results of control flow; none of any other value."""
    found, todo = [], [output]
    while todo:
        node = todo.pop()
        if not isinstance(node, fx.Node):
            return ()
        if node.target is torch.ops.aten.add.Tensor and not node.kwargs:
            todo += node.args
        elif node.target is operator.getitem and isinstance(node.all_input_nodes[0].target, Control):
            found.append(node)
        else:
            return ()
    return tuple(found)


def _check(steps: list[Piece | Binding | Controlled], assumed: list[Rel], known: Collection[Any]) -> None:
    """Assign each assumption on a symbol that is bound here, and not within an arm, to the step that binds the last of
    its symbols."""
    bound = {step.symbol for step in steps if isinstance(step, Binding)}
    known, left = set(known), [rel for rel in assumed if rel.free & bound]
    for k, step in enumerate(steps):
        if isinstance(step, Binding):
            known.add(step.symbol)
            checks = tuple([rel for rel in left if step.symbol in rel.free and rel.free <= known])
            steps[k] = replace(step, checks=checks)
            left = [rel for rel in left if rel not in checks]
    if left:
        raise CompileError(f"assumptions {left} of sizes that nothing gives")


def _bound_within(target: Control) -> Iterator[Symbol]:
    """Yield the symbols that the arms of control flow define; assumptions on them are checked there."""
    for arm in target.arms:
        for node in arm.nodes:
            if "binds" in node.meta:
                yield node.meta["binds"]
            if isinstance(node.target, Control):
                yield from _bound_within(node.target)


def _is_step(node: fx.Node) -> bool:
    """Return whether a node is a step by itself."""
    return "binds" in node.meta or isinstance(node.target, Control)


def _is_of_step(node: fx.Node) -> bool:
    """Return whether a node is a step by itself, or one of its results."""
    return _is_step(node) or node.target is operator.getitem and _is_step(node.all_input_nodes[0])


def _levels(nodes: list[fx.Node]) -> dict[fx.Node, int]:
    """Return the piece that computes each node; for a step by itself, the piece before it."""
    levels: dict[fx.Node, int] = {}
    known: dict[Symbol, int] = {}
    effects = 0
    for node in nodes:
        if node.op != "call_function":
            continue
        before = [levels[a] + _is_step(a) for a in node.all_input_nodes if a.op == "call_function"]
        symbols = symbols_of([node]) | argument_symbols(node)
        own = node.meta.get("binds")
        before += [known.get(s, 0) for s in symbols if s is not own]
        level = max(before, default=0)
        if is_needed(node) and own is None or may_raise(node.target) and not is_view(node.target):
            level = max(level, effects)  # in the order of the program
            effects = level + _is_step(node)
        levels[node] = level
        if own is not None:
            known[own] = level + 1
    top = max([level + _is_step(n) for n, level in levels.items()], default=0)
    levels.update({n: top for n in nodes if n.target is _COPY})
    return levels


class _Cut:
    """Makes the pieces in order."""

    def __init__(self, levels: dict[fx.Node, int], needs: set[fx.Node], env: Any) -> None:
        self.levels = levels
        self.needs = needs
        self.env = env

    def piece(self, nodes: list[fx.Node], level: int) -> Piece | None:
        """Return the piece of `nodes`, without those that later pieces recompute."""
        own = set(nodes)
        gives = tuple([n for n in nodes if self._leaves(n, level)])
        wanted = [n for n in nodes if n in gives or is_needed(n)]
        if not wanted:
            return None
        graph = fx.Graph()
        inner = self._inner(wanted, own)
        takes: dict[Place, fx.Node] = {}
        for place in dict.fromkeys(a for n in inner for a in n.all_input_nodes if a not in inner):
            takes[place] = graph.placeholder(place.name)
            takes[place].meta.update({k: v for k, v in place.meta.items() if k not in ("given up", "binds", "frozen")})
        read = symbols_of(inner).union(*map(argument_symbols, inner)) | symbols_of(takes.values())
        numbers = sorted(read - size_sources(graph).keys(), key=lambda s: s.name)
        for symbol in numbers:
            takes[symbol] = graph.placeholder(f"number_{symbol.name}")
            takes[symbol].meta["val"] = symint(symbol, self.env)
        made: dict[fx.Node, fx.Node] = {p: n for p, n in takes.items() if isinstance(p, fx.Node)}
        for node in inner:
            made[node] = copy_node(graph, node, made.__getitem__)
        out = graph.output(tuple(made[n] for n in gives))
        out.meta["val"] = tuple(n.meta["val"] for n in gives)
        return Piece(graph, tuple(takes), gives)

    def _leaves(self, node: fx.Node, level: int) -> bool:
        """Return whether a later step reads a node of this piece. A view is recomputed where it is read, except by
        steps by themselves and as a result of the graph."""
        if node in self.needs:
            return True
        return not _again(node) and any(self.levels.get(u, level) > level for u in self._readers(node))

    def _readers(self, node: fx.Node) -> list[fx.Node]:
        """Return the nodes that read `node`, also through views."""
        found, queue = [], [node]
        while queue:
            for user in queue.pop().users:
                found.append(user)
                if _again(user):
                    queue.append(user)
        return found

    def _inner(self, wanted: list[fx.Node], own: set[fx.Node]) -> list[fx.Node]:
        """Return the nodes of the piece, in order: `wanted`, their dependences in `own`, and views of any piece."""
        found, queue = set(wanted), list(wanted)
        while queue:
            for a in queue.pop().all_input_nodes:
                if a not in found and (a in own or _again(a)):
                    found.add(a)
                    queue.append(a)
        order = {n: k for k, n in enumerate(self.levels)}
        return sorted(found, key=order.__getitem__)


def _again(node: fx.Node) -> bool:
    """Return whether a node is a view, which is free to recompute."""
    return (node.op == "call_function" and is_view(node.target)
            and not (node.target is operator.getitem and not _again(node.all_input_nodes[0])))


def _step(node: fx.Node) -> Binding | Controlled:
    return _controlled(node) if isinstance(node.target, Control) else _binding(node)


def _controlled(node: fx.Node) -> Controlled:
    parts: dict[Any, fx.Node] = {u.args[1]: u for u in node.users}
    return Controlled(node, tuple([parts.get(k) for k in range(len(node.meta["val"]))]))


def _binding(node: fx.Node) -> Binding:
    val, symbol = node.meta["val"], node.meta["binds"]
    if isinstance(val, torch.SymInt):
        return Binding(node, (), symbol, -1, -1)
    several = isinstance(val, (tuple, list))
    vals = val if several else [val]
    at, dim = next((k, d) for k, v in enumerate(vals) for d, n in enumerate(v.shape)
                   if isinstance(n, torch.SymInt) and n.node.value is symbol)
    if not several:
        return Binding(node, (node,), symbol, at, dim)
    parts: dict[Any, fx.Node] = {u.args[1]: u for u in node.users}
    return Binding(node, tuple([parts.get(k) for k in range(len(vals))]), symbol, at, dim)


__all__ = ["Binding", "Controlled", "Piece", "Steps", "is_cut", "pieces"]
