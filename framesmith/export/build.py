"""From a traced call to a program: the graph in its dialect, with inputs in order and sizes as nodes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith.export.dims import Shapes, read_shapes
from framesmith.export.operators import lower_graph
from framesmith.export.program import Input, Output, Program
from framesmith.export.sizes import SizeNodes, spec_of
from framesmith.export.trace import Traced
from framesmith.export.trees import flatten, unflatten
from framesmith.fake.layout import strides_like
from framesmith.graph.verifier import verify
from framesmith.symbolic.expr import Expr
from framesmith.util.errors import ExportError
from framesmith.util.stack import user_frame

_ORDER = {"parameter": 0, "buffer": 1, "constant": 2, "input": 3, "tangent": 4}
_PREFIX = {"parameter": "p_", "buffer": "b_", "constant": "c_", "input": "", "tangent": ""}
_NOT_IDENTIFIER = re.compile(r"\W+")


def build(traced: Traced, dialect: str, leaves: list[Any], labels: list[str], arguments: Any, name: str) -> Program:
    """The program of a traced call."""
    graph, env = traced.graph, traced.env
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    lowered, copied = lower_graph(graph, dialect, env, [])
    places = dict(zip(placeholders, traced.places, strict=True))
    targets = [("buffer", name) for name in traced.written] + [places[node] for node in copied]
    final = fx.Graph()
    specs = dict(zip(traced.places, [spec_of(n.meta["val"]) for n in lowered.nodes if n.op == "placeholder"],
                     strict=True))
    for i, x in enumerate(leaves):
        if isinstance(x, torch.Tensor) and ("input", i) not in specs:
            specs["input", i] = traced.unused[i]
    for kind, target in targets:
        if (kind, target) not in specs:
            specs[kind, target] = spec_of(traced.state[target])
    ordered = sorted(specs, key=lambda place: (_ORDER[place[0]], place[1] if place[0] == "input" else 0))
    made: dict[Any, fx.Node] = {}
    inputs = []
    for kind, target in ordered:
        label = labels[target] if kind == "input" else str(target)
        text = _PREFIX[kind] + _NOT_IDENTIFIER.sub("_", label)
        node = made[kind, target] = final.placeholder(text if text.isidentifier() else f"x_{text}")
        node.meta["val"] = specs[kind, target]
        inputs.append(Input(node.name, kind, target, specs[kind, target]))
    env_nodes = dict(zip([n for n in lowered.nodes if n.op == "placeholder"], [made[p] for p in traced.places],
                         strict=True))
    values = copy_nodes(lowered, final, env_nodes, inputs=list(made.values()))
    outputs = [*[Output("result")] * traced.results, *[Output("mutation", made[t].name) for t in targets]]
    final.output(tuple(values))
    state = {target: traced.state[target] for kind, target in ordered if kind in ("parameter", "buffer", "constant")}
    given = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
    for leaf in traced.leaves:
        if leaf.kind == "state":
            state.setdefault(leaf.value, traced.state[leaf.value])
    verify(final)
    return Program(final, inputs, outputs, traced.leaves, traced.out_tree, arguments, given, traced.constraints, state,
                   dialect, name, list(traced.dropped))


def copy_nodes(source: fx.Graph, into: fx.Graph, values: dict[fx.Node, Any], inputs: list[fx.Node]) -> list[Any]:
    """Copy the calls of a graph, with sizes as nodes; the values of its outputs."""
    sizes = SizeNodes(into, inputs)

    def read(x: Any) -> Any:
        if isinstance(x, fx.Node):
            return values[x]
        if isinstance(x, tuple | list):
            return type(x)([read(v) for v in x]) if type(x) in (tuple, list) else tuple([read(v) for v in x])
        if isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool | Expr):
            return sizes.of(x)
        return x

    for node in source.nodes:
        if node.op == "output":
            return [read(v) for v in node.args[0]]
        if node.op == "call_function":
            args, kwargs = read(node.args), {k: read(v) for k, v in node.kwargs.items()}
            made = values[node] = into.create_node("call_function", node.target, args, kwargs, name=node.name)
            made.meta["val"] = spec_of(node.meta.get("val"))
            stack = node.meta.get("stack")
            if stack:
                made.meta["stack"] = (user_frame(stack),)
                if modules := getattr(stack, "modules", ()):
                    made.meta["modules"] = modules
    raise ExportError("a graph without an output")


def prepare(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
            dynamic_shapes: Any) -> tuple[tuple[Any, ...], dict[str, Any], Shapes, list[str]]:
    """The arguments with each tensor apart from the others and from the model, what is asked of their dimensions, and
    what their leaves are called."""
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
