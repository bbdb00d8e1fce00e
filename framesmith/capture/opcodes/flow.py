"""Jumps, loops, generators' delegation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.util.errors import DataDependent

from .. import counted_loops, data
from .. import trackers as t
from ..branching import Path, branch, is_left_early, next_round
from ..bytecode.liveness import liveness
from ..frame import Frame
from ..looping import range_iterator
from ..registry import op
from ..resizing_branches import resized
from ..size_branches import merged, refuse_assumed


@op("JUMP")
def _jump(f: Frame, target: int) -> None:
    f.ip = target


def _pop_jump(jumps: bool) -> Callable[[Frame, int], Any]:
    def row(f: Frame, target: int) -> Any:
        return _branch(f, target, jumps)

    return row


def _branch(f: Frame, target: int, jumps: bool) -> Any:
    """Jump to `target` if the truth of the condition is `jumps`. If it depends on data and one of the paths raises, the
    other is assumed; otherwise both are followed."""
    if counted_loops.while_loop(f):
        return None
    if merged(f, target, jumps, False) or resized(f, target, jumps):
        return None
    v = f.stack[-1]
    refuse_assumed(v)
    if type(v) is t.Const or not data.decides(f.tracer, v):
        truth = v.truth(f.tracer)
    elif (here := data.raises(f.dec, f.ip)) is not data.raises(f.dec, target):
        data.asserted(f.tracer, v, jumps is here)
        truth = jumps is here
    else:
        try:
            truth = v.truth(f.tracer)
        except DataDependent as refusal:
            below = f.stack[:-1]
            ways = Path(f.ip, below), Path(target, below)
            return branch(f, v, *ways if jumps else ways[::-1], refusal)
    if truth is jumps:
        f.ip = target
    f.stack.pop()
    return None


def _pop_jump_none(jumps: bool) -> Callable[[Frame, int], None]:
    def row(f: Frame, target: int) -> None:
        v = f.stack.pop()
        if (type(v) is t.Const and v.value is None) is jumps:
            f.ip = target

    return row


def _jump_or_pop(jumps: bool) -> Callable[[Frame, int], None]:
    def row(f: Frame, target: int) -> None:
        if merged(f, target, jumps, True):
            return
        refuse_assumed(f.stack[-1])
        if f.stack[-1].truth(f.tracer) is jumps:
            f.ip = target
        else:
            f.stack.pop()

    return row


op("POP_JUMP_IF_FALSE")(_pop_jump(False))
op("POP_JUMP_IF_TRUE")(_pop_jump(True))
op("POP_JUMP_IF_NONE")(_pop_jump_none(True))
op("POP_JUMP_IF_NOT_NONE")(_pop_jump_none(False))
op("JUMP_IF_FALSE_OR_POP")(_jump_or_pop(False))
op("JUMP_IF_TRUE_OR_POP")(_jump_or_pop(True))


@op("GET_ITER", "GET_YIELD_FROM_ITER")
def _iter(f: Frame, arg: Any) -> None:
    f.stack[-1] = f.stack[-1].iterate(f.tracer)


def _next(f: Frame) -> t.Tracker | None:
    """Return the next value of a loop; NULL for a variable that is never read."""
    it = f.stack[-1]
    if type(it) is t.Outside:
        store = f.dec.instrs[f.ip]
        if store.name == "STORE_FAST" and f.code.co_varnames[store.arg] not in liveness(f.code, f.ip + 1):
            return it.skip(f.tracer)
    return it.next(f.tracer)


def _for(past: int) -> Callable[[Frame, int], Any]:
    """`past`: instructions to skip at the loop's end."""

    def row(f: Frame, target: int) -> Any:
        if type(it := f.stack[-1]) is t.LoopIterator:
            if counted_loops.for_loop(f, it, target + past):
                return None
            if is_left_early(f) or it.ends_by_data(f.tracer):
                it = f.stack[-1] = range_iterator(f, it, f.ip - 1) or it
        if type(it) is t.RangeIterator:
            return next_round(f, it, target + past)
        v = _next(f)
        if v is None:
            f.stack.pop()
            f.ip = target + past
        else:
            f.stack.append(v)
        return None

    return row


op("FOR_ITER")(_for(0))
op("FOR_ITER_END")(_for(1))  # 3.12: the target is an END_FOR


def _send(keeps: bool) -> Callable[[Frame, int], None]:
    """`keeps`: the iterator stays below the result."""

    def row(f: Frame, target: int) -> None:
        s = f.stack
        value = s.pop()
        out, result = f.tracer.send_into(s[-1], value)
        if out is None:
            if not keeps:
                s.pop()
            s.append(result)
            f.ip = target
        else:
            s.append(out)

    return row


op("SEND_POP")(_send(False))
op("SEND_KEEP")(_send(True))


@op("END_SEND")
def _end_send(f: Frame, arg: Any) -> None:
    v = f.stack.pop()
    f.stack[-1] = v
