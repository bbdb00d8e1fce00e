"""A compiled graph in the autograd engine: one node, whose backward is compiled when it first runs.

What the engine gives its nodes it gives this one: hooks, `retain_graph`, saved-tensor hooks, version checks of what is kept, anomaly mode.
With `create_graph=True` the gradients are computed by the joint graph as a function of inputs and tangents, differentiable in its turn: so
any order of derivative is one more such node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from framesmith._C import CompiledFunction, DifferentiableGraph
from framesmith.autograd.joint import trace_joint
from framesmith.autograd.partition import backward_of, gradient_of, partition

Values = tuple[Any, ...]
Compiled = Callable[[Values], Values]
Compile = Callable[[fx.Graph, Sequence[Any]], Compiled]
"""(graph, examples of its inputs) -> what computes it, without gradients."""
Pattern = tuple[bool, ...]


_KINDS = {"input": 0, "result": 1, "extra": 2}


class Differentiable:
    """A captured graph with its gradients. `recompute`: see `partition`."""

    def __init__(self, graph: fx.Graph, examples: Sequence[Any], compile: Compile, recompute: bool = True) -> None:
        self._graph = graph
        self._compile = compile
        self._recompute = recompute
        self.joint = trace_joint(graph)
        self.parts = partition(self.joint, recompute)
        self.forward = compile(self.parts.forward, examples)
        self.drawn = self.parts.drawn
        self._backwards: dict[Pattern, Compiled] = {}
        self._wholes: dict[Pattern, Compiled] = {}
        self._lock = threading.RLock()

    def in_engine(self) -> Compiled:
        """What is called in the graph's place: the forward, with the backward below as its node."""
        j = self.joint
        kept = [(_KINDS[kind], place) for kind, place in self.parts.kept]
        return DifferentiableGraph(self, self.forward, j.results, j.outputs, j.differentiable, j.wanted, j.written, kept)

    def backward(self, kept: Values, tangents: Sequence[torch.Tensor | None]) -> Values:
        """The gradients of the wanted inputs. A tangent that is None is none of the graph's: what depends on it alone has no gradient."""
        pattern = tuple([x is not None for x in tangents])
        given = (*kept, *tangents)
        with self._lock:
            call = self._backwards.get(pattern)
            if call is None:
                call = self._backwards[pattern] = CompiledFunction(self._compiled_backward, None)(pattern, given)
        return call(given)

    def _compiled_backward(self, pattern: Pattern, given: Values) -> Compiled:
        graph = self.parts.backward if all(pattern) else backward_of(trace_joint(self._graph, pattern), self.parts.names)
        return _Fitted(graph, given, self._compile)

    def whole(self, inputs: Values, kept: Values, tangents: Sequence[torch.Tensor | None]) -> Values:
        """The same, differentiable."""
        given = (*inputs, *[kept[k] for k in self.drawn], *tangents)
        requires = tuple([x is not None and x.requires_grad for x in given])
        pattern = (*[x is not None for x in tangents], *requires)
        with self._lock:
            found = self._wholes.get(pattern)
            if found is None:
                found = self._wholes[pattern] = CompiledFunction(self._compiled_whole, None)(pattern[:len(tangents)], requires, given)
        return found(_there(given))

    def _compiled_whole(self, pattern: Pattern, requires: Pattern, given: Values) -> Compiled:
        names = [self.parts.names[k] for k in self.drawn]
        graph = gradient_of(trace_joint(self._graph, pattern), names, requires)
        drop_missing(graph, given)
        return Differentiable(graph, _there(given), self._compile, self._recompute).in_engine()


class _Fitted:
    """Code of a backward graph: tangents come in any layout, and not all of them; code takes what the graph says."""

    def __init__(self, graph: fx.Graph, given: Values, compile: Compile) -> None:
        self._vals = drop_missing(graph, given)
        self._call = compile(graph, self._fit(given))

    def __call__(self, given: Values) -> Values:
        return self._call(self._fit(given))

    def _fit(self, given: Values) -> Values:
        return tuple([_in_layout(x, val) for x, val in zip(given, self._vals, strict=True) if x is not None])


def drop_missing(graph: fx.Graph, given: Values) -> list[Any]:
    """Take the placeholders of what is None from the graph, which does not read them; the metadata of all."""
    places = [n for n in graph.nodes if n.op == "placeholder"]
    for node, value in zip(places, given, strict=True):
        if value is None:
            graph.erase_node(node)
    return [n.meta["val"] for n in places]


def _there(given: Values) -> Values:
    return tuple([x for x in given if x is not None])


def _in_layout(x: torch.Tensor, val: torch.Tensor) -> torch.Tensor:
    if x.stride() == val.stride():
        return x
    return torch.empty_strided(val.shape, val.stride(), dtype=x.dtype, device=x.device).copy_(x)


__all__ = ["Compile", "Differentiable"]
