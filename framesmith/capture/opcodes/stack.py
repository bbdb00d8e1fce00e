"""Stack shuffling, locals, constants, cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import trackers as t
from ..frame import RETURN, Frame
from ..registry import op


@op("NOP", "EXTENDED_ARG", "CACHE", "COPY_FREE_VARS")
def _nop(f: Frame, arg: Any) -> None:
    pass


@op("LOAD_CONST")
def _const(f: Frame, arg: t.Tracker) -> None:
    f.stack.append(arg)


@op("LOAD_FAST", "LOAD_CLOSURE")
def _fast(f: Frame, arg: int) -> None:
    v = f.locals[arg]
    if v is None:
        v = f.tracer.unset_local(f, arg)
    f.stack.append(v)


@op("LOAD_FAST_AND_CLEAR")
def _fast_clear(f: Frame, arg: int) -> None:
    f.stack.append(f.tracer.local(f, arg) or t.NULL)
    f.locals[arg] = None


@op("STORE_FAST")
def _store(f: Frame, arg: int) -> None:
    v = f.stack.pop()
    f.locals[arg] = None if v is t.NULL else v


@op("DELETE_FAST")
def _delete(f: Frame, arg: int) -> None:
    if f.locals[arg] is None:
        f.tracer.unset_local(f, arg)
    f.locals[arg] = None
    if f is f.tracer.frames[0]:
        f.tracer.pending.pop(arg, None)


@op("POP_TOP", "END_FOR")
def _pop(f: Frame, arg: int) -> None:
    f.stack.pop()


@op("PUSH_NULL")
def _null(f: Frame, arg: int) -> None:
    f.stack.append(t.NULL)


@op("COPY")
def _copy(f: Frame, arg: int) -> None:
    f.stack.append(f.stack[-arg])


@op("SWAP")
def _swap(f: Frame, arg: int) -> None:
    s = f.stack
    s[-1], s[-arg] = s[-arg], s[-1]


@op("MAKE_CELL")
def _make_cell(f: Frame, arg: int) -> None:
    v = f.locals[arg]
    if v is None and f is f.tracer.frames[0] and arg in f.tracer.pending:
        v = f.tracer.unset_local(f, arg)
    f.locals[arg] = t.Cell(v)


@op("LOAD_DEREF")
def _deref(f: Frame, arg: int) -> None:
    f.stack.append(f.tracer.load_cell(f.locals[arg], f.dec.localsplus[arg], f.owns(arg)))


@op("STORE_DEREF")
def _store_deref(f: Frame, arg: int) -> None:
    f.tracer.store_cell(f.locals[arg], f.stack.pop())


@op("DELETE_DEREF")
def _delete_deref(f: Frame, arg: int) -> None:
    cell = f.locals[arg]
    f.tracer.load_cell(cell, f.dec.localsplus[arg], f.owns(arg))
    f.tracer.store_cell(cell, None)


def _leaves(yields: bool) -> Callable[[Frame, Any], Any]:
    def row(f: Frame, arg: Any) -> Any:
        f.result = f.stack.pop()
        f.yielded = yields
        return RETURN

    return row


op("RETURN_VALUE")(_leaves(False))
op("YIELD_VALUE")(_leaves(True))


@op("RETURN_CONST")
def _return_const(f: Frame, arg: t.Tracker) -> Any:
    f.result = arg
    f.yielded = False
    return RETURN


@op("RETURN_GENERATOR")
def _return_generator(f: Frame, arg: int) -> None:
    # the frame was made suspended; the POP_TOP that follows takes this
    f.stack.append(t.NONE)
