"""Runs of equal parts in a graph, such as the layers of a model: finding one, and the graph with few of its parts.

Each node of a part has the target, sizes and layout of the node one part later, and its arguments correspond: they are
the same value from before the run, or values one part apart, or inputs of the graph, of which each part then has its
own. Nodes before and after the run may be anything that does not read its middle. So the graph is an instance of one
with any number of parts, and compiling a few of them determines the code of all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from framesmith.graph.nodes import insert_node
from framesmith.graph.traversal import copy_graph
from framesmith.symbolic.node import expr_of

HEAD, TAIL = 3, 2
"""The numbers of parts that stay in the short graph, before and after the omitted ones."""
LEAST = 8
"""The least number of parts of a run."""
_TRIES = 48  # distances that are tried as the length of a part
_ANCHORS = (0.5, 0.25, 0.75)  # of the graph, where a run is looked for


@dataclass(frozen=True, slots=True)
class Chain:
    """Corresponding inputs or outputs, part by part: their places in the graph, and the fewer places in the short
    graph."""

    places: tuple[int, ...]
    short: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """The short graph is without `left_out` parts of `length` nodes; its run begins at node number `start`, and it has
    `count` inputs. `inputs`, `outputs`: for each place in the graph the place in the short one, None if omitted."""

    short: Graph
    start: int
    length: int
    left_out: int
    count: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    input_chains: tuple[Chain, ...]
    output_chains: tuple[Chain, ...]
    late_outputs: tuple[int, ...]
    """The places, in the graph, of results after the omitted parts."""

    def number(self, short: int, later: int) -> int:
        """Return the number in the graph of a node of the short graph; for one in the run or after it, of the
        corresponding node `later` parts later."""
        if short < self.count:
            return self.inputs.index(short) if short >= 0 else short
        return short + len(self.inputs) - self.count + (later * self.length if short >= self.start else 0)


class RepeatedGraph(Graph):
    """A graph made of equal parts (see `unrolling`). `parts`: itself as a repetition, while it is not changed."""

    parts: Repetition | None = None


def find_repetition(graph: Graph) -> Repetition | None:
    """Return a run at one of a few places, and the graph with few of its parts; None if there is none long enough."""
    nodes = list(graph.nodes)
    known = graph.parts if isinstance(graph, RepeatedGraph) else None
    if known is not None and len(nodes) == known.number(len(known.short.nodes) - 1, known.left_out) + 1:
        return replace(known, short=copy_graph(known.short, lambda x: x))  # it may be changed
    count = sum(n.op == "placeholder" for n in nodes)
    if any(n.op == "placeholder" for n in nodes[count:]) or nodes[-1].op != "output":
        return None
    search = Search(nodes, count)
    for share in _ANCHORS:
        run = search.run(count + int((len(nodes) - count) * share))
        if run is not None and (found := _Shortened(nodes, count, run).repetition()) is not None:
            return found
    return None


# --------------------------------------------------------------------------------------------------------- where it is


@dataclass(frozen=True, slots=True)
class Run:
    """Parts of `length` nodes from number `start`; `after`: an input of a part -> that of the next."""

    start: int
    length: int
    parts: int
    after: dict[Node, Node]


class Search:
    """The search for runs of at least `least` parts among the nodes of a graph with `count` inputs."""

    reach = HEAD

    def __init__(self, nodes: list[Node], count: int, least: int = LEAST) -> None:
        self.nodes = nodes
        self.count = count
        self.least = least
        self.number = {n: k for k, n in enumerate(nodes)}
        self.operands: list[list[Node]] = [[] for _ in nodes]
        keys: dict[Any, int] = {}
        self.keys = [keys.setdefault(_key(n, found), len(keys)) for n, found in zip(nodes, self.operands, strict=True)]

    def run(self, anchor: int) -> Run | None:
        """Return the run around one node, with the shortest parts."""
        own, tries = self.keys[anchor], 0
        for other in range(anchor + 1, len(self.nodes)):
            if self.keys[other] == own:
                run = self.about(anchor, other - anchor)
                tries += 1
                if run is not None or tries == _TRIES:
                    return run
        return None

    def about(self, anchor: int, length: int) -> Run | None:
        """Return the run of parts of one length around a node."""
        after: dict[Node, Node] = {}
        before: dict[Node, Node] = {}
        fixed: set[Node] = set()
        first = last = anchor
        while last + length < len(self.nodes) - 1 and self.match(last, length, after, before, fixed):
            last += 1
        while first > self.count and self.match(first - 1, length, after, before, fixed):
            first -= 1
        first = max([first, *[self.number[n] + 1 for n in fixed]])
        run = Run(first, length, (last + length - first) // length, after)
        return run if run.parts >= self.least and not self._reaches_back(run) else None

    def _reaches_back(self, run: Run) -> bool:
        """Return whether parts from number `reach` on read other nodes before the run each: these have no copies."""
        for number in range(run.start + self.reach * run.length, run.start + run.parts * run.length):
            for a, b in zip(self.operands[number], self.operands[number - run.length], strict=True):
                if a is not b and self.count <= self.number[a] < run.start:
                    return True
        return False

    def match(self, at: int, length: int, after: dict[Node, Node], before: dict[Node, Node], fixed: set[Node]) -> bool:
        """Return whether a node and the one `length` after it correspond, given the correspondences so far."""
        if self.keys[at] != self.keys[at + length]:
            return False
        found: dict[Node, Node] = {}
        number = self.number
        for a, b in zip(self.operands[at], self.operands[at + length], strict=True):
            if number[b] - number[a] == length and number[a] >= self.count:
                continue
            if a.op == b.op == "placeholder":
                known = after.get(a, found.get(a))
                fits = known is None and b not in before and self.keys[number[a]] == self.keys[number[b]]
                if b is not known and not fits:
                    return False
                found[a] = b
            elif a is b:
                fixed.add(a)
            else:
                return False
        if len(set(found.values())) != len(found):
            return False
        after.update(found)
        before.update({b: a for a, b in found.items()})
        return True


def _key(node: Node, operands: list[Node]) -> Any:
    """Return the key on which corresponding nodes agree, and add their operands to `operands`, as `map_arg` comes to
    them; see also `digest.digest_text`."""
    meta = node.meta
    target = None if node.op == "placeholder" else node.target
    args, kwargs = _form(node.args, operands), _form(node.kwargs, operands) if node.kwargs else ()
    return (node.op, target, args, kwargs, _form(meta.get("val"), operands),
            bool(meta.get("param")), meta.get("layout"), bool(meta.get("given up")))


def _form(value: Any, nodes: list[Node]) -> Any:
    """Return a nested argument or a description of a value as a hashable value; add its nodes to a list."""
    kind = type(value)
    if kind is int or kind is str or kind is bool or value is None:
        return kind, value
    if isinstance(value, Node):
        nodes.append(value)
        return Node
    if isinstance(value, torch.Tensor):
        sizes = [n if type(n) is int else expr_of(n) for n in (*value.shape, *value.stride())]
        return (*sizes, value.dtype, value.device)
    if isinstance(value, (tuple, list)):
        return tuple([_form(v, nodes) for v in value])
    if isinstance(value, dict):
        return tuple([(name, _form(v, nodes)) for name, v in value.items()])
    return expr_of(value) if isinstance(value, torch.SymInt) else (kind, repr(value))


# ----------------------------------------------------------------------------------------------------- the short graph


class _Reaches(Exception):
    """A node outside of a run reads a value from its middle."""


class _Shortened:
    """A graph without the omitted parts of a run."""

    def __init__(self, nodes: list[Node], count: int, run: Run) -> None:
        self.nodes = nodes
        self.count = count
        self.run = run
        self.left_out = run.parts - HEAD - TAIL
        self.cut = run.start + HEAD * run.length
        self.number = {n: k for k, n in enumerate(nodes)}
        self.short = Graph()
        self.made: dict[int, Node] = {}  # by number in the graph, of what is not left out
        moving = {n: after for n, after in run.after.items() if n is not after}
        later = set(moving.values())
        self.links = [self._chain(n) for n in moving if n not in later]
        self.moving = len(later | moving.keys())
        self.link = {n: (chain, k) for chain in self.links for k, n in enumerate(chain)}

    def _chain(self, first: Node) -> tuple[Node, ...]:
        found = [first]
        while (after := self.run.after.get(found[-1])) is not None:
            found.append(after)
        return tuple(found)

    def repetition(self) -> Repetition | None:
        try:
            return self._repetition()
        except _Reaches:
            return None

    def _repetition(self) -> Repetition:
        results: Any = self.nodes[-1].args[0]
        if len(self.link) < self.moving:  # parts take turns
            raise _Reaches
        inputs = self._placeholders()
        end = self.cut + self.left_out * self.run.length
        for number in [*range(self.count, self.cut), *range(end, len(self.nodes) - 1)]:
            node, late = self.nodes[number], number >= end
            args, kwargs = map_arg((node.args, node.kwargs), partial(self._argument, late=late))
            self.made[number] = insert_node(self.short, node.op, node.name, node.target, args, kwargs)
            self.made[number].meta.update(node.meta)
        outputs, output_chains = self._outputs()
        places = {place: short for place, short in enumerate(inputs) if short is not None}
        input_chains = tuple([Chain(chain, tuple([places[n] for n in chain if n in places]))
                              for chain in (tuple([self.number[n] for n in chain]) for chain in self.links)])
        late = tuple([k for k, n in enumerate(results) if self.number.get(n, -1) >= end])
        return Repetition(self.short, self.run.start - (self.count - len(places)), self.run.length, self.left_out,
                          len(places), inputs, outputs, input_chains, output_chains, late)

    def _placeholders(self) -> tuple[int | None, ...]:
        """Add the placeholders; of a chain, the first ones stay."""
        inputs: list[int | None] = []
        for number, node in enumerate(self.nodes[:self.count]):
            chain, place = self.link.get(node, ((), -1))
            if place >= len(chain) - self.left_out >= 0:
                inputs.append(None)
                continue
            inputs.append(len(self.made))
            made = self.made[number] = insert_node(self.short, node.op, node.name, node.target, node.args, node.kwargs)
            made.meta.update(node.meta)
        return tuple(inputs)

    def _argument(self, node: Node, late: bool) -> Node:
        """Return the node of the short graph for an argument; of a `late` node, which follows the parts that are left
        out."""
        number, earlier = self.number[node], self.left_out * self.run.length
        if node in self.link:
            chain, place = self.link[node]
            place -= self.left_out if late else 0
            number = self.number[chain[place]] if place >= 0 else -1
        elif late and self.run.start <= number < self.cut + earlier:
            number = number - earlier if number - earlier >= self.run.start else -1
        if number not in self.made:
            raise _Reaches
        return self.made[number]

    def _outputs(self) -> tuple[tuple[int | None, ...], tuple[Chain, ...]]:
        """Add the output. A result of one part is one of all parts, except possibly the first and the last."""
        output = self.nodes[-1]
        args: Any = output.args[0]
        start, length, parts, left_out = self.run.start, self.run.length, self.run.parts, self.left_out
        chains: dict[tuple[int, int], dict[int, int]] = {}  # (place in a part, which of equal results) -> part -> place
        equal: Counter[int] = Counter()
        outputs: list[int | None] = []
        results: list[Any] = []
        for place, arg in enumerate(args):
            number = self.number[arg] if isinstance(arg, Node) else -1
            if arg in self.link:
                raise _Reaches
            if start <= number < start + parts * length:
                part, offset = divmod(number - start, length)
                chains.setdefault((offset, equal[number]), {})[part] = place
                equal[number] += 1
                if HEAD <= part < HEAD + left_out:
                    outputs.append(None)
                    continue
            outputs.append(len(results))
            results.append(self.made[number] if number >= 0 else arg)
        made = self.short.output(tuple(results))
        made.meta.update(output.meta)
        if "val" in output.meta:
            made.meta["val"] = tuple([v for v, k in zip(output.meta["val"], outputs, strict=True) if k is not None])
        found = []
        for chain in chains.values():
            if chain.keys() <= {0, parts - 1}:
                continue
            if not all(part in chain for part in range(1, parts - 1)):
                raise _Reaches
            places = tuple([chain[part] for part in sorted(chain)])
            found.append(Chain(places, tuple([outputs[p] for p in places if outputs[p] is not None])))  # type: ignore
        return tuple(outputs), tuple(found)


__all__ = ["HEAD", "TAIL", "Chain", "RepeatedGraph", "Repetition", "Run", "Search", "find_repetition"]
