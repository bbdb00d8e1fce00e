"""Loops with a data-dependent number of rounds: the body is recorded once, over stand-ins for the tensors that it
changes, and cut out as the body of one node (`graph.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.tensor import Alias, FakeTensor
from framesmith.graph.control import Branch, Loop
from framesmith.symbolic.node import expr_of, symint
from framesmith.util.errors import Unsupported

from . import data
from . import trackers as t
from .arms import (
    Arm,
    cut_out,
    discard,
    emitted,
    inputs_of,
    is_internal,
    like,
    reachable,
    recorded,
    result_of,
    roots_of,
    same,
    set_value,
    share,
)
from .break_points import Stop
from .bytecode.control_flow import NaturalLoop, passed
from .bytecode.liveness import liveness
from .frame import RETURN, STOPPED, Frame
from .size_widening import bind_sizes, renewed, widened
from .stacked_lists import Row, common_start, grown, own_lists, refill, row_of, stack_of, storages_of

Step = Callable[[Sequence[t.Tensor]], tuple[t.Tracker, Sequence[t.Tracker]]]
"""A function from the state to the next condition and the next state."""
FEWEST = 5
"""The number of rounds of a `for` loop below which each round is recorded for itself."""


def stand_in() -> None:
    """Return a stand-in for a tensor of a loop's state, while its body is captured."""


stand_in.is_pure = True  # type: ignore[attr-defined]


def entered(tracer: Any, val: FakeTensor, grad: bool) -> t.Tensor:
    """Return a stand-in like `val`."""
    recorder = tracer.recorder
    made: t.Tensor = tracer.made(recorder.own(val, recorder.emit(stand_in, (), val)))
    recorder.nodes(val).meta.update(grad=grad, turn=tracer.turn)
    return made


def looped(tracer: Any, condition: t.Tensor, state: Sequence[t.Tensor], step: Step, stop: Stop | None,
           declared: bool = False, settled: Callable[[Arm], bool] | None = None,
           lists: Sequence[t.List] = ()) -> list[t.Tensor] | None:
    """Record a loop that runs while `condition` is true, and return its last state. `declared`: a call of
    torch.while_loop, whose results require grad if a round's results do; else the body may write tensors that the
    program has made and grow `lists`, sizes of the state may change from round to round, and None is returned if the
    state is not `settled`."""
    if tracer.transformed or tracer.modes.functions:
        raise Unsupported("a loop that data ends in a function transform or mode")
    recorder = tracer.recorder
    if any(x.pyclass not in (torch.Tensor, torch.nn.Parameter) or x.attrs for x in state):
        raise Unsupported("a tensor of a class of the program's, or with attributes, that a loop changes")
    initial = [recorder.nodes(x.fake) for x in state]
    vals = [like(x.fake) for x in state]
    wants = [tracer.wants_grad(x.fake) for x in state]
    opened: set[Any] = set()
    while True:
        entries = [entered(tracer, val, grad) for val, grad in zip(vals, wants)]
        own = {id(x.fake._alias.storage) for x in entries}
        arm = recorded(tracer, lambda: _round(tracer, step, entries), lists, lambda storage: (  # noqa: B023
            settled is not None and is_internal(storage) and id(storage) not in own))  # noqa: B023
        if settled is not None and not settled(arm):
            discard(tracer, arm)
            return None
        found = [_widened(tracer, *both, opened) for both in zip(state, vals, arm.values[1:], strict=True)]
        if all(a is b for a, b in zip(found, vals)):
            break
        if settled is None:
            raise Unsupported("a loop changes the layout of its state")
        discard(tracer, arm)
        vals = found
    places: list[Node] = [recorder.nodes(x.fake) for x in entries]
    results = [result_of(tracer, arm, x) for x in arm.values]  # type: ignore[arg-type]
    grads = [tracer.wants_grad(x.fake) for x in arm.values[1:]]  # type: ignore[union-attr]
    sized = {k for k, val in enumerate(vals) if any(expr_of(n) in opened for n in val.shape)}
    graphs, operands = cut_out(tracer, [arm], [[node for node, _, _ in results]], places, {k + 1 for k in sized})
    read = [n for n in operands if isinstance(n, Node) and tracer.requires(n)]
    if grads != wants and not declared:
        raise Unsupported("a tensor requires grad behind some rounds of a loop only")
    wants = [a or b for a, b in zip(wants, grads)]
    if torch.is_grad_enabled() and any(wants) and not declared:
        _check_gradients(tracer, [n for n, grad in zip(initial, wants) if grad], read)
        if any(isinstance(n.target, Branch) and n.meta.get("grad") for n in arm.region):
            raise Unsupported("a branch in a loop, of which a gradient depends")  # that may be one of no round
    args = (recorder.nodes(condition.fake), *initial, *operands)
    vals = [renewed(tracer.shapes, val, opened) for val in vals]
    made = emitted(tracer, Loop(graphs[0], len(state), declared, _rounds(tracer, wants)), args, vals, wants)
    others = {id(x): (x, passed) for _, x, passed in results if x is not None}
    for x in state:  # values may change places
        others[id(x.fake._alias.storage)] = x.fake._alias.storage, not x.fake._alias.storage.version
    share(tracer, [(x, other, passed) for x in made for k, (other, passed) in others.items() if k not in own], stop)
    return made


