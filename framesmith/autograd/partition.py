"""Partition a joint graph into a forward graph, which also returns the values that the backward needs, and the backward
graph.

`saved_values` chooses these values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.autograd.joint import TANGENT, UNREAD, Joint, output_node
from framesmith.autograd.layouts import Layout, lay_out, strides_of
from framesmith.autograd.saved_values import drawn, kept_values
from framesmith.autograd.shared_memory import read_early, read_late, shared_memory
from framesmith.autograd.value_numbering import Table, numbered
from framesmith.fake.outputs import memory_of
from framesmith.fake.tensor import new_fake
from framesmith.graph.cse import cse
from framesmith.graph.derivative import behind, without_derivatives
from framesmith.graph.purity import is_needed
from framesmith.graph.symbols import argument_symbols, symbols_held, symbols_of
from framesmith.graph.traversal import ancestors, copy_node, descendants, placeholders_of
from framesmith.symbolic.expr import Symbol
from framesmith.symbolic.layout import contiguous_strides
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
_PLACES = ("val", "stack", "constant", "source", "layout", "given up")
"""The metadata that an input of a part copies from the node of its value."""


@dataclass(frozen=True, slots=True)
class Parts:
    """`forward` takes the joint graph's inputs and gives its results and then the tensors of `kept` that are neither an
    input nor a result. `backward` takes the values of `kept` and then the tangents, and gives the gradients.

    `kept`: for each value, ("input", place), ("result", place) or ("extra", place among the extras); `computed`:
    returns nodes that compute them, and their own ones; `layouts`: its strides, where they are not eager's. `drawn`:
    places among them of random values, and of the sizes in `carried`. `needed`: the inputs from which gradients can be
    computed, with the drawn values. `exact`: those of them whose values matter. `copied`: those that the graph writes,
    whose old values the backward needs.
    `carried`: the sizes that are passed to the backward as a tensor without elements.
    """

    forward: fx.Graph
    backward: fx.Graph
    kept: tuple[tuple[str, int], ...]
    computed: Callable[[], tuple[Sequence[fx.Node], Sequence[fx.Node]]]
    layouts: tuple[Layout, ...]
    drawn: tuple[int, ...]
    needed: tuple[int, ...]
    exact: tuple[int, ...]
    copied: tuple[int, ...]
    carried: tuple[Any, ...]


def partition_arm(joint: Joint, own: Collection[Symbol] = ()) -> Parts:
    """Partition an arm of control flow. Sizes that data in it decides, and `own`, are no sizes of what it gives: where
    a value to save has one, the backward computes all values again from the operands. Raises Unsupported if that is a
    random value."""
    unknown = {n.meta["binds"] for n in joint.graph.nodes if "binds" in n.meta}.union(own)
    for saves in (True, False):
        parts = partition(joint, lays_out=False, saves=saves)
        results: Any = output_node(parts.forward).args[0]
        if not symbols_of(results[joint.results:]) & unknown:
            return parts
    raise Unsupported("gradients through random values whose sizes an arm of control flow decides")


def partition(joint: Joint, recompute: bool = True, budget: float = 1.0, lays_out: bool = True,
              saves: bool = True) -> Parts:
    """Partition `joint`; without `recompute`, every forward value that the backward reads is saved. `budget`: see
    `kept_values`. `lays_out`: saved values may have other strides than eager's. Unless it `saves`, only random values
    are saved, and all others are recomputed from the inputs."""
    graph = without_derivatives(joint.graph)
    places = placeholders_of(graph)
    inputs, tangents = places[:joint.inputs], places[joint.inputs:]
    shared = _shared(joint, graph, inputs)
    # values that equal layers read are saved once; regions have their own
    if not any("checkpoint" in n.meta for n in graph.nodes):
        cse(graph, _with_sources(_unsaved(joint, output_node(graph).args[0])), read_late(graph.nodes, shared))
    nodes = list(graph.nodes)
    values = nodes[-1].args[0]
    results, grads = values[:joint.results], values[joint.results:]  # type: ignore[index]
    late = descendants(tangents)
    read = _read_by(late, grads)
    random = drawn(read)
    given = [n for n in results if isinstance(n, fx.Node)]  # type: ignore[union-attr]
    barred = _barred(joint, inputs, results)
    if not saves:
        kept = ancestors([*read, *[n for n in nodes if "binds" in n.meta]]) & set(inputs) | random
    else:
        fixed = _of_others(inputs, tangents, late, barred) | (read_early(nodes, shared) if budget >= 1 else set())
        kept = (kept_values(nodes, late, read, set(inputs), budget, barred, given, fixed, read_late(nodes, shared))
                if recompute else read) | random
        kept |= _symbol_holders(nodes, late, kept)
    carried: tuple[Any, ...] = ()
    roots = [g for g in grads if isinstance(g, fx.Node)]
    if sizes := _varying_sizes(inputs):
        given_to = [*(n for n in nodes if n in kept), *tangents]
        trial = _graph(nodes, given_to, grads, None)
        # one of several tangents may be missing, and the program may write its tensors before a backward that reads
        # only their sizes
        programs = {*inputs, *given, *(tangents if len(tangents) > 1 else ())}
        own = [place for place, n in zip(placeholders_of(trial), given_to, strict=True) if n not in programs]
        missing = _undefined_symbols(trial, own) | _undefined_again(nodes, inputs, random, tangents, roots)
        carried = tuple([n for symbol, n in sizes.items() if symbol in missing])
    if carried:
        random = random | {_carry(graph, carried)}
        kept |= random
        nodes = list(graph.nodes)
    order = [n for n in nodes if n in kept]
    ways, extras = _ways(order, inputs, results)
    if lays_out:
        lay_out(nodes, set(extras) - random)
    _give_up([*extras, *tangents])
    forward = _graph(nodes, inputs, [*results, *extras], late)
    backward = _graph(nodes, [*order, *tangents], grads, None)
    varies = sizes or any("binds" in n.meta for n in nodes)
    if varies and (unknown := _undefined_symbols(backward, placeholders_of(backward))):
        raise Unsupported(f"a backward whose sizes {unknown} are those of nothing that is kept for it")
    needed, exact = ([k for k, n in enumerate(inputs) if n in found]
                     for found in (ancestors(roots), ancestors(roots, UNREAD)))
    written = {n.args[0] for n in nodes if n.target is aten.copy_.default} | {inputs[k] for k in joint.written}
    copied = [k for k, n in enumerate(inputs) if n in written and (n in kept or k in exact)]
    layouts = tuple([n.meta.get("layout") for n in order])
    return Parts(forward, backward, tuple(ways), lambda: (nodes, order), layouts,
                 tuple([k for k, n in enumerate(order) if n in random]), tuple(needed), tuple(exact), tuple(copied),
                 carried)


def backward_of(joint: Joint, parts: Parts, there: Sequence[bool],
                wanted: Sequence[bool]) -> tuple[fx.Graph, list[bool]]:
    """Return the backward graph of another joint graph of the same captured one, for some of the gradients, and the
    saved values that are its inputs, before the tangents. `there`: which of the tangents are given."""
    whole = without_derivatives(joint.graph)
    if parts.carried:
        _carry(whole, parts.carried)
    nodes = list(whole.nodes)
    kept = _where(nodes, parts)
    tangents = placeholders_of(whole)[joint.inputs:]
    grads = _asked(joint, nodes, wanted)
    for node, layout in zip(kept, parts.layouts, strict=True):
        if node is not None and layout is not None:
            node.meta["layout"] = layout
    _give_up([*[n for n, (way, _) in zip(kept, parts.kept, strict=True) if n is not None and way == "extra"],
              *tangents])
    graph = _graph(nodes, [*[n for n in kept if n is not None], *tangents], grads, None)
    places = placeholders_of(graph)
    ends = dict(zip(places, [*[way for n, (way, _) in zip(kept, parts.kept, strict=True) if n is not None],
                             *[TANGENT if given else "" for given in there]], strict=True))
    read = {n for n in places if n.users or n in output_node(graph).all_input_nodes or ends[n] == TANGENT}
    missing = _undefined_symbols(graph, [*read])
    # their sizes are taken of others: of extras first, since what the program has would be checked for writes
    for place in sorted((n for n in places if n not in read and ends[n]), key=lambda n: ends[n] != "extra"):
        if not missing:
            break
        left = _undefined_symbols(graph, [*read, place])
        if len(left) < len(missing):
            read.add(place)
            missing = left
    names = {n.name for n in read}
    for place in places[:-len(tangents)]:
        if place not in read:
            graph.erase_node(place)
    return graph, [n is not None and n.name in names for n in kept]


def gradient_of(joint: Joint, parts: Parts, wanted: Sequence[bool], requires: Iterable[bool]) -> fx.Graph:
    """Return a graph of some of the gradients over the joint graph's inputs, the random values drawn in its forward,
    with the sizes that it carries, and the tangents; `requires`: which of these require grad."""
    if parts.carried:
        _carry(joint.graph, parts.carried)
    nodes = list(joint.graph.nodes)
    found = _where(nodes, parts)
    places = placeholders_of(joint.graph)
    given: Any = [*places[:joint.inputs], *[found[k] for k in parts.drawn], *places[joint.inputs:]]
    grads = _asked(joint, nodes, wanted)
    graph = _graph(nodes, given, grads, None)
    for place, flag in zip((n for n in graph.nodes if n.op == "placeholder"), requires, strict=True):
        place.meta["requires_grad"] = flag
    return graph


def _asked(joint: Joint, nodes: list[fx.Node], wanted: Sequence[bool]) -> list[Any]:
    """Return the needed gradients, and None for each other."""
    grads: Any = nodes[-1].args[0][joint.results:]  # type: ignore[index]
    if len(grads) < len(wanted):
        given = iter(grads)
        return [next(given) if asked else None for asked in wanted]
    return [g if asked else None for g, asked in zip(grads, wanted, strict=True)]


def _where(nodes: list[fx.Node], parts: Parts) -> list[fx.Node | None]:
    """Return the nodes of another joint graph that compute the kept values, in the place of their equals; of equal
    values that are kept apart the first has one. Both graphs are numbered now, by what is known of their sizes now."""
    table: Table = {}
    computing, values = parts.computed()
    first = numbered(computing, table)
    numbers = {first[n] for n in values}
    found: dict[int, fx.Node] = {}
    for node, number in numbered(nodes, table).items():
        if number in numbers and behind(node) is node and found.setdefault(number, node) is not node:
            node.replace_all_uses_with(found[number])
    return [found.pop(first[n], None) for n in values]


def _barred(joint: Joint, inputs: list[fx.Node], results: Any) -> set[fx.Node]:
    """Return the values that autograd would not save, so that the program may write them: inputs, except parameters,
    and results. A region of activation checkpointing saves the values that it reads."""
    given = {n for k, n in enumerate(inputs) if n.meta.get("passing") and k not in joint.saved_inputs}
    regions = [n for n in joint.graph.nodes if "checkpoint" in n.meta]
    kept = {memory_of(a)[0] for n in regions
            for a in n.all_input_nodes if a.meta.get("checkpoint") != n.meta["checkpoint"]}
    return (given | _unsaved(joint, results)) - kept


def _shared(joint: Joint, graph: fx.Graph, inputs: list[fx.Node]) -> set[fx.Node]:
    """Return the memory that the program can write unseen before the backward reads it."""
    results: Any = output_node(graph).args[0]
    given = [n for n in results[:joint.outputs] if isinstance(n, fx.Node)]
    return shared_memory(inputs, given, _barred(joint, inputs, results[:joint.results]))


def _of_others(inputs: list[fx.Node], tangents: list[fx.Node], late: set[fx.Node],
               barred: set[fx.Node]) -> set[fx.Node]:
    """Return what one result's gradient reads and computes from an input that autograd saves only for the gradients of
    other results: the program may write that input before the first gradient is asked for."""
    given = {n for n in inputs if n.meta.get("passing")} - barred
    found: set[fx.Node] = set()
    for tangent in tangents if given and len(tangents) > 1 else ():
        own = descendants([tangent])
        formulas = own | {n for n in ancestors(own, stop=late - own) - late if n.meta.get("formula")}
        read = {a for n in formulas for a in n.all_input_nodes} - formulas - late
        foreign = given - {memory_of(n)[0] for n in read}
        found |= {n for n in ancestors(read) if n.op == "call_function" and memory_of(n)[0] is n
                  and not foreign.isdisjoint(memory_of(a)[0] for a in n.all_input_nodes)}
    return found


def _unsaved(joint: Joint, results: Any) -> set[fx.Node]:
    """Return the memory of results that autograd would not save."""
    got = [n for k, n in enumerate(results[:joint.outputs]) if isinstance(n, fx.Node) and k not in joint.saved_results]
    return {n for n in (memory_of(n)[0] for n in got) if n.op != "placeholder"}


def _with_sources(nodes: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes, with the multi-result operators that they are results of."""
    return nodes | {n.args[0] for n in nodes if n.target is operator.getitem}  # type: ignore[misc]


