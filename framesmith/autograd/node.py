"""A compiled graph in the autograd engine: one node, whose backward is compiled when it first runs, or is begun with
the forward.

The engine supports this node like its own: hooks, `retain_graph`, saved-tensor hooks, version checks of saved tensors,
anomaly mode. With `create_graph=True` the gradients are computed by the joint graph as a function of inputs and
tangents, differentiable again, so each order of derivative is one more such node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import fx

from framesmith._C import CompiledFunction, DifferentiableGraph, hooked, misplaced
from framesmith.autograd import branches, loops  # noqa: F401  register derivatives
from framesmith.autograd.joint import EVERY, Joint, trace_joint
from framesmith.autograd.layouts import strides_of
from framesmith.autograd.missing_tangents import bits, without_tangents
from framesmith.autograd.operators import evaluated, of_any_layout, untransformed
from framesmith.autograd.partition import backward_of, gradient_of
from framesmith.autograd.repeated import differentiated
from framesmith.autograd.segments import Part, Segments
from framesmith.graph.symbols import environment, size_sources
from framesmith.graph.traversal import placeholders_of
from framesmith.symbolic.expr import Rel, Symbol
from framesmith.symbolic.node import expr_of
from framesmith.util.collector import collector_paused
from framesmith.util.dynamo import dynamo_off
from framesmith.util.errors import Unsupported
from framesmith.util.interrupts import raised_by_handler
from framesmith.util.locks import COMPILE_LOCK, forkable_lock

Values = tuple[Any, ...]
Sizes = tuple[int, ...]
"""Of a call, those of `size_sources` of the captured graph."""
Compiled = Callable[[Any], Values]
"""Compiled code, called with one tuple, or with a list that it may empty, so that its elements die after their last
use."""
Keep = Callable[[Any], None]
"""Receives a compiled graph as data, while it is built."""
Compile = Callable[[fx.Graph, Sequence[Any], Keep | None], Compiled]
"""(graph, examples of its inputs, where to keep it) -> compiled code, without gradients."""
Begun = dict[fx.Graph, Callable[[Keep | None], Compiled]]
"""Functions that return the compiled code of graphs whose compilation was begun."""
Both = Callable[[fx.Graph, Sequence[Any], Mapping[fx.Graph, Callable[[], Keep | None]]], tuple[Compiled, Begun]]
"""(forward, examples of its inputs, graphs of the backward, each with a function that says where to keep it once the
forward is kept) -> compiled forward, and those of the graphs that were begun."""
Tell = Callable[[Exception], None]
Pattern = tuple[tuple[bool, ...], ...]
"""The pattern of a backward: which tangents exist; which gradients are needed; for a differentiable one, which of its
inputs require grad."""

_MANY = 8
"""The number of results from which saved values are freed with the first of their gradients."""
_VARIANTS = 8
"""The maximal number of variants of one backward, for sizes with different relations."""
_KINDS = {"input": 0, "result": 1, "extra": 2}


@dataclass(frozen=True, slots=True)
class BackwardFacts:
    """The properties of a backward other than its code: what `Differentiable.reads` returns, what `spent` does (None:
    not known), and the strides of its inputs."""

    reads: tuple[bool, ...]
    checks: tuple[bool, ...]
    taken: tuple[int, ...]
    spent: tuple[bool, ...] | None
    strides: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The properties of a segment of a backward other than its code: `cut`, a digest of the backward and of how it is
    divided, `part`, and the strides of its inputs."""

    cut: str
    part: Part
    strides: tuple[tuple[int, ...], ...]


Key = tuple[tuple[bool, ...], tuple[bool, ...]] | int
"""A stored part of the gradients: for which tangents a backward is, and for which gradients; or the number of a segment
of the backward of all."""
KeepBackward = Callable[[Key, BackwardFacts | SegmentFacts, Any], None]
"""Receives a backward, or a segment of it, as data, while it is built: what it is, its facts, and its code."""


