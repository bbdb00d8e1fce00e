"""The derivative of a branch: a branch that also returns the values that its backward reads, and the backward, which
takes the same arm.

Each arm is partitioned into forward and backward like any graph. The saved values of the two arms share results of the
branch if their layouts are equal; an arm returns uninitialised memory for values that only the other saves. Random
numbers are drawn by a separate, earlier branch, so that the forward is a function of its operands for any order of
derivative.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.autograd.arms import Way, copied, emitted, in_layout, owned, part_of, sized, tangents_of, zeros_like
from framesmith.autograd.joint import DERIVED, trace_joint, without_overlap
from framesmith.autograd.partition import partition_arm
from framesmith.fake import FakeTensor
from framesmith.fake.tensor import is_differentiable, metadata_of
from framesmith.graph.control import Branch, append_blank, close, layout_of, results_of
from framesmith.graph.purity import draws
from framesmith.graph.symbols import symbols_of
from framesmith.graph.traversal import copy_node, placeholders_of
from framesmith.symbolic.expr import Symbol
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Derivative:
    """`draw`, if arms draw, takes the operands and returns random values, which `forward` takes after the operands.
    `forward` returns the results of the branch and then the saved values. `backward` takes the condition, the values of
    `kept` and a tangent for each of the results `differentiable`, and gives the gradients of the operands `wanted`."""

    draw: Branch | None
    forward: Branch
    backward: Branch
    kept: tuple[Way, ...]
    differentiable: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Arm:
    """One partitioned arm. `kept`: as in `Parts`; `tangents` and `grads`: numbers of results and operands."""

    forward: fx.Graph
    backward: fx.Graph
    kept: tuple[Way, ...]
    results: int
    tangents: tuple[int, ...]
    grads: tuple[int, ...]

    @property
    def layouts(self) -> dict[int, FakeTensor]:
        """The metadata of the gradients that it gives, by operand."""
        return {k: without_overlap(n.meta["val"]) for k, n in zip(self.grads, results_of(self.backward), strict=True)
                if isinstance(n, fx.Node)}


def derivative(branch: Branch, requires: tuple[bool, ...], known: Collection[Symbol]) -> Derivative:
    """Return the derivative of `branch` where these of its operands require grad, memoised. `known`: the symbols of the
    operands."""
    found = branch.derivatives.get(requires)
    if found is None:
        found = branch.derivatives[requires] = _derivative(branch, requires, known)
    return found  # type: ignore[no-any-return]


def _derivative(branch: Branch, requires: tuple[bool, ...], known: Collection[Symbol]) -> Derivative:
    arms = [_cut(arm, requires, known) for arm in branch.arms]
    slots = _slots(arms)
    draw, (no, yes) = _draws_apart([_forward(arm, [n[k] for n, _ in slots], [val for _, val in slots])
                                    for k, arm in enumerate(arms)])
    forward = Branch(yes, no)
    ways = [{way: _shared(way, arm.results, [n[k] for n, _ in slots]) for way in arm.kept}
            for k, arm in enumerate(arms)]
    kept = list(dict.fromkeys((*ways[0].values(), *ways[1].values())))
    tangents = [k for k, val in enumerate(forward.vals[:arms[0].results])
                if k in (*arms[0].tangents, *arms[1].tangents) or branch.complete and is_differentiable(val.dtype)]
    grads = {k: val for arm in reversed(arms) for k, val in arm.layouts.items()}
    wanted = {k: grads[k] for k in sorted(grads)}
    no, yes = [_backward(arm, own, {way: _value(way, graph, forward) for way in kept},
                         {k: _value(("result", k), graph, forward) for k in tangents}, wanted, branch.complete)
               for arm, own, graph in zip(arms, ways, forward.arms)]
    return Derivative(draw, forward, Branch(yes, no, branch.complete), tuple(kept), tuple(tangents), tuple(wanted))


def _cut(arm: fx.Graph, requires: tuple[bool, ...], known: Collection[Symbol]) -> _Arm:
    graph, made = copied(arm)
    for place, flag in zip(placeholders_of(graph), requires, strict=True):
        place.meta["requires_grad"] = flag
    close(graph, [owned(graph, made[r]) if isinstance(r, fx.Node) else r for r in results_of(arm)])
    joint = trace_joint(graph)
    if joint.written:
        raise Unsupported("an arm of a branch that writes its operands")
    parts = partition_arm(joint, symbols_of(placeholders_of(arm)).difference(known))
    return _Arm(parts.forward, parts.backward, parts.kept, joint.results, joint.differentiable, joint.wanted)


def _slots(arms: Sequence[_Arm]) -> list[tuple[tuple[int, int], FakeTensor]]:
    """Return for each value that the branch saves its number among the extras of either arm (-1: none), and its
    metadata."""
    vals = [[n.meta["val"] for n in results_of(arm.forward)[arm.results:]] for arm in arms]
    free: dict[Any, list[int]] = {}
    for n, val in enumerate(vals[1]):
        free.setdefault(layout_of(val, expr_of), []).append(n)
    slots = []
    for n, val in enumerate(vals[0]):
        same = free.get(layout_of(val, expr_of))
        slots.append(((n, same.pop(0) if same else -1), val))
    return slots + [((-1, n), vals[1][n]) for rest in free.values() for n in rest]


def _shared(way: Way, results: int, slots: list[int]) -> Way:
    """Return the place of an arm's saved value among the branch's results."""
    return ("result", results + slots.index(way[1])) if way[0] == "extra" else way


def _forward(arm: _Arm, slots: Sequence[int], vals: Sequence[FakeTensor]) -> fx.Graph:
    """Return the forward of an arm, with a result for each value that the other arm saves."""
    graph, made = copied(arm.forward)
    given = [made[r] if isinstance(r, fx.Node) else r for r in results_of(arm.forward)]
    return close(graph, [*given[:arm.results], *[
        given[arm.results + n] if n >= 0 else append_blank(graph, val)
        for n, val in zip(slots, vals)]])


def _draws_apart(arms: Sequence[fx.Graph]) -> tuple[Branch | None, Sequence[fx.Graph]]:
    """Return the random values of arms as a branch, and the arms as functions that also take these."""
    drawn = [(k, v) for k, arm in enumerate(arms) for n in arm.nodes if draws(n)
             for v in ([n] if isinstance(n.meta["val"], torch.Tensor) else n.users)]
    if not drawn:
        return None, arms
    drawing, rest = [], []
    for k, arm in enumerate(arms):
        given = placeholders_of(arm)
        graph, made = part_of(arm, given, [v for which, v in drawn if which == k])
        drawing.append(close(graph, [made[v] if which == k else append_blank(
            graph, v.meta["val"]) for which, v in drawn]))
        results = results_of(arm)
        graph, made = part_of(arm, [*given, *[v for _, v in drawn]], [r for r in results if isinstance(r, fx.Node)])
        rest.append(close(graph, [made[r] if isinstance(r, fx.Node) else r for r in results]))
    return Branch(drawing[1], drawing[0]), rest


def _value(way: Way, arm: fx.Graph, forward: Branch) -> FakeTensor:
    """Return the metadata of an operand or result of the forward of an arm; the other's where it gives None."""
    kind, n = way
    node = (results_of(arm) if kind == "result" else placeholders_of(arm))[n]
    return forward.vals[n] if node is None else node.meta["val"]  # type: ignore[no-any-return]