def _read_by(late: set[fx.Node], grads: Iterable[Any]) -> set[fx.Node]:
    """Return the tensors of the forward that the backward reads."""
    read = {arg for n in late for arg in n.all_input_nodes if arg not in late}
    read.update(g for g in grads if isinstance(g, fx.Node) and g not in late)
    return read


def _ways(order: list[fx.Node], inputs: list[fx.Node], results: Any) -> tuple[list[tuple[str, int]], list[fx.Node]]:
    """Return how each saved value reaches the backward, as (kind, number), and the values that the forward must return
    in addition to its results."""
    ways: list[tuple[str, int]] = []
    extras: list[fx.Node] = []
    of_input = {n: k for k, n in enumerate(inputs)}
    of_result = {n: k for k, n in reversed([*enumerate(results)]) if isinstance(n, fx.Node)}
    for node in order:
        if node in of_input:
            ways.append(("input", of_input[node]))
        elif node in of_result and node.op != "placeholder":
            ways.append(("result", of_result[node]))
        else:
            ways.append(("extra", len(extras)))
            extras.append(node)
    return ways, extras


def _give_up(values: Iterable[fx.Node]) -> None:
    """Mark values that only the backward holds: they die in it, if it is the last."""
    for value in values:
        value.meta["given up"] = True