class Differentiable:
    """A captured graph with its gradients. `recompute` and `budget`: see `partition`. `by_parts`: a few of many equal
    parts are differentiated for all. `compile_backward`: compiles a backward that was not begun, if not `compile`.
    `tell`: receives the reason why a backward cannot be compiled; it then runs by operators, since the program is
    already in it.

    `layout`: the description of the graph's values for the node in C++. `keep_backward`: receives compiled backwards.
    """

    keep_backward: KeepBackward | None = None
    stored: Any = None
    """What the node asks in its place, where other processes make parts of it, too."""

    def __init__(self, graph: fx.Graph, compile: Compile, recompute: bool = True, budget: float = 1.0,
                 by_parts: bool = True, compile_backward: Compile | None = None, tell: Tell | None = None) -> None:
        self.graph = graph
        self._compile = compile
        self._compile_backward = compile_backward or compile
        self._how = recompute, budget, by_parts
        self._tell = tell
        self.joint, self.parts = differentiated(graph, *self._how)
        self._segments = Segments(self.parts.backward)
        self._begun: Begun = {}
        copies = {("input", k) for k in self.parts.copied}  # what is kept of these is nobody else's
        self._watched = [place for place in _saved(self.joint) if place not in self.parts.kept or place in copies]
        self._full = _Backward(self.parts.backward, (True,) * len(self.parts.kept), (), tuple(self.joint.read))
        self._variants = _Variants(graph)
        self._lock: Any = forkable_lock()

    @property
    def layout(self) -> Values:
        """Return the arguments of `DifferentiableGraph` after the program and the forward: plain data."""
        j, parts = self.joint, self.parts
        kept, watched = (tuple([(_KINDS[kind], place) for kind, place in places])
                         for places in (parts.kept, self._watched))
        return (j.results, j.outputs, j.differentiable, j.wanted, j.written, kept, watched, parts.needed, parts.exact,
                parts.copied, j.order, j.later, self._variants.places, self._segments.of)

    def in_engine(self, examples: Sequence[Any], both: Both | None = None, keep: Keep | None = None) -> Compiled:
        """Compile the forward, and return the callable for the graph: the forward, with the backward as its autograd
        node. `both`: also begins the backward, if its pattern is known. `keep`: receives the forward as data."""
        known = len(self.joint.differentiable) == 1  # of several results some may have no tangent
        if both is not None and known:
            keeps: dict[fx.Graph, Callable[[], Keep | None]] = {self.parts.backward: self._keeper_of_all}
            if self._segments.of and hooked([examples[i] for i in self.joint.wanted]):
                keeps = {graph: partial(self._keeper_of_segment, number)
                         for number, (_, graph) in enumerate(self._segments.parts())}
            forward, self._begun = both(self.parts.forward, examples, keeps)
        else:
            forward = self._compile(self.parts.forward, examples, keep)
        return DifferentiableGraph(self if self._begun else self.stored or self, forward, *self.layout)

    def store(self, there: tuple[bool, ...], wanted: tuple[bool, ...],
              compile: Callable[[fx.Graph, tuple[bool, ...], Keep], None]) -> None:
        """Let `compile` keep the backward for these tangents and gradients, before there are inputs."""
        with self._lock:
            self.spent(there, wanted, ())
            plan = self._plan(there, wanted, ())
            keep = self._keeper(plan, there, wanted)
            if plan.call is None and keep is not None:
                compile(plan.graph, there, keep)

    def reads(self, there: tuple[bool, ...], wanted: tuple[bool, ...], again: bool,
              sizes: Sizes) -> tuple[tuple[bool, ...], tuple[bool, ...], Values]:
        """Return which of the saved values a backward takes, for the existing tangents and the needed gradients; which
        of the saved and the watched values eager's would take, and which must not have been written; and the numbers of
        the values saved by eager that its backward would take, which it may do once.

        `again`: it is to be differentiated again.
        """
        with self._lock:
            plan = self._plan(there, wanted, sizes)
        if again:
            count = len(self.parts.kept)
            return tuple([k in self.parts.drawn
                          for k in range(count)]), (False,) * (count + len(self._watched)), plan.taken
        return plan.reads, plan.checks, plan.taken

    def spent(self, there: tuple[bool, ...], wanted: tuple[bool, ...], sizes: Sizes) -> tuple[bool, ...]:
        """Return which of the saved values may be freed after a last backward: those that no later gradient of another
        result can read. None can follow that takes a value that eager's backward can read only once."""
        with self._lock:
            plan = self._plan(there, wanted, sizes)
            if plan.spent is None:
                rest = [k for k, given in enumerate(there) if not given]
                needed = {place for k in rest if not self._passes_all(there, plan, k)
                          for place in self._needed_after(plan, k, sizes)} if len(rest) < _MANY else ()
                plan.spent = tuple([place not in needed for place in range(len(self.parts.kept))])
            return plan.spent

    def _passes_all(self, there: tuple[bool, ...], plan: _Backward, result: int) -> bool:
        """Return whether gradients of a result reach all values that a backward took and that can be read only once: it
        depends on each of the results that the backward had tangents for."""
        return bool(plan.taken) and all(result in self.joint.later[k] for k, given in enumerate(there) if given)

    def _needed_after(self, plan: _Backward, result: int, sizes: Sizes) -> list[int]:
        """Return the saved values from which the gradients of one result are computed, if these may follow."""
        count = len(self.joint.differentiable)
        other = self._plan(tuple([k == result for k in range(count)]), (True,) * len(self.joint.wanted), sizes)
        return [] if set(other.taken) & set(plan.taken) else [place for place, read in enumerate(other.reads) if read]

    def backward(self, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...], sizes: Sizes) -> Values:
        """Return the gradients of the wanted inputs. A tangent of None does not exist: values that depend only on it
        have no gradient.

        Both lists are emptied, so that their elements may die during the call.
        """
        with self._lock:
            there = tuple([x is not None for x in tangents])
            given = [*[x for x in kept if x is not None], *tangents]
            kept.clear()
            tangents.clear()
            plan = self._plan(there, wanted, sizes)
            if plan.call is None:
                keep = self._keeper(plan, there, wanted)
                plan.begun = True
                plan.call = self._fitted(plan.graph, given, keep)
        return plan.call(given)

    def _keeper(self, plan: _Backward, there: tuple[bool, ...], wanted: tuple[bool, ...]) -> Keep | None:
        """Return what receives the code of a backward, if it is kept. One of some of the gradients is not after that of
        all was compiled: what it reads may then be more than what is found without it."""
        keep = self.keep_backward
        if keep is None or plan is not self._full and self._full.begun:
            return None
        strides = tuple([strides_of(n) for n in placeholders_of(plan.graph)])
        return partial(keep, (there, wanted), BackwardFacts(plan.reads, plan.checks, plan.taken, plan.spent, strides))

    def _keeper_of_all(self) -> Keep | None:
        count = len(self.joint.differentiable), len(self.joint.wanted)
        return self._keeper(self._full, (True,) * count[0], (True,) * count[1])

    def _keeper_of_segment(self, number: int) -> Keep | None:
        if self.keep_backward is None:
            return None
        part, graph = self._segments.parts()[number]
        strides = tuple([strides_of(n) for n in placeholders_of(graph)])
        return partial(self.keep_backward, number, SegmentFacts(self._segments.cut, part, strides))

    def segments(self, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
                 sizes: Sizes) -> Values | Iterator[Values]:
        """The same, by an iterator that gives those of one segment after another; all at once where some are missing.
        """
        if not (all(wanted) and all(x is not None for x in tangents)):
            return self.backward(kept, tangents, wanted, sizes)
        given = [*kept, *tangents]
        kept.clear()
        tangents.clear()
        return self._segments.run(given, self._segment)

    def _segment(self, number: int, given: list[Any]) -> Compiled:
        with self._lock:
            return self._fitted(self._segments.parts()[number][1], given, self._keeper_of_segment(number))

    def _fitted(self, graph: fx.Graph, given: list[Any], keep: Keep | None = None) -> Compiled:
        begun = self._begun.pop(graph, None)

        def compile(graph: fx.Graph, given: Sequence[Any]) -> Compiled:
            try:
                return self._compile_backward(graph, given, keep) if begun is None else begun(keep)
            except Exception as problem:
                if self._tell is None or raised_by_handler(problem):
                    raise
                self._tell(problem)
                return lambda given: evaluated(graph, given)

        return CompiledFunction(Fitted.compiled, None)(graph, given, compile)  # type: ignore[no-any-return]

    def _plan(self, there: tuple[bool, ...], wanted: tuple[bool, ...], sizes: Sizes) -> _Backward:
        if all(there) and all(wanted):
            return self._full
        return self._variants.get(("backward", there, wanted), sizes, lambda: self._partial(there, wanted))

    def _partial(self, there: tuple[bool, ...], wanted: tuple[bool, ...]) -> _Backward:
        found = without_tangents(self._full.graph, self.joint, there) if all(wanted) and not self._full.begun else None
        if found is None:
            joint, given = trace_joint(self.graph, there, list(compress(self.joint.wanted, wanted))), EVERY
            graph, reads = backward_of(joint, self.parts, there, wanted)
        else:
            joint, given, (graph, reads) = self.joint, bits(there), found
        saved = _saved(joint, given)
        return _Backward(graph, tuple(reads), tuple([place in saved for place in (*self.parts.kept, *self._watched)]),
                         tuple([k for k, by in joint.read.items() if by & given]))

    def whole(self, inputs: Values, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
              sizes: Sizes) -> Values:
        """Return the same, differentiable; of the saved values, those that were drawn."""
        given = (*inputs, *[kept[k] for k in self.parts.drawn], *tangents)
        there = tuple([x is not None for x in tangents])
        requires = tuple([x is not None and x.requires_grad for x in given])
        with self._lock:
            found = self._variants.get(("whole", there, wanted, requires), sizes,
                                       lambda: self._compiled_whole(there, wanted, requires, given))
        return found(given)  # type: ignore[no-any-return]

    def _compiled_whole(self, there: tuple[bool, ...], wanted: tuple[bool, ...], requires: tuple[bool, ...],
                        given: Values) -> Compiled:
        graph = gradient_of(trace_joint(self.graph, there, self.joint.wanted), self.parts, wanted, requires)
        try:
            return Fitted.compiled(graph, given, lambda part, there: Differentiable(
                part, self._compile, *self._how).in_engine(there))
        except Unsupported:  # autograd's own nodes have the derivatives that cannot be recorded
            by_operators = self._interpreted(there, wanted, requires).graph
        return lambda given: evaluated(by_operators, given)

    def by_operators(self, inputs: Values, kept: list[Any], tangents: list[Any], wanted: tuple[bool, ...],
                     again: bool, sizes: Sizes) -> Values:
        """Return the gradients for values that compiled code does not support; `again`: differentiable."""
        there = tuple([x is not None for x in tangents])
        given = [*inputs, *[kept[k] for k in self.parts.drawn], *tangents] if again else [*kept, *tangents]
        requires = tuple([x is not None and x.requires_grad for x in given]) if again else ()
        with self._lock, untransformed():
            found = self._variants.get(("by operators", there, wanted, requires), sizes,
                                       lambda: self._interpreted(there, wanted, requires))
        return evaluated(found.graph, [x for x, read in zip(given, found.reads, strict=True) if read])

    def _interpreted(self, there: tuple[bool, ...], wanted: tuple[bool, ...], requires: tuple[bool, ...]) -> _Backward:
        joint = trace_joint(self.graph, there, self.joint.wanted)
        if requires:
            return _Backward(of_any_layout(gradient_of(joint, self.parts, wanted, requires)), (True,) * len(requires))
        graph, reads = backward_of(joint, self.parts, there, wanted)
        return _Backward(of_any_layout(graph), (*reads, *[True] * len(there)))


