"""A branch of a frame on a tensor's data: both paths are followed to their join. If one of them leaves a loop before,
they are followed to the end of the round, and the loop is recorded (`looping`): its exits are told apart behind it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from framesmith.symbolic.expr import Rel, not_
from framesmith.util.errors import DataDependent, Unsupported

from . import data
from . import trackers as t
from .arms import Values, joined, positions, roots_of
from .break_points import Stop, StopAt, choose_stop
from .bytecode.control_flow import NaturalLoop, join_of, loops, on_each_round, passed
from .bytecode.liveness import liveness
from .frame import RETURN, STOPPED, Frame
from .looping import FrameLoop, range_iterator

DEEPEST = 8
"""The maximal depth of nested branches."""
LONGEST = 20_000
"""The number of instructions on the paths of a branch after which no further branch is begun there."""


class Path(NamedTuple):
    """A path of a branch: the instruction at which it begins, and the stack there; or `rest`, a branch that is its
    beginning: a condition, and its paths. `holds`: a relation between sizes that holds there."""

    at: int
    stack: list[t.Tracker]
    rest: tuple[t.Tensor, tuple[Path, Path]] | None = None
    holds: Rel | None = None

    @property
    def starts(self) -> list[int]:
        """The instructions at which it may begin."""
        return [self.at] if self.rest is None else [k for path in self.rest[1] for k in path.starts]


Paths = tuple[Path, Path]


class BranchRefused(StopAt, DataDependent):
    """The paths of a branch on data cannot be one graph."""

    def __init__(self, refusal: DataDependent, stop: Stop | None, why: str, at: tuple[str, int] | None) -> None:
        super().__init__(refusal.reason, stop, at)
        self.why = why
        self.hint = f"{refusal.hint}; both ways could be one graph, but {why}"


def branch(f: Frame, v: t.Tracker, no: Path, yes: Path, refusal: DataDependent) -> Any:
    """Follow both paths of the present instruction, where `v` is false and where it is true, and return a handler's
    result. Raises BranchRefused, for `refusal`, if they cannot be one graph."""
    tracer = f.tracer
    stop = choose_stop(tracer.frames, tracer.steps)
    active: list[tuple[Frame, int, int]] = tracer.branching
    place = [p[:2] for p in tracer.user_place()]
    try:
        if not tracer.branches or (condition := data.condition(tracer, v)) is None:
            raise refusal
        if len(active) >= DEEPEST or active and tracer.steps - active[0][2] > LONGEST:
            raise Unsupported("the ways branch again and again")
        active.append((f, f.ip - 1, tracer.steps))
        if (rel := data.relation_of(v)) is not None:
            no, yes = no._replace(holds=not_(rel)), yes._replace(holds=rel)
        found = _followed(f, frozenset([f.ip - 1]), condition, (no, yes), stop)
        active.pop()
        return found
    except Unsupported as e:
        if e is refusal:
            raise
        why = e.why if isinstance(e, BranchRefused) else e.reason
        raise BranchRefused(refusal, stop, why, place[0] if place else None) from None
    finally:
        del refusal  # what is raised holds this frame


def is_left_early(f: Frame) -> bool:
    """Return whether the `for` loop that begins at the present instruction is left in other ways, too."""
    return any(loop.head == f.ip - 1 and len(loop.leaves) > 1 for loop in loops(f.code))


def next_round(f: Frame, it: t.RangeIterator, out: int) -> Any:
    """Begin the next round of a `for` loop, or continue at `out`, behind it."""
    tracer, below = f.tracer, f.stack[:-1]
    more = it.has_next(tracer)
    if data.decides(tracer, more):
        refusal = DataDependent("the number of rounds of a loop")
        return branch(f, more, Path(out, below), Path(f.ip, [*below, *it.taken(tracer)]), refusal)
    if more.truth(tracer):
        f.stack[:] = [*below, *it.taken(tracer)]
    else:
        f.stack[:], f.ip = below, out
    return None


def _followed(f: Frame, place: frozenset[int], condition: t.Tensor, paths: Paths, stop: Stop | None) -> Any:
    """Follow two paths from `place` (where the condition is false, where it is true) to their join, to the end of a
    round of the innermost loop that they leave before, or behind that loop."""
    tracer, (join, left) = f.tracer, _join(f, place, paths)
    around = next((loop for loop in reversed(tracer.looping) if loop.frame is f and place <= loop.inside), None)
    if around is not None and (left is around.natural or not place <= around.natural.inside):
        return _end_round(around, condition, paths, stop)
    if left is not None:
        return _loop(f, left, left.inside, place, condition, paths, stop)
    entered = _entered(f, min(place), join) if around is None and len(place) == 1 else None
    if entered is not None and (f.code, ~entered.head) not in tracer.unrolled:
        inside = entered.inside | set(range(min(place), entered.head))
        try:
            return _loop(f, entered, inside, place, condition, paths, stop)
        except Unsupported:  # the first round may differ from the others
            raise t.FirstRoundApart((f.code, ~entered.head), "a loop that data enters") from None
    return _Ways(f, place, join, around).followed(condition, paths, stop)


def _join(f: Frame, place: frozenset[int], paths: Paths) -> tuple[int, NaturalLoop | None]:
    """Return where two paths from `place` join; or the innermost loop around it of which they end a round before, if it
    may be recorded."""
    iterators, starts, stack = 0, paths[0].starts + paths[1].starts, max((p.stack for p in paths), key=len)
    for loop in loops(f.code):
        if place < loop.inside:
            active = next((own for own in f.tracer.looping if own.frame is f and own.natural is loop), None)
            if active is not None or not loop.iterates or not iterators and stack and (
                    range_iterator(f, stack[-1], loop.head) is not None):
                join = join_of(f.code, starts, loop.head if active is None else active.start)
                return (join, None) if join in loop.inside else (join, loop)
            iterators += loop.iterates
    return join_of(f.code, starts), None


def _entered(f: Frame, at: int, join: int) -> NaturalLoop | None:
    """Return the loop of whose first test the jump at `at` is the beginning: all paths lead to the loop's head, or to
    where it is left."""
    instrs, out = f.dec.instrs, passed(f.dec, join)[0] if join < len(f.dec.instrs) else -1
    for loop in loops(f.code):
        before = instrs[at:loop.head]
        if before and not loop.iterates and loop.exits == (out,) and before[-1].op.startswith("POP_JUMP") and all(
                at < ins.target <= loop.head or ins.target < 0 or passed(f.dec, ins.target)[0] == out
                for ins in before):
            return loop
    return None


def _loop(f: Frame, natural: NaturalLoop, inside: frozenset[int], place: frozenset[int], condition: t.Tensor,
          paths: Paths, stop: Stop | None) -> Any:
    """Record the loop that two paths from `place` continue or leave, and go on behind it. The paths may begin within
    `inside`: before the loop, at its first test."""
    tracer = f.tracer
    if any(own.frame is f and own.natural is natural for own in tracer.looping) or any(
            getattr(own, "frame", None) is f and own.body.end in natural.inside for own in tracer.counting):
        raise Unsupported("a loop that ends in more than one place")
    try:
        leaving = [k for k, path in enumerate(paths) if path.at not in natural.inside and path.rest is None]
        stays = paths[0 in leaving]
        if natural.iterates:
            it = range_iterator(f, stays.stack[-1], natural.head)
            paths = tuple([path._replace(stack=[it if x is stays.stack[-1] else x for x in path.stack])  # type: ignore[assignment, misc]
                           for path in paths])
            stays = paths[0 in leaving]
        begins = len(leaving) == 1 and stays.rest is None and (
            stays.at == natural.head or on_each_round(f.code, natural, place))
        loop = FrameLoop(f, natural, stays.at if begins else natural.head, stays.stack)
        tracer.looping.append(loop)
        if begins:
            loop.branch_out(condition, bool(leaving[0]), paths[leaving[0]], stays.stack)
        else:
            loop.inside = inside
            _end_round(loop, condition, paths, stop)
            loop.inside = natural.inside
        exit, go = f.stack.pop(), f.stack.pop()
        index = loop.run(go, exit, stop)
        tracer.looping.pop()
        ends = [Path(at, f.stack[:height] + extra) for at, (height, extra) in sorted(loop.reached.items())]
        if not ends:
            raise Unsupported("a loop that data does not end")
        while len(ends) > 2:
            *ends, one, other = ends
            ends.append(Path(-1, other.stack, (_chosen(loop, index, other), (one, other))))
        if len(ends) == 2:
            return _followed(f, natural.inside, _chosen(loop, index, ends[1]), (ends[0], ends[1]), stop)
        f.ip, f.stack[:] = ends[0].at, ends[0].stack
        return None
    except Unsupported as e:
        if not natural.iterates:
            raise
        why = e.why if isinstance(e, BranchRefused) else e.reason
        raise t.LoopUnrolled((f.code, natural.head + 1), why, tracer.where()) from None


def _chosen(loop: FrameLoop, index: t.Tensor, path: Path) -> t.Tensor:
    """Return whether a loop is left by one of these paths, or by an earlier exit."""
    least = min(loop.exits.index(k) for k in path.starts)
    return loop.frame.tracer.torch_call(torch.ge, [index, t.Const(least)], {})  # type: ignore[no-any-return]


def _end_round(loop: FrameLoop, condition: t.Tensor, paths: Paths, stop: Stop | None) -> None:
    """Follow two paths to the end of the round."""
    for k, other in ((0, 1), (1, 0)):
        if loop.starts(paths[other]) and loop.leaves(paths[k]) >= 0:
            return loop.branch_out(condition, bool(k), paths[k], paths[other].stack)
    _Ways(loop.frame, loop.natural.inside, loop.start, loop, True).followed(condition, paths, stop)
    return None


class _Ways:
    """The state of a frame before a branch, from which both paths start. They end at `join` or, in a `loop`, if the
    branch `ends` it, with the round."""

    def __init__(self, f: Frame, place: frozenset[int], join: int, loop: FrameLoop | None = None,
                 ends: bool = False) -> None:
        self.frame = f
        self.place = place
        self.join = join
        self.loop = loop
        self.ends_round = ends
        self.ends: list[bool] = []
        self.values: list[t.Tracker | None] = []
        self.later: list[dict[Any, Any]] = []

    def followed(self, condition: t.Tensor, paths: Paths, stop: Stop | None) -> Any:
        """Follow both paths (where the condition is false, where it is true); RETURN if the frame ends on both."""
        f = self.frame
        if f is f.tracer.frames[0]:
            read = frozenset().union(*[liveness(f.code, k) for path in paths for k in path.starts])
            for i in [i for i in f.tracer.pending if f.dec.localsplus[i] in read]:
                f.tracer.local(f, i)
        self.locals = list(f.locals)
        self.positions = positions(roots_of(f.tracer))
        found = joined(f.tracer, condition, [lambda path=path: self._way(path, stop) for path in paths],  # type: ignore[misc]
                       stop, False, (f.code, max(self.place) + 1))
        if self.ends[0]:
            f.result = found[0]
            return RETURN
        if any(self.later[0].get(key, value) != value for key, value in self.later[1].items()):
            raise Unsupported("an iterator is advanced one way only")
        slots = len(f.locals)
        f.locals[:], f.stack[:] = found[:slots], found[slots:]  # type: ignore[assignment]
        f.ip = self.join
        return None

    def _way(self, path: Path, stop: Stop | None) -> Values:
        f, tracer = self.frame, self.frame.tracer
        f.locals[:], f.stack[:], f.ip = self.locals, path.stack, path.at
        for (owner, name), value in self.positions.items():
            if getattr(owner, name) != value:
                if isinstance(owner, (Frame, t.Lazy, t.LoopIterator)):
                    raise Unsupported("an iterator that both ways advance, and that has no place to go back to")
                setattr(owner, name, value)
        with tracer.shapes.holding(path.holds):
            if path.rest is not None and _followed(f, self.place, *path.rest, stop) is RETURN:
                out = f.result
            else:
                out = f.run(self.join, *() if self.loop is None else self.loop.stops)
        if f.yielded:
            raise Unsupported("a generator that yields on one way of a branch")
        self.ends.append(out is not STOPPED)
        self.later.append(positions(roots_of(tracer)))
        if self.loop is not None and self.ends_round:
            return self.loop.ended(out)
        if out is not STOPPED:
            return [out]
        if f.ip != self.join:
            raise Unsupported("a branch in a loop, of which one way ends the round")
        values = [*f.locals, *f.stack]
        live, names = liveness(f.code, self.join), f.code.co_varnames
        for i in [i for i, name in enumerate(names) if name not in live and self.values]:
            if values[i] is not self.values[i]:
                values[i] = self.values[i] = None
        self.values = values
        return values
