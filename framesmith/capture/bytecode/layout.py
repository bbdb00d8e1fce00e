"""The kinds of entries on the stack of a frame that is left and entered again, and the code that restores them."""

from __future__ import annotations

from collections.abc import Sequence

from .assemble import instr
from .decode import Instr

NULL = 0
"""A NULL pointer."""
VALUE = 1
"""An object: a parameter of what goes on."""
HANDLED = 2
"""The value that PUSH_EXC_INFO saved. Its parameter is the exception that is handled above it."""
LASTI = 3
"""The index of the instruction that raised, below an exception."""

Layout = tuple[int, ...]


def parameters(layout: Sequence[int]) -> int:
    """Count the parameters that a stack takes."""
    return sum(kind in (VALUE, HANDLED) for kind in layout)


def push(layout: Sequence[int], line: int, zero: int, slot: int = 0, stay: int = 0) -> list[Instr]:
    """Put a stack back whose parameters are the fast slots from `slot` on; `zero` is the place of 0 among the
    constants.

    The values move, but for the lowest `stay` entries': the slots of the others are empty afterwards.
    """
    out = []
    for i, kind in enumerate(layout):
        if kind == NULL:
            out.append(instr("PUSH_NULL", 0, line))
        elif kind == LASTI:
            out.append(instr("LOAD_CONST", zero, line))
        else:
            out.append(instr("LOAD_FAST", slot, line))
            if kind == HANDLED:
                out += [instr("PUSH_EXC_INFO", 0, line), instr("POP_TOP", 0, line)]
            if i >= stay:
                out.append(instr("DELETE_FAST", slot, line))
            slot += 1
    return out


def leave(layout: Sequence[int], line: int, scratch: int) -> list[Instr]:
    """Pop a stack from its top; `scratch` is a free fast slot."""
    rows = {NULL: ("STORE_FAST", scratch), VALUE: ("POP_TOP", 0), HANDLED: ("POP_EXCEPT", 0), LASTI: ("POP_TOP", 0)}
    return [instr(rows[kind][0], rows[kind][1], line) for kind in reversed(layout)]