def _round(tracer: Any, step: Step, entries: Sequence[t.Tensor]) -> list[t.Tracker | None]:
    """Follow a round from stand-ins; return the condition for another one, and the state."""
    bind_sizes(tracer.recorder, [x.fake for x in entries])
    again, after = step(entries)
    go = data.condition(tracer, again)
    if go is None:
        raise Unsupported(f"a loop that {again.describe()} ends")
    return [go, *after]


def _widened(tracer: Any, x: t.Tensor, val: FakeTensor, after: t.Tracker | None, opened: set[Any]) -> FakeTensor:
    """Return the layout of a tensor of the state in all rounds, of which `val` is known so far."""
    found = widened(tracer.recorder.shape_env, val, after.fake, opened) if isinstance(after, t.Tensor) else None
    if found is None:
        raise Unsupported(f"a loop changes the layout of {x.describe()}")
    return found


def _rounds(tracer: Any, wants: Sequence[bool]) -> Any:
    """Return the number of rounds as a size, which the derivative of a loop needs."""
    if not any(wants) or not torch.is_grad_enabled():
        return None
    env = tracer.recorder.shape_env
    if tracer.touched is not None or env is None:
        raise Unsupported("gradients of a loop within a way of a branch or a body of a loop")
    return symint(env.data_symbol(0, None, "rounds of a loop"), env)


def _check_gradients(tracer: Any, initial: Sequence[Node], read: Sequence[Node]) -> None:
    """Refuse a loop for which eager would give no gradient for an input where the graph gives zeros: without a round, a
    result has gradients for its own first value alone."""
    around = inputs_of(tracer, [n for n in (*initial, *read) if n.op != "placeholder"])
    if any(around - inputs_of(tracer, [n]) for n in initial):
        raise Unsupported("a loop gives an input a gradient if there is a round only")


