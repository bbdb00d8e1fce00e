"""The graph of all parts from what a transformation has made of one with a few of them (see `repetition`).

    x w0 w1 w2 w3 w4 ──T──► a0 a1 | a2 a3 a4          the short graph, transformed: a run of parts, cut in its middle
    x w0 w1 ... w47  ──T──► a0 a1 | a1' a1'' ... | a45 a46 a47

A transformation whose rules look at operators, their operands and users treats inner parts alike. This is checked on
its result: it must be a run itself, in which each node originates from the node of the short graph one part later (or
earlier, as in a backward) than that one part before. `mark` numbers the nodes of the short graph for this, in
`meta["stack"]`, which every transformation hands on; the whole graph has the stacks of its own parts again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, islice
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg

from framesmith.graph.nodes import free_name, insert_node
from framesmith.graph.purity import is_pure
from framesmith.graph.repetition import HEAD, Chain, RepeatedGraph, Repetition, Run, Search

LEAST = 3
"""The least number of parts of a run of a transformed short graph: the one that is copied has a neighbour on either
side."""
_TRIES = 16  # nodes of one part at which a run is looked for


class NotUnrolled(Exception):
    """The result of a transformation does not consist of equal parts."""


class _Stack(tuple):  # type: ignore[type-arg]
    """The stack of a node of a short graph, with the node's number."""

    number: int


def mark(short: Graph) -> None:
    """Number the nodes of a short graph, so that it is known of which of them another graph's nodes originate."""
    for number, node in enumerate(short.nodes):
        stack = node.meta["stack"] = _Stack(node.meta.get("stack", ()))
        stack.number = number


@dataclass(frozen=True, slots=True)
class Slots:
    """The inputs or the results of a short graph among the `count` of the whole one. `fixed`: place in the short graph
    -> place. `links`: place in the short graph -> chain, and number among its elements in the order of the run's parts.
    `chains`: chain -> number of an element in the whole graph -> place there: in the run up to the cut, elements have
    the number of the short graph, and behind the inserted parts one that is greater by their number."""

    count: int
    fixed: Mapping[int, int]
    links: Mapping[int, tuple[Any, int]] = field(default_factory=dict)
    chains: Mapping[Any, Mapping[int, int]] = field(default_factory=dict)

    @staticmethod
    def of(places: Sequence[int | None], chains: Sequence[Chain]) -> Slots:
        """Return the inputs or the results of a repetition."""
        links = {short: (c, k) for c, chain in enumerate(chains) for k, short in enumerate(chain.short)}
        fixed = {short: place for place, short in enumerate(places) if short is not None and short not in links}
        return Slots(len(places), fixed, links, {c: dict(enumerate(chain.places)) for c, chain in enumerate(chains)})

    def only(self, short: Sequence[bool], whole: Sequence[bool]) -> Slots:
        """Return those that are left if only some are, in the short and in the whole graph."""
        before, places = _counted(short), _counted(whole)
        links = {before[k]: link for k, link in self.links.items() if short[k]}
        left = {chain for chain, _ in links.values()}
        return Slots(sum(whole), {before[k]: places[place] for k, place in self.fixed.items() if short[k]}, links,
                     {chain: {k: places[place] for k, place in elements.items()}
                      for chain, elements in self.chains.items() if chain in left})