class _Variants:
    """The compiled variants of graphs of gradients, by kind and pattern and by the relations between sizes of `graph`
    that they assume: they are compiled when the guards are complete. `places`: of these sizes."""

    def __init__(self, graph: fx.Graph) -> None:
        sources = size_sources(graph)
        self._env, self._symbols = environment(graph), tuple(sources)
        self.places = tuple(sources.values())
        self._found: dict[Any, list[tuple[list[Rel], Any]]] = {}

    def get(self, key: Any, sizes: Sizes, make: Callable[[], Any]) -> Any:
        """Return the one for `key` that holds for `sizes`; the caller has the graph's lock."""
        for assumed, value in self._found.get(key, ()):
            if not assumed or all(rel.evaluate(self._named(sizes)) for rel in assumed):
                return value
        return CompiledFunction(self._made, None)(key, sizes, make)

    def _made(self, key: Any, sizes: Sizes, make: Callable[[], Any]) -> Any:
        late: Any = nullcontext([]) if self._env is None else self._env.assuming(self._named(sizes))
        with COMPILE_LOCK, dynamo_off(), collector_paused(), late as assumed:
            value = make()
        variants = self._found.setdefault(key, [])
        variants.insert(0, (assumed, value))
        del variants[_VARIANTS:]
        return value

    def _named(self, sizes: Sizes) -> dict[Symbol, int]:
        return dict(zip(self._symbols, sizes, strict=True))