class FrameLoop:
    """A loop of a frame that data ends. A round is what runs from instruction `start` until there, or until one of
    `exits`, which are the ends of the paths that leave the loop. `stack`: where a round begins."""

    def __init__(self, f: Frame, natural: NaturalLoop, start: int, stack: Sequence[t.Tracker]) -> None:
        self.frame, self.natural, self.start = f, natural, start
        self.inside = natural.inside
        """The instructions from which a path ends the round; more than the loop's while it is being entered."""
        self.exits = [k for k in natural.exits if not data.raises(f.dec, k)]
        self.reached: dict[int, tuple[int, list[t.Tracker]]] = {}
        """For each exit that a path has come to, how much of the stack is left there, and what is above."""
        live = liveness(f.code, start).union(*[liveness(f.code, k) for k in self.exits])
        self.live = {i for i, name in enumerate(f.code.co_varnames) if name in live}
        if f is f.tracer.frames[0]:
            for i in [i for i in f.tracer.pending if i in self.live]:
                f.tracer.local(f, i)
        self.begun: list[Any] = [*f.locals, *stack]
        """Variables and stack where the round begins."""
        self.dropped: set[int] = set()
        """Variables that the loop sets and nothing reads."""
        self.more: list[int] = []
        """Places in `begun` that change, and that are not known to."""
        self.after: list[t.Tracker | None] = []
        """What the round sets the variables to."""

    @property
    def stops(self) -> tuple[int, ...]:
        """The instructions that end a round."""
        return (self.start, *self.exits)

    def leaves(self, path: Any) -> int:
        """Return the number of the exit to which a path leaves the loop at once; -1: none."""
        out, drops = passed(self.frame.dec, max(path.at, 0))
        if path.rest is not None or path.at in self.natural.inside or out not in self.exits:
            return -1
        return self._reach(out, path.stack[:len(path.stack) - drops])

    def _reach(self, out: int, stack: Sequence[t.Tracker]) -> int:
        """Note that a path comes to an exit, with this stack; return the exit's number."""
        begun = self.begun[len(self.frame.locals):]
        # what is above the stack of a round is dropped behind the loop, at any position
        extra = [x.at(t.Const(0)) if isinstance(x, t.RangeIterator) else x for x in stack[len(begun):]]
        if not all(isinstance(x, t.Iter | t.RangeIterator) for x in extra) or any(
                a is not b and not isinstance(a, t.RangeIterator) for a, b in zip(stack, begun)):
            raise Unsupported("a loop that data ends changes what an expression around it holds")
        self.reached[out] = min(len(stack), len(begun)), extra
        return self.exits.index(out)

    def starts(self, path: Any) -> bool:
        """Return whether a path is the beginning of the next round."""
        instrs, begun, at = self.frame.dec.instrs, self.begun[len(self.frame.locals):], path.at
        while at != self.start and at >= 0 and instrs[at].op == "JUMP" and instrs[at].target != at:
            at = instrs[at].target
        return at == self.start and path.rest is None and len(path.stack) == len(begun)

    def branch_out(self, condition: t.Tensor, holds: bool, path: Any, stack: Sequence[t.Tracker]) -> None:
        """End the round where the loop is left by `path`, if the truth of the condition is `holds`, and else begun
        anew, with this stack."""
        f, left = self.frame, self.leaves(path)
        if left < 0:
            raise Unsupported("a loop that data ends changes what an expression around it holds")
        f.ip, f.stack[:] = self.start, stack
        values = self.ended(STOPPED)[:-2]
        f.locals[:], f.stack[:] = values[:len(f.locals)], values[len(f.locals):]  # type: ignore[assignment]
        go = data.number(f.tracer, data.flag(f.tracer, condition))
        assert go is not None
        f.stack += [data.negated(f.tracer, go) if holds else go, t.Const(left)]

    def ended(self, out: Any) -> list[t.Tracker | None]:
        """Return, where a path of a round has ended, the variables and the stack for the next one, whether there is
        one, and by which exit the loop is left otherwise."""
        f = self.frame
        count, again = len(f.locals), f.ip == self.start
        if out is not STOPPED or f.yielded:
            raise Unsupported("a loop that data ends in more than one place")
        if again and len(f.stack) == len(self.begun) - count + 2:  # here paths were joined
            return [*f.locals, *f.stack]
        stack = self.begun[count:]
        if again and len(f.stack) == len(stack):
            stack = f.stack
        elif again or f.ip not in self.exits:
            raise Unsupported("a loop that data ends changes what an expression around it holds")
        else:
            self._reach(f.ip, f.stack)
        read = liveness(f.code, f.ip)
        values = list(self.begun[:count])
        for i, x in enumerate(f.locals):
            if i in self.live and x is not None and (again or f.code.co_varnames[i] in read):
                values[i] = x
            elif x is not values[i]:
                self.dropped.add(i)
        return [*values, *stack, t.boolean(again), t.Const(0 if again else self.exits.index(f.ip))]

    def run(self, go: t.Tracker, exit: t.Tracker, stop: Stop | None) -> t.Tensor:
        """Record the loop, which is entered if `go` is true, and set the frame's variables to their values behind it;
        return the number of the exit, which is `exit` if there is no round, if there are several."""
        f, tracer, several = self.frame, self.frame.tracer, len(self.exits) > 1
        count, first = len(f.locals), list[Any]([*f.locals, *f.stack])
        places: list[int] = []
        wholes: list[tuple[Alias, Node]] = []
        place = f.code, self.natural.head + 1
        lists = [] if place in tracer.unrolled else own_lists(reachable(roots_of(tracer)).values())
        had = [list(x.items) for x in lists]
        rows: dict[int, Row] = {}
        """The lists that grow, by number, and what their elements have in common."""
        ends: list[list[t.Tracker]] = []

        def step(state: Sequence[t.Tensor]) -> tuple[t.Tracker, list[t.Tracker]]:
            f.locals[:], f.stack[:] = first[:count], first[count:]
            for i, x in zip(places, state):
                (f.locals if i < count else f.stack)[i if i < count else i - count] = _outside(tracer, first[i], x)
            for (base, _), x in zip(wholes, state[len(places):]):
                set_value(base, tracer.recorder.nodes(x.fake))
            before = [list(items) for items in had]
            for (k, row), x in zip(rows.items(), state[len(places) + len(wholes):]):
                before[k] = [t.StackedItems(x, None, [], place, row.kind)]
            for filled, items in zip(lists, before):
                refill(filled, items)
            self.begun = [*f.locals, *f.stack]
            *after, again, left = self._round()
            self.more = [i for i in range(len(after)) if i not in places and not same(*_numbers(after[i], first[i]))]
            for i in self.more:
                self._check(i, first[i], after[i])
            self.after = [x for i, x in enumerate(after) if i in places or i in self.more]
            ends[:] = [list(x.items) for x in lists]
            if any(common_start(items, after) != len(items) for items, after in zip(before, ends)):
                raise Unsupported("a loop that data ends changes a list other than by appending")
            return data.flag(tracer, again), [data.tensor_of(tracer, x) for x in (  # type: ignore[arg-type]
                *[_numbers(after[i])[0] for i in places], *_copies(tracer, wholes),
                *[stack_of(tracer, ends[k], row) for k, row in rows.items()], *[left] * several)]

        def settled(arm: Arm) -> bool:
            known = len(wholes), len(rows)
            for k, (before, after) in enumerate(zip(had, ends)):
                if k not in rows and grown(before, after):
                    rows[k] = row_of(tracer, after)  # type: ignore[assignment]
            for x, items in zip(lists, had):
                refill(x, items)
            for base, node, _ in arm.outer:
                if not any(base is own for own, _ in wholes):
                    wholes.append((base, node))
            for base, node in wholes:
                set_value(base, node)
            self._check_written([*[first[i] for i in {*places, *self.more}], *self.after], [x for x, _ in wholes])
            if any(storage is base.storage for storage in storages_of(sum(ends, [])) for base, _ in wholes):
                raise Unsupported("a loop collects a tensor that it writes")
            return not self.more and (len(wholes), len(rows)) == known

        while True:
            initial = [data.tensor_of(tracer, x) for x in (*[_numbers(first[i])[0] for i in places],  # type: ignore[arg-type]
                                                           *_copies(tracer, wholes),
                                                           *[stack_of(tracer, had[k], row) for k, row in rows.items()],
                                                           *[exit] * several)]
            made = looped(tracer, data.flag(tracer, go), initial, step, stop, settled=settled, lists=lists)
            if made is not None:
                break
            places = sorted({*places, *self.more})
        for i, x in zip(places, made):
            first[i] = _outside(tracer, first[i], x)
        for (base, _), x in zip(wholes, made[len(places):]):
            tracer.torch_call(torch.Tensor.copy_, [tracer.made(base.val), x], {})
        shared = [x.fake._alias.storage for x in (*initial, *made)]
        for (k, row), x in zip(rows.items(), made[len(places) + len(wholes):]):
            watched = [*storages_of([*had[k], *ends[k]]), *shared]
            refill(lists[k], [t.StackedItems(x, None, watched, place, row.kind)])
            tracer.mutates(lists[k])
        f.locals[:] = [None if i in self.dropped and i not in places else x for i, x in enumerate(first[:count])]
        f.stack[:] = first[count:]  # type: ignore[assignment]
        return made[-1] if several else data.flag(tracer, t.FALSE)

    @staticmethod
    def _check_written(values: Sequence[t.Tracker | None], wholes: Sequence[Alias]) -> None:
        """Refuse a variable that a round sets and that shares memory with a tensor that the loop writes."""
        written = [base.storage for base in wholes]
        if any(isinstance(x, t.Tensor) and any(x.fake._alias.storage is y for y in written) for x in values):
            raise Unsupported("a variable of a loop shares memory with a tensor that the loop writes")

    def _round(self) -> list[t.Tracker | None]:
        """Follow a round: its first instruction, and then the others until it ends."""
        f = self.frame
        handler, arg = f.ops[self.start]
        f.ip, f.step = self.start + 1, f.tracer.steps
        if handler(f, arg) is RETURN:
            raise Unsupported("a loop that data ends, and a return")
        return self.ended(f.run(*self.stops))

    def _check(self, i: int, before: t.Tracker | None, after: t.Tracker | None) -> None:
        """Refuse a change of a variable that is no tensor or number."""
        before, after = _numbers(before, after)
        numbers = data.is_number(before) and data.is_number(after)
        if not (isinstance(before, t.Tensor) and isinstance(after, t.Tensor)
                or numbers and before.pytype() is after.pytype()):  # type: ignore[union-attr]
            name = self.frame.dec.localsplus[i] if i < len(self.frame.locals) else "a value on the stack"
            raise Unsupported(f"a loop that data ends changes {name}, which is no tensor or number")


