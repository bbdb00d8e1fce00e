"""Comparison of a graph's values, operator by operator: in eager, in float64, and compiled.

The compiled values are those of the graph with every value as a result. If the difference vanishes, because such a
graph has other kernels, growing prefixes of the graph are compiled instead.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_map

from framesmith.backends import compile_native
from framesmith.config import Config
from framesmith.graph.interpreter import run
from framesmith.graph.printer import target_text
from framesmith.graph.purity import is_view, kind_of
from framesmith.graph.traversal import copy_node, placeholders_of
from framesmith.tools.difference import distance, mismatch, to_float64
from framesmith.tools.judge import wide_dtype
from framesmith.tools.recorded import Recorded, copied, own, seeded
from framesmith.util.stack import user_frame

Values = dict[fx.Node, Any]


@dataclass(frozen=True, slots=True)
class Blame:
    """The first operator of a graph whose compiled value is wrong. `place`: the user's line. `eager`, `compiled`: how
    far each is from float64 (of compiled: from eager, where there is no float64)."""

    operator: str
    place: tuple[str, int, str] | None
    detail: str
    eager: float = 0.0
    compiled: float = 0.0


class Comparison:
    """A graph with what it was given. `tolerance`: relative, in the place of the dtype's."""

    def __init__(self, one: Recorded, config: Config, tolerance: float | None = None) -> None:
        self.graph, self.inputs, self.config = one.graph, [own(_plain(x)) for x in one.inputs], config
        self.tolerance = tolerance
        self.eager: Values = {}
        with torch.no_grad(), seeded():
            run(self.graph, self._given(), trace=self.eager.__setitem__)
        self.exact = self._exact()

    def _given(self) -> list[Any]:
        return [own(x) for x in self.inputs]

    def _exact(self) -> Values:
        """Return the values in float64; those of operators that draw are eager's. It ends where an operator has no
        kernel."""
        graph, made, drawn = fx.Graph(), dict[fx.Node, fx.Node](), []
        order: dict[fx.Node, fx.Node] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder" or kind_of(node.target) == "random" and node.op == "call_function":
                made[node] = graph.placeholder(node.name)
                drawn.append(node)
        for node in self.graph.nodes:
            if node not in made:
                made[node] = copy_node(graph, node, made.__getitem__)
                made[node].args = map_aggregate(made[node].args, wide_dtype)  # type: ignore[assignment]
                made[node].kwargs = map_aggregate(made[node].kwargs, wide_dtype)  # type: ignore[assignment]
            order[made[node]] = node
        places = iter(self._given())
        given = [tree_map(_wide, next(places) if n.op == "placeholder" else self.eager[n]) for n in drawn]
        found: Values = {}
        try:
            with torch.no_grad():
                run(graph, given, trace=lambda node, value: found.__setitem__(order[node], value))
        except Exception:  # an operator without a kernel for float64
            return found
        return found

    def compiled(self, results: Sequence[fx.Node]) -> list[Any]:
        """Return the values of nodes by compiled code, with these nodes as the graph's results. Raises what compiling
        does."""
        call, _ = compile_native(_detached(copied(self.graph, results)), self._given(), self.config)
        with torch.no_grad(), seeded():
            return list(call(tuple(self._given())))

    # ------------------------------------------------------------------------------------------------------ differences

    def differs(self, node: fx.Node, value: Any) -> str:
        """Describe how a compiled value differs by more than rounding, or return ""."""
        return _apart(self.eager[node], value, self.exact.get(node), self.tolerance)

    def blame(self) -> Blame | None:
        """Return the first operator that is wrong, or None where the graph's results are right."""
        results = [r for r in dict.fromkeys(_results(self.graph)) if isinstance(r, fx.Node)]
        try:
            wrong = [(r, found) for r, value in zip(results, self.compiled(results), strict=True)
                     if (found := self.differs(r, value))]
        except Exception as error:
            return self._first_prefix() or Blame("", None, _text(error))
        if not wrong:
            return None
        if (first := self._first_value() or self._first_prefix()) is not None:
            return first
        node, detail = wrong[0]
        return None if self._hangs_on_rounding(node) else self._named(node, f"in the whole graph alone: {detail}")

    def _first_value(self) -> Blame | None:
        """Return the first wrong value with right operands, from the graph with every value as a result."""
        shown = [n for n in self.graph.nodes if _is_shown(n)]
        try:
            found = dict(zip(shown, self.compiled(shown), strict=True))
        except Exception:  # the beginnings of the graph tell where
            return None
        known: Values = dict(zip(placeholders_of(self.graph), self._given(), strict=True))
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            known[node] = found[node] if node in found else _alone(node, known)
            if node in found and (detail := self.differs(node, found[node])) and self._is_cause(node, known):
                return self._named(node, detail, found[node])
        return None

    def _is_cause(self, node: fx.Node, known: Mapping[fx.Node, Any]) -> bool:
        """Return whether the operator, given the compiled values that it reads, gives another value than compiled
        code."""
        if kind_of(node.target) == "random":
            return True
        owner = _operator_of(node)
        want, wide = _alone(owner, known), _alone_wide(owner, known)
        if owner is not node:
            want, wide = want[node.args[1]], wide and wide[node.args[1]]
        return bool(_apart(want, known[node], wide, self.tolerance))

    def _hangs_on_rounding(self, node: fx.Node) -> bool:
        """Return whether eager itself is far from float64: a decision depends on the last bits."""
        exact = self.exact.get(node)
        return exact is not None and bool(_apart(exact.to(self.eager[node].dtype), self.eager[node], None, None))

    def _first_prefix(self) -> Blame | None:
        """Return the last operator of the shortest prefix of the graph with wrong results, or that cannot be compiled,
        by bisection."""
        calls = [n for n in self.graph.nodes if n.op == "call_function"]
        low, high, found = 1, len(calls), None
        while low <= high:
            middle = (low + high) // 2
            blame = self._wrong_beginning(calls[:middle])
            if blame is not None:
                found, high = blame, middle - 1
            else:
                low = middle + 1
        return found

    def _wrong_beginning(self, calls: Sequence[fx.Node]) -> Blame | None:
        kept = set(calls)
        left = [n for n in calls if _is_shown(n) and not any(u in kept and not is_view(u.target) for u in n.users)]
        if not left:
            return None
        try:
            values = self.compiled(left)
        except Exception as error:
            return self._named(calls[-1], _text(error))
        for node, value in zip(left, values, strict=True):
            if detail := self.differs(node, value):
                return self._named(node, detail, value)
        return None

    def _named(self, node: fx.Node, detail: str, value: Any = None) -> Blame:
        stack = node.meta.get("stack")
        exact = self.exact.get(node)
        base = self.eager.get(node) if exact is None else exact
        far = [distance(base, x) for x in (self.eager[node], value)] if value is not None and base is not None else []
        return Blame(target_text(_operator_of(node)), user_frame(stack) if stack else None, detail, *far)