def _saved(joint: Joint, given: int = EVERY) -> list[tuple[str, int]]:
    """Return which of the inputs and results autograd would save for its backward of the `given` results, as (kind,
    number)."""
    results, inputs = ([k for k, by in saved.items() if by & given]
                       for saved in (joint.saved_results, joint.saved_inputs))
    saved = [("result", k) for k in results if k < joint.outputs]
    saved += [("input", k) for k in inputs if k not in joint.written]
    return saved + [("input", joint.written[k - joint.outputs]) for k in results if k >= joint.outputs]


@dataclass(slots=True)
class _Backward:
    """A backward graph, its code once it has run, and the saved values that it takes; for one of only some gradients or
    tangents, which of the saved and the watched values eager's would take; `taken`, `spent`: see `Differentiable`;
    `begun`: it was compiled, so that passes may have changed the graph."""

    graph: fx.Graph
    reads: tuple[bool, ...]
    checks: tuple[bool, ...] = ()
    taken: tuple[int, ...] = ()
    spent: tuple[bool, ...] | None = None
    begun: bool = False
    call: Compiled | None = None


class Fitted:
    """Code of a graph of gradients that accepts arguments in any layout, or None, and converts them to the graph's.
    `strides`: of its inputs; `sizes`: the sources of the symbols in them."""

    def __init__(self, strides: Sequence[Any], sizes: Mapping[Symbol, tuple[int, int]]) -> None:
        self._symbolic = {k: stride for k, stride in enumerate(strides) if any(type(n) is not int for n in stride)}
        self._strides = tuple([() if k in self._symbolic else stride for k, stride in enumerate(strides)])
        self._sizes = sizes
        self.call: Compiled

    @classmethod
    def compiled(cls, graph: fx.Graph, given: Sequence[Any],
                 compile: Callable[[fx.Graph, Sequence[Any]], Compiled]) -> Fitted:
        """Return the code of a graph, compiled for such inputs."""
        strides = _drop_missing(graph, given)
        varies = any(type(n) is not int for stride in strides for n in stride)
        fitted = cls(strides, size_sources(graph) if varies else {})
        fitted.call = compile(graph, tuple(fitted._fit(given)))
        return fitted

    def __call__(self, given: Values | list[Any]) -> Values:
        fitted = self._fit(given)
        if type(given) is tuple:
            return self.call(tuple(fitted))
        given.clear()  # type: ignore[union-attr]
        return self.call(fitted)

    def _fit(self, given: Sequence[Any]) -> list[Any]:
        fitted, wrong = misplaced(given, self._strides)
        sizes = {symbol: fitted[place].shape[dim] for symbol, (place, dim) in self._sizes.items()}
        for place, number in wrong:
            stride = self._strides[number] or tuple([expr_of(n).evaluate(sizes) for n in self._symbolic[number]])
            fitted[place] = _in_layout(fitted[place], stride)
        return fitted


def _drop_missing(graph: fx.Graph, given: Sequence[Any]) -> list[Any]:
    """Remove the unused placeholders of None from the graph, and return the strides of all."""
    places = placeholders_of(graph)
    for node, value in zip(places, given, strict=True):
        if value is None:
            graph.erase_node(node)
    return [strides_of(n) for n in places]


def _in_layout(x: torch.Tensor, stride: Any) -> torch.Tensor:
    return x if x.stride() == stride else torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


__all__ = ["BackwardFacts", "Begun", "Compile", "Differentiable", "Fitted", "Keep"]
