"""Split a graph into the part that depends only on parameters, or on nothing, and the rest.

The first part (packed weights, folded norms, casts) is evaluated once and again when a parameter changed; its results
are constants of the second part. A placeholder is a parameter when `meta["param"]` is true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.graph.digest import target_name
from framesmith.graph.purity import PURE, communicates, kind_of
from framesmith.graph.traversal import ancestors, copy_node, placeholders_of
from framesmith.symbolic.expr import Expr
from framesmith.util.advice import readable

IMPURE = frozenset({torch.ops.aten.copy_.default})
_SUMS = frozenset({torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor})
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool, Expr)


@dataclass(frozen=True, slots=True)
class Frozen:
    """`constants` computes from the values of `parameters` (indices of placeholders of the original graph) the tuple of
    constants: `main` takes the original's remaining inputs `inputs` (indices), then these."""

    constants: fx.Graph
    parameters: tuple[int, ...]
    main: fx.Graph
    inputs: tuple[int, ...]

    def names(self) -> list[str]:
        """Return for each constant the operator that computes it and the parameters that it depends on."""
        values: tuple[fx.Node, ...] = next(n for n in self.constants.nodes if n.op == "output").args[0]  # type: ignore
        found = []
        for value in values:
            read = [n.meta.get("source", n.name) for n in ancestors([value]) if n.op == "placeholder"]
            found.append(f"{target_name(value.target)}({', '.join(sorted(map(readable, read)))})")
        return found


def is_parameter_expression(value: Any) -> bool:
    """Return whether `value` is a node computed from parameters and plain values only, by pure operators (memoised in
    `meta`)."""
    if not isinstance(value, fx.Node):
        return False
    known = value.meta.get("frozen")
    if known is None:
        if value.op == "placeholder":
            known = bool(value.meta.get("param")) and not _is_written(value)
        elif (value.op == "call_function" and value.target not in IMPURE and not _is_random(value)
              and not communicates(value.target)
              and not _is_added_row(value)):
            inputs = value.all_input_nodes
            known = (bool(inputs) or kind_of(value.target) == PURE) and all(map(is_parameter_expression, inputs))
            known = known and _is_static((value.args, value.kwargs))
        else:
            known = False
        value.meta["frozen"] = known
    return known


def is_input_free(value: Any) -> bool:
    """Return whether the parameter expression `value` reads no parameter either (memoised in `meta`)."""
    known = value.meta.get("input free")
    if known is None:
        known = value.op == "call_function" and all(map(is_input_free,
                                                        value.all_input_nodes)) and is_parameter_expression(value)
        value.meta["input free"] = known
    return known


def _is_static(arguments: Any) -> bool:
    """Return whether no size among `arguments` differs between calls."""
    if isinstance(arguments, (tuple, list)):
        return all(map(_is_static, arguments))
    if isinstance(arguments, dict):
        return all(map(_is_static, arguments.values()))
    return not isinstance(arguments, _SYMBOLIC)


def _is_written(place: fx.Node) -> bool:
    """Return whether each call writes a parameter (a counter, say), so that values that depend on it cannot be
    frozen."""
    return any(user.target in IMPURE and user.args[0] is place for user in place.users)


def _is_added_row(node: fx.Node) -> bool:
    """Return whether `node` looks up rows of a table as an addend: the sum reads them from the table as fast, and a
    constant would take more memory, once for each element of a batch."""
    return node.target is torch.ops.aten.embedding.default and all(user.target in _SUMS for user in node.users)


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def freeze(graph: fx.Graph, worth: Any) -> Frozen | None:
    """Split `graph`; `worth(node)` says whether a parameter expression is worth a constant (a plain view is not).

    Return None if nothing is worth freezing. A frozen value is cut at the last parameter-only node on each path whose
    expression has at least one node with `worth`.
    """
    known = [n for n in graph.nodes if n.op == "call_function" and is_parameter_expression(n)]
    frontier = [n for n in known if _on_frontier(n) and _contains(n, worth)]
    if not frontier:
        return None
    placeholders = placeholders_of(graph)
    constants, used = _extract(graph, frontier, placeholders)
    main = fx.Graph()
    replaced = set(frontier)
    env: dict[fx.Node, fx.Node] = {}
    live = _live_without(graph, replaced)
    kept = [i for i, p in enumerate(placeholders) if p in live or not p.meta.get("param")]
    for i in kept:
        env[placeholders[i]] = copy_node(main, placeholders[i], env.__getitem__)
    for node in frontier:
        env[node] = main.placeholder(f"constant_{len(env)}")
        env[node].meta = {k: v for k, v in node.meta.items() if k != "frozen"}
        env[node].meta["constant"] = True
    for node in graph.nodes:
        if node.op != "placeholder" and node in live and node not in env:
            env[node] = copy_node(main, node, env.__getitem__)
    return Frozen(constants, tuple(used), main, tuple(kept))


def _on_frontier(node: fx.Node) -> bool:
    return any(not is_parameter_expression(user) for user in node.users)


def _contains(node: fx.Node, worth: Any) -> bool:
    """Return whether a node of the parameter expression `node` is worth freezing (parameters themselves are not)."""
    return any(n.op != "placeholder" and worth(n) for n in ancestors([node]))


def _extract(graph: fx.Graph, frontier: list[fx.Node], placeholders: list[fx.Node]) -> tuple[fx.Graph, list[int]]:
    needed = ancestors(frontier)
    out = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in needed:
            env[node] = copy_node(out, node, env.__getitem__)
    out.output(tuple(env[n] for n in frontier))
    return out, [i for i, p in enumerate(placeholders) if p in needed]


def _live_without(graph: fx.Graph, cut: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes reachable backwards from effects and the output without passing through `cut`."""
    kept = [n for n in graph.nodes if n.op == "output" or n.target in IMPURE
            or (n.op == "call_function" and (_is_random(n) or communicates(n.target)))]
    return ancestors(kept, stop=cut) - cut