def _backward(arm: _Arm, ways: dict[Way, Way], values: dict[Way, FakeTensor], tangents: dict[int, FakeTensor],
              wanted: dict[int, FakeTensor], complete: bool) -> fx.Graph:
    """Return the backward of an arm as a function of `values` and `tangents`, in the layouts that they have where this
    arm runs; a missing gradient is None, or zeros if it is `complete`."""
    graph = fx.Graph()
    places: dict[Any, fx.Node] = {}
    for key, val in [*values.items(), *tangents.items()]:
        places[key] = graph.placeholder("kept" if isinstance(key, tuple) else "tangent")
        places[key].meta["val"] = val
    own = placeholders_of(arm.backward)
    made = dict(zip(own, [*[places[ways[way]] for way in arm.kept], *[places[k] for k in arm.tangents]], strict=True))
    for node in arm.backward.nodes:
        if node.op == "call_function":
            made[node] = copy_node(graph, node, made.__getitem__)
    given = dict(zip(arm.grads, results_of(arm.backward), strict=True))
    found = {k: in_layout(graph, made[n], wanted[k]) for k, n in given.items() if isinstance(n, fx.Node)}
    return close(graph, [found[k] if k in found else zeros_like(graph, val) if complete else None
                         for k, val in wanted.items()])


class _Branched(torch.autograd.Function):
    """A branch with its derivative."""

    @staticmethod
    def forward(ctx: Any, replay: Any, branch: Branch, condition: Any, *operands: Any) -> Any:  # type: ignore[override]
        with replay.recorder.off():
            known = {s for x in operands for n in getattr(x, "shape", (x,)) if isinstance(n, torch.SymInt)
                     for s in expr_of(n).free}
            own = derivative(branch, tuple(ctx.needs_input_grad[3:]), known)
        if own.draw is not None:
            operands += emitted(replay.recorder, own.draw, own.draw.vals, (condition, *operands))
        vals = replay.current.meta["val"]  # behind the branch a size is a symbol where the arms give different ones
        results = emitted(replay.recorder, own.forward, (*vals, *own.forward.vals[len(vals):]), (condition, *operands))
        ctx.mark_non_differentiable(*[r for k, r in enumerate(results) if k not in own.differentiable])
        values = [(operands if kind == "input" else results)[n] for kind, n in own.kept]
        ctx.save_for_backward(condition, *[v for v in values if isinstance(v, torch.Tensor)])
        ctx.own, ctx.replay, ctx.operands = own, replay, len(ctx.needs_input_grad) - 3
        ctx.numbers = [None if isinstance(v, torch.Tensor) else v for v in values]
        ctx.layouts = [metadata_of(results[k]) for k in own.differentiable]
        ctx.grads = [sized(val, operands[k]) for k, val in zip(own.wanted, own.backward.vals, strict=True)]
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        own: Derivative = ctx.own
        condition, *tensors = ctx.saved_tensors
        left = iter(tensors)
        values = [next(left) if v is None else v for v in ctx.numbers]
        tangents = tangents_of([grads[k] for k in own.differentiable], ctx.layouts)
        made = emitted(ctx.replay.recorder, own.backward, ctx.grads, (condition, *values, *tangents))
        found = dict(zip(own.wanted, made))
        return None, None, None, *[found.get(k) for k in range(ctx.operands)]


DERIVED[Branch] = lambda replay, branch, args: _Branched.apply(replay, branch, *args)

__all__ = ["Derivative", "derivative"]