def _graph(nodes: list[fx.Node], places: list[fx.Node], outputs: Any, late: set[fx.Node] | None) -> fx.Graph:
    """Return the part that computes `outputs` from `places`; with `late`, it includes all effects that do not depend on
    these."""
    effects = [n for n in nodes if late is not None and n not in late and n.op == "call_function" and is_needed(n)]
    cut = set(places)
    needed = ancestors([*(n for n in outputs if isinstance(n, fx.Node)), *effects], stop=cut)
    if late is None:
        needed |= ancestors(_numbers_of(nodes, needed - cut, places), stop=cut)
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for place in places:
        made[place] = graph.placeholder(place.name)
        made[place].meta.update({k: v for k, v in place.meta.items() if late is not None or k in _PLACES})
    wanted = [n for n in nodes if n in needed and n not in cut]
    numbers = [n for n in wanted if "binds" in n.meta]
    for node in wanted if late is not None else _when_needed(wanted, cut, numbers, outputs):
        made[node] = copy_node(graph, node, made.__getitem__)
        if late is None and "binds" in node.meta:
            made[node].meta["again"] = True  # the forward has looked at what is assumed
    out = graph.output(tuple(made[n] if isinstance(n, fx.Node) else n for n in outputs))
    out.meta["val"] = tuple(n.meta["val"] if isinstance(n, fx.Node) else n for n in outputs)
    return graph


