"""A backward in segments, so that gradients are accumulated while the rest of it runs.

Where hooks see gradients as they are accumulated (`DistributedDataParallel` sends them to other processes), the graph
of the backward is cut behind the gradients that are complete, and each part is a node of the autograd engine.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.graph.digest import digest_text
from framesmith.graph.purity import is_view
from framesmith.graph.symbols import symbols_of
from framesmith.graph.traversal import copy_node, placeholders_of
from framesmith.symbolic.node import hint_of

MOST = 8
LEAST = 1 << 20
"""About so many segments with equal bytes of gradients, and at least so many bytes in each but the last."""
Values = tuple[Any, ...]
Code = Callable[[list[Any]], Values]


@dataclass(frozen=True, slots=True)
class Part:
    """A segment: it takes the values `takes`, and gives the values `gives` and then the gradients at `places`; the
    values `dead` are read by no later one. Values are numbered, the inputs of the backward first."""

    takes: tuple[int, ...]
    gives: tuple[int, ...]
    places: tuple[int, ...]
    dead: tuple[int, ...]


class Segments:
    """The segments of a backward graph. `of`: by gradient, the segment that gives it; empty if there is one. `cut`: a
    digest of the graph, which passes change later, and of its parts, once it is cut."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self.of = _divided(graph)
        self._parts: list[tuple[Part, fx.Graph]] = []
        self._code: dict[int, Code] = {}
        self.cut = ""

    def parts(self) -> list[tuple[Part, fx.Graph]]:
        """Return the segments in order, with their graphs."""
        if not self._parts:
            self._parts = _cut(self._graph, self.of)
            text = f"{digest_text(self._graph)} {[part for part, _ in self._parts]}"
            self.cut = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._parts

    def run(self, given: list[Any], compile: Callable[[int, list[Any]], Code]) -> Iterator[Values]:
        """Give the gradients of one segment after another, None in the place of others. `compile`: returns the code of
        a segment, by number, for its inputs. Empties `given`."""
        def code(number: int, taken: list[Any]) -> Code:
            if number not in self._code:
                self._code[number] = compile(number, taken)
            return self._code[number]

        return run_parts([part for part, _ in self.parts()], len(self.of), given, code)


def run_parts(parts: Sequence[Part], count: int, given: list[Any],
              code: Callable[[int, list[Any]], Code]) -> Iterator[Values]:
    """Give the `count` gradients of one part after another; see `Segments.run`."""
    values = dict(enumerate(given))
    given.clear()
    for number, part in enumerate(parts):
        taken = [values[n] for n in part.takes]
        for n in part.dead:
            del values[n]
        found = list(code(number, taken)(taken))
        values.update(zip(part.gives, found))
        del found[:len(part.gives)]
        # nothing here may hold a gradient meanwhile: then the engine would accumulate a copy of it
        yield _at_places(found, part.places, count)


def _at_places(gradients: list[Any], places: Sequence[int], count: int) -> Values:
    """Return a tuple of `count` with the gradients at their places and None elsewhere. Empties `gradients`."""
    out: list[Any] = [None] * count
    for place in reversed(places):
        out[place] = gradients.pop()
    return tuple(out)


def _divided(graph: fx.Graph) -> tuple[int, ...]:
    """By gradient, the segment that gives it; empty if there is to be one, as where sizes vary."""
    nodes = list(graph.nodes)
    if symbols_of(nodes):
        return ()
    grads: Any = nodes[-1].args[0]
    at = _positions(nodes)
    found = sorted((at[g], place) for place, g in enumerate(grads) if isinstance(g, fx.Node))
    share = max(LEAST, sum(_bytes(grads[place]) for _, place in found) / MOST)
    segment, size, last, of = 0, 0, -1, [0] * len(grads)
    for position, place in found:
        more = _bytes(grads[place])
        # cut where the size is nearest to the share, or about there: a gradient of few bytes may take long to compute
        if size >= LEAST and size + max(more, share / 4) / 2 >= share and position > last:
            segment, size = segment + 1, 0
        of[place], last = segment, position
        size += more
    return tuple(of) if segment else ()


def _positions(nodes: list[fx.Node]) -> dict[fx.Node, int]:
    """Where each value is computed: one of several results with the others."""
    at: dict[fx.Node, int] = {}
    for k, node in enumerate(nodes):
        source = node.args[0] if node.target is operator.getitem else None
        at[node] = at[source] if isinstance(source, fx.Node) else k
    return at


def _bytes(node: fx.Node) -> int:
    val = node.meta["val"]
    return hint_of(val.numel()) * val.element_size() if isinstance(val, torch.Tensor) else 0


def _cut(graph: fx.Graph, of: Sequence[int]) -> list[tuple[Part, fx.Graph]]:
    """Cut behind the last gradient of each segment."""
    nodes = list(graph.nodes)
    grads: Any = nodes[-1].args[0]
    at = _positions(nodes)
    numbers = {n: k for k, n in enumerate(dict.fromkeys([*placeholders_of(graph), *nodes]))}
    of_segment = [[p for p, g in enumerate(grads) if of[p] == k and isinstance(g, fx.Node)] for k in range(max(of) + 1)]
    ends = [max(at[grads[p]] for p in places) for places in of_segment]
    parts: list[tuple[Part, fx.Graph]] = []
    later: dict[fx.Node, None] = {}  # values that later parts take
    for k in reversed(range(len(ends))):
        begin = ends[k - 1] if k else -1
        gives = [n for n in later if at[n] > begin and n.op != "placeholder"]
        roots = [*gives, *[grads[p] for p in of_segment[k]]]
        inside = _inside(roots, at, begin)
        order = [n for n in nodes if n in inside]
        takes = list(dict.fromkeys(a for n in order for a in n.all_input_nodes if a not in inside))
        takes += [n for n in roots if n not in inside and n not in takes]  # an input that is a gradient
        dead = [n for n in takes if n not in later]
        taken, given, died = (tuple([numbers[n] for n in some]) for some in (takes, gives, dead))
        parts.append((Part(taken, given, tuple(of_segment[k]), died), _graph(order, takes, roots, set(dead))))
        later = {n: None for n in later if n not in gives} | dict.fromkeys(takes)
    return parts[::-1]


def _inside(roots: Sequence[fx.Node], at: dict[fx.Node, int], begin: int) -> set[fx.Node]:
    """The nodes behind the position `begin` of which `roots` are computed, and views of what was computed before."""
    inside: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        again = node.target is not operator.getitem and is_view(node.target)
        if node not in inside and node.op != "placeholder" and (at[node] > begin or again):
            inside.add(node)
            stack += node.all_input_nodes
    return inside


def _graph(nodes: Sequence[fx.Node], takes: Sequence[fx.Node], roots: Sequence[fx.Node],
           dead: set[fx.Node]) -> fx.Graph:
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in takes:
        made[node] = place = graph.placeholder(node.name)
        place.meta.update(node.meta if node.op == "placeholder" else {"val": node.meta["val"]})
        place.meta["given up"] = node in dead and (node.op != "placeholder" or bool(node.meta.get("given up")))
    for node in nodes:
        made[node] = copy_node(graph, node, made.__getitem__)
    output = graph.output(tuple([made[n] for n in roots]))
    output.meta["val"] = tuple([n.meta["val"] for n in roots])
    return graph
