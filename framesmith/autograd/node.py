"""A compiled graph in the autograd engine: one node, whose backward is compiled when it first runs, or is begun with
the forward.

What the engine gives its nodes it gives this one: hooks, `retain_graph`, saved-tensor hooks, version checks of what is
kept, anomaly mode. With `create_graph=True` the gradients are computed by the joint graph as a function of inputs and
tangents, differentiable in its turn: so any order of derivative is one more such node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith._C import CompiledFunction, DifferentiableGraph, misplaced
from framesmith.autograd import branches, loops  # noqa: F401  register derivatives
from framesmith.autograd.joint import Joint, trace_joint
from framesmith.autograd.layouts import strides_of
from framesmith.autograd.operators import evaluated, of_any_layout, untransformed
from framesmith.autograd.partition import backward_of, gradient_of, partition
from framesmith.graph.symbols import size_sources
from framesmith.symbolic.node import expr_of
from framesmith.util.collector import collector_paused
from framesmith.util.dynamo import dynamo_off
from framesmith.util.errors import Unsupported
from framesmith.util.interrupts import raised_by_handler
from framesmith.util.locks import COMPILE_LOCK, forkable_lock

Values = tuple[Any, ...]
Compiled = Callable[[Any], Values]
"""Called with one tuple, or with a list, which it may empty: what is given up so dies after its last use."""
Compile = Callable[[fx.Graph, Sequence[Any]], Compiled]
"""(graph, examples of its inputs) -> what computes it, without gradients."""
Both = Callable[[fx.Graph, Sequence[Any], fx.Graph], tuple[Compiled, Callable[[], Compiled] | None]]
"""(forward, examples of its inputs, backward) -> what computes the forward; what gives the backward's, if that was
begun."""
Tell = Callable[[Exception], None]
Pattern = tuple[tuple[bool, ...], ...]
"""Of a backward: which tangents there are; which gradients are asked for; of a differentiable one, which of its inputs
require grad."""

_MANY = 8
"""So many results have their values freed with the first of their gradients."""
_KINDS = {"input": 0, "result": 1, "extra": 2}


class Differentiable:
    """A captured graph with its gradients. `recompute` and `budget`: see `partition`. `both`: begins the backward, too,
    where it is known what will be asked of it. `apart`: what compiles a backward that was not begun, if another than
    `compile`. `tell`: told why a backward cannot be compiled, which then runs by operators: the program is in the
    middle of it."""

    def __init__(self, graph: fx.Graph, examples: Sequence[Any], compile: Compile, recompute: bool = True,
                 budget: float = 1.0, both: Both | None = None, apart: Compile | None = None,
                 tell: Tell | None = None) -> None:
        self._graph = graph
        self._compile = compile
        self._apart = apart or compile
        self._how = recompute, budget
        self._tell = tell
        self.joint = trace_joint(graph)
        self.parts = partition(self.joint, recompute, budget)
        self._later: Callable[[], Compiled] | None = None
        if both is not None and len(self.joint.differentiable) == 1:  # of several results some may have no tangent
            self.forward, self._later = both(self.parts.forward, examples, self.parts.backward)
        else:
            self.forward = compile(self.parts.forward, examples)
        copies = {("input", k) for k in self.parts.copied}  # what is kept of these is nobody else's
        self._watched = [place for place in _saved(self.joint) if place not in self.parts.kept or place in copies]
        self._backwards: dict[Pattern, _Backward] = {}
        self._wholes: dict[Pattern, Compiled] = {}
        self._by_operators: dict[Pattern, _Backward] = {}
        self._lock: Any = forkable_lock()

    def in_engine(self) -> Compiled:
        """Return the callable that stands for the graph: the forward, with the backward below as its autograd node."""
        j, parts = self.joint, self.parts
        kept, watched = ([(_KINDS[kind], place) for kind, place in places] for places in (parts.kept, self._watched))
        return DifferentiableGraph(self, self.forward, j.results, j.outputs, j.differentiable, j.wanted, j.written,
                                   kept, watched,
                                   parts.needed, parts.exact, parts.copied, j.order, j.later)

    def reads(self, there: tuple[bool, ...], wanted: tuple[bool, ...], again: bool) -> tuple[tuple[bool, ...],
                                                                                             tuple[bool, ...], Values]:
        """Return which of the kept values a backward takes, by which tangents there are and which gradients are asked
        for; which of the kept and the watched values eager's would take, so that they may not have been written; and
        the numbers of the values kept by eager that its backward would take, which it may do once.

        `again`: it is to be differentiated in its turn.
        """
        with self._lock:
            plan = self._plan(there, wanted)
        if again:
            count = len(self.parts.kept)
            return tuple([k in self.parts.drawn
                          for k in range(count)]), (False,) * (count + len(self._watched)), plan.taken
        return plan.reads, plan.checks, plan.taken

    def spent(self, there: tuple[bool, ...], wanted: tuple[bool, ...]) -> tuple[bool, ...]:
        """Return which of the kept values may be freed once a last backward has run: those that no gradient of another
        result reads which may still follow. None may follow that takes what eager's backward can read only once."""
        with self._lock:
            plan = self._plan(there, wanted)
            if plan.spent is None:
                rest = [k for k, given in enumerate(there) if not given]
                needed = {place for k in rest if not self._passes_all(there, plan, k)
                          for place in self._needed_after(plan, k)} if len(rest) < _MANY else ()
                plan.spent = tuple([place not in needed for place in range(len(self.parts.kept))])
            return plan.spent

    def _passes_all(self, there: tuple[bool, ...], plan: _Backward, result: int) -> bool:
        """Return whether gradients of a result come to all that a backward took which can be read only once: it is
        computed of each of the results that the backward had tangents of."""
        return bool(plan.taken) and all(result in self.joint.later[k] for k, given in enumerate(there) if given)

    def _needed_after(self, plan: _Backward, result: int) -> list[int]:
        """The kept values of which the gradients of one result are computed, if these may follow."""
        count = len(self.joint.differentiable)
        other = self._plan(tuple([k == result for k in range(count)]), (True,) * len(self.joint.wanted))
        return [] if set(other.taken) & set(plan.taken) else [place for place, read in enumerate(other.reads) if read]

    def backward(self, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...]) -> Values:
        """The gradients of the wanted inputs. A tangent that is None is none of the graph's: what depends on it alone
        has no gradient.

        Empties both lists: what is in them may die during the call.
        """
        with self._lock:
            there = tuple([x is not None for x in tangents])
            given = [*[x for x in kept if x is not None], *tangents]
            kept.clear()
            tangents.clear()
            plan = self._plan(there, wanted)
            if plan.call is None:
                later = self._later if plan.graph is self.parts.backward else None
                compile = self._apart if later is None else lambda graph, fitted: later()
                plan.call = CompiledFunction(_Fitted, None)(plan.graph, given, self._or_by_operators(compile))
        return plan.call(given)

    def _or_by_operators(self, compile: Compile) -> Compile:
        def compiled(graph: fx.Graph, given: Sequence[Any]) -> Compiled:
            try:
                return compile(graph, given)
            except Exception as problem:
                if self._tell is None or raised_by_handler(problem):
                    raise
                self._tell(problem)
                return lambda given: evaluated(graph, given)

        return compiled

    def _plan(self, there: tuple[bool, ...], wanted: tuple[bool, ...]) -> _Backward:
        found = self._backwards.get((there, wanted))
        if found is None:
            if all(there) and all(wanted):
                found = _Backward(self.parts.backward, (True,) * len(self.parts.kept), (), self.joint.read)
            else:
                found = CompiledFunction(self._partial, None)(there, wanted)
            self._backwards[there, wanted] = found
        return found

    def _partial(self, there: tuple[bool, ...], wanted: tuple[bool, ...]) -> _Backward:
        with COMPILE_LOCK, dynamo_off(), collector_paused():
            joint = trace_joint(self._graph, there,
                                [k for k, asked in zip(self.joint.wanted, wanted, strict=True) if asked])
            graph, reads = backward_of(joint, self.parts, wanted)
        saved = _saved(joint)
        return _Backward(graph, tuple(reads), tuple([place in saved for place in (*self.parts.kept, *self._watched)]),
                         joint.read)

    def whole(self, inputs: Values, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...]) -> Values:
        """The same, differentiable; of the kept values, those that were drawn."""
        given = (*inputs, *[kept[k] for k in self.parts.drawn], *tangents)
        there = tuple([x is not None for x in tangents])
        requires = tuple([x is not None and x.requires_grad for x in given])
        with self._lock:
            found = self._wholes.get((there, wanted, requires))
            if found is None:
                found = self._wholes[there, wanted, requires] = CompiledFunction(self._compiled_whole,
                                                                                 None)(there, wanted, requires, given)
        return found(given)

    def _compiled_whole(self, there: tuple[bool, ...], wanted: tuple[bool, ...], requires: tuple[bool, ...],
                        given: Values) -> Compiled:
        with COMPILE_LOCK, dynamo_off(), collector_paused():
            graph = gradient_of(trace_joint(self._graph, there, self.joint.wanted), self.parts, wanted, requires)
            try:
                return _Fitted(graph, given, lambda part,
                               there: Differentiable(part, there, self._compile, *self._how).in_engine())
            except Unsupported:  # autograd's own nodes have the derivatives that cannot be recorded
                pass
        by_operators = self._interpreted(there, wanted, requires).graph
        return lambda given: evaluated(by_operators, given)

    def by_operators(self, inputs: Values, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
                     again: bool) -> Values:
        """The gradients of values that compiled code does not take; `again`: differentiable."""
        there = tuple([x is not None for x in tangents])
        given = [*inputs, *[kept[k] for k in self.parts.drawn], *tangents] if again else [*kept, *tangents]
        requires = tuple([x is not None and x.requires_grad for x in given]) if again else ()
        with self._lock:
            found = self._by_operators.get((there, wanted, requires))
            if found is None:
                with untransformed():
                    found = CompiledFunction(self._interpreted, None)(there, wanted, requires)
                self._by_operators[there, wanted, requires] = found
        return evaluated(found.graph, [x for x, read in zip(given, found.reads, strict=True) if read])

    def _interpreted(self, there: tuple[bool, ...], wanted: tuple[bool, ...], requires: tuple[bool, ...]) -> _Backward:
        with COMPILE_LOCK, dynamo_off(), collector_paused():
            joint = trace_joint(self._graph, there, self.joint.wanted)
            if requires:
                return _Backward(of_any_layout(gradient_of(joint, self.parts, wanted, requires)),
                                 (True,) * len(requires))
            graph, reads = backward_of(joint, self.parts, wanted)
            return _Backward(of_any_layout(graph), (*reads, *[True] * len(there)))