def _varying_sizes(inputs: list[fx.Node]) -> dict[Any, Any]:
    """Return the dynamic sizes of inputs, by their symbols."""
    return {expr_of(n): n for node in inputs for n in symbols_held(node) if isinstance(n, torch.SymInt)}


def _carry(graph: fx.Graph, sizes: Sequence[Any]) -> fx.Node:
    """Add a tensor without elements that carries these sizes."""
    places = placeholders_of(graph)
    shape = (0, *sizes)
    device = next(n.meta["val"].device for n in places if getattr(n.meta["val"], "shape", ()))
    with graph.inserting_after(places[-1]):
        node = graph.call_function(aten.full.default)
    node.args, node.kwargs = (shape, 0), {"dtype": torch.uint8, "device": device}
    node.meta["val"] = new_fake(shape, contiguous_strides(shape), torch.uint8, device)
    return node


def _undefined_symbols(backward: fx.Graph, places: list[fx.Node]) -> set[Symbol]:
    """Return the symbols that the graph reads and that are sizes of none of `places`, which are inputs of it."""
    nodes = [n for n in backward.nodes if n.op != "placeholder"]
    known = {expr_of(n) for place in places for n in getattr(place.meta["val"], "shape", ())}
    known |= {n.meta["binds"] for n in nodes if "binds" in n.meta}
    strides = {s for place in places for n in strides_of(place) if type(n) is not int for s in expr_of(n).free}
    return symbols_of([*nodes, *places]).union(strides, *map(argument_symbols, nodes)) - known


