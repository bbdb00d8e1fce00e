"""A model as one graph that autograd differentiates as it differentiates the model, to be divided or run in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from framesmith.export.build import prepare
from framesmith.export.program import STATE, Runnable
from framesmith.export.trace import Leaf, trace
from framesmith.export.trees import Tree, flatten, unflatten
from framesmith.graph.control import Control
from framesmith.graph.derivative import passed
from framesmith.graph.purity import is_pure
from framesmith.graph.traversal import ancestors, placeholders_of
from framesmith.util import log
from framesmith.util.errors import ExportError

aten = torch.ops.aten
_WITH_DERIVATIVES: dict[Any, Any] = {aten._embedding_bag_forward_only.default: aten._embedding_bag.default}
"""Operators that autograd differentiates, in the place of those below autograd that it does not; of `copy` see
`_copied`."""


@dataclass(frozen=True)
class Finish:
    """Makes the result of a model of its tensors, and of the constants at the places of `fixed`."""

    leaves: int
    fixed: Mapping[int, Any]
    tree: Tree

    def __call__(self, values: Sequence[Any]) -> Any:
        rest = iter(values)
        return unflatten([self.fixed[k] if k in self.fixed else next(rest) for k in range(self.leaves)], self.tree)


@dataclass(frozen=True)
class ModelGraph:
    """`nodes`: calls of functional operators, in order; `meta["val"]` is a meta tensor, or a tuple of them.

    `places`: placeholders, by kind and name: "input" (a tensor among the positional arguments, by number), "keyword",
    "parameter", "buffer" or "constant" (of `state`). `results`: nodes, which `finish` makes the result of. `written`:
    nodes of the new values of state. `names`: all names of each tensor of `state`.
    """

    nodes: list[fx.Node]
    places: dict[fx.Node, tuple[str, Any]]
    results: list[fx.Node]
    finish: Finish
    written: dict[str, fx.Node]
    state: dict[str, Tensor]
    names: dict[str, list[str]]
    kinds: dict[str, str]

    def kind(self, name: str) -> str:
        """Return "parameter", "buffer" or "constant", which checkpoints leave out."""
        return self.kinds.get(name, "constant")

    @staticmethod
    def wants_grad(node: fx.Node) -> bool:
        """Return whether an argument requires grad."""
        return bool(node.meta.get("requires_grad"))


@dataclass(frozen=True)
class _Captured:
    """A graph whose placeholders, in order, are `places`; `results` and `written` are nodes of it, and `leaves` and
    `tree` the result of the model. `state`, `names`, `kinds`: as in `ModelGraph`."""

    graph: fx.Graph
    places: list[tuple[str, Any]]
    results: list[Any]
    written: dict[str, Any]
    leaves: list[Leaf]
    tree: Tree
    state: dict[str, Tensor]
    names: dict[str, list[str]]
    kinds: dict[str, str]


def model_graph_of(model: nn.Module | Runnable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelGraph:
    """Capture a call of a module, or take an exported program. Raises `ExportError` where it is not one graph, has
    sizes that vary, writes its arguments or has derivatives of its own."""
    if isinstance(model, Runnable):
        order = model.arguments.parts[1].keys
        kwargs = {**{name: kwargs[name] for name in order if name in kwargs}, **kwargs}
        model.bind(args, kwargs)
        captured = _of_program(model)
    else:
        captured = _of_module(model, args, kwargs)
    return _whole(captured, args, kwargs)


def _of_module(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Captured:
    own, named, shapes, labels = prepare(model, args, kwargs, None)
    traced = trace(model, own, named, shapes, labels, training=True)
    returned: Any = next(n for n in reversed(traced.graph.nodes) if n.op == "output").args[0]
    written = dict(zip(traced.written, returned[traced.results:], strict=True))
    place_of = dict(zip(placeholders_of(traced.graph), traced.places, strict=True))
    for node in traced.graph.find_nodes(op="call_function", target=aten.copy_.default):
        kind, name = place_of[node.args[0]]  # type: ignore[index]
        if kind not in STATE:
            raise ExportError("a model to be divided does not write its arguments")
        written[name] = node.args[1]
    if traced.dropped:
        log.warn_once(f"divided:{type(model).__name__}", "framesmith: a divided model does not change "
                      + ", ".join(traced.dropped))
    state, names, kinds = _state(model, traced.state)
    return _Captured(traced.graph, traced.places, list(returned[:traced.results]), written, traced.leaves,
                     traced.out_tree, state, names, kinds)


def _of_program(program: Runnable) -> _Captured:
    if program.is_joint or program.dimensions:
        raise ExportError("a program to be divided has no backward, and all of its sizes are constants")
    returned: Any = next(n for n in reversed(program.graph.nodes) if n.op == "output").args[0]
    by_name = {i.name: i for i in program.inputs}
    written = {}
    for output, value in zip(program.outputs, returned, strict=True):
        if output.kind == "mutation":
            if by_name[output.target].kind not in STATE:
                raise ExportError("a program to be divided does not write its arguments")
            written[str(by_name[output.target].target)] = value
    results = [v for o, v in zip(program.outputs, returned, strict=True) if o.kind == "result"]
    kinds = {str(i.target): i.kind if i.persistent else "constant" for i in program.inputs if i.kind in STATE}
    return _Captured(program.graph, [(i.kind, i.target) for i in program.inputs], results, written, program.results,
                     program.result, dict(program.state), {name: [name] for name in program.state}, kinds)


def _state(model: nn.Module, read: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[str]],
                                                                 dict[str, str]]:
    """Return all tensors of a module by their first names, their other names, and kinds."""
    state: dict[str, Tensor] = dict(read)
    first = {id(x): name for name, x in state.items()}
    names: dict[str, list[str]] = {name: [] for name in state}
    kinds = {}
    kept = model.state_dict(keep_vars=True).keys()
    for kind, named in (("parameter", model.named_parameters(remove_duplicate=False)),
                        ("buffer", model.named_buffers(remove_duplicate=False))):
        for name, x in named:
            known = first.setdefault(id(x), name)
            state[known] = x
            names.setdefault(known, []).append(name)
            kinds[name] = kind if name in kept else "constant"
    return state, {name: found or [name] for name, found in names.items()}, kinds


def _whole(captured: _Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelGraph:
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
    ordered: dict[tuple[str, Any], fx.Node] = {}

    def of_state(kind: str, name: str) -> fx.Node:
        if (kind, name) not in ordered:
            ordered[kind, name] = graph.placeholder(kind)
            ordered[kind, name].meta["val"] = _on_meta(captured.state[name])
        return ordered[kind, name]

    for place, example in _arguments(args, kwargs):
        node = ordered[place] = graph.placeholder("_".join(map(str, place)))
        node.meta.update(val=_on_meta(example), requires_grad=example.requires_grad)
    numbers = [k for k, x in enumerate(flatten((args, kwargs))[0]) if isinstance(x, Tensor)]
    arguments = dict(zip(numbers, ordered.values(), strict=True))
    for (kind, name), old in zip(captured.places, placeholders_of(captured.graph), strict=True):
        values[old] = arguments[name] if kind == "input" else of_state(kind, name)
    for old in captured.graph.nodes:
        if old.op == "call_function" and old.target is not aten.copy_.default:
            values[old] = _copied(graph, old, values)
    place_of = {name: (kind, name) for kind, name in captured.places if kind in STATE}
    made = {
        "output": lambda k: values[captured.results[k]],
        "input": lambda k: arguments[k],
        "state": lambda name: of_state(*place_of.get(name, (captured.kinds.get(name, "constant"), name))),
    }
    fixed: dict[int, Any] = {}
    results: list[fx.Node] = []
    for k, leaf in enumerate(captured.leaves):
        if leaf.kind == "size":
            raise ExportError("a model to be divided returns tensors and constants")
        if leaf.kind == "constant":
            fixed[k] = leaf.value
        else:
            results.append(made[leaf.kind](leaf.value))
    written = {name: values[node] for name, node in captured.written.items()}
    calls = [n for n in graph.nodes if n.op == "call_function"]
    live = ancestors([*results, *written.values(), *(n for n in calls if not is_pure(n))])
    return ModelGraph([n for n in calls if n in live], {node: place for place, node in ordered.items()}, results,
                 Finish(len(captured.leaves), fixed, captured.tree), written, captured.state, captured.names,
                 captured.kinds)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[tuple[str, Any], Tensor]]:
    """Kind and name of each tensor among the arguments, in their order."""
    yield from [(("input", k), x) for k, x in enumerate([x for x in flatten(args)[0] if isinstance(x, Tensor)])]
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            yield ("keyword", name), value
        elif any(isinstance(x, Tensor) for x in flatten(value)[0]):
            raise ExportError(f"the keyword argument {name} of a model to be divided holds tensors; only tensors and "
                              "constants are taken")


def _copied(graph: fx.Graph, old: fx.Node, values: dict[fx.Node, fx.Node]) -> fx.Node:
    """Copy a node. What was computed with grad mode off reads detached values."""
    if old.target is passed:
        raise ExportError("an autograd.Function in a model to be divided")
    if old.meta.get("straight") or isinstance(old.target, Control):
        raise ExportError("a branch on data, or a write of a tensor that requires grad with grad mode off, in a model "
                          "to be divided")

    def read(n: fx.Node) -> fx.Node:
        if old.meta.get("no_grad") and (n.meta.get("grad") or n.meta.get("requires_grad")):
            return _call(graph, aten.detach.default, (values[n],), {}, values[n].meta["val"])
        return values[n]

    args: Any
    args, kwargs = map_arg((old.args, dict(old.kwargs)), read)
    val, target = _on_meta(old.meta["val"]), old.target
    if target is aten.copy.default:
        return _copy(graph, args[0], args[1], val)
    return _call(graph, _WITH_DERIVATIVES.get(target, target), args, kwargs, val)


def _copy(graph: fx.Graph, x: fx.Node, source: fx.Node, val: Tensor) -> fx.Node:
    """`copy(x, y) -> where(true, y, x)`, which has a derivative, and the layout of `x`; `y` gets shape and dtype of `x`
    in the order in which the derivative of `copy_` undoes it."""
    true = _call(graph, aten.ones_like.default, (x,), {"dtype": torch.bool}, torch.ones_like(val, dtype=torch.bool))
    if (y := source.meta["val"]).dtype != val.dtype:
        source = _call(graph, aten.expand.default, (source, list(val.shape)), {}, y.expand(val.shape))
        source = _call(graph, aten._to_copy.default, (source,), {"dtype": val.dtype}, source.meta["val"].to(val.dtype))
    return _call(graph, aten.where.self, (true, source, x), {}, val)


def _call(graph: fx.Graph, target: Any, args: Any, kwargs: Any, val: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = val
    return node


def _on_meta(x: Any) -> Any:
    """Return a meta tensor of the metadata of a value, or a tuple of them."""
    if isinstance(x, tuple | list):
        return tuple(map(_on_meta, x))
    if x is None:
        return None
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise ExportError("a model to be divided has numbers that depend on data or sizes")
    if any(type(n) is not int for n in x.shape):
        raise ExportError("a model to be divided has sizes that vary")
    shape, stride = tuple(x.shape), x.stride() if isinstance(x, Tensor) else x.stride
    if stride is None:
        return torch.empty(shape, dtype=x.dtype, device="meta")
    return torch.empty_strided(shape, stride, dtype=x.dtype, device="meta")
