"""The source of a package: a captured graph, its inputs and outputs as a caller sees them, and the state that the model
keeps between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from framesmith.export.build import prepare
from framesmith.export.dims import Dim, Shapes
from framesmith.export.exported import Program
from framesmith.export.program import STATE
from framesmith.export.ranges import Constraints, SpecialisedDimension
from framesmith.export.trace import Leaf, Traced, trace, written_state
from framesmith.export.trees import Tree, flatten
from framesmith.fake.tensor import new_fake
from framesmith.graph.purity import is_view
from framesmith.graph.traversal import copy_graph, placeholders_of
from framesmith.prims.core import size_of
from framesmith.symbolic.expr import Expr, linear
from framesmith.util.errors import PackageError

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Captured:
    """`graph`: of functional ATen operators; its placeholders take `values`, and `places` has for each of them its kind
    and number: an "input" or "state" of the model's, or a "constant", which a call does not write. At its end it writes
    inputs and state by `copy_`. `state`: tensors that calls write, by name. `names`, `specs`: of the inputs.
    `arguments`: the tree of a call, whose leaves are the inputs in order, but for those `fixed`, by number. `results`:
    the leaves of `tree`; those of kind "input" have the number of the argument's leaf. `notes`: what the model
    changes outside of tensors, which calls of the package do not."""

    graph: fx.Graph
    values: list[Any]
    places: list[tuple[str, int]]
    state: dict[str, torch.Tensor]
    names: list[str]
    specs: list[Any]
    arguments: Tree
    fixed: dict[int, Any]
    results: list[Leaf]
    tree: Tree
    constraints: Constraints
    notes: list[str]

    @property
    def outputs(self) -> list[Any]:
        """The metadata of the graph's outputs."""
        found = next(n for n in self.graph.nodes if n.op == "output").args[0]
        return [node.meta["val"] for node in found]  # type: ignore[union-attr]


def capture(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
            dynamic_shapes: Any) -> Captured:
    """Capture the call `model(*args, **kwargs)`. Raises `ExportError` and `PackageError`."""
    given, named, shapes, labels = prepare(model, args, dict(kwargs), dynamic_shapes)
    traced = _checked(trace(model, given, named, shapes, labels, data_sizes=False))
    leaves, tree = flatten((given, named))
    fixed = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
    tensors = [i for i in range(len(leaves)) if i not in fixed]
    return _captured(traced, leaves, tensors, [labels[i] for i in tensors], tree, fixed, traced.leaves, traced.out_tree)


def captured_program(program: Program) -> Captured:
    """Capture an exported program again, from its graph. Raises `PackageError` for one with its backward."""
    if program.is_joint:
        raise PackageError("the program computes gradients: export it without its backward")
    inputs = [i for i in program.inputs if i.kind == "input"]
    sizes = {d.name: _example(d.lo, d.hi, k) for k, d in enumerate(program.constraints.dimensions)}
    ranges = {d.name: Dim(d.name, d.lo, d.hi) for d in program.constraints.dimensions}
    args = [torch.zeros([n if isinstance(n, int) else n.evaluate(sizes) for n in i.spec.shape], dtype=i.spec.dtype)
            for i in inputs]
    shapes: Shapes = {k: {d: _dim(n, ranges) for d, n in enumerate(i.spec.shape) if isinstance(n, Expr)}
                      for k, i in enumerate(inputs)}
    traced = _checked(trace(_flat(program), tuple(args), {}, shapes, [i.name for i in inputs], data_sizes=False))
    numbers = {leaf.value: leaf for leaf in traced.leaves if leaf.kind == "output"}
    if len(numbers) != len(traced.leaves):
        raise PackageError("the program returns its inputs or parameters: return what it computes")
    captured = _captured(traced, args, range(len(args)), [i.name for i in inputs], program.arguments, program.fixed,
                         program.results, program.result)
    targets = [str(i.target) for i in program.inputs if i.kind in STATE]
    state = {targets[int(name.removeprefix("state_"))]: x for name, x in captured.state.items()}
    return replace(captured, state=state, notes=program.notes)


def _flat(program: Program) -> nn.Module:
    """Return the program's graph as a module of its tensors alone."""
    root, graph = nn.Module(), fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    states: dict[fx.Node, str] = {}
    for node, i in zip((n for n in program.graph.nodes if n.op == "placeholder"), program.inputs, strict=True):
        if i.kind in STATE:
            states[node] = f"state_{len(states)}"
            root.register_buffer(states[node], program.state[i.target].detach())
        else:
            values[node] = graph.placeholder(node.name)
    values.update({node: graph.get_attr(name) for node, name in states.items()})
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "output"):
            values[node] = graph.node_copy(node, values.__getitem__)
        elif node.op == "output":
            clone = aten.clone.default  # what is written below is read before
            given = [graph.call_function(clone, (values[n],)) if _root(n).op == "placeholder" else values[n]
                     for n in node.args[0]]
            by_name = {n.name: value for n, value in values.items()}
            for o, value in zip(program.outputs, given, strict=True):
                if o.kind == "mutation":
                    graph.call_function(aten.copy_.default, (by_name[o.target], value))
            graph.output(tuple([v for o, v in zip(program.outputs, given, strict=True) if o.kind == "result"]))
    return fx.GraphModule(root, graph)


