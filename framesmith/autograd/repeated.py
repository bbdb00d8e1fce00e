"""Differentiate a graph of many equal parts by a graph with a few of them (see `graph.repetition`).

The joint graph of the short graph is traced and partitioned, and the forward and the backward are unrolled
(`graph.unrolling`): each is a run of parts, those of the backward in the opposite order. What belongs to an input of
each part, such as whether a gradient of it is wanted, has to be the same for all parts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from framesmith.autograd.joint import SAVES, Joint, output_node, trace_joint
from framesmith.autograd.partition import Parts, partition
from framesmith.graph.repetition import HEAD, TAIL, Repetition, find_repetition
from framesmith.graph.symbols import symbols_of
from framesmith.graph.traversal import placeholders_of
from framesmith.graph.unrolling import NotUnrolled, Slots, Unrolling, mark

_EXCLUDED = ("binds", "checkpoint", "derivative", "straight", "written", "within", "in", "constant")
"""Metadata on which the joint graph depends, and for which graphs are not shortened."""
_TURNS = ("overwritten", "in_place")
_OF_INPUT = ("requires_grad", "passing")
_NAMED = ("source", "constant", "passing")
"""The metadata that an input of the joint graph copies from the captured one."""


def differentiated(graph: fx.Graph, recompute: bool, budget: float, by_parts: bool) -> tuple[Joint, Parts]:
    """Return the joint graph of a captured graph, and its parts; where the graph has many equal parts, the joint graph
    is that of a short one, with the other facts of the whole."""
    found = find_repetition(graph) if by_parts and budget >= 1 and not _is_excluded(graph) else None
    if found is not None and not found.output_chains and _are_alike(found, list(graph.nodes)):
        mark(found.short)
        joint = trace_joint(found.short)
        try:
            return _Whole(graph, found, joint, partition(joint, recompute, budget)).both()
        except NotUnrolled:
            pass  # some part is differentiated otherwise than others
    joint = trace_joint(graph)
    return joint, partition(joint, recompute, budget)


def _is_excluded(graph: fx.Graph) -> bool:
    metas = [n.meta for n in graph.nodes]
    return any(meta.get(name) is not None for meta in metas for name in _EXCLUDED) or bool(symbols_of(graph.nodes))


def _are_alike(found: Repetition, nodes: Sequence[fx.Node]) -> bool:
    """Return whether corresponding inputs have all metadata in common, and corresponding nodes what autograd reads."""
    inputs = all(len({tuple([bool(nodes[k].meta.get(name)) for name in _OF_INPUT]) for k in chain.places}) == 1
                 for chain in found.input_chains)
    first, length = found.number(found.start, 0), found.length
    writes = [_writes_of(n.meta) for n in nodes[first:first + (HEAD + found.left_out + TAIL) * length]]
    return inputs and all(map(operator.eq, writes, writes[length:]))


def _writes_of(meta: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what metadata says of the writes of a value, in numbers of torch calls after the one that computes it."""
    turn = meta.get("turn", 0)
    flags = [bool(meta.get(name)) for name in ("no_grad", "once")]
    return *flags, *[meta[name] - turn if name in meta else None for name in _TURNS]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value that the whole forward keeps: its order among them, its way, the place of its like in the short forward's
    list, and the number of its node in the short forward and by how many parts later it is; -1, 0: an input."""

    order: tuple[int, int]
    way: tuple[str, int]
    like: int
    number: int = -1
    later: int = 0


class _Whole:
    """The whole joint graph and its parts from those of a short one. Raises `NotUnrolled`."""

    def __init__(self, graph: fx.Graph, found: Repetition, joint: Joint, parts: Parts) -> None:
        if joint.written or parts.copied or parts.carried:
            raise NotUnrolled("inputs that are written, or sizes that vary")
        self.nodes = list(graph.nodes)
        self.places = placeholders_of(graph)
        self.found, self.joint, self.parts = found, joint, parts
        self.inputs = Slots.of(found.inputs, found.input_chains)
        self.forward = Unrolling(found, parts.forward, self.inputs)

    def both(self) -> tuple[Joint, Parts]:
        parts, joint = self.parts, self.joint
        kept, wanted = self._kept(), self._inputs(joint.wanted)
        outputs = self._forward_outputs([k for k in kept if k.way[0] == "extra"])
        drawn, saved = set(parts.drawn), dict(joint.saved_inputs)

        def forward() -> fx.Graph:
            return self.forward.whole(outputs, self._given(), self.nodes)

        def computed() -> tuple[list[fx.Node], list[fx.Node]]:
            nodes = list(forward().nodes)
            returned: Any = nodes[-1].args[0]
            found = {"input": nodes, "result": returned, "extra": returned[joint.results:]}
            return nodes, [found[k.way[0]][k.way[1]] for k in kept]

        whole = Parts(forward(), self._backward(kept, wanted), tuple([k.way for k in kept]), computed,
                      tuple([parts.layouts[k.like] for k in kept]),
                      tuple([n for n, k in enumerate(kept) if k.like in drawn]), self._inputs(parts.needed),
                      self._inputs(parts.exact), (), ())
        saved_inputs = {place: saved[like] for place, like in zip(self._inputs(saved), self._likes(saved), strict=True)}
        return replace(joint, inputs=len(self.places), wanted=wanted, order=self._order(wanted),
                       saved_inputs=saved_inputs, read=self._read()), whole

    # ---------------------------------------------------------------------------------------------------------- inputs

    def _whole_inputs(self, short: Iterable[int]) -> dict[int, int]:
        """Return the inputs that correspond to some of the short graph, in order, each with its like."""
        some = set(short)
        found = {self.inputs.fixed[k]: k for k in some if k in self.inputs.fixed}
        for chain in self.found.input_chains:
            own = some.intersection(chain.short)
            if len(own) not in (0, len(chain.short)):
                raise NotUnrolled("an input of some of the parts")
            found.update({place: chain.short[min(k, len(chain.short) - 1)]
                          for k, place in enumerate(chain.places) if own})
        return dict(sorted(found.items()))

    def _inputs(self, short: Iterable[int]) -> tuple[int, ...]:
        return tuple(self._whole_inputs(short))

    def _likes(self, short: Mapping[int, int]) -> list[int]:
        """Return the likes of the same, for a property that all parts have in common."""
        for chain in self.found.input_chains:
            if len({short.get(k) for k in chain.short}) > 1:
                raise NotUnrolled("inputs that are saved for different gradients")
        return list(self._whole_inputs(short).values())

    def _given(self) -> list[tuple[str, dict[str, Any]]]:
        """Return names and metadata of the whole forward's inputs."""
        likes = self._whole_inputs(range(self.joint.inputs))
        short = placeholders_of(self.parts.forward)
        return [(self.places[k].name, self._meta(short[like], k)) for k, like in likes.items()]

    def _meta(self, short: fx.Node, place: int) -> dict[str, Any]:
        own = self.places[place].meta
        named = {k: own[k] for k in _NAMED if k in own and k in short.meta}
        return {**short.meta, "stack": own.get("stack", ()), **named}

    # ---------------------------------------------------------------------------------------------------- kept values

    def _kept(self) -> list[_Kept]:
        """Return the values that the whole forward keeps, in order."""
        run, results = self.forward, self.joint.results
        returned: Any = output_node(self.parts.forward).args[0]
        inputs = {place: k for k, (kind, place) in enumerate(self.parts.kept) if kind == "input"}
        found = [_Kept((0, place), ("input", place), inputs[like])
                 for place, like in self._whole_inputs(inputs).items()]
        for k, (kind, place) in enumerate(self.parts.kept):
            if kind == "input":
                continue
            number = run.number[returned[place if kind == "result" else results + place]]
            copies = run.later(number)
            if kind == "result" and len(copies) > 1:
                raise NotUnrolled("a result of the part that is copied")
            found += [_Kept((1, run.at(number, later)), (kind, place), k, number, later) for later in copies]
        found.sort(key=lambda k: k.order)
        count = iter(range(len(found)))
        return [replace(k, way=("extra", next(count))) if k.way[0] == "extra" else k for k in found]

    def _forward_outputs(self, extras: Sequence[_Kept]) -> Slots:
        """Return the results of the forward: those of the captured graph, and the extras."""
        results, run = self.joint.results, self.forward
        count = results + len(extras)
        fixed = {k: k for k in range(results)}
        of_short: dict[int, list[int]] = {}  # by the node's number
        at = {}
        for extra in extras:
            at[extra.number, extra.later] = results + extra.way[1]
        ways = {n: place for n, (kind, place) in enumerate(self.parts.kept) if kind == "extra"}
        for extra in extras:
            of_short.setdefault(extra.number, []).append(results + ways[extra.like])
        links, chains = dict[int, tuple[Any, int]](), dict[Any, dict[int, int]]()
        for offset, numbers in _by_offset(run, of_short).items():
            first = run.cut - run.length + offset
            if not {first, first + run.length} <= set(numbers):
                if first in numbers or first + run.length in numbers:
                    raise NotUnrolled("a value that only some parts keep")
                continue
            for number in numbers:
                part = (number - run.start) // run.length
                for short in of_short.pop(number):
                    links[short] = offset, part
                for later in run.later(number):
                    chains.setdefault(offset, {})[part + later] = at[number, later]
        for number, shorts in of_short.items():
            fixed.update({short: at[number, run.later(number)[0]] for short in shorts})
        return Slots(count, fixed, links, chains)

    # ------------------------------------------------------------------------------------------------------- backward

    def _backward(self, kept: Sequence[_Kept], wanted: Sequence[int]) -> fx.Graph:
        run, left_out, parts = self.forward, self.found.left_out, self.parts
        tangents = len(placeholders_of(parts.backward)) - len(parts.kept)
        fixed = {len(parts.kept) + k: len(kept) + k for k in range(tangents)}
        links, chains = dict[int, tuple[Any, int]](), dict[Any, dict[int, int]]()
        likes: dict[Any, dict[int, int]] = {}  # chain -> number in the short graph -> place in the short list
        linked = {short: (("input", c), k) for short, (c, k) in self.inputs.links.items()}
        for place, value in enumerate(kept):
            kind, at = value.way
            if kind == "input":
                like = linked.get(parts.kept[value.like][1])
                if like is not None:
                    chain = like[0]
                    whole = {p: k for k, p in self.inputs.chains[chain[1]].items()}[at]
                    chains.setdefault(chain, {})[left_out - whole] = place
            elif run.is_like_part(value.number):
                part, offset = divmod(value.number - run.start, run.length)
                chain = "value", offset
                likes.setdefault(chain, {})[part] = value.like
                chains.setdefault(chain, {})[left_out - part - value.later] = place
        for k, (kind, at) in enumerate(parts.kept):
            if kind == "input" and at in linked:
                chain, number = linked[at]
                likes.setdefault(chain, {})[number] = k
        for chain, own in likes.items():
            if len(own) + left_out == len(chains[chain]):
                links.update({k: (chain, -number) for number, k in own.items()})
            elif len(own) != len(chains[chain]):
                raise NotUnrolled("a value that only some parts keep")
            else:
                del chains[chain]
        fixed.update({value.like: place for place, value in enumerate(kept) if value.like not in links})
        inputs = Slots(len(kept) + tangents, fixed, links, chains)
        run = Unrolling(self.found, parts.backward, inputs, backwards=True)
        return run.whole(self._gradients(wanted), self._backward_places(kept), self.nodes)

    def _backward_places(self, kept: Sequence[_Kept]) -> list[tuple[str, dict[str, Any]]]:
        """Return names and metadata of the whole backward's inputs."""
        short = placeholders_of(self.parts.backward)
        names: set[str] = set()
        found = []
        for value in kept:
            like = short[value.like]
            place = value.way[1]
            name = self.places[place].name if value.way[0] == "input" else like.name
            while name in names:
                name += f"_{value.later}"
            names.add(name)
            found.append((name, self._meta(like, place) if value.way[0] == "input" else self._stacked(like, value)))
        return found + [(n.name, {**n.meta, "stack": ()}) for n in short[len(self.parts.kept):]]

    def _stacked(self, like: fx.Node, value: _Kept) -> dict[str, Any]:
        origin = self.forward.origin(value.number, value.later)
        return {**like.meta, "stack": () if origin is None else self.nodes[origin].meta.get("stack", ())}

    def _gradients(self, wanted: Sequence[int]) -> Slots:
        """Return the results of the backward: the gradients of wanted inputs."""
        left_out, at = self.found.left_out, {place: k for k, place in enumerate(wanted)}
        links = {k: (self.inputs.links[place][0], -self.inputs.links[place][1])
                 for k, place in enumerate(self.joint.wanted) if place in self.inputs.links}
        fixed = {k: at[self.inputs.fixed[place]] for k, place in enumerate(self.joint.wanted) if k not in links}
        chains = {c: {left_out - k: at[place] for k, place in self.inputs.chains[c].items()}
                  for c in {c for c, _ in links.values()}}
        return Slots(len(wanted), fixed, links, chains)

    def _order(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Return the order in which autograd computes the gradients: a block of those of one part is repeated."""
        if not self.joint.order:
            return ()
        reached = [self.joint.wanted[k] for k in self.joint.order]
        links, left_out = self.inputs.links, self.found.left_out
        at = {place: k for k, place in enumerate(reached)}
        for place in reached:
            chain, number = links.get(place, (None, 0))
            if chain is None or number < 1:
                continue
            before = self.found.input_chains[chain].short[number - 1]
            first, length = at[place], at.get(before, 0) - at[place]
            block, following = reached[first:first + length], reached[first + length:first + 2 * length]
            moved = [(links[k][0], links[k][1] - 1) if k in links else None for k in block]
            if length > 0 and None not in moved and moved == [links.get(k) for k in following]:
                break
        else:
            raise NotUnrolled("gradients in no order of parts")
        cut = first + length

        def moving(places: Sequence[int], later: int) -> list[int]:
            return [self.inputs.chains[links[k][0]][links[k][1] + later] if k in links else self.inputs.fixed[k]
                    for k in places]

        whole = moving(reached[:cut], left_out)
        for later in range(1, left_out + 1):
            whole += moving(block, left_out - later)
        whole += moving(reached[cut:], 0)
        of = {place: k for k, place in enumerate(wanted)}
        if len(set(whole)) != len(whole) or not set(whole) <= of.keys():
            raise NotUnrolled("gradients in no order of parts")
        return tuple([of[place] for place in whole])

    def _read(self) -> dict[int, int]:
        """Return the saved values that autograd reads: of the nodes of the whole graph, what their likes save."""
        found, length = self.found, self.found.length
        middle = found.start + HEAD * length
        parts: list[set[tuple[int, int]]] = [set(), set(), set()]
        whole: dict[int, int] = {}
        for number, by in self.joint.read.items():
            node, save = divmod(number, SAVES)
            part = (node - found.start) // length - HEAD + 2
            if node >= found.start and 0 <= part < 3:
                parts[part].add(((node - found.start) % length * SAVES + save, by))
            copies = [found.left_out] if node >= middle else range(found.left_out + 1 if node >= middle - length else 1)
            for later in copies:
                whole[found.number(node, later) * SAVES + save] = by
        if not parts[0] == parts[1] == parts[2]:
            raise NotUnrolled("parts that save different values")
        return whole


def _by_offset(run: Unrolling, numbers: Iterable[int]) -> dict[int, list[int]]:
    """Return the nodes of a run by their place in a part."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        if run.start <= number < run.end:
            found.setdefault((number - run.start) % run.length, []).append(number)
    return found


__all__ = ["differentiated"]
