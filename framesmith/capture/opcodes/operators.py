"""Unary, binary and comparison operators, subscripts."""

from __future__ import annotations

from typing import Any

from .. import data
from .. import trackers as t
from ..frame import Frame
from ..identity import same_object
from ..registry import op


@op("BINARY_OP")
def _binary(f: Frame, name: str) -> None:
    s = f.stack
    b = s.pop()
    s[-1] = f.tracer.binary(name, s[-1], b)


@op("INPLACE_OP")
def _inplace(f: Frame, name: str) -> None:
    s = f.stack
    b = s.pop()
    s[-1] = f.tracer.inplace(name, s[-1], b)


@op("UNARY_NEGATIVE")
def _neg(f: Frame, arg: Any) -> None:
    f.stack[-1] = f.tracer.unary("neg", f.stack[-1])


@op("UNARY_POSITIVE")
def _pos(f: Frame, arg: Any) -> None:
    f.stack[-1] = f.tracer.unary("pos", f.stack[-1])


@op("UNARY_INVERT")
def _invert(f: Frame, arg: Any) -> None:
    f.stack[-1] = f.tracer.unary("invert", f.stack[-1])


@op("UNARY_NOT")
def _not(f: Frame, arg: Any) -> None:
    f.stack[-1] = data.negated(f.tracer, f.stack[-1])


@op("COMPARE_OP")
def _compare(f: Frame, name: str) -> None:
    s = f.stack
    b = s.pop()
    s[-1] = f.tracer.compare(name, s[-1], b)


@op("IS_OP")
def _is(f: Frame, invert: int) -> None:
    s = f.stack
    b = s.pop()
    s[-1] = t.boolean(same_object(f.tracer, s[-1], b) is not bool(invert))


@op("CONTAINS_OP")
def _contains(f: Frame, invert: int) -> None:
    s = f.stack
    b = s.pop()
    s[-1] = t.boolean(f.tracer.contains(b, s[-1]) is not bool(invert))


@op("BINARY_SUBSCR")
def _subscr(f: Frame, arg: Any) -> None:
    s = f.stack
    k = s.pop()
    s[-1] = s[-1].item(f.tracer, k)


@op("STORE_SUBSCR")
def _store_subscr(f: Frame, arg: Any) -> None:
    s = f.stack
    k = s.pop()
    obj = s.pop()
    obj.set_item(f.tracer, k, s.pop())


@op("DELETE_SUBSCR")
def _delete_subscr(f: Frame, arg: Any) -> None:
    k = f.stack.pop()
    f.stack.pop().del_item(f.tracer, k)


@op("BINARY_SLICE")
def _binary_slice(f: Frame, arg: Any) -> None:
    s = f.stack
    stop = s.pop()
    start = s.pop()
    s[-1] = s[-1].item(f.tracer, t.Slice([start, stop, t.NONE]))


@op("STORE_SLICE")
def _store_slice(f: Frame, arg: Any) -> None:
    s = f.stack
    stop = s.pop()
    start = s.pop()
    obj = s.pop()
    obj.set_item(f.tracer, t.Slice([start, stop, t.NONE]), s.pop())


@op("GET_LEN")
def _len(f: Frame, arg: Any) -> None:
    f.stack.append(f.tracer.made(f.stack[-1].size(f.tracer)))
