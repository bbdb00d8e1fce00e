"""Loops of a symbolic number of rounds: a scan, whose body is recorded once (`scanning`).

The variables that a round changes are the state, except for induction variables (`induction`). What each round appends
to a list is stacked: the list then holds the slices of a stack (`trackers.rounds`). Slices that a round reads and
writes at induction variables are operands and results of the scan (`loop_slices`). A loop that does more is unrolled:
the frame is captured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.outputs import memory_of
from framesmith.fake.tensor import Alias, Storage, new_fake
from framesmith.symbolic.expr import ge
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .arms import Arm, discard, is_internal, reachable, recorded, same, set_value
from .branching import BranchRefused
from .bytecode.control_flow import loop_around
from .bytecode.liveness import liveness
from .frame import STOPPED, Frame
from .induction import Affine, affine, is_integer, tracker_of
from .loop_slices import LoopSlices
from .looping import entered
from .scanning import Joined, scanned
from .tracer import BreakHere
from .trip_counts import Condition, condition

_NO_OPERANDS = t.Plan(None, [], lambda tracer, slices: t.NONE)
"""The rounds of a while loop, before their number is known."""
_SIGNS = {"add": 1, "iadd": 1, "sub": -1, "isub": -1}
_TESTS = ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE")
MOST_UNROLLED = 4
"""The number of loops of a frame that may be refused, each of which costs a capture, before all are unrolled."""


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a loop of a frame: it begins at instruction `start` and ends before `end`, and the loop leaves for
    `out`. `again`: the truth for another round of the condition that is on the stack at the end; None: there is none.
    """

    start: int
    end: int
    out: int
    again: bool | None = None

    @property
    def tested(self) -> bool:
        return self.again is not None


def for_loop(f: Frame, rounds: t.LoopIterator, out: int) -> bool:
    """Record the loop over `rounds` that begins at the present instruction, and move the frame to `out`, behind it;
    False if it is to be unrolled."""
    body = Body(f.ip, f.ip - 1, out)
    if _is_unrolled(f, body) or not rounds.begin():
        return False

    def recorded_whole() -> None:
        plan = rounds.plan(f.tracer)
        try:
            CountedLoop(f, body, plan).run()
        except _FirstDiffers:
            _first_round(f, body, plan)
            rest = [f.tracer.torch_call(torch.narrow, [x, t.Const(0), t.Const(1), tracker_of(plan.count - 1)], {})
                    for x in plan.operands]
            CountedLoop(f, body, t.Plan(plan.count - 1, rest, plan.value), 1).run()
        f.stack.pop()

    _recorded(f, body, recorded_whole)
    rounds.end()
    return True


def while_loop(f: Frame) -> bool:
    """Record the loop that the conditional jump at the present instruction enters, if its condition compares numbers
    that vary, and move the frame behind it; False if there is none, or it is to be unrolled."""
    at, tracer, numbers = f.ip - 1, f.tracer, _compared_numbers(f)
    if not numbers or data.decides(tracer, f.stack[-1]):
        return False
    holds, body = not _jumps(f, at), _tested(f, at)
    if body is None or _is_unrolled(f, body) or f.stack[-1].truth(tracer) is not holds:
        return False
    if not all(is_integer(tracer, x) for x in numbers):
        for x in numbers:
            x.real(tracer)  # one that is not known to vary is a constant, and known to vary when another value comes
        return False
    f.stack.pop()

    def recorded_whole() -> None:
        try:
            CountedLoop(f, body, _NO_OPERANDS).run()
        except _FirstDiffers:
            if _first_round(f, body, _NO_OPERANDS).truth(tracer) is body.again:  # type: ignore[union-attr]
                CountedLoop(f, body, _NO_OPERANDS, 1).run()

    _recorded(f, body, recorded_whole)
    return True


def _jumps(f: Frame, at: int) -> bool:
    """Return the truth value on which a test jumps."""
    return f.dec.instrs[at].op == "POP_JUMP_IF_TRUE"


