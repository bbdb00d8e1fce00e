"""A branch of a frame on a tensor's data: both paths are followed to their join; if one of them returns to the branch,
the loop is recorded instead."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.util.errors import DataDependent, Unsupported

from . import data
from . import trackers as t
from .arms import Values, joined, positions, roots_of
from .break_points import Stop, StopAt, choose_stop
from .bytecode.control_flow import join_of
from .bytecode.liveness import liveness
from .frame import RETURN, STOPPED, Frame
from .looping import FrameLoop

DEEPEST = 8
"""The maximal depth of nested branches."""
LONGEST = 20_000
"""The number of instructions on the paths of a branch after which no further branch is begun there."""


class BranchRefused(StopAt, DataDependent):
    """The paths of a branch on data cannot be one graph."""

    def __init__(self, refusal: DataDependent, stop: Stop | None, why: str, at: tuple[str, int] | None) -> None:
        super().__init__(refusal.reason, stop, at)
        self.why = why
        self.hint = f"{refusal.hint}; both ways could be one graph, but {why}"


def branch(f: Frame, v: t.Tracker, target: int, jumps: bool, refusal: DataDependent) -> Any:
    """Follow both paths of a conditional jump (to `target`, if the truth of `v` is `jumps`) and return a handler's
    result. Raises BranchRefused, for `refusal`, if they cannot be one graph."""
    tracer = f.tracer
    stop = choose_stop(tracer.frames, tracer.steps)
    active: list[tuple[Frame, int, int]] = tracer.branching
    at, place = f.ip - 1, [p[:2] for p in tracer.user_place()]
    try:
        if not tracer.branches or (condition := data.condition(tracer, v)) is None:
            raise refusal
        if len(active) >= DEEPEST or active and tracer.steps - active[0][2] > LONGEST:
            raise Unsupported("the ways branch again and again")
        starts = (f.ip, target) if jumps else (target, f.ip)
        around = next((loop for loop in reversed(tracer.looping) if loop.exit_of(f, at, target) >= 0), None)
        loop = None if around is not None else FrameLoop.around(f, at, target)
        begins = False
        if loop is not None:
            loop.goes_on = begins = (loop.again == target) is jumps
        elif around is None and tracer.differentiable and torch.is_grad_enabled():
            head, behind = FrameLoop.behind(f, at) or (None, None)
            if head is not None and head.at == at:  # not within a way: what it collects has no size outside
                loop, begins = behind, head.goes_on
            elif head is not None:
                around = head
                tracer.looping.append(head)
        if loop is not None and any(frame is f and index == at for frame, index, _ in active):
            raise Unsupported("a loop that data ends in more than one place")
        active.append((f, at, tracer.steps))
        if loop is not None:
            tracer.looping.append(loop)
            loop.run(condition, begins, stop)
            tracer.looping.pop()
            found = None
        elif around is not None:
            ways = _Ways(f, around.at, around, around.exit_of(f, at, target))
            found = ways.followed(condition, starts, stop)
            if around.inside.isdisjoint([around.again]):
                tracer.looping.pop()
        else:
            found = _Ways(f, join_of(f.code, at)).followed(condition, starts, stop)
        active.pop()
        return found
    except Unsupported as e:
        if e is refusal:
            raise
        why = e.why if isinstance(e, BranchRefused) else e.reason
        raise BranchRefused(refusal, stop, why, place[0] if place else None) from None
    finally:
        del refusal  # what is raised holds this frame


class _Ways:
    """The state of a frame before a branch, from which both paths start. A branch out of a `loop`, to `exit`, is joined
    where the loop's own condition is known: it is that condition, or it ends the loop."""

    def __init__(self, f: Frame, join: int, loop: FrameLoop | None = None, exit: int = -1) -> None:
        self.frame = f
        self.join = join
        self.loop = loop
        self.exit = exit
        self.ends: list[bool] = []
        self.values: list[t.Tracker | None] = []
        self.later: list[dict[Any, Any]] = []

    def followed(self, condition: t.Tensor, starts: tuple[int, int], stop: Stop | None) -> Any:
        """Go from `starts` (where the condition is false, where it is true); RETURN if the frame ends on both ways."""
        f = self.frame
        if f is f.tracer.frames[0]:
            read = liveness(f.code, starts[0]) | liveness(f.code, starts[1])
            for i in [i for i in f.tracer.pending if f.dec.localsplus[i] in read]:
                f.tracer.local(f, i)
        self.locals, self.stack = list(f.locals), f.stack[:-1]
        self.positions = positions(roots_of(f.tracer))
        found = joined(f.tracer, condition, [lambda k=k: self._way(k) for k in starts],  # type: ignore[misc]
                       stop, False)
        if self.ends[0]:
            f.result = found[0]
            return RETURN
        if any(self.later[0].get(key, value) != value for key, value in self.later[1].items()):
            raise Unsupported("an iterator is advanced one way only")
        slots = len(f.locals)
        f.locals[:], f.stack[:] = found[:slots], found[slots:]  # type: ignore[assignment]
        f.ip = self.join
        return None

    def _way(self, start: int) -> Values:
        f, tracer = self.frame, self.frame.tracer
        f.locals[:], f.stack[:], f.ip = self.locals, self.stack, start
        for (owner, name), value in self.positions.items():
            if getattr(owner, name) != value:
                if isinstance(owner, (Frame, t.Lazy, t.LoopIterator)):
                    raise Unsupported("an iterator that both ways advance, and that has no place to go back to")
                setattr(owner, name, value)
        leaves = self.loop is not None and start == self.exit
        out = f.run(self.loop.out if self.loop is not None and leaves else self.join)
        if f.yielded:
            raise Unsupported("a generator that yields on one way of a branch")
        self.ends.append(out is not STOPPED)
        self.later.append(positions(roots_of(tracer)))
        if self.loop is not None:
            if out is not STOPPED:
                raise Unsupported("a loop that data ends, and a return")
            f.stack.append(self.loop.goes(None if leaves else f.stack.pop()))
        if out is not STOPPED:
            return [out]
        values = [*f.locals, *f.stack]
        live, names = liveness(f.code, self.join), f.code.co_varnames
        for i in [i for i, name in enumerate(names) if name not in live and self.values]:
            if values[i] is not self.values[i]:
                values[i] = self.values[i] = None
        self.values = values
        return values
