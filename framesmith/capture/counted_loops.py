"""`for` loops of a symbolic number of rounds: a scan, whose body is recorded once (`scanning`).

The variables that a round changes are the state. What each round appends to a list is stacked: the list then holds a
run of elements (`trackers.rounds`). A tensor from before the loop that is indexed by the loop's counter is scanned, so
that a round reads its own slice alone. A loop that does more is unrolled: the frame is captured again.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.outputs import memory_of
from framesmith.fake.tensor import Alias, new_fake
from framesmith.symbolic.expr import ge
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .arms import Arm, drop, is_internal, reachable, recorded, same, set_value
from .bytecode.liveness import liveness
from .frame import STOPPED, Frame
from .looping import entered
from .scanning import scanned
from .tracer import BreakHere
from .trackers.rounds import Place

_SIGNS = {operator.add: 1, operator.sub: -1}
MOST_UNROLLED = 4
"""The number of loops of a frame that may be refused, each of which costs a capture, before all are unrolled."""


def loop(f: Frame, rounds: t.Rounds, out: int) -> bool:
    """Record the loop over `rounds` that begins at the present instruction, and move the frame to `out`, behind it;
    False if it is to be unrolled."""
    tracer, place = f.tracer, (f.code, f.ip - 1)
    refused = place in tracer.unrolled or len(tracer.unrolled) >= MOST_UNROLLED
    if not tracer.branches or refused or not rounds.begin():
        return False
    around = tracer.counters
    tracer.counters = dict(around)
    try:
        plan = rounds.plan(tracer)
        try:
            CountedLoop(f, plan, place, out).run()
        except _FirstDiffers:
            _first_round(f, plan, place)
            rest = [tracer.torch_call(torch.narrow, [x, t.Const(0), t.Const(1), _size(plan.count - 1)], {})
                    for x in plan.operands]
            CountedLoop(f, t.Plan(plan.count - 1, rest, plan.value), place, out, 1).run()
    except (Unsupported, BreakHere, t.CapturedError) as e:
        raise t.LoopUnrolled(place, str(e)) from None
    tracer.counters = around
    rounds.end()
    return True


class _FirstDiffers(Unsupported):
    """The first round gives a variable another type or layout: it is followed for itself, before the others."""


class _First:
    """The first round of a loop."""

    @staticmethod
    def counter(x: t.Tensor, first: Any, count: Any, step: int) -> t.Tracker:
        """Return the first number of a range."""
        return _size(first)


def _first_round(f: Frame, plan: t.Plan, place: Place) -> None:
    tracer = f.tracer
    slices = [tracer.torch_call(torch.select, [x, t.Const(0), t.Const(0)], {}) for x in plan.operands]
    tracer.counting.append(_First())
    value = plan.value(tracer, slices)
    tracer.counting.pop()
    _round(f, place, value)


def _round(f: Frame, place: Place, value: t.Tracker) -> None:
    """Follow a round of the loop that the frame is at, with a value of its iterator."""
    stack = list(f.stack)
    f.stack.append(value)
    f.ip = place[1] + 1
    if f.run(place[1]) is not STOPPED or f.yielded:
        raise Unsupported("a loop that ends in more than one place")
    if len(f.stack) != len(stack) or any(a is not b for a, b in zip(f.stack, stack)):
        raise Unsupported("a loop changes what an expression around it holds")


class Counter:
    """The value of a range's counter in a round: `first + step * round + offset`."""

    def __init__(self, loop: CountedLoop, first: Any, count: Any, step: int) -> None:
        self.loop, self.first, self.count, self.step = loop, first, count, step

    def part(self, x: t.Tensor, dim: int, offset: int) -> t.Tracker | None:
        """Return `x.select(dim, counter + offset)` as the round's slice of an operand; None if `x` is no tensor from
        before the loop, or the index may be counted from its end."""
        tracer, first = self.loop.tracer, self.first + offset
        node = tracer.recorder.nodes(x.fake)
        from_start = tracer.shapes.known(ge(expr_of(self._least(first)), 0)) is True
        if abs(self.step) != 1 or node not in self.loop.before or not from_start:
            return None
        key = node, dim, expr_of(first), self.step
        if key not in self.loop.parts:
            if self.loop.entries is not None:
                raise Unsupported("a loop indexes a tensor that it did not index the first time")
            shape, stride = list(x.fake.shape), list(x.fake.stride())
            del shape[dim], stride[dim]
            val = new_fake(tuple(shape), tuple(stride), x.fake.dtype, x.fake.device)
            self.loop.parts[key] = x, first, self, entered(tracer, val, tracer.wants_grad(x.fake))
        return self.loop.parts[key][-1]

    def _least(self, first: Any) -> Any:
        """Return the least of the indices that begin with `first`."""
        return first if self.step > 0 else first - self.count + 1

    def operand(self, x: t.Tensor, dim: int, first: Any) -> t.Tensor:
        """Return the slices of `x` that the rounds read, along the first dimension."""
        tracer = self.loop.tracer
        x = tracer.torch_call(torch.movedim, [x, t.Const(dim), t.Const(0)], {})
        x = tracer.torch_call(torch.narrow, [x, t.Const(0), _size(self._least(first)), _size(self.count)], {})
        return x if self.step > 0 else tracer.torch_call(torch.flip, [x, t.Tuple([t.Const(0)])], {})


