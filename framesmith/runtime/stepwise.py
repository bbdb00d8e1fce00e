"""Execution of a graph in pieces: each piece is compiled code, and each step between them is a call of eager's kernel
whose result defines a symbol, or control flow over compiled arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx

from framesmith.graph.interpreter import evaluate
from framesmith.graph.pieces import Binding, Controlled, Piece, Place, Steps
from framesmith.graph.purity import draws
from framesmith.symbolic.expr import Symbol
from framesmith.util.generators import rewound_on_error

Compiled = Callable[[Any], tuple[Any, ...]]
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_AS_IT_IS = nullcontext()


class AssumptionFailed(Exception):
    """A size or number that the graph has computed violates an assumption of its code: plain Python runs instead."""


class Stepwise:
    """The graph as a function of one tuple of inputs, or of a list, which is emptied. `calls`: compiled pieces, and
    the arms of branches and loops, in order."""

    def __init__(self, graph: fx.Graph, steps: Steps, calls: Sequence[Compiled]) -> None:
        self._slots: dict[Any, int] = {}
        self._terms = frozenset(n for terms in steps.terms for n in terms)
        for node in graph.nodes:
            if node.op == "placeholder":
                self._slot(node)
        self._inputs = len(self._slots)
        self._sizes = [(self._slot(s), place, dim) for s, (place, dim) in steps.sizes.items()]
        compiled = iter(calls)
        last = _last_reads(steps)
        self._steps = [self._piece(step, next(compiled), last[k]) if isinstance(step, Piece)
                       else self._binding(step, last[k]) if isinstance(step, Binding)
                       else self._controlled(step, [next(compiled) for _ in step.node.target.arms],  # type: ignore[union-attr]
                                             last[k], _reads(steps.steps[k + 1:]))
                       for k, step in enumerate(steps.steps)]
        self._outputs = [(self._slots[x], None) if isinstance(x, fx.Node) else (-1, x) for x in steps.outputs]
        self._views = [k for k, x in enumerate(steps.outputs) if isinstance(x, fx.Node) and _is_view(x)]
        """The results that are tensors of their own, also where a branch passes on an input that they are views of."""
        self._sums = [(k, [self._replaced(n) for n in terms]) for k, terms in enumerate(steps.terms) if terms]
        self._blank = [None] * (len(self._slots) - self._inputs)
        drawn = [k for k, step in enumerate(steps.steps)
                 if any(map(draws, step.graph.nodes if isinstance(step, Piece) else [step.node]))]
        self._rewinds = bool(drawn) and drawn[0] < len(steps.steps) - 1

    def _slot(self, place: Place) -> int:
        return self._slots.setdefault(place, len(self._slots))

    def _replaced(self, term: fx.Node) -> int:
        """The slot that says whether zeros stand for a gradient that was not given."""
        return self._slots.setdefault(("replaced", term), len(self._slots))

    def __call__(self, inputs: Any) -> tuple[Any, ...]:
        values = [*inputs, *self._blank]
        given = set(map(id, inputs)) if self._views else ()
        if type(inputs) is list:
            inputs.clear()
        for slot, place, dim in self._sizes:
            values[slot] = values[place] if dim < 0 else values[place].shape[dim]
        with rewound_on_error() if self._rewinds else _AS_IT_IS:
            for step in self._steps:
                step(values)
        found: list[Any] = [values[slot] if slot >= 0 else plain for slot, plain in self._outputs]
        for k in self._views:
            if id(found[k]) in given:
                found[k] = found[k].detach()
        for k, slots in self._sums:
            if all(values[slot] for slot in slots):
                found[k] = None
        return tuple(found)

    def _piece(self, piece: Piece, call: Compiled, last: set[Place]) -> Callable[[list[Any]], None]:
        takes = [self._slot(p) for p in piece.takes]
        dead = [self._slot(p) for p in piece.takes if p in last]
        gives = [self._slot(n) for n in piece.gives]

        def run(values: list[Any]) -> None:
            given = [values[k] for k in takes]
            for k in dead:
                values[k] = None
            for k, value in zip(gives, call(given if dead else tuple(given))):
                values[k] = value

        return run

    def _binding(self, binding: Binding, last: set[Place]) -> Callable[[list[Any]], None]:
        node, symbol, dim, at = binding.node, self._slot(binding.symbol), binding.dim, binding.at
        args = [self._argument(a) for a in node.args]
        kwargs = {name: self._argument(a) for name, a in node.kwargs.items()}
        gives = [-1 if n is None else self._slot(n) for n in binding.gives]
        dead = [self._slot(n) for n in node.all_input_nodes if n in last]
        target: Any = node.target
        several = isinstance(node.meta["val"], (tuple, list))
        checks = [(rel, [(s, self._slot(s)) for s in rel.free]) for rel in binding.checks]

        def run(values: list[Any]) -> None:
            found = target(*[a(values) for a in args], **{name: a(values) for name, a in kwargs.items()})
            values[symbol] = found if dim < 0 else (found[at] if several else found).shape[dim]
            for k, value in zip(gives, found if several else (found,)):
                if k >= 0:
                    values[k] = value
            for k in dead:
                values[k] = None
            for rel, symbols in checks:
                if not rel.evaluate({s: values[k] for s, k in symbols}):
                    raise AssumptionFailed(f"{rel} does not hold")

        return run

    def _controlled(self, step: Controlled, arms: Sequence[Compiled], last: set[Place],
                    later: set[Place]) -> Callable[[list[Any]], None]:
        """Return a step of control flow: a missing gradient of an arm is None where it leaves the graph, by itself or
        in a sum of only such, and zeros where it is an operand."""
        node = step.node
        call = partial(node.target.run, arms)  # type: ignore[union-attr]
        first, *operands = [self._argument(a) for a in node.args]
        gives = [(k, self._slot(n), self._zeros(n.meta["val"]) if n in later else None,
                  self._replaced(n) if n in self._terms else -1)
                 for k, n in enumerate(step.gives) if n is not None]
        dead = [self._slot(n) for n in node.all_input_nodes if n in last]
        bound = (self._slot(node.meta["binds"]), node.target.size) if "binds" in node.meta else None  # type: ignore[union-attr]

        def run(values: list[Any]) -> None:
            given, chosen = [a(values) for a in operands], first(values)
            for k in dead:
                values[k] = None
            found = call(chosen, given)
            if bound is not None:
                values[bound[0]] = found[bound[1]].shape[0]
            for k, slot, zeros, replaced in gives:
                value = found[k]
                values[slot] = zeros(values) if value is None and zeros is not None else value
                if replaced >= 0:
                    values[replaced] = value is None

        return run

    def _zeros(self, val: torch.Tensor) -> Callable[[list[Any]], torch.Tensor]:
        """Return a function from the values to zeros in the layout of `val`."""
        size, stride = self._argument(tuple(val.shape)), self._argument(val.stride())
        dtype, device = val.dtype, val.device
        return lambda values: torch.empty_strided(size(values), stride(values), dtype=dtype, device=device).zero_()

    def _argument(self, value: Any) -> Callable[[list[Any]], Any]:
        """Return a function from the values to an argument."""
        if isinstance(value, fx.Node):
            slot = self._slots[value]
            return lambda values: values[slot]
        if isinstance(value, (list, tuple)):
            parts, kind = [self._argument(v) for v in value], type(value)
            return lambda values: kind([p(values) for p in parts])
        if isinstance(value, _SYMBOLIC):
            free: list[Symbol] = list(value.node.expr.free)
            slots = [(s, self._slot(s)) for s in free]
            return lambda values: evaluate(value, {s: values[k] for s, k in slots})
        return lambda values: value


def _is_view(node: fx.Node) -> bool:
    """Return whether a node is a view of another one, as eager makes it; the code of a piece may pass on that one."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _last_reads(steps: Steps) -> list[set[Place]]:
    """Return for each step the values that no later one reads."""
    seen: set[Place] = {x for x in steps.outputs if isinstance(x, fx.Node)}
    found: list[set[Place]] = []
    for step in reversed(steps.steps):
        reads = _reads([step])
        found.append({p for p in reads - seen if isinstance(p, fx.Node)})
        seen |= reads
    return found[::-1]


def _reads(steps: Sequence[Piece | Binding | Controlled]) -> set[Any]:
    """Return the values that the steps read."""
    return {p for step in steps for p in (step.takes if isinstance(step, Piece) else step.node.all_input_nodes)}


__all__ = ["Stepwise"]
