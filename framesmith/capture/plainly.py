"""A frame whose graph raises: the graph is the first thing that residual code does and writes its inputs last, so nothing has happened yet.
The user's own code runs instead, and raises (or does not) where plain Python would, with the effects before it.
"""

from __future__ import annotations

import weakref
from types import CellType, CodeType, FunctionType
from typing import Any

from framesmith import _C

_VARIABLE = 0x04 | 0x08


def plain_function(code: weakref.ref[CodeType], space: dict[str, Any], *cells: CellType) -> FunctionType:
    """A function of `code` that takes all argument locals by position and is not captured."""
    user = code()
    assert user is not None, "its frame runs"
    count = user.co_argcount + user.co_kwonlyargcount + bool(user.co_flags & 0x04) + bool(user.co_flags & 0x08)
    made = user.replace(co_argcount=count, co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=user.co_flags & ~_VARIABLE)
    _C.skip_code(made)
    return FunctionType(made, space, user.co_name, None, cells)


def plain_call(rb: Any) -> str:
    """The call that runs the user's code in place of its residual code."""
    cells = [f"(lambda: {name}).__closure__[0]" for name in rb.code.co_freevars]
    function = f"{rb.hold(plain_function)}({', '.join([rb.hold(weakref.ref(rb.code)), f'{rb.hold(globals)}()', *cells])})"
    return f"{rb.hold(_C.tail_call)}({', '.join([function, *rb.arg_names.values()])})"


__all__ = ["plain_call"]