def _tested(f: Frame, at: int) -> Body | None:
    """Return the loop whose only test is the jump at `at`, of which a copy ends each round; None if there is none."""
    instrs, start = f.dec.instrs, at + 1
    for k in range(at + 2, len(instrs)):
        if instrs[k].target == start and not instrs[k].op.startswith("FOR_ITER"):
            test = k if instrs[k].op in _TESTS else k - 1
            out = k + 1 if test == k else instrs[test].target
            if instrs[test].op in _TESTS and instrs[at].op in _TESTS and instrs[at].target == out:
                return Body(start, test, out, _jumps(f, test) is (test == k))
    return None


def _compared_numbers(f: Frame) -> list[t.Tracker]:
    """Return the integers that may vary among those that the condition on the stack compares, or the condition itself.
    """
    if not f.tracer.branches:
        return []
    operands = f.tracer.compared if f.dec.instrs[f.ip - 2].name == "COMPARE_OP" else (f.stack[-1],)
    return [x for x in operands if type(x) is t.Sym and isinstance(x.value, torch.SymInt)
            or type(x) is t.SymbolicNumber and type(x.example) is int and not x.settled]


def _is_unrolled(f: Frame, body: Body) -> bool:
    tracer = f.tracer
    if any(own.frame is f and own.body == body for own in tracer.counting):
        raise Unsupported("a loop that ends in more than one place")
    unrolled = [place for place in tracer.unrolled if place[1] >= 0]
    return not tracer.branches or (f.code, body.end) in unrolled or len(unrolled) >= MOST_UNROLLED


def _recorded(f: Frame, body: Body, record: Callable[[], None]) -> None:
    around = f.tracer.counters
    f.tracer.counters = dict(around)
    try:
        record()
    except (Unsupported, BreakHere, t.CapturedError) as e:
        at = f.tracer.where()
        if at is not None and isinstance(e, Unsupported) and e.at is not None:
            at = *e.at, at[2]
        raise t.LoopUnrolled((f.code, body.end), _reason_of(e), at) from None
    f.tracer.counters = around
    f.ip = body.out


def _reason_of(e: Exception) -> str:
    """Return why a body cannot be recorded; of a branch why its ways cannot be one graph."""
    if isinstance(e, BranchRefused):
        return f"{e.reason}: {e.why}"
    if isinstance(e, t.CapturedError):
        return f"a round raises {e.tracker.pytype().__name__}"
    return e.reason if isinstance(e, Unsupported) else "a graph break"


class _FirstDiffers(Unsupported):
    """The first round gives a variable another type or layout: it is followed for itself, before the others."""


class _First:
    """The first round of a loop."""

    slices = None

    @staticmethod
    def counter(x: t.Tensor, first: Any, step: int) -> t.Tracker:
        """Return the first number of a range."""
        return tracker_of(first)


def _first_round(f: Frame, body: Body, plan: t.Plan) -> t.Tracker | None:
    tracer = f.tracer
    tracer.counters = dict(tracer.counting[-1].counters) if tracer.counting else {}
    slices = [tracer.torch_call(torch.select, [x, t.Const(0), t.Const(0)], {}) for x in plan.operands]
    tracer.counting.append(_First())
    value = plan.value(tracer, slices)
    tracer.counting.pop()
    return _round(f, body, value)


def _round(f: Frame, body: Body, value: t.Tracker) -> t.Tracker | None:
    """Follow a round of a loop, with a value of its iterator; return the condition at its end, if it has one."""
    stack = list(f.stack)
    f.stack += [] if body.tested else [value]
    f.ip = body.start
    if f.run(body.end) is not STOPPED or f.yielded:
        raise Unsupported("a loop that ends in more than one place")
    found = f.stack.pop() if body.tested else None
    if len(f.stack) != len(stack) or any(a is not b for a, b in zip(f.stack, stack)):
        raise Unsupported("a loop changes what an expression around it holds")
    return found


