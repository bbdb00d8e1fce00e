"""Compiled graphs as JSON: the plan, the library by its key, and the graph that computes the constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
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
    facts = image.facts
    told = [_plain(getattr(facts.compiled, name)) for name in _TOLD]
    return {"plan": shared(refs, image.plan), "library": image.library, "constants": constants,
            "facts": shared(refs, (*told, facts.steps, facts.constants))}


def read_image(refs: References, found: Json, cache: Cache) -> CompiledGraph:
    """Return the compiled graph; its constants are computed before its first call. Raises Stale."""
    library = cache.stored_library(found["library"])
    if library is None:
        raise Stale("its library is gone or damaged")
    given = found["constants"]
    refresh = None if given is None else constants_of(_graph(refs, given["nodes"]), given["parameters"],
                                                      given["order"], cache)
    call = CompiledGraph(unshared(refs, found["plan"]), str(library), () if refresh is None else None, refresh)
    announce(call, _facts(unshared(refs, found["facts"]), str(cache.folder)), str(library))
    return call


def _facts(found: Any, folder: str) -> Facts:
    """Return the facts, told of a graph of this process."""
    *values, steps, constants = found
    told = dict(zip(_TOLD, values, strict=True))
    number = events.next_graph()
    with events.part_of_graph(told["part"]):
        name = events.graph_name(number)
    told["operators"] = tuple([events.Operator(*row) for row in told["operators"]])
    return Facts(events.GraphCompiled(number=number, name=name, folder=folder, library="", **told), steps, constants)


def _plain(value: Any) -> Any:
    """Return the operators of an event as tuples, and other fields as they are."""
    rows = type(value) is tuple and value and type(value[0]) is events.Operator
    return tuple([(one.name, one.place, one.bytes, one.last) for one in value]) if rows else value


_OF_PROCESS = frozenset(field.name for field in fields(events.Event)) | {"number", "name", "folder", "library"}
"""When and where an event happened, and its names there."""
_TOLD = tuple(field.name for field in fields(events.GraphCompiled) if field.name not in _OF_PROCESS)


def shared(refs: References, value: Any) -> Json:
    """Return nested tuples as rows, each distinct part once and before what it is part of, which comes last: a tuple
    as the numbers of its parts, anything else as {"": JSON}. Raises Unportable."""
    rows, known = list[Json](), dict[Any, int]()

    def number(part: Any) -> int:
        row: Json = [number(one) for one in part] if type(part) is tuple else {"": refs.encode(part)}
        at = known.setdefault(repr(row), len(rows))
        if at == len(rows):
            rows.append(row)
        return at

    number(value)
    return rows


def unshared(refs: References, rows: Json) -> Any:
    """Return what `shared` wrote. Raises Stale."""
    parts: list[Any] = []
    for row in rows:
        parts.append(tuple([parts[k] for k in row]) if type(row) is list else refs.decode(row[""]))
    return parts[-1]


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