def _undefined_again(nodes: list[fx.Node], inputs: list[fx.Node], random: set[fx.Node], tangents: list[fx.Node],
                     roots: list[fx.Node]) -> set[Symbol]:
    """Return the symbols that the gradients, computed of inputs to be differentiated again, read of no input that they
    need."""
    needed = ancestors(roots)
    given = [*(n for n in inputs if n in needed), *(n for n in nodes if n in random), *tangents]
    graph = _graph(nodes, given, roots, None)
    known = placeholders_of(graph)[:len(given) - len(tangents) * (len(tangents) > 1)]  # one of several may be missing
    return _undefined_symbols(graph, known)


def _symbol_holders(nodes: list[fx.Node], late: set[fx.Node], kept: set[fx.Node]) -> set[fx.Node]:
    """Return the values to keep in addition so that the backward knows its symbols: tensors with data-dependent sizes,
    and numbers that are read again."""
    binders = {n.meta["binds"]: n for n in nodes if "binds" in n.meta}
    if not binders:
        return set()
    own = [n for n in nodes if n in late]
    sizes = {expr_of(n) for k in kept for n in k.meta["val"].shape}
    read = symbols_of(own).union(*map(argument_symbols, own), *[e.free for e in sizes])
    missing = (read & binders.keys()) - sizes
    found: set[fx.Node] = set()
    for symbol in missing:
        node = binders[symbol]
        if isinstance(node.meta["val"], torch.SymInt):
            found.update(node.all_input_nodes)
        else:
            found.update(n for n in (node, *node.users) if symbol in map(expr_of, getattr(n.meta["val"], "shape", ())))
    return found


def _numbers_of(nodes: list[fx.Node], wanted: set[fx.Node], places: list[fx.Node]) -> list[fx.Node]:
    """Return the nodes that define symbols which `wanted` reads, and which are sizes of none of `places` that are used:
    tangents that are not may be missing."""
    binders = {n.meta["binds"]: n for n in nodes if isinstance(n.meta.get("val"), torch.SymInt) and "binds" in n.meta}
    read: set[Any] = symbols_of(wanted).union(*map(argument_symbols, wanted)) if binders else set()
    known = {expr_of(n) for place in places if place.users for n in getattr(place.meta["val"], "shape", ())}
    return [node for symbol, node in binders.items() if symbol in read - known]


def _when_needed(nodes: list[fx.Node], cut: set[fx.Node], numbers: list[fx.Node], outputs: Any) -> list[fx.Node]:
    """Return `nodes`, with recomputed ones moved to just before their first use; those that define symbols, whose users
    are not known, come first."""
    at = {n: k for k, n in enumerate(nodes)}
    asked = descendants([n for n in cut if n.name.startswith(TANGENT)])
    out: dict[fx.Node, None] = {}
    for node in [*numbers, *[n for n in nodes if n in asked], *[n for n in outputs if n in at]]:
        if node in out:
            continue
        found, queue = {node}, [node]
        while queue:
            fresh = [a for a in queue.pop().all_input_nodes if a in at and a not in out and a not in found]
            found.update(fresh)
            queue += fresh
        out.update(dict.fromkeys(sorted(found, key=at.__getitem__)))
    return list(out)


__all__ = ["Parts", "partition", "partition_arm"]