class CountedLoop:
    """A loop of a frame. `plan`: its rounds, if it is a `for` loop; `done`: the number of rounds before those."""

    def __init__(self, f: Frame, body: Body, plan: t.Plan, done: int = 0) -> None:
        self.frame, self.tracer, self.body = f, f.tracer, body
        again, behind = liveness(f.code, body.start), liveness(f.code, body.out)
        self.live = [i for i, name in enumerate(f.code.co_varnames) if name in again or name in behind]
        self.inside = [i for i in self.live if f.code.co_varnames[i] in again]
        if f is f.tracer.frames[0]:
            for i in [i for i in f.tracer.pending if i in self.live]:
                f.tracer.local(f, i)
        self.plan, self.done, self.count = plan, done, plan.count
        self.locals, self.stack = list(f.locals), list(f.stack)
        self.slices = LoopSlices(f.tracer, self)
        self.counters = f.tracer.counters
        self.variables: dict[int, Affine] = {}
        """The locals that are induction variables."""
        self.set: dict[int, Affine] = {}
        """Those that each round sets to a number that does not depend on the data of the rounds before."""
        self.condition: Condition | None = None
        self.scope: Any = None
        """What the round records its changes in: another list is that of a path within the round."""
        self.entries: list[t.Tensor] | None = None
        self.filled: list[tuple[t.List, list[Any]]] = []
        """The lists that the loop fills, with their elements before it."""
        self.written: list[tuple[Alias, Node]] = []
        """The tensors from before the loop that it writes as a whole, with their values there."""
        self.expected: list[t.Tensor] = []
        """Conditions of which each is expected to be true in some round."""
        self.depth, self.carried = len(f.tracer.branching), 0
        self.firsts: list[int] = []
        """For each variable of the state the first one that is the same tensor after a round."""
        self.ends: list[int | None] = []
        """The variable that is what a round has appended, for each list."""
        self.watched: list[list[Storage]] = []
        """The storages that the elements of each list may share memory with."""

    def run(self) -> None:
        """Record the loop, and set the frame's variables to their values behind it."""
        f, tracer = self.frame, self.tracer
        if not self.body.tested:
            self._require_round()
        slots, blanks = self._discovered()
        if self.body.tested:
            assert self.condition is not None
            self.count = self.condition.trip_count()
            self._require_round()
        counts = [t.counted(tracer, a.first, self.count, a.step).operands[0] for a in self.variables.values()]
        wholes = [tracer.made(base.val) for base, _ in self.written]
        initial = [data.tensor_of(tracer, x) for x in blanks]
        storages = [base.storage for base, _ in self.written]
        states = [*initial, *wholes, *self.slices.fix(storages)]
        if any(x.fake._alias.storage in [*storages, *self.slices.storages()] for x in [*initial, *self.plan.operands]):
            raise Unsupported("a variable of a loop shares memory with a tensor that the loop writes")
        if any(storage in storages for storage in self.slices.storages()):
            raise Unsupported("a loop writes slices of a tensor that it writes as a whole")
        over, known = [*self.plan.operands, *counts, *self.slices.operands()], len(self.plan.operands) + len(counts)

        def step(entries: list[t.Tensor]) -> tuple[list[t.Tensor], list[t.Tensor], t.Tracker]:
            self.entries, self.carried, self.expected = entries, len(states), []
            state, slices = entries[:len(slots)], entries[len(states):]
            for (base, _), x in zip(self.written, entries[len(slots):]):
                set_value(base, tracer.recorder.nodes(x.fake))
            self.slices.begin(iter(entries[len(slots) + len(wholes):len(states)]), iter(slices[known:]))
            test = self._follow({i: self._outside(x, y) for i, x, y in zip(slots, blanks, state, strict=True)}, slices)
            self._verify(slots, test)
            grown = self._appended()
            if any(x.fake._alias.storage in storages for x in grown):
                raise Unsupported("a loop collects a tensor that it writes")
            after = [*[data.tensor_of(tracer, f.locals[i]) for i in slots], *wholes]  # type: ignore[arg-type]
            self.firsts = [next(k for k, y in enumerate(after) if y.fake is x.fake) for x in after]
            self.ends = [next((k for k, y in enumerate(after) if y.fake is x.fake), None) for x in grown]
            self.watched = [self._origins(x, initial, state, slices) for x in grown]
            return [*after, *self.slices.later()], [*grown, *self.slices.written(), *self.expected], t.NONE

        last, stacks, _ = scanned(tracer, step, states, over, False, [x for x, _ in self.filled], storages, self._check,
                                  True)
        for (base, node), x, end in zip(self.written, wholes, last[len(slots):]):
            set_value(base, node)
            tracer.torch_call(torch.Tensor.copy_, [x, end], {})
        f.locals[:], f.stack[:] = self.kept, self.stack
        for i, a in self.variables.items():
            f.locals[i] = tracker_of(a.after(self.count))
        for i, a in self.set.items():
            f.locals[i] = tracker_of(a.after(self.count - 1))
        for k, (i, x) in enumerate(zip(slots, blanks, strict=True)):
            f.locals[i] = self._outside(x, last[self.firsts[k]])
        for (filled, items), stack, k_last, others in zip(self.filled, stacks, self.ends, self.watched):
            whole = stack.whole if isinstance(stack, Joined) else stack
            watched = [*others, *[x.fake._alias.storage for x in (*last[:len(slots)], whole)]]
            place = f.code, self.body.end
            filled._items = [*items, t.SplitItems(stack.whole, stack.dim, stack.lengths, watched, place)
                             if isinstance(stack, Joined) else
                             t.StackedItems(stack, None if k_last is None else last[k_last], watched, place)]
            filled.__class__ = t.FilledList
            tracer.mutates(filled)
        rest: Iterator[Any] = iter(stacks[len(self.filled):])
        self.slices.finish(rest)
        for stack in rest:
            rounds = tracer.torch_call(torch.sum, [stack], {})
            data.asserted(tracer, t.Sym(tracer.recorder.integer(rounds.fake) >= 1), True)

    def _require_round(self) -> None:
        count = self.count
        if type(count) is torch.SymInt and self.tracer.shapes.data & expr_of(count).free:
            data.asserted(self.tracer, t.Sym(count >= 1), True)
        elif not count >= 1:
            raise Unsupported("a loop of no rounds")

    def counter(self, x: t.Tensor, first: Any, step: int) -> t.Tracker:
        """Return the number of a range in this round, which its slice `x` holds."""
        return self._variable(x, Affine(self, first + self.done * step, step))

    def _variable(self, x: t.Tensor, value: Affine) -> t.Tracker:
        made = data.number(self.tracer, x)
        assert made is not None
        self.tracer.counters[id(made)] = made, value
        return made

    def may_expect(self, inputs: set[Node]) -> bool:
        """Return whether gradients reach these inputs of a round if one round takes the path to them: none is the state
        of the loop, and the path is that of a branch in each round."""
        if self.entries is None:
            return True
        state = {self.tracer.recorder.nodes(x.fake) for x in self.entries[:self.carried]}
        return inputs.isdisjoint(state) and len(self.tracer.branching) == self.depth + 1

    def expect(self, condition: t.Tensor) -> None:
        """Let the graph check that the condition is true in some round."""
        flat = self.tracer.torch_call(torch.reshape, [condition, self.tracer.made(())], {})
        self.expected.append(self.tracer.torch_call(torch.Tensor.to, [flat, self.tracer.made(torch.bool)], {}))

    def _origins(self, x: t.Tensor, initial: Sequence[t.Tensor], state: Sequence[t.Tensor],
                 slices: Sequence[t.Tensor]) -> list[Storage]:
        """Return the storages from before the loop with which a tensor that a round appends may share memory."""
        storage = x.fake._alias.storage
        if any(storage is y.fake._alias.storage for y in state):
            return [y.fake._alias.storage for y in initial]
        origins = {id(y.fake._alias.storage): over.fake._alias.storage for y, over in zip(slices, self.plan.operands)}
        return [(origins | self.slices.origins()).get(id(storage), storage)]

    def _check(self, arm: Arm) -> None:
        """Refuse a body after whose last round a variable may be a tensor from before the loop, or share memory with
        another variable."""
        assert self.entries is not None
        self.slices.check(arm)
        count, tracer = len(self.firsts), self.tracer
        places = {tracer.recorder.nodes(x.fake): k for k, x in enumerate(self.entries[:count])}
        roots = [memory_of(tracer.recorder.nodes(x.fake))[0] for x in arm.values[:count]]  # type: ignore[union-attr]
        written = [x.fake._alias.storage for x in self.slices.written()]
        for k, root in enumerate(roots):
            storage = arm.values[k].fake._alias.storage  # type: ignore[union-attr]
            if self.firsts[k] == k and root in roots[:k] or any(storage is x for x in written):
                raise Unsupported("two variables of a loop that share memory")
            reach = 1
            while root in places:
                root, reach = roots[places[root]], reach + 1
                if reach > count + 1:
                    break
            if root not in arm.region or tracer.shapes.known(ge(expr_of(self.count), reach)) is not True:
                raise Unsupported("a variable of a loop that may be a tensor from before it")

    def _outside(self, before: t.Tracker, x: t.Tensor) -> t.Tracker:
        """Return the program's value for a tensor of the state: the tensor, or a number."""
        found = x if isinstance(before, t.Tensor) else data.number(self.tracer, x)
        assert found is not None
        return found

    def _discovered(self) -> tuple[list[int], list[t.Tracker]]:
        """Follow a first round, in which the induction variables are symbols, and return the other variables that a
        round changes, with their values before: all are tensors or numbers, and one that has none before has zeros."""
        self.variables = self._candidates()
        while True:
            trial = self._trial()
            kept = {i: a for i, a in self.variables.items() if self._advanced(i, trial.values[i])}
            if kept.keys() == self.variables.keys():
                return self._changed(trial)
            self.variables = kept

    def _candidates(self) -> dict[int, Affine]:
        """Return the integers that one statement of the loop changes, by a constant."""
        f, found = self.frame, {}
        instrs, inside = f.dec.instrs, loop_around(f.code, self.body.end)[1]
        stores: dict[int, list[int]] = {}
        for k in sorted(inside):
            if instrs[k].name == "STORE_FAST":
                stores.setdefault(instrs[k].arg, []).append(k)
        for i, places in stores.items():
            read, by, fn = instrs[places[0] - 3:places[0]]
            if len(places) != 1 or i not in self.live or (read.name, read.arg) != ("LOAD_FAST", i):
                continue
            step = by.val if by.name == "LOAD_CONST" else None
            sign = _SIGNS.get(fn.val) if fn.name == "BINARY_OP" else None
            if type(step) is int and step and sign and is_integer(self.tracer, self.locals[i]):
                found[i] = Affine(self, self.tracer.size_or_real(self.locals[i]), sign * step)
        return found

    def _advanced(self, i: int, after: t.Tracker | None) -> bool:
        """Return whether an induction variable has its next value after a round."""
        a = self.variables[i]
        return after is not None and Affine(self, a.after(1), a.step).equals(affine(self.tracer, after))

    def _trial(self) -> Arm:
        """Follow a first round, and note the lists that it fills and what it writes."""
        f, tracer = self.frame, self.tracer
        self.filled, self.slices = [], LoopSlices(tracer, self)
        own = [x for x in reachable([*self.locals, *self.stack]).values()
               if type(x) in (t.List, t.FilledList) and x._items is not None and x.value is None and x.source is None]
        items = [list(x._items) for x in own]
        vals = [new_fake(tuple(x.fake.shape[1:]), x.fake.stride()[1:], x.fake.dtype, x.fake.device)
                for x in self.plan.operands]
        numbers = [new_fake((), (), torch.int64, torch.device("cpu")) for _ in self.variables]
        slices = [entered(tracer, val, grad) for val, grad in [
            *[(val, tracer.wants_grad(x.fake)) for val, x in zip(vals, self.plan.operands)],
            *[(val, False) for val in numbers]]]

        def first() -> list[t.Tracker | None]:
            f.locals[:] = self.locals
            test = self._follow({}, slices)
            if test is not None:
                self.condition = condition(tracer, self, test, bool(self.body.again))
            return list(f.locals)

        trial = recorded(tracer, first, own, is_internal)
        self.slices.note_writes(trial)
        self.written = [(base, node) for base, node, _ in trial.outer]
        discard(tracer, trial)
        for x, had in zip(own, items, strict=True):
            if x._items[:len(had)] != had or len(x._items) > len(had) + 1:
                raise Unsupported("a loop changes a list other than by one element in each round")
            if len(x._items) > len(had):
                self.filled.append((x, had))
            x._items[:] = had
        f.locals[:], f.stack[:] = self.locals, self.stack
        return trial

    def _changed(self, trial: Arm) -> tuple[list[int], list[t.Tracker]]:
        slots, blanks = [], []
        for i in self.live:
            before, after = self.locals[i], trial.values[i]
            if same(before, after) or i in self.variables:
                continue
            if i not in self.inside and after is not None and (value := affine(self.tracer, after)) is not None:
                self.set[i] = value
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
        self.kept = [x if i in self.live or same(x, y) else None
                     for i, (x, y) in enumerate(zip(self.locals, trial.values, strict=True))]
        return slots, blanks  # type: ignore[return-value]

    def _differs(self, why: str) -> Unsupported:
        again = not self.done and (self.body.tested or self.count >= 2)
        return _FirstDiffers(why) if again else Unsupported(why)

    def _blank(self, x: t.Tracker | None) -> t.Tracker | None:
        """Return zeros like a value that each round sets."""
        if isinstance(x, t.Tensor):
            how = {"dtype": self.tracer.made(x.fake.dtype), "device": self.tracer.made(x.fake.device)}
            return self.tracer.torch_call(torch.zeros, [self.tracer.made(tuple(x.fake.shape))], how)  # type: ignore[no-any-return]
        return t.Const(x.pytype()(0)) if data.is_number(x) else None  # type: ignore[union-attr]

    def _follow(self, changed: dict[int, t.Tracker], slices: Sequence[t.Tensor]) -> t.Tracker | None:
        """Follow a round with these variables; return the condition at its end."""
        f, tracer = self.frame, self.tracer
        f.locals[:] = [changed.get(i, x) for i, x in enumerate(self.locals)]
        if self.entries is not None:
            for x, _ in self.filled:  # none of its elements can be read
                x._items, x.__class__ = [], t.GrowingList
        count, self.scope = len(self.plan.operands), tracer.touched
        for (i, a), number in zip(self.variables.items(), slices[count:]):
            f.locals[i] = self._variable(number, a)
        tracer.counting.append(self)
        value = self.plan.value(tracer, list(slices[:count]))
        f.stack[:] = self.stack
        found = _round(f, self.body, value)
        tracer.counting.pop()
        return found

    def _verify(self, slots: Sequence[int], test: t.Tracker | None) -> None:
        """Refuse a body that, followed for all rounds, changes other variables than in the first one, or others by
        constants, or has another condition."""
        f = self.frame
        for i in self.live:
            after = f.locals[i]
            if i in slots or i in self.variables and self._advanced(i, after):
                continue
            if i in self.set and after is not None and self.set[i].equals(affine(self.tracer, after)):
                continue
            if i not in self.variables and i not in self.set and same(after, self.locals[i]):
                continue
            raise Unsupported("a loop changes a variable that it did not change the first time")
        if test is not None and not condition(self.tracer, self, test, bool(self.body.again)).equals(self.condition):
            raise Unsupported("the condition of a while loop changes from round to round")

    def _appended(self) -> list[t.Tensor]:
        """Return what the round appended to each list."""
        found = [x._items for x, _ in self.filled]
        if any(len(items) != 1 or not isinstance(items[0], t.Tensor) for items in found):
            raise Unsupported("a loop changes a list other than by one tensor in each round")
        return [items[0] for items in found]
