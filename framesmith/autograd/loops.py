"""The derivative of a loop or scan: one that also collects the values that its backward reads, and the backward, a scan
over these from the last round to the first.

The body is partitioned into forward and backward like any graph. The backward carries the gradients of the state and
the sums of those of loop-invariant operands; it collects the gradients of slices. Random numbers of a scan are drawn by
a separate, earlier scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from framesmith.autograd.arms import (
    Way,
    completed,
    copied,
    emitted,
    in_layout,
    owned,
    part_of,
    sized,
    tangents_of,
    zeros_like,
)
from framesmith.autograd.joint import DERIVED, Joint, trace_joint, without_overlap
from framesmith.autograd.partition import partition_arm
from framesmith.fake import FakeTensor
from framesmith.fake.layout import meets_itself
from framesmith.fake.tensor import dense, metadata_of, new_fake
from framesmith.graph.control import Loop, Scan, append, close, results_of
from framesmith.graph.purity import draws
from framesmith.graph.symbols import symbols_of
from framesmith.graph.traversal import ancestors, copy_node, placeholders_of
from framesmith.symbolic.expr import Symbol
from framesmith.symbolic.node import env_of, symint
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
SYM_SIZE = aten.sym_size.int
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Derivative:
    """`draw`, if the body draws, takes the scanned and the loop-invariant operands, and returns random values, which
    `forward` also scans. `forward` returns the results of the loop and then the stacks collected for `backward`. That
    takes the gradients of the state at `state` (None of which is given at `state` without history), zeros like `sums`,
    the scanned operands, `kept`, the tangents of the stacks `stacks`, the operands at `rest`, and the results at
    `tables`; it returns the gradients of the state, of the operands at `summed`, and of those at `slices`.
    `differentiable`: results that have a gradient. `lengths`: the numbers of elements of what is collected of different
    sizes."""

    draw: Scan | None
    forward: Loop | Scan
    backward: Scan
    state: tuple[int, ...]
    sums: tuple[FakeTensor, ...]
    summed: tuple[int, ...]
    slices: tuple[int, ...]
    kept: tuple[Way, ...]
    stacks: tuple[int, ...]
    rest: tuple[int, ...]
    differentiable: tuple[int, ...]
    tables: tuple[int, ...] = ()
    lengths: tuple[Any, ...] = ()


def derivative(target: Loop | Scan, requires: tuple[bool, ...]) -> Derivative:
    """Return the derivative of `target` where these of its operands require grad, memoised."""
    found = target.derivatives.get(requires)
    if found is None:
        found = target.derivatives[requires] = _Derived(target, requires).derivative()
    return found  # type: ignore[no-any-return]


def vals_of(target: Loop | Scan, length: Any, lengths: Sequence[Any] = ()) -> list[FakeTensor]:
    """Return the metadata of the results. `lengths`: see `Derivative`."""
    lead, carried = _lead(target), _carried(target)
    vals = [r.meta["val"] for r in results_of(target.body)[lead:]]
    stacks = [_stack(val, length) for val in vals[carried:]]
    tables = [new_fake((length, vals[carried + k].dim()), (vals[carried + k].dim(), 1), torch.int64, _CPU)
              for k, _ in zip(target.ragged, lengths)]
    for k, n in zip(target.ragged, lengths):
        stacks[k] = dense(stacks[k], (n,))
    return [*vals[:carried], *stacks, *tables]


def _lead(target: Loop | Scan) -> int:
    """Return the number of results of the body that precede the state."""
    return int(isinstance(target, Loop))


def _carried(target: Loop | Scan) -> int:
    return target.size if isinstance(target, Loop) else target.carried


def _stack(val: FakeTensor, length: Any) -> FakeTensor:
    return dense(val, (length, *val.shape))


class _Derived:
    """Makes the derivative."""

    def __init__(self, target: Loop | Scan, requires: tuple[bool, ...]) -> None:
        if target.ragged:
            raise Unsupported("second derivatives of a loop that changes sizes")
        self.target = target
        self.sizes: dict[Symbol, tuple[int, int]] = {}
        """The sizes of the state that differ from round to round, with the operand and the dimension."""
        self.lead, self.carried, self.varying = _lead(target), _carried(target), target.varying
        self.joint, self.state = self._joint(requires)
        self.parts = partition_arm(self.joint)
        self.places = placeholders_of(self.parts.forward)
        self.results = results_of(self.parts.forward)
        extras = self.results[self.joint.results:]
        if any(meets_itself(n.meta["val"]) for n in extras):
            raise Unsupported("a body of a loop whose gradients read a tensor whose elements share memory")

    def _joint(self, requires: tuple[bool, ...]) -> tuple[Joint, list[int]]:
        """Return the joint graph of the body, and which values of the state require grad, including those that do only
        after a round."""
        flags = list(requires)
        while True:
            graph, made = completed(self.target.body)
            self.sizes = _sizes_apart(graph)
            for place, flag in zip(placeholders_of(graph), flags, strict=True):
                place.meta["requires_grad"] = flag
            close(graph, [owned(graph, made[r], k >= self.lead + self.carried)
                          for k, r in enumerate(results_of(self.target.body))])
            joint = trace_joint(graph)
            if joint.written:
                raise Unsupported("a body of a loop that writes its operands")
            more = [k for k in range(self.carried) if self.lead + k in joint.differentiable and not flags[k]]
            if not more:
                return joint, [k for k in range(self.carried) if flags[k]]
            for k in more:
                flags[k] = True

    def derivative(self) -> Derivative:
        joint, target = self.joint, self.target
        grads = {k: g for k, g in zip(joint.wanted, results_of(self.parts.backward), strict=True)
                 if isinstance(g, fx.Node)}
        forward, kept = self._forward([k for k in self.state if k not in grads])
        draw, forward = self._draws_apart(forward)
        summed = [k for k in grads if k >= self.varying]
        slices = [k for k in grads if self.carried <= k < self.varying]
        sums = [without_overlap(grads[k].meta["val"]) for k in summed]
        stacks = [k for k in joint.differentiable if k >= self.lead + self.carried]
        rest = list(dict.fromkeys(k for kind, k in self.parts.kept if kind == "input" and k >= self.varying))
        body, scanned = self._backward(forward, kept, grads, summed, slices, sums, stacks, rest)
        own: Loop | Scan
        tables: dict[Way, int] = {}
        if isinstance(target, Loop):
            ragged = self._ragged(forward)
            own = Loop(forward, target.size, target.complete, target.rounds, True, ragged)
            differentiable = self.state
            tables = {("result", self.carried + k): len(results_of(forward)) - 1 + n for n, k in enumerate(ragged)}
        else:
            more = 0 if draw is None else len(results_of(draw.body))
            own = Scan(forward, target.carried, target.scanned + more, target.backwards)
            differentiable = [k for k in self.state if k in joint.differentiable]
        differentiable = [*differentiable, *[k - self.lead for k in stacks]]
        ways = tuple(dict.fromkeys(kept.values()))
        backward = Scan(body, len(self.state) + len(summed), scanned,
                        isinstance(target, Loop) or not target.backwards,
                        ragged=tuple([k for k, way in enumerate(ways) if way in tables]))
        env = env_of(*[n for p in self.places for n in getattr(p.meta["val"], "shape", ())])
        return Derivative(draw, own, backward, tuple(self.state), tuple(map(metadata_of, sums)), tuple(summed),
                          tuple(slices), ways, tuple([k - self.lead for k in stacks]), tuple(rest),
                          tuple(differentiable), tuple([tables[way] for way in ways if way in tables]),
                          tuple([symint(env.data_symbol(0, None, "a loop"), env)  # type: ignore[union-attr, arg-type]
                                 for _ in own.ragged]))

    def _ragged(self, forward: fx.Graph) -> tuple[int, ...]:
        """Return the places among what is collected of values whose sizes differ from round to round."""
        own = self.sizes.keys() | {n.meta["binds"] for n in forward.nodes if "binds" in n.meta}
        return tuple([k for k, n in enumerate(results_of(forward)[self.lead + self.carried:]) if symbols_of([n]) & own])

    def _forward(self, blank: Sequence[int]) -> tuple[fx.Graph, dict[Way, Way]]:
        """Return the forward of the body, with the collected values, and the place of each varying value that the
        backward of the body takes. `blank`: values of the state whose gradients are zeros, of sizes that are needed."""
        graph, made = copied(self.parts.forward)
        for symbol, (k, dim) in self.sizes.items():
            with graph.inserting_after(made[self.places[-1]]):
                node = graph.call_function(SYM_SIZE, (made[self.places[k]], dim))
            node.meta.update(val=self.places[k].meta["val"].shape[dim], binds=symbol)
        own = results_of(self.parts.forward)[:self.joint.results]
        given = [made[r] for r in own]
        if isinstance(self.target, Loop) and not self.target.collects:
            device = next((p.meta["val"].device for p in self.places), torch.device("cpu"))
            val = new_fake((0,), (1,), torch.uint8, device)
            given.append(append(graph, aten.full.default, ([0], 0), val, dtype=val.dtype, device=device))
        kept: dict[Way, Way] = {}
        holders = [("input", k) for k in blank if symbols_of([self.places[k]]) & self.sizes.keys()]
        for way in (*self.parts.kept, *holders):
            kind, k = way
            if kind == "input" and k >= self.carried:
                if k < self.varying:
                    kept[way] = way
            elif kind == "result" and k >= self.lead + self.carried:
                kept[way] = "result", k - self.lead
            else:
                kept[way] = "result", len(given) - self.lead
                found = {"input": self.places, "result": self.results, "extra": self.results[self.joint.results:]}
                given.append(made[found[kind][k]])
        return close(graph, given), kept

    def _draws_apart(self, forward: fx.Graph) -> tuple[Scan | None, fx.Graph]:
        """Return the random values of a body as a scan, and the body as one that also scans these."""
        drawn = [v for n in forward.nodes if draws(n) for v in ([n] if isinstance(n.meta["val"], torch.Tensor)
                                                                else n.users)]
        if not drawn:
            return None, forward
        places = placeholders_of(forward)
        target = self.target
        if isinstance(target, Loop) or not ancestors(drawn).isdisjoint(places[:self.carried]):
            raise Unsupported("gradients of a loop that draws random numbers")
        graph, made = part_of(forward, places[self.carried:], drawn)
        draw = Scan(close(graph, [made[v] for v in drawn]), 0, target.scanned, target.backwards)
        results = results_of(forward)
        graph, made = part_of(forward, [*places[:self.varying], *drawn, *places[self.varying:]], results)
        return draw, close(graph, [made[r] for r in results])

    def _backward(self, forward: fx.Graph, kept: dict[Way, Way], grads: dict[int, fx.Node], summed: Sequence[int],
                  slices: Sequence[int], sums: Sequence[FakeTensor], stacks: Sequence[int],
                  rest: Sequence[int]) -> tuple[fx.Graph, int]:
        """Return the body of the backward, and the number of operands that it scans."""
        graph = fx.Graph()

        def place(name: str, val: Any) -> fx.Node:
            node = graph.placeholder(name)
            node.meta["val"] = val
            return node

        inner = results_of(forward)
        own = [without_overlap(self.places[k].meta["val"]) for k in self.state]
        carry = {k: place("carry", sized(val, self.results[self.lead + k].meta["val"]))
                 for k, val in zip(self.state, own)}
        totals = [place("sum", val) for val in sums]
        found: dict[Way, fx.Node] = {}
        for way in dict.fromkeys(kept.values()):
            kind, k = way
            if kind == "input":
                found[way] = place("slice", self.places[k].meta["val"])
            else:
                val = inner[self.lead + k].meta["val"]
                found[way] = place("kept", dense(val, tuple(val.shape)))
        tangents = {k: place("tangent", dense(val, tuple(val.shape)))
                    for k, val in [(k, self.results[k].meta["val"]) for k in stacks]}
        scanned = len(found) + len(tangents)
        same = {k: place("same", self.places[k].meta["val"]) for k in rest}
        found = {way: n if way[0] == "input" else in_layout(graph, n, inner[self.lead + way[1]].meta["val"])
                 for way, n in found.items()}
        backward = self.parts.backward
        taken = placeholders_of(backward)
        given = [found[kept[way]] if way in kept else same[way[1]] for way in self.parts.kept]
        for k, node in zip(self.joint.differentiable, taken[len(given):], strict=True):
            given.append(in_layout(graph, tangents[k] if k in tangents else carry[k - self.lead], node.meta["val"]))
        made = dict(zip(taken, given, strict=True))
        for node in backward.nodes:
            if node.op == "call_function":
                made[node] = copy_node(graph, node, made.__getitem__)
        after = [in_layout(graph, made[grads[k]], val) if k in grads else zeros_like(graph, val)
                 for k, val in zip(self.state, own)]
        after += [append(graph, aten.add.Tensor, (total, in_layout(graph, made[grads[k]], val)), val)
                  for k, total, val in zip(summed, totals, sums)]
        return close(graph, [*after, *[made[grads[k]] for k in slices]]), scanned


def _sizes_apart(graph: fx.Graph) -> dict[Symbol, tuple[int, int]]:
    """Remove the nodes that read sizes off operands, and return where these are: as symbols of operands they need no
    definition."""
    places = {n: k for k, n in enumerate(placeholders_of(graph))}
    found = [n for n in graph.nodes if n.target is SYM_SIZE and "binds" in n.meta and n.args[0] in places]
    sizes = {n.meta["binds"]: (places[n.args[0]], n.args[1]) for n in found}
    for n in found:
        graph.erase_node(n)
    return sizes


class _Looped(torch.autograd.Function):
    """A loop or scan with its derivative."""

    @staticmethod
    def forward(ctx: Any, replay: Any, target: Loop | Scan, first: Any, *operands: Any) -> Any:  # type: ignore[override]
        with replay.recorder.off():
            own = derivative(target, tuple(ctx.needs_input_grad[3:]))
        length = target.rounds if isinstance(target, Loop) else first
        varying = target.varying
        given = operands
        if own.draw is not None:
            drawn = emitted(replay.recorder, own.draw, vals_of(own.draw, length),
                            (first, *operands[_carried(target):]))
            given = (*operands[:varying], *drawn, *operands[varying:])
        binds = target.rounds.node.value if isinstance(target, Loop) else None
        state = replay.current.meta["val"][:_carried(target)]
        vals = [*state, *vals_of(own.forward, length, own.lengths)[len(state):]]
        results = emitted(replay.recorder, own.forward, vals, (first, *given), binds)
        for k, n in zip(own.forward.ragged, own.lengths):
            stack = replay.recorder.nodes(results[len(state) + k])
            replay.recorder.emit(SYM_SIZE, (stack, 0), n).meta["binds"] = n.node.value
        ctx.mark_non_differentiable(*[r for k, r in enumerate(results) if k not in own.differentiable])
        values = [(operands if kind == "input" else results)[k] for kind, k in own.kept]
        values += [operands[k] for k in own.rest] + [results[k] for k in own.tables]
        ctx.save_for_backward(*[v for v in values if isinstance(v, torch.Tensor)])
        ctx.numbers = [None if isinstance(v, torch.Tensor) else v for v in values]
        ctx.own, ctx.replay, ctx.target, ctx.length, ctx.operands = own, replay, target, length, len(operands)
        ctx.vals = list(map(metadata_of, results))
        ctx.first = [sized(vals[k], operands[k]) for k in own.state]
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        own: Derivative = ctx.own
        tensors = iter(ctx.saved_tensors)
        values = [next(tensors) if v is None else v for v in ctx.numbers]
        kept, rest = values[:len(own.kept)], values[len(own.kept):]
        places = [*own.state, *own.stacks]
        tangents = tangents_of([grads[k] for k in places], [without_overlap(ctx.vals[k]) for k in places])
        count = len(own.state)
        target = own.backward
        if isinstance(ctx.target, Loop) and not ctx.target.complete:
            absent = [k for k, place in enumerate(own.state) if grads[place] is None]
            absent += range(count, target.carried)
            target = replace(target, absent=tuple(absent), derivatives={})
        args = ctx.length, *tangents[:count], *tangents_of([None] * len(own.sums), own.sums), *kept, \
            *tangents[count:], *rest
        vals = [*map(sized, vals_of(target, ctx.length), ctx.first), *vals_of(target, ctx.length)[count:]]
        made = emitted(ctx.replay.recorder, target, vals, args)
        found = dict(zip((*own.state, *own.summed, *own.slices), made, strict=True))
        return None, None, None, *[found.get(k) for k in range(ctx.operands)]


DERIVED[Loop] = DERIVED[Scan] = lambda replay, target, args: _Looped.apply(replay, target, *args)

__all__ = ["Derivative", "derivative"]
