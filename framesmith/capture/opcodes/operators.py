"""Unary, binary and comparison operators, subscripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import data
from .. import trackers as t
from ..frame import Frame
from ..identity import same_object
from ..operations import Operations
from ..registry import op


def _of_two(apply: Callable[..., t.Tracker]) -> Callable[[Frame, str], None]:
    def row(f: Frame, name: str) -> None:
        s = f.stack
        b = s.pop()
        s[-1] = apply(f.tracer, name, s[-1], b)

    return row


def _of_one(name: str) -> Callable[[Frame, Any], None]:
    def row(f: Frame, arg: Any) -> None:
        f.stack[-1] = f.tracer.unary(name, f.stack[-1])

    return row


op("BINARY_OP")(_of_two(Operations.binary))
op("INPLACE_OP")(_of_two(Operations.inplace))
_compared = _of_two(Operations.compare)


@op("COMPARE_OP")
def _compare(f: Frame, symbol: str) -> None:
    f.tracer.compared = f.stack[-2], f.stack[-1]
    _compared(f, symbol)



for _op, _name in (("UNARY_NEGATIVE", "neg"), ("UNARY_POSITIVE", "pos"), ("UNARY_INVERT", "invert")):
    op(_op)(_of_one(_name))


@op("UNARY_NOT")
def _not(f: Frame, arg: Any) -> None:
    f.stack[-1] = data.negated(f.tracer, f.stack[-1])


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