class Unrolling(Search):
    """The run of `short`, which a transformation has made of the marked short graph of `of`; `backwards`: its parts are
    in the opposite order. Raises `NotUnrolled`.

    `start`, `length`, `parts`: as of a run. `cut`: the number of the node before which the omitted parts are inserted,
    which are copies of the part before it.
    """

    reach = 1

    def __init__(self, of: Repetition, short: Graph, inputs: Slots, backwards: bool = False) -> None:
        nodes = list(short.nodes)
        count = sum(n.op == "placeholder" for n in nodes)
        if any(n.op == "placeholder" for n in nodes[count:]) or count != len(inputs.fixed) + len(inputs.links):
            raise NotUnrolled("inputs that were added")
        super().__init__(nodes, count, LEAST)
        self.of, self.inputs, self.backwards = of, inputs, backwards
        self.links = {nodes[place]: link for place, link in inputs.links.items()}
        self.origins = [getattr(n.meta.get("stack"), "number", None) for n in nodes]
        self.apart = -of.length if backwards else of.length
        run = next((found for anchor in self._anchors() if (found := self._run_at(anchor)) is not None), None)
        if run is None:
            raise NotUnrolled("no run")
        self.start, self.length, self.parts = run.start, run.length, run.parts
        self.end = self.start + self.parts * self.length
        self.cut = self.start + self.parts // 2 * self.length
        self._check_surroundings()

    # ------------------------------------------------------------------------------------------------------- the run

    def _anchors(self) -> Iterator[int]:
        """Return nodes that originate from different ones of the second part."""
        first = self.of.start + (3 if self.backwards else 1) * self.of.length
        found: dict[int, int] = {}
        for number in range(self.count, len(self.nodes) - 1):
            origin = self.origins[number]
            if origin is not None and first <= origin < first + self.of.length:
                found.setdefault(origin, number)
        return islice(found.values(), _TRIES)

    def _run_at(self, anchor: int) -> Run | None:
        """Return the run in which the node one part after an anchor is the first with its key and its origin."""
        origin, key = self.origins[anchor], self.keys[anchor]
        assert origin is not None
        other = next((k for k in range(anchor + 1, len(self.nodes) - 1)
                      if self.keys[k] == key and self.origins[k] == origin + self.apart), None)
        return None if other is None else self.about(anchor, other - anchor)

    def match(self, at: int, length: int, after: dict[Node, Node], before: dict[Node, Node], fixed: set[Node]) -> bool:
        """Also return False where nodes do not originate from corresponding ones, or read inputs of other parts."""
        one, two = self.origins[at], self.origins[at + length]
        if one is None or two is None or two - one != self.apart:
            return False
        for a, b in zip(self.operands[at], self.operands[at + length], strict=False):
            if a.op == "placeholder" and not self._correspond(a, b):
                return False
        return super().match(at, length, after, before, fixed)

    def _correspond(self, a: Node, b: Node) -> bool:
        """Return whether an input of a part corresponds to one of the next, or is one of all parts."""
        if (link := self.links.get(a)) is None:
            return a is b
        return self.links.get(b) == (link[0], link[1] + 1)

    def _check_surroundings(self) -> None:
        """Check that nodes before the run originate from nodes on one side of the omitted parts, and those after it
        from nodes on the other, and that the latter read nothing from before the cut but from before the run. A value
        that depends on no part may be computed anywhere."""
        middle = self.of.start + HEAD * self.of.length
        free: set[Node] = set(self.nodes[:self.count]) - self.links.keys()
        for number in [*range(self.count, self.start), *range(self.end, len(self.nodes) - 1)]:
            origin, late = self.origins[number], number >= self.end
            if is_pure(self.nodes[number]) and free.issuperset(self.operands[number]):
                free.add(self.nodes[number])
            elif origin is None or (origin >= middle) is not (late is not self.backwards):
                raise NotUnrolled("a node outside of the parts is of unknown origin")
            if late and any(self.start <= self.number[a] < self.cut for a in self.operands[number]):
                raise NotUnrolled("a part in the middle is read")

    # --------------------------------------------------------------------------------------------- the whole graph

    def is_like_part(self, number: int) -> bool:
        """Return whether a node is in the run, or would be if it had one part more at its beginning or end."""
        if self.start - self.length <= number < self.start:
            return number >= 0 and self.keys[number] == self.keys[number + self.length]
        return self.start <= number < self.end or (
            number < self.end + self.length and self.keys[number] == self.keys[number - self.length])

    def later(self, number: int) -> range:
        """Return by how many parts later the whole graph has copies of a node."""
        left_out = self.of.left_out
        if number < self.cut:
            return range(left_out + 1 if number >= self.cut - self.length else 1)
        return range(left_out, left_out + 1)

    def at(self, number: int, later: int) -> int:
        """Return the number of a node's copy among those of the whole graph that are no inputs."""
        return number - self.count + later * self.length

    def copy(self, at: int) -> tuple[int, int]:
        """Return the node of which one of the whole graph is a copy, and how many parts later: the inverse of `at`."""
        number = at + self.count
        later = min(max((number - self.cut) // self.length + 1, 0), self.of.left_out)
        return number - later * self.length, later

    def origin(self, number: int, later: int) -> int | None:
        """Return the number of the node that a copy originates from, in the graph that `of` is of."""
        origin = self.origins[number]
        if origin is None:
            return None
        return self.of.number(origin, self.of.left_out - later if self.backwards else later)

    def whole(self, outputs: Slots, places: Sequence[tuple[str, dict[str, Any]]],
              originals: Sequence[Node]) -> RepeatedGraph:
        """Return the whole graph. `places`: names and metadata of its inputs. `originals`: the nodes of the graph that
        `of` is of."""
        graph = RepeatedGraph()
        given: list[Node] = []
        for name, meta in places:
            given.append(insert_node(graph, "placeholder", name, name, (), {}))
            given[-1].meta.update(meta)
        made: list[Node] = []
        steps = self._steps()
        order = [(number, 0) for number in range(self.count, self.cut)]
        order += [(number, k) for k in range(1, self.of.left_out + 1)
                  for number in range(self.cut - self.length, self.cut)]
        order += [(number, self.of.left_out) for number in range(self.cut, len(self.nodes) - 1)]
        for number, later in order:
            node = self.nodes[number]
            read = deque([self._operand(a, by, given, made) for a, by in self._read(number, later)])
            args, kwargs = map_arg((node.args, node.kwargs), partial(_next, read))
            name = free_name(graph, _later_name(node.name, later, steps))
            copy = insert_node(graph, node.op, name, node.target, args, kwargs)
            copy.meta.update(node.meta)
            origin = self.origin(number, later)
            copy.meta["stack"] = () if origin is None else originals[origin].meta.get("stack", ())
            made.append(copy)
        results = self._results(outputs, given, made)
        output = graph.output(tuple(results))
        output.meta.update({k: v for k, v in self.nodes[-1].meta.items() if k != "stack"})
        output.meta["val"] = tuple([n.meta["val"] if isinstance(n, Node) else n for n in results])
        graph.parts = self.repetition(outputs)
        return graph

    def _read(self, number: int, later: int) -> list[tuple[Node, int]]:
        """Return the operands of a node's copy: nodes of the short graph, and how many parts later."""
        operands = self.operands[number]
        if not later:
            return [(a, 0) for a in operands]
        if number >= self.end:
            return [(a, 0 if self.count <= self.number[a] < self.start else later) for a in operands]
        other = number + (-self.length if number >= self.cut else self.length)  # one part before or after
        return [(a, 0 if a is b else later) for a, b in zip(operands, self.operands[other], strict=True)]

    def _operand(self, node: Node, later: int, given: list[Node], made: list[Node]) -> Node:
        """Return a node of the whole graph, `later` parts after one of the short graph."""
        number = self.number[node]
        if number >= self.count:
            return made[self.at(number, later)]
        link = self.links.get(node)
        if link is None:
            return given[self.inputs.fixed[number]]
        chain, place = link
        if (found := self.inputs.chains[chain].get(place + later)) is None:
            raise NotUnrolled("an input that no part has")
        return given[found]

    def _results(self, outputs: Slots, given: list[Node], made: list[Node]) -> list[Any]:
        found: dict[int, Any] = {}
        none: dict[Any, list[bool]] = {}
        for short, value in enumerate(self.nodes[-1].args[0]):  # type: ignore[arg-type, var-annotated]
            number = self.number[value] if isinstance(value, Node) else -1
            link = outputs.links.get(short)
            if value in self.links or link is not None and number < self.count and value is not None:
                raise NotUnrolled("a result that is an input of a part")
            if link is None:
                late = self.of.left_out if number >= self.cut else 0
                result = self._operand(value, late, given, made) if isinstance(value, Node) else value
                if found.setdefault(outputs.fixed[short], result) is not result:
                    raise NotUnrolled("two results in one place")
                continue
            chain, place = link
            none.setdefault(chain, []).append(value is None)
            for later in self.later(number) if value is not None else ():
                at = outputs.chains[chain].get(place + later)
                if at is None or at in found:
                    raise NotUnrolled("results that do not correspond to parts")
                found[at] = made[self.at(number, later)]
        for chain in [c for c, flags in none.items() if all(flags)]:
            found.update(dict.fromkeys(outputs.chains[chain].values()))
        if len(found) != outputs.count:
            raise NotUnrolled("results that are missing")
        return [found[k] for k in range(outputs.count)]

    def _steps(self) -> dict[str, int]:
        """Return for beginnings of names by how much the numbers behind them increase from part to part."""
        steps: dict[str, int] = {}
        for number in range(self.cut - self.length, self.cut):
            (base, one), (other, two) = (_split(self.nodes[k].name) for k in (number, number + self.length))
            if base == other:
                steps.setdefault(base, two - one)
        return steps

    # ------------------------------------------------------------------------------------------------- the repetition

    def repetition(self, outputs: Slots) -> Repetition:
        """Return the whole graph as a repetition of the short one."""
        short: Any = self.nodes[-1].args[0]
        inputs, input_chains = self._chains(self.inputs, self.count)
        places, output_chains = self._chains(outputs, len(short))
        late = tuple([place for place, k in enumerate(places)
                      if k is not None and self.number.get(short[k], -1) >= self.cut])
        return Repetition(self.nodes[0].graph, self.start, self.length, self.of.left_out, self.count, inputs, places,
                          input_chains, output_chains, late)

    def _chains(self, slots: Slots, count: int) -> tuple[tuple[int | None, ...], tuple[Chain, ...]]:
        places: list[int | None] = [None] * slots.count
        for short, place in slots.fixed.items():
            places[place] = short
        chains = []
        for chain, elements in slots.chains.items():
            own = sorted((k, short) for short, (c, k) in slots.links.items() if c == chain)
            whole = [elements[k] for k in sorted(elements)]
            if len(own) + self.of.left_out != len(whole) or not own:
                raise NotUnrolled("a chain that is not of all parts")
            for place, (_, short) in zip(whole, own, strict=False):
                places[place] = short
            chains.append(Chain(tuple(whole), tuple([short for _, short in own])))
        return tuple(places), tuple(chains)


class RewrittenGraph:
    """A graph after its passes. `parts`: the graph as a repetition, if it is known as one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.parts: Repetition | None = None

    @property
    def sample(self) -> Graph:
        """A graph with all different nodes of it."""
        return self.graph if self.parts is None else self.parts.short

    @cached_property
    def _nodes(self) -> list[Node]:
        return list(self.graph.nodes)

    def stack(self, number: int) -> Any:
        """Return the stack of a node."""
        return self._nodes[number].meta.get("stack")

    @property
    def calls(self) -> int:
        """The number of calls in the graph."""
        return sum(n.op == "call_function" for n in self._nodes)


class UnrolledGraph(RewrittenGraph):
    """A graph of which only a short one, the marked one of `of`, was rewritten in place, with the same inputs and
    results; the graph itself is made when it is read. `graph`: as it was. Raises `NotUnrolled`."""

    def __init__(self, graph: Graph, of: Repetition) -> None:
        self._before, self._of = list(graph.nodes), of
        self._outputs = Slots.of(of.outputs, of.output_chains)
        self._run = Unrolling(of, of.short, Slots.of(of.inputs, of.input_chains))
        self.parts = self._run.repetition(self._outputs)

    def stack(self, number: int) -> Any:
        origin = self._run.origin(*self._run.copy(number - len(self._of.inputs)))
        return None if origin is None else self._before[origin].meta.get("stack")

    @property
    def calls(self) -> int:
        run = self._run
        calls = [n.op == "call_function" for n in run.nodes]
        return sum(calls) + self._of.left_out * sum(calls[run.cut - run.length:run.cut])

    @cached_property
    def graph(self) -> Graph:  # type: ignore[override]
        """The graph itself."""
        likes = {place: at for place, at in enumerate(self._of.inputs) if at is not None}
        likes.update({place: chain.short[min(k, len(chain.short) - 1)]
                      for chain in self._of.input_chains for k, place in enumerate(chain.places)})
        places = [(node.name, {**self._run.nodes[likes[place]].meta, **node.meta})
                  for place, node in enumerate(self._before[:len(self._of.inputs)])]
        return self._run.whole(self._outputs, places, self._before)


def _counted(flags: Sequence[bool]) -> list[int]:
    """Return for each flag how many before it are set."""
    return [0, *accumulate(map(int, flags))][:-1]


def _next(read: deque[Node], _: Node) -> Node:
    return read.popleft()


def _split(name: str) -> tuple[str, int]:
    """Return the beginning and the number of a name."""
    base, _, number = name.rpartition("_")
    return (base, int(number)) if base and number.isdigit() else (name, 0)


def _later_name(name: str, later: int, steps: Mapping[str, int]) -> str:
    """Return the name that a recorder would give a node some parts later."""
    base, number = _split(name)
    step = steps.get(base) if later else None
    return name if step is None else f"{base}_{number + later * step}"


__all__ = ["NotUnrolled", "UnrolledGraph", "Slots", "Unrolling", "RewrittenGraph", "mark"]
