"""The source of a package: a captured graph, and its inputs and outputs as a caller sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from framesmith.export.build import prepare
from framesmith.export.dims import Dim, Shapes
from framesmith.export.exported import Program
from framesmith.export.program import STATE
from framesmith.export.ranges import Constraints, SpecialisedDimension
from framesmith.export.trace import Leaf, Traced, trace
from framesmith.export.trees import Tree, flatten
from framesmith.symbolic.expr import Expr, linear
from framesmith.util.errors import PackageError


@dataclass(frozen=True, slots=True)
class Captured:
    """`graph`: of functional ATen operators; its placeholders take `values`, and `places` has for each of them the
    number of the model's input, or None for a parameter, buffer or constant. `names`, `specs`: of the inputs.
    `arguments`: the tree of a call, whose leaves are the inputs in order, but for those `fixed`, by number. `results`:
    the leaves of `tree`; those of kind "input" have the number of the argument's leaf."""

    graph: fx.Graph
    values: list[Any]
    places: list[int | None]
    names: list[str]
    specs: list[Any]
    arguments: Tree
    fixed: dict[int, Any]
    results: list[Leaf]
    tree: Tree
    constraints: Constraints

    @property
    def outputs(self) -> list[Any]:
        """The metadata of the graph's outputs."""
        found = next(n for n in self.graph.nodes if n.op == "output").args[0]
        return [node.meta["val"] for node in found]  # type: ignore[union-attr]


def capture(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
            dynamic_shapes: Any) -> Captured:
    """The call `model(*args, **kwargs)`. Raises `ExportError` and `PackageError`."""
    given, named, shapes, labels = prepare(model, args, dict(kwargs), dynamic_shapes)
    traced = _checked(trace(model, given, named, shapes, labels))
    leaves, tree = flatten((given, named))
    fixed = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
    tensors = [i for i in range(len(leaves)) if i not in fixed]
    return _captured(traced, leaves, tensors, [labels[i] for i in tensors], tree, fixed, traced.leaves, traced.out_tree)


def captured_program(program: Program) -> Captured:
    """An exported program: captured anew, from its graph. Raises `PackageError` for one that writes its state."""
    if program.mutations or program.is_joint:
        raise PackageError(f"the program writes {', '.join(program.mutations) or 'gradients'}: return what it computes")
    inputs = [i for i in program.inputs if i.kind == "input"]
    sizes = {d.name: _example(d.lo, d.hi, k) for k, d in enumerate(program.constraints.dimensions)}
    ranges = {d.name: Dim(d.name, d.lo, d.hi) for d in program.constraints.dimensions}
    args = [torch.zeros([n if isinstance(n, int) else n.evaluate(sizes) for n in i.spec.shape], dtype=i.spec.dtype)
            for i in inputs]
    shapes: Shapes = {k: {d: _dim(n, ranges) for d, n in enumerate(i.spec.shape) if isinstance(n, Expr)}
                      for k, i in enumerate(inputs)}
    traced = _checked(trace(_flat(program), tuple(args), {}, shapes, [i.name for i in inputs]))
    numbers = {leaf.value: leaf for leaf in traced.leaves if leaf.kind == "output"}
    if len(numbers) != len(traced.leaves):
        raise PackageError("the program returns its inputs or parameters: return what it computes")
    return _captured(traced, args, range(len(args)), [i.name for i in inputs], program.arguments, program.fixed,
                     program.results, program.result)


def _flat(program: Program) -> nn.Module:
    """The program's graph as a module of its tensors alone."""
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
            graph.output(fx.map_arg(node.args[0], values.__getitem__))
    return fx.GraphModule(root, graph)


def _example(lo: int, hi: int | None, k: int) -> int:
    """A size in a range that differs from other dimensions' where it can."""
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
    if traced.written:
        raise PackageError(f"the model writes its own buffers ({', '.join(traced.written)}): pass them as arguments, "
                           "and return them")
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
    return Captured(
        traced.graph, [leaves[target] if kind == "input" else traced.state[target] for kind, target in traced.places],
        [numbers[target] if kind == "input" else None for kind, target in traced.places], names,
        [specs[i] for i in tensors], arguments, fixed, results, tree, traced.constraints,
    )  # fmt: skip
