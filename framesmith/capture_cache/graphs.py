"""Compiled graphs as JSON: the plan, the library by its key, and the graph that computes the constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import fx

from framesmith._C import CompiledFunction, CompiledGraph
from framesmith.capture.modes import without_default_device
from framesmith.graph.freeze import Frozen
from framesmith.graph.interpreter import run
from framesmith.lower.contractions.cached_packs import cached_packs
from framesmith.runtime.alive_graphs import Facts, announce
from framesmith.runtime.cache import Cache
from framesmith.util import events

from .references import Json, References, Stale, Unportable

Refresh = Callable[[tuple[Any, ...]], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Image:
    """A compiled graph as data: the encoded plan, the key of its library, the frozen part, the frozen value of each
    constant of the plan, and the graph's description."""

    plan: tuple[Any, ...]
    library: str
    frozen: Frozen | None
    order: tuple[int, ...]
    facts: Facts


def write_image(refs: References, image: Image) -> Json:
    """Raises Unportable."""
    if image.plan[_DEVICE] >= 0:
        raise Unportable("a graph of a CUDA device")
    frozen = image.frozen
    constants = None if frozen is None else {"parameters": list(frozen.parameters), "order": list(image.order),
                                             "nodes": _nodes(refs, frozen.constants)}
    return {"plan": refs.encode(image.plan), "library": image.library, "constants": constants,
            "facts": asdict(image.facts)}


def read_image(refs: References, found: Json, cache: Cache) -> CompiledGraph:
    """Return the compiled graph; its constants are computed before its first call. Raises Stale."""
    library = cache.stored_library(found["library"])
    if library is None:
        raise Stale("its library is gone or damaged")
    given = found["constants"]
    refresh = None if given is None else constants_of(_graph(refs, given["nodes"]), given["parameters"],
                                                      given["order"], cache)
    call = CompiledGraph(refs.decode(found["plan"]), str(library), () if refresh is None else None, refresh)
    announce(call, _facts(found["facts"], str(cache.folder)), str(library))
    return call


def _facts(found: Json, folder: str) -> Facts:
    """Return the facts, told of a graph of this process."""
    told = {name: tuples(value) for name, value in found["compiled"].items() if name not in _OF_PROCESS}
    number = events.next_graph()
    with events.part_of_graph(told["part"]):
        name = events.graph_name(number)
    operators = tuple([events.Operator(**{k: tuples(v) for k, v in row.items()})
                       for row in found["compiled"]["operators"]])
    here = {"number": number, "name": name, "folder": folder, "operators": operators}
    compiled = events.GraphCompiled(**{**told, **here})
    return Facts(compiled, tuple(found["steps"]), tuple(found["constants"]))


def tuples(found: Json) -> Any:
    """Convert JSON arrays to tuples."""
    return tuple([tuples(x) for x in found]) if type(found) is list else found


_OF_PROCESS = frozenset(field.name for field in fields(events.Event))
"""When, and in which compile, an event happened."""


def constants_of(graph: fx.Graph, parameters: Sequence[int], order: Sequence[int], cache: Cache) -> Refresh:
    """Return a function from the call's inputs to the plan's constants. Its first call maps the packed weights that
    the cache has."""
    tried = False

    def compute(inputs: tuple[Any, ...]) -> Sequence[torch.Tensor]:
        nonlocal tried
        given = [inputs[k] for k in parameters]
        with torch.no_grad(), without_default_device(), torch._C._DisableAutocast():  # casts are in the graph already
            kept, tried = None if tried else cached_packs(cache, graph, given), True
            values = list(run(graph, given, call=None if kept is None else kept.call))
        if kept is not None:
            kept.keep()
        return [values[k] for k in order]

    return CompiledFunction(compute, None)  # within a call of the program's, of which nothing here is a part


def _nodes(refs: References, graph: fx.Graph) -> Json:
    """Return a graph of fixed sizes as rows: operation, target, arguments; nodes by number."""
    numbers: dict[fx.Node, int] = {}
    rows = []
    for number, node in enumerate(graph.nodes):
        target = refs.encode(node.target) if node.op == "call_function" else ""
        rows.append([node.op, target, arguments(refs, node.args, numbers), arguments(refs, node.kwargs, numbers)])
        numbers[node] = number
    return rows


def arguments(refs: References, value: Any, numbers: Mapping[fx.Node, int]) -> Json:
    """Return arguments of a node as JSON. Raises Unportable."""
    if isinstance(value, fx.Node):
        return ["%", numbers[value]]
    if type(value) is tuple or isinstance(value, list):
        return ["()" if type(value) is tuple else "[]", *[arguments(refs, v, numbers) for v in value]]
    if isinstance(value, dict):
        return ["{}", *[[k, arguments(refs, v, numbers)] for k, v in value.items()]]
    return refs.encode(value)


def argument(refs: References, found: Json, nodes: Sequence[fx.Node]) -> Any:
    """Return the arguments that `arguments` wrote."""
    tag = found[0] if type(found) is list else None
    if tag == "%":
        return nodes[found[1]]
    if tag in ("()", "[]"):
        items = [argument(refs, v, nodes) for v in found[1:]]
        return tuple(items) if tag == "()" else items
    return {k: argument(refs, v, nodes) for k, v in found[1:]} if tag == "{}" else refs.decode(found)


def _graph(refs: References, rows: Json) -> fx.Graph:
    graph, nodes = fx.Graph(), list[fx.Node]()
    for number, (op, target, args, kwargs) in enumerate(rows):
        to = refs.decode(target) if op == "call_function" else f"p{number}" if op == "placeholder" else "output"
        nodes.append(graph.create_node(op, to, argument(refs, args, nodes), argument(refs, kwargs, nodes)))
    return graph


_DEVICE = 12
"""The place of the device in an encoded plan."""