def _size(n: Any) -> t.Tracker:
    return t.Sym(n) if isinstance(n, torch.SymInt) else t.Const(n)


class CountedLoop:
    """A loop of a frame, from the instruction at `place`, which takes the next value or leaves for `out`. `done`: the
    number of rounds before those of `plan`."""

    def __init__(self, f: Frame, plan: t.Plan, place: Place, out: int, done: int = 0) -> None:
        self.frame, self.tracer, self.place, self.out = f, f.tracer, place, out
        again, behind = liveness(f.code, place[1] + 1), liveness(f.code, out)
        self.live = [i for i, name in enumerate(f.code.co_varnames) if name in again or name in behind]
        self.inside = [i for i in self.live if f.code.co_varnames[i] in again]
        if f is f.tracer.frames[0]:
            for i in [i for i in f.tracer.pending if i in self.live]:
                f.tracer.local(f, i)
        self.plan, self.done = plan, done
        self.locals, self.stack = list(f.locals), list(f.stack)
        self.before = set(f.tracer.recorder.graph.nodes)
        self.parts: dict[Any, tuple[t.Tensor, Any, Counter, t.Tensor]] = {}
        """The slices that a round reads by the counter: the tensor, its first index, the counter, and the slice."""
        self.entries: list[t.Tensor] | None = None
        self.filled: list[tuple[t.List, list[Any]]] = []
        """The lists that the loop fills, with their elements before it."""
        self.written: list[tuple[Alias, Node]] = []
        """The tensors from before the loop that it writes, with their values there."""
        self.taken: list[t.Tensor] = []
        """Conditions of which each is expected to be true in some round."""
        self.depth, self.sliced = len(f.tracer.branching), 0
        self.firsts: list[int] = []
        """For each variable of the state the first one that is the same tensor after a round."""
        self.ends: list[int | None] = []
        """The variable that is what a round has appended, for each list."""

    def run(self) -> None:
        f, tracer, count = self.frame, self.tracer, self.plan.count
        if type(count) is torch.SymInt and tracer.shapes.data & expr_of(count).free:
            data.asserted(tracer, t.Sym(count >= 1), True)
        elif not count >= 1:
            raise Unsupported("a loop of no rounds")
        slots, blanks = self._tried()
        wholes = [tracer.made(base.val) for base, _ in self.written]
        states = [*[data.tensor_of(tracer, x) for x in blanks], *wholes]
        storages = [base.storage for base, _ in self.written]
        if any(x.fake._alias.storage in storages for x in states[:len(slots)]):
            raise Unsupported("a variable of a loop shares memory with a tensor that the loop writes")
        over = [*self.plan.operands, *[counter.operand(x, key[1], first)
                                       for key, (x, first, counter, _) in self.parts.items()]]

        def step(entries: list[t.Tensor]) -> tuple[list[t.Tensor], list[t.Tensor], t.Tracker]:
            self.entries, self.sliced, self.taken = entries, len(entries) - len(states), []
            state, slices = entries[:len(slots)], entries[len(states):]
            for (base, _), x in zip(self.written, entries[len(slots):]):
                set_value(base, tracer.recorder.nodes(x.fake))
            self.parts = {key: (*row[:-1], part) for (key, row), part in zip(
                self.parts.items(), slices[len(self.plan.operands):], strict=True)}
            self._once({i: self._outside(x, y) for i, x, y in zip(slots, blanks, state, strict=True)}, slices)
            if {i for i in self.live if i not in slots and not same(f.locals[i], self.locals[i])}:
                raise Unsupported("a loop changes a variable that it did not change the first time")
            grown = self._taken()
            if any(x.fake._alias.storage in storages for x in grown):
                raise Unsupported("a loop collects a tensor that it writes")
            after = [*[data.tensor_of(tracer, f.locals[i]) for i in slots], *wholes]  # type: ignore[arg-type]
            self.firsts = [next(k for k, y in enumerate(after) if y.fake is x.fake) for x in after]
            self.ends = [next((k for k, y in enumerate(after) if y.fake is x.fake), None) for x in grown]
            return after, [*grown, *self.taken], t.NONE

        last, stacks, _ = scanned(tracer, step, states, over, False, [x for x, _ in self.filled], storages, self._check)
        for (base, node), x, end in zip(self.written, wholes, last[len(slots):], strict=True):
            set_value(base, node)
            tracer.torch_call(torch.Tensor.copy_, [x, end], {})
        f.locals[:], f.stack[:], f.ip = self.kept, self.stack[:-1], self.out
        for k, (i, x) in enumerate(zip(slots, blanks, strict=True)):
            f.locals[i] = self._outside(x, last[self.firsts[k]])
        for stack in stacks[len(self.filled):]:
            rounds = tracer.torch_call(torch.sum, [stack], {})
            data.asserted(tracer, t.Sym(tracer.recorder.integer(rounds.fake) >= 1), True)
        for (filled, items), stack, k_last in zip(self.filled, stacks, self.ends):
            filled._items = [*items, t.Run(stack, None if k_last is None else last[k_last], self.place)]
            filled.__class__ = t.FilledList
            tracer.mutates(filled)

    def counter(self, x: t.Tensor, first: Any, count: Any, step: int) -> t.Tracker:
        """Return the number of a range in this round, which its slice `x` holds."""
        made = data.number(self.tracer, x)
        assert made is not None
        self.tracer.counters[id(made)] = made, Counter(self, first + self.done * step, count - self.done, step)
        return made

    def part(self, x: t.Tensor, key: t.Tracker) -> t.Tracker | None:
        """Return `x[key]`, of which one index is a counter, from a slice of `x`; None where that is not possible."""
        parts = key.open(self.tracer) if type(key) is t.Tuple else [key]
        found = [(k, *row) for k, p in enumerate(parts) if (row := self._counted(p)) is not None]
        if len(found) != 1:
            return None
        (at, counter, offset), = found
        if not all(type(p) is t.Slice for p in parts[:at]) or x.fake.dim() <= at:
            return None
        part = counter.part(x, at, offset)
        rest = parts[:at] + parts[at + 1:]
        return part if part is None or not rest else part.item(self.tracer, t.Tuple(rest))

    def _counted(self, x: t.Tracker) -> tuple[Counter, int] | None:
        """Return the counter of which `x` is the sum with a constant, and the constant."""
        if id(x) in self.tracer.counters:
            return self.tracer.counters[id(x)][1], 0
        if type(x) is t.Data and x.fn in _SIGNS and type(x.parts[1]) is t.Const and type(x.parts[1].value) is int:
            found = self._counted(x.parts[0])
            return None if found is None else (found[0], found[1] + _SIGNS[x.fn] * x.parts[1].value)
        return None

    def may_expect(self, inputs: set[Node]) -> bool:
        """Return whether gradients reach these inputs of a round if one round takes the path to them: none is the state
        of the loop, and the path is that of a branch in each round."""
        if self.entries is None:
            return True
        state = {self.tracer.recorder.nodes(x.fake) for x in self.entries[:len(self.entries) - self.sliced]}
        return inputs.isdisjoint(state) and len(self.tracer.branching) == self.depth + 1

    def expect(self, condition: t.Tensor) -> None:
        """Let the graph check that the condition is true in some round."""
        flat = self.tracer.torch_call(torch.reshape, [condition, self.tracer.made(())], {})
        self.taken.append(self.tracer.torch_call(torch.Tensor.to, [flat, self.tracer.made(torch.bool)], {}))

    def _check(self, arm: Arm) -> None:
        """Refuse a body after whose last round a variable may be a tensor from before the loop, or share memory with
        another variable."""
        assert self.entries is not None
        count, tracer = len(self.firsts), self.tracer
        places = {tracer.recorder.nodes(x.fake): k for k, x in enumerate(self.entries[:count])}
        roots = [memory_of(tracer.recorder.nodes(x.fake))[0] for x in arm.values[:count]]  # type: ignore[union-attr]
        for k, root in enumerate(roots):
            if self.firsts[k] == k and root in roots[:k]:
                raise Unsupported("two variables of a loop that share memory")
            reach = 1
            while root in places:
                root, reach = roots[places[root]], reach + 1
                if reach > count + 1:
                    break
            if root not in arm.region or tracer.shapes.known(ge(expr_of(self.plan.count), reach)) is not True:
                raise Unsupported("a variable of a loop that may be a tensor from before it")

    def _outside(self, before: t.Tracker, x: t.Tensor) -> t.Tracker:
        """Return the program's value for a tensor of the state: the tensor, or a number."""
        found = x if isinstance(before, t.Tensor) else data.number(self.tracer, x)
        assert found is not None
        return found

    def _tried(self) -> tuple[list[int], list[t.Tracker]]:
        """Follow a first round, and return the variables that it changes, with their values before: all are tensors or
        numbers, and one that has none before has zeros."""
        f, tracer = self.frame, self.tracer
        own = [x for x in reachable([*self.locals, *self.stack]).values()
               if type(x) in (t.List, t.FilledList) and x._items is not None and x.value is None and x.source is None]
        items = [list(x._items) for x in own]
        slices = [entered(tracer, new_fake(tuple(x.fake.shape[1:]), x.fake.stride()[1:], x.fake.dtype, x.fake.device),
                          tracer.wants_grad(x.fake)) for x in self.plan.operands]

        def first() -> list[t.Tracker | None]:
            self._follow(slices)
            return list(f.locals)

        trial = recorded(tracer, first, own, is_internal)
        self.written = [(base, node) for base, node, _ in trial.outer]
        drop(trial)
        for x, had in zip(own, items, strict=True):
            if x._items[:len(had)] != had or len(x._items) > len(had) + 1:
                raise Unsupported("a loop changes a list other than by one element in each round")
            if len(x._items) > len(had):
                self.filled.append((x, had))
            x._items[:] = had
        f.locals[:], f.stack[:] = self.locals, self.stack
        slots, blanks = self._changed(trial)
        self.kept = [x if i in self.live or same(x, y) else None
                     for i, (x, y) in enumerate(zip(self.locals, trial.values, strict=True))]
        return slots, blanks

    def _changed(self, trial: Arm) -> tuple[list[int], list[t.Tracker]]:
        slots, blanks = [], []
        for i in self.live:
            before, after = self.locals[i], trial.values[i]
            if same(before, after):
                continue
            if before is None and i not in self.inside:
                before = self._blank(after)
            numbers = data.is_number(before) and data.is_number(after)
            if not (isinstance(before, t.Tensor) and isinstance(after, t.Tensor)
                    or numbers and before.pytype() is after.pytype()):  # type: ignore[union-attr]
                raise self._differs(f"a loop changes {self.frame.code.co_varnames[i]}, which is no tensor or number")
            if isinstance(before, t.Tensor) and (before.fake.shape, before.fake.dtype) != (
                    after.fake.shape, after.fake.dtype):  # type: ignore[union-attr]
                raise self._differs(f"a loop changes the layout of {self.frame.code.co_varnames[i]}")
            slots.append(i)
            blanks.append(before)
        return slots, blanks  # type: ignore[return-value]

    def _differs(self, why: str) -> Unsupported:
        again = self.plan.count >= 2 and not self.done
        return _FirstDiffers(why) if again else Unsupported(why)

    def _blank(self, x: t.Tracker | None) -> t.Tracker | None:
        """Return zeros like a value that each round sets."""
        if isinstance(x, t.Tensor):
            how = {"dtype": self.tracer.made(x.fake.dtype), "device": self.tracer.made(x.fake.device)}
            return self.tracer.torch_call(torch.zeros, [self.tracer.made(tuple(x.fake.shape))], how)  # type: ignore[no-any-return]
        return t.Const(x.pytype()(0)) if data.is_number(x) else None  # type: ignore[union-attr]

    def _once(self, changed: dict[int, t.Tracker], slices: Sequence[t.Tensor]) -> None:
        """Follow a round, with these variables, while lists that the loop fills are empty and cannot be read."""
        self.frame.locals[:] = [changed.get(i, x) for i, x in enumerate(self.locals)]
        for x, _ in self.filled:
            x._items, x.__class__ = [], t.GrowingList
        self._follow(slices)

    def _taken(self) -> list[t.Tensor]:
        """Return what the round appended to each list."""
        found = [x._items for x, _ in self.filled]
        if any(len(items) != 1 or not isinstance(items[0], t.Tensor) for items in found):
            raise Unsupported("a loop changes a list other than by one tensor in each round")
        return [items[0] for items in found]

    def _follow(self, slices: Sequence[t.Tensor]) -> None:
        f, tracer = self.frame, self.tracer
        tracer.counting.append(self)
        value = self.plan.value(tracer, list(slices[:len(self.plan.operands)]))
        f.stack[:] = self.stack
        _round(f, self.place, value)
        tracer.counting.pop()
