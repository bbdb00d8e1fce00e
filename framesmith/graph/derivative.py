"""Values with a custom derivative: `torch.autograd.Function` in a graph.

    passed((y,), (x,), (saved,))    with meta["derivative"]

gives `y` as it is, computed with grad mode off; a gradient goes from it to `x` by the graphs of the derivative.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from framesmith.graph.traversal import ancestors, copy_node

Pattern = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Derivative:
    """The backward of a function with one or more differentiable results.

    `graphs`: by which results have a gradient. Each takes those gradients (in the layout of its placeholders), then the
    operands, then the results at `reads`, and gives a gradient or None for each input. `zeros`: a missing gradient
    counts as zeros; there is one graph then.
    """

    graphs: Mapping[Pattern, Graph]
    reads: tuple[int, ...]
    zeros: bool


def passed(values: Sequence[Any], inputs: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Return `values`; see the module."""
    return tuple(values)


passed.is_pure = True  # type: ignore[attr-defined]


def behind(node: Node) -> Node:
    """Return the node that `node` passes on, if it only directs gradients; else `node` itself."""
    source = node.args[0] if node.target is operator.getitem else None
    return (source.args[0][node.args[1]] if isinstance(source, Node)  # type: ignore[index, return-value]
            and source.target is passed else node)


def refuse(like: Any, message: str, *tangents: Any) -> Any:
    """Raise for a derivative of `tangents` that the program declares undefined."""
    raise RuntimeError(message)


refuse.is_pure = True  # type: ignore[attr-defined]


def without_derivatives(graph: Graph) -> Graph:
    """Replace `passed` by its values, in place, and return the graph."""
    for node in [n for n in graph.nodes if n.target is passed]:
        values: Any = node.args[0]
        for user in list(node.users):
            user.replace_all_uses_with(values[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
    return graph


@dataclass(frozen=True, slots=True)
class Traced:
    """A backward as recorded in a larger graph: its nodes, the stand-ins for its input gradients, and its output
    gradients."""

    region: Collection[Node]
    tangents: Sequence[Node]
    grads: Sequence[Node | None]


def cut_out(traced: Mapping[Pattern, Traced], results: Sequence[Node], zeros: bool) -> tuple[Derivative, list[Node]]:
    """Return the derivative of `results`, and its operands: the values of the enclosing graph that the backwards read,
    except the results."""
    orders = {pattern: _needed(one) for pattern, one in traced.items()}
    inside = {n for one in traced.values() for n in (*one.region, *one.tangents)}
    read = dict.fromkeys(a for one, order in zip(traced.values(), orders.values())
                         for a in (*[a for n in order for a in n.all_input_nodes], *one.grads) if a is not None
                         and a not in inside)
    operands = [n for n in read if n not in results]
    reads = tuple([k for k, n in enumerate(results) if n in read])
    last = [results[k] for k in reads]
    graphs = {pattern: _graph([*one.tangents, *operands, *last], orders[pattern], one.grads) for pattern,
              one in traced.items()}
    return Derivative(graphs, reads, zeros), operands


def _needed(traced: Traced) -> list[Node]:
    """Return the nodes of the region that the gradients depend on, in order."""
    found = ancestors([g for g in traced.grads if g is not None], stop=traced.tangents)
    return [n for n in traced.region if n in found and n not in traced.tangents]


def _graph(places: Sequence[Node], order: Sequence[Node], grads: Sequence[Node | None]) -> Graph:
    graph = Graph()
    made: dict[Node, Node] = {}
    for node in places:
        made[node] = graph.placeholder(node.name)
        made[node].meta["val"] = node.meta["val"]
    for node in order:
        made[node] = copy_node(graph, node, made.__getitem__)
    graph.output(tuple([g if g is None else made[g] for g in grads]))
    return graph