def _saved(joint: Joint) -> list[tuple[str, int]]:
    """Return which of the inputs and results autograd would keep for its backward, as (kind, number)."""
    saved = [("result", k) for k in joint.saved_results if k < joint.outputs]
    saved += [("input", k) for k in joint.saved_inputs if k not in joint.written]
    return saved + [("input", joint.written[k - joint.outputs]) for k in joint.saved_results if k >= joint.outputs]


@dataclass(slots=True)
class _Backward:
    """A backward graph, what computes it once it has run, and which of the kept values it takes; for one of some
    gradients or tangents alone, which of the kept and the watched values eager's would take; `taken`, `spent`: see
    `Differentiable`."""

    graph: fx.Graph
    reads: tuple[bool, ...]
    checks: tuple[bool, ...] = ()
    taken: tuple[int, ...] = ()
    spent: tuple[bool, ...] | None = None
    call: Compiled | None = None


class _Fitted:
    """Code of a graph of gradients: what it is given comes in any layout, and may be missing; code takes what the graph
    says."""

    def __init__(self, graph: fx.Graph, given: Sequence[Any], compile: Compile) -> None:
        strides = _drop_missing(graph, given)
        self._symbolic = {k: stride for k, stride in enumerate(strides) if any(type(n) is not int for n in stride)}
        self._strides = tuple([() if k in self._symbolic else stride for k, stride in enumerate(strides)])
        self._sizes = size_sources(graph) if self._symbolic else {}
        self._call = compile(graph, tuple(self._fit(given)))

    def __call__(self, given: Values | list[Any]) -> Values:
        fitted = self._fit(given)
        if type(given) is tuple:
            return self._call(tuple(fitted))
        given.clear()  # type: ignore[union-attr]
        return self._call(fitted)

    def _fit(self, given: Sequence[Any]) -> list[Any]:
        fitted, wrong = misplaced(given, self._strides)
        sizes = {symbol: fitted[place].shape[dim] for symbol, (place, dim) in self._sizes.items()}
        for place, number in wrong:
            stride = self._strides[number] or tuple([expr_of(n).evaluate(sizes) for n in self._symbolic[number]])
            fitted[place] = _in_layout(fitted[place], stride)
        return fitted


def _drop_missing(graph: fx.Graph, given: Sequence[Any]) -> list[Any]:
    """Take the placeholders of what is None from the graph, which does not read them; the strides of all."""
    places = [n for n in graph.nodes if n.op == "placeholder"]
    for node, value in zip(places, given, strict=True):
        if value is None:
            graph.erase_node(node)
    return [strides_of(n) for n in places]


def _in_layout(x: torch.Tensor, stride: Any) -> torch.Tensor:
    return x if x.stride() == stride else torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


__all__ = ["Compile", "Differentiable"]