def _example(lo: int, hi: int | None, k: int) -> int:
    """Return a size in a range that differs from other dimensions' where it can."""
    return max(lo, min(hi if hi is not None else 1 << 30, max(lo, 2) + 2 * k + 1))


def _dim(size: Expr, ranges: Mapping[str, Dim]) -> Dim:
    terms, offset = linear(size)
    if len(terms) != 1:
        raise PackageError(f"the size {size} of an input")
    (symbol, scale), = terms
    return ranges[str(symbol)] * scale + offset


def _checked(traced: Traced) -> Traced:
    if traced.constraints.violations:
        raise SpecialisedDimension(traced.constraints.violations)
    if traced.constraints.relations:
        raise PackageError("sizes depend on each other: " + "; ".join(map(str, traced.constraints.relations)))
    return traced


def _captured(traced: Traced, leaves: list[Any], tensors: Sequence[int], names: list[str], arguments: Tree,
              fixed: dict[int, Any], results: list[Leaf], tree: Tree) -> Captured:
    for leaf in results:
        if leaf.kind in ("state", "size"):
            raise PackageError(f"the model returns {leaf.value}, which no operator computes: return tensors that it "
                               "computes")
    if devices := {leaves[i].device.type for i in tensors} - {"cpu"}:
        raise PackageError(f"packages are for the CPU, and there are tensors on {', '.join(sorted(devices))}")
    numbers = {leaf: k for k, leaf in enumerate(tensors)}
    specs: dict[int, Any] = dict(traced.unused)
    for (kind, target), node in zip(traced.places, (n for n in traced.graph.nodes if n.op == "placeholder")):
        if kind == "input":
            specs[target] = node.meta["val"]
    state = list(dict.fromkeys(written_state(traced)))
    if unknown := set(state) - set(traced.state):
        raise PackageError(f"the model sets {', '.join(sorted(unknown))}, which has another name, too")
    _apart(traced.state, state)
    graph, places = _writing(traced)
    return Captured(
        graph, [leaves[target] if kind == "input" else traced.state[target] for kind, target in places],
        [("input", numbers[target]) if kind == "input" else ("state", state.index(target)) if target in state
         else ("constant", 0) for kind, target in places],
        {name: traced.state[name] for name in state}, names, [specs[i] for i in tensors], arguments, fixed, results,
        tree, traced.constraints, traced.dropped,
    )  # fmt: skip


def _writing(traced: Traced) -> tuple[fx.Graph, list[tuple[str, Any]]]:
    """Return the graph, and what its placeholders take, where the buffers that the program sets are written as others
    are. Raises `PackageError` for one that gets another shape or type, or becomes another tensor that lives on."""
    graph, places = copy_graph(traced.graph, lambda value: value), list(traced.places)
    placeholders = placeholders_of(graph)
    output = next(n for n in graph.nodes if n.op == "output")
    returned = list(output.args[0])  # type: ignore[call-overload]
    roots: set[fx.Node] = set()
    for name, value in zip(traced.written, returned[traced.results:], strict=True):
        buffer, now = traced.state[name], value.meta["val"]
        if tuple(map(size_of, now.shape)) != tuple(buffer.shape) or now.dtype is not buffer.dtype:
            raise PackageError(f"the model sets {name} to a tensor of another shape or type")
        root = _root(value)
        if root.op == "placeholder" or root in roots:
            raise PackageError(f"the model sets {name} to what is another tensor of its own or of the caller's: set it "
                               "to a clone, or write it in place")
        roots.add(root)
        if ("buffer", name) not in places:
            with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
                placeholders.append(graph.placeholder(f"buffer_{len(places)}"))
            placeholders[-1].meta["val"] = new_fake(tuple(buffer.shape), buffer.stride(), buffer.dtype)
            places.append(("buffer", name))
        with graph.inserting_before(output):
            written = placeholders[places.index(("buffer", name))]
            graph.call_function(aten.copy_.default, (written, value)).meta["val"] = written.meta["val"]
    output.args = (tuple(returned[: traced.results]),)
    return graph, places


def _root(node: fx.Node) -> fx.Node:
    """Return the node whose memory a value lies in."""
    while is_view(node.target):
        node = node.all_input_nodes[0]
    return node


def _apart(tensors: Mapping[str, torch.Tensor], written: Sequence[str]) -> None:
    """Raise `PackageError` where a tensor that calls write shares memory with another."""
    names: dict[int, str] = {}
    for name in (*written, *(n for n in tensors if n not in written)):
        first = names.setdefault(tensors[name].untyped_storage().data_ptr(), name)
        if first != name and first in written:
            raise PackageError(f"{first} and {name} share memory, and a call writes it: make them one buffer")
