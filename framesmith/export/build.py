"""From a traced call to a program: the graph in its dialect, with inputs in order and sizes as nodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith.autograd.joint import trace_joint
from framesmith.export.dims import Shapes, read_shapes
from framesmith.export.exported import Program
from framesmith.export.nodes import copy_nodes
from framesmith.export.operators import lower_graph
from framesmith.export.program import STATE, Input, Output
from framesmith.export.sizes import spec_of, symbols_in
from framesmith.export.trace import Traced
from framesmith.export.trees import flatten, unflatten
from framesmith.fake.layout import strides_like
from framesmith.graph.traversal import placeholders_of
from framesmith.graph.verifier import verify
from framesmith.util.errors import ExportError

_ORDER = {"parameter": 0, "buffer": 1, "constant": 2, "input": 3, "tangent": 4}
_PREFIX = {"parameter": "p_", "buffer": "b_", "constant": "c_", "input": "", "tangent": ""}
_NOT_IDENTIFIER = re.compile(r"\W+")


def build(traced: Traced, dialect: str, leaves: list[Any], labels: list[str], arguments: Any, name: str,
          joint: bool = False) -> Program:
    """Build the program of a traced call; `joint`: with its backward."""
    graph, places = traced.graph, list(traced.places)
    outputs: list[tuple[str, Any]] = [*[("result", None)] * traced.results,
                                      *[("mutation", ("buffer", name)) for name in traced.written]]
    traced.env.closed = traced.env.inside = True  # all questions of the program were asked
    traced.env.where = tuple
    traced.env.unchecked = list(traced.env.assumed)
    if joint:
        with_backward = trace_joint(graph)
        graph = with_backward.graph
        outputs += [("mutation", places[i]) for i in with_backward.written]
        outputs += [("gradient", places[i]) for i in with_backward.wanted]
        places += [("tangent", i) for i in with_backward.differentiable]
    placeholders = placeholders_of(graph)
    if not traced.env.data.isdisjoint(symbols_in([n.meta["val"] for n in placeholders])):
        raise ExportError("a result that requires grad has a size that depends on data: a joint program takes its "
                          "gradient, whose size is to be known; return a loss")
    lowered, copied = lower_graph(graph, dialect, traced.env)
    if traced.env.unchecked:
        raise ExportError(f"the program assumes {', '.join(map(str, traced.env.unchecked))}, which it cannot check")
    outputs += [("mutation", dict(zip(placeholders, places, strict=True))[node]) for node in copied]
    specs = dict(zip(places, [spec_of(n.meta["val"]) for n in lowered.nodes if n.op == "placeholder"], strict=True))
    specs.update({("input", i): spec for i, spec in traced.unused.items()})
    for _, place in outputs:
        if place is not None and place not in specs:
            specs[place] = spec_of(traced.state[place[1]])
    final = fx.Graph()
    made: dict[Any, fx.Node] = {}
    inputs = []
    for kind, target in sorted(specs, key=lambda place: (_ORDER[place[0]], place[1] if place[0] == "input" else 0)):
        label = labels[target] if kind == "input" else f"tangent_{target}" if kind == "tangent" else str(target)
        text = _PREFIX[kind] + _NOT_IDENTIFIER.sub("_", label)
        node = made[kind, target] = final.placeholder(text if text.isidentifier() else f"x_{text}")
        node.meta["val"] = specs[kind, target]
        inputs.append(Input(node.name, kind, target, specs[kind, target]))
    values = dict(zip(placeholders_of(lowered), [made[p] for p in places], strict=True))
    final.output(tuple(copy_nodes(lowered, final, values, list(made.values()))))
    verify(final)
    given = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
    return Program(final, inputs, [Output(kind, "" if place is None else made[place].name) for kind, place in outputs],
                   traced.leaves, traced.out_tree, arguments, given, traced.constraints, _state(traced, specs, outputs),
                   dialect, name, list(traced.dropped))


def _state(traced: Traced, specs: Any, outputs: list[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors that the program takes or gives; what it writes is its own."""
    names = [target for kind, target in specs if kind in STATE]
    names += [leaf.value for leaf in traced.leaves if leaf.kind == "state"]
    written = {place[1] for kind, place in outputs if kind == "mutation" and place[0] in STATE}
    return {name: traced.state[name].detach().clone() if name in written else traced.state[name]
            for name in dict.fromkeys(names)}


def prepare(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
            dynamic_shapes: Any) -> tuple[tuple[Any, ...], dict[str, Any], Shapes, list[str]]:
    """Prepare a call; returns the arguments with each tensor apart from the others and from the model, what is asked of
    their dimensions, and what their leaves are called."""
    shapes = read_shapes(dynamic_shapes, getattr(model, "forward", model), args, kwargs)
    leaves, tree = flatten((args, kwargs))
    known = {id(x) for x in (*model.parameters(), *model.buffers())} if isinstance(model, torch.nn.Module) else set()
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor):
            odd = i in shapes and strides_like(x, tuple(x.shape)) != x.stride()
            if id(x) in known or odd:
                leaves[i] = x.detach().clone(memory_format=torch.contiguous_format).requires_grad_(x.requires_grad)
            known.add(id(leaves[i]))
    args, kwargs = unflatten(leaves, tree)
    return args, kwargs, shapes, _labels(model, args, kwargs)


def _labels(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    try:
        parameters = list(inspect.signature(getattr(model, "forward", model)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    labels = []
    for i, value in enumerate(args):
        labels += _leaf_labels(value, names[i] if i < len(names) else f"{rest}_{i - len(names)}")
    for name, value in kwargs.items():
        labels += _leaf_labels(value, name)
    return labels


def _leaf_labels(value: Any, name: str) -> list[str]:
    leaves, tree = flatten(value)
    return [name] if tree.kind == "leaf" else [f"{name}_{i}" for i in range(len(leaves))]