def _plain(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _detached(graph: fx.Graph) -> fx.Graph:
    """Return the graph without writes, which only computes values."""
    for node in [n for n in graph.nodes if n.target is torch.ops.aten.copy_.default and not n.users]:
        graph.erase_node(node)
    return graph


def _results(graph: fx.Graph) -> list[Any]:
    written = [n.args[1] for n in graph.nodes if n.target is torch.ops.aten.copy_.default]
    return [*next(iter(reversed(graph.nodes))).args[0], *written]  # type: ignore[misc]


def _is_shown(node: fx.Node) -> bool:
    """Return whether a node is a tensor with its own memory, and no view."""
    val = node.meta.get("val")
    return (node.op == "call_function" and isinstance(val, torch.Tensor) and val.layout is torch.strided
            and (node.target is operator.getitem or not is_view(node.target))
            and node.target is not torch.ops.aten.copy_.default)


def _operator_of(node: fx.Node) -> fx.Node:
    """Return the operator, of a part of its result."""
    return node.args[0] if node.target is operator.getitem else node  # type: ignore[return-value]


def _alone(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    """Return eager's value for one operator."""
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    args, kwargs = tree_map(own, (args, kwargs)) if node.target is torch.ops.aten.copy_.default else (args, kwargs)
    with torch.no_grad(), seeded():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _alone_wide(node: fx.Node, known: Mapping[fx.Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: tree_map(_wide, known[n]))
    try:
        with torch.no_grad():
            return node.target(*map_aggregate(args, wide_dtype),  # type: ignore[operator, misc]
                               **map_aggregate(kwargs, wide_dtype))  # type: ignore[arg-type]
    except Exception:  # an operator without a kernel for float64
        return None


def _wide(x: Any) -> Any:
    return to_float64(x) if isinstance(x, torch.Tensor) else x


def _apart(want: Any, got: Any, exact: Any, tolerance: float | None) -> str:
    return mismatch(want.detach(), got.detach(), exact, tolerance=tolerance)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]