def _copies(tracer: Any, wholes: Sequence[tuple[Alias, Node]]) -> list[t.Tensor]:
    """Return copies of tensors' present values."""
    return [tracer.torch_call(torch.clone, [tracer.made(base.val)], {}) for base, _ in wholes]


def _numbers(*values: t.Tracker | None) -> list[t.Tracker | None]:
    """Return for iterators their positions, other values unchanged."""
    return [x.position if isinstance(x, t.RangeIterator) else x for x in values]


def _outside(tracer: Any, before: t.Tracker | None, x: t.Tensor) -> t.Tracker:
    """Return the program's value for a tensor of the state: the tensor, a number, or an iterator at that position."""
    found = x if isinstance(before, t.Tensor) else data.number(tracer, x)
    assert found is not None
    return before.at(found) if isinstance(before, t.RangeIterator) else found


def range_iterator(f: Frame, it: t.Tracker, head: int) -> t.RangeIterator | None:
    """Return the iterator of the loop at `head` as one whose position data may tell; None if it gives no numbers at
    constant distances, if too few rounds are left, or if the loop was refused before."""
    tracer = f.tracer
    if isinstance(it, t.RangeIterator):
        return it
    if not tracer.branches or (f.code, head + 1) in tracer.unrolled:
        return None
    ranges = type(it) is t.LoopIterator and it.cls is type(iter(range(0))) and not it.looping and it.concrete is None
    values = it.rest_of_range() if type(it) is t.Walk else None
    plan = it.plan(tracer) if ranges else t.progression(values) if values is not None else None  # type: ignore[attr-defined]
    if plan is None or type(plan.count) is int and plan.count < FEWEST:
        return None
    others = [x for frame in tracer.frames for x in (frame.fn, *frame.locals, *[y for y in frame.stack if y is not it])]
    if id(it) in reachable([*others, *tracer.mutated.values()]):
        return None
    return t.RangeIterator(it.pytype(), plan, t.Const(0))
