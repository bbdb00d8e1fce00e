"""A frame whose graph raises: the graph is the first thing that residual code does, and it writes its inputs after all
that may raise for the data that it is given, so nothing has happened yet. The user's own code runs instead, and raises
where plain Python would, with the effects before it. If it does not raise, the user is told.

An exception is passed on as it is if a signal handler raised it, or where the graph has written already (there was no
memory, say).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from framesmith import _C
from framesmith.util import log
from framesmith.util.interrupts import raised_by_handler

_VARIABLE = 0x04 | 0x08


def plain_function(code: weakref.ref[CodeType], space: dict[str, Any], *cells: CellType) -> FunctionType:
    """Return a function of `code` that takes all argument locals by position and is not captured."""
    user = code()
    assert user is not None, "its frame runs"
    count = user.co_argcount + user.co_kwonlyargcount + bool(user.co_flags & 0x04) + bool(user.co_flags & 0x08)
    made = user.replace(co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0,
                        co_flags=user.co_flags & ~_VARIABLE)
    _C.skip_code(made)
    return FunctionType(made, space, user.co_name, None, cells)


def let_through(error: Exception) -> None:
    """Re-raise an exception of the graph's call that a saved-tensor hook raised: it is the program's own, and hooks run
    once."""
    if error.__dict__.pop("__framesmith_from_hook__", False):
        raise error


def failed(code: weakref.ref[CodeType], error: Exception) -> Callable[[], None]:
    """Return the function to call when the user's code has not raised where its graph raised `error`: it warns once.
    The error is not kept, since its traceback holds frames."""
    user = code()
    assert user is not None, "its frame runs"
    place = f"{user.co_qualname} ({user.co_filename}:{user.co_firstlineno})"
    text = (f"framesmith: the compiled code of {place} raised {type(error).__name__}, plain Python, which ran instead, "
            f"did not: {error}")
    return functools.partial(log.warn_once, f"raised {place}", text)


def stands(error: Exception) -> bool:
    """Return whether the exception of a graph is to be raised as it is, without running the user's code."""
    return _C.take_has_written() or raised_by_handler(error)


def plain_call(rebuilder: Any, after: str = "") -> str:
    """Return the call that runs the user's code in place of its residual code; `after`: the text of what is called when
    it has not raised."""
    cells = [f"(lambda: {name}).__closure__[0]" for name in rebuilder.code.co_freevars]
    given = [rebuilder.hold(weakref.ref(rebuilder.code)), f"{rebuilder.hold(globals)}()", *cells]
    function = f"{rebuilder.hold(plain_function)}({', '.join(given)})"
    told = [f"after={after}"] if after else []
    return f"{rebuilder.hold(_C.tail_call)}({', '.join([function, *rebuilder.arg_names.values(), *told])})"


def plain_call_after(rebuilder: Any, error: str) -> str:
    """Return the same call for an exception of the graph that is bound to the name `error`; hooks' exceptions are
    re-raised first."""
    return (f"{rebuilder.hold(let_through)}({error}) or "
            + plain_call(rebuilder, f"{rebuilder.hold(failed)}({rebuilder.hold(weakref.ref(rebuilder.code))}, "
                                    f"{error})"))
