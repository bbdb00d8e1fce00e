"""Jumps, loops, generators' delegation."""

from __future__ import annotations

from typing import Any

from framesmith.util.errors import DataDependent

from .. import data
from .. import trackers as t
from ..branching import branch
from ..bytecode.liveness import liveness
from ..frame import Frame
from ..registry import op


@op("JUMP")
def _jump(f: Frame, target: int) -> None:
    f.ip = target


@op("POP_JUMP_IF_FALSE")
def _pop_false(f: Frame, target: int) -> Any:
    return _branch(f, target, False)


@op("POP_JUMP_IF_TRUE")
def _pop_true(f: Frame, target: int) -> Any:
    return _branch(f, target, True)


def _branch(f: Frame, target: int, jumps: bool) -> Any:
    """Jump to `target` if the truth of the condition is `jumps`. Where data decides, and one of both ways raises, it
    is assumed that the other is taken; else both are followed."""
    v = f.stack[-1]
    if type(v) is t.Const or not data.decides(f.tracer, v):
        truth = v.truth(f.tracer)
    elif (here := data.raises(f.dec, f.ip)) is not data.raises(f.dec, target):
        data.asserted(f.tracer, v, jumps is here)
        truth = jumps is here
    else:
        try:
            truth = v.truth(f.tracer)
        except DataDependent as refusal:
            return branch(f, v, target, jumps, refusal)
    if truth is jumps:
        f.ip = target
    f.stack.pop()
    return None


@op("POP_JUMP_IF_NONE")
def _pop_none(f: Frame, target: int) -> None:
    v = f.stack.pop()
    if type(v) is t.Const and v.value is None:
        f.ip = target


@op("POP_JUMP_IF_NOT_NONE")
def _pop_not_none(f: Frame, target: int) -> None:
    v = f.stack.pop()
    if not (type(v) is t.Const and v.value is None):
        f.ip = target


@op("JUMP_IF_FALSE_OR_POP")
def _false_or_pop(f: Frame, target: int) -> None:
    if f.stack[-1].truth(f.tracer):
        f.stack.pop()
    else:
        f.ip = target


@op("JUMP_IF_TRUE_OR_POP")
def _true_or_pop(f: Frame, target: int) -> None:
    if f.stack[-1].truth(f.tracer):
        f.ip = target
    else:
        f.stack.pop()


@op("GET_ITER")
def _iter(f: Frame, arg: Any) -> None:
    f.stack[-1] = f.stack[-1].iterate(f.tracer)


@op("GET_YIELD_FROM_ITER")
def _yield_from_iter(f: Frame, arg: Any) -> None:
    f.stack[-1] = f.stack[-1].iterate(f.tracer)


def _next(f: Frame) -> t.Tracker | None:
    """The next value of a loop; NULL for one that goes into a variable that is never read."""
    it = f.stack[-1]
    if type(it) is t.Outside:
        store = f.dec.instrs[f.ip]
        if store.name == "STORE_FAST" and f.code.co_varnames[store.arg] not in liveness(f.code, f.ip + 1):
            return it.skip(f.tracer)
    return it.next(f.tracer)


@op("FOR_ITER")
def _for(f: Frame, target: int) -> None:
    v = _next(f)
    if v is None:
        f.stack.pop()
        f.ip = target
    else:
        f.stack.append(v)


@op("FOR_ITER_END")
def _for_end(f: Frame, target: int) -> None:
    """3.12: the target is an END_FOR, which is skipped."""
    v = _next(f)
    if v is None:
        f.stack.pop()
        f.ip = target + 1
    else:
        f.stack.append(v)


@op("SEND_POP")
def _send_pop(f: Frame, target: int) -> None:
    s = f.stack
    value = s.pop()
    out, result = f.tracer.send_into(s[-1], value)
    if out is None:
        s[-1] = result
        f.ip = target
    else:
        s.append(out)


@op("SEND_KEEP")
def _send_keep(f: Frame, target: int) -> None:
    s = f.stack
    value = s.pop()
    out, result = f.tracer.send_into(s[-1], value)
    if out is None:
        s.append(result)
        f.ip = target
    else:
        s.append(out)


@op("END_SEND")
def _end_send(f: Frame, arg: Any) -> None:
    v = f.stack.pop()
    f.stack[-1] = v
