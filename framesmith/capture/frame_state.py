"""The state of a frame that residual code rebuilds when the frame is left before its end: its stack, live locals and
cells."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from . import trackers as t
from .bytecode.layout import HANDLED, LASTI, NULL, VALUE, Layout
from .bytecode.liveness import liveness
from .frame import Frame
from .lifetimes import kept_alive
from .resume import cell_names
from .symbolic_arithmetic import note_local, varies

_KINDS = {t.Null: NULL, t.Handled: HANDLED, t.Lasti: LASTI}


@dataclass(frozen=True, slots=True)
class Parts:
    """A frame as text: `args` for the stack's layout, then for the locals `names`; `cells` in the order of
    `cell_names`."""

    layout: Layout
    names: tuple[str, ...]
    args: list[str]
    cells: list[str]


def parts(rebuilder: Any, frame: Frame, code: CodeType, index: int, stack: list[t.Tracker],
          seen: bool = False) -> Parts:
    """Return the parts of a frame that is left at instruction `index` of the user's `code` with `stack`; `seen`:
    include locals with constants that no instruction reads, because other code may inspect them."""
    layout, args = [], []
    for v in stack:
        kind = _KINDS.get(type(v), VALUE)
        layout.append(kind)
        if kind in (VALUE, HANDLED):
            args.append(rebuilder.value(v.error if isinstance(v, t.Handled) else v))
    values, cells = _variables(rebuilder, frame, code, liveness(code, index), seen)
    values.update(kept_alive(rebuilder, frame, code, index))
    names = tuple(n for n in code.co_varnames if n in values)
    return Parts(tuple(layout), names, [*args, *[values[n] for n in names]], cells)


def _variables(rebuilder: Any, frame: Frame, code: CodeType, live: frozenset[str], seen: bool) -> tuple[dict[str, str],
                                                                                                        list[str]]:
    tracer = rebuilder.tracer
    order = cell_names(code)
    values: dict[str, str] = {}
    cells: dict[str, str] = {}
    for i, name in enumerate(frame.dec.localsplus):
        v = frame.locals[i]
        if name in order:
            cells[name] = rebuilder.value(v) if isinstance(v, t.Cell) else rebuilder.value(t.Cell(v))
        elif name in live or seen and v is not None and v.constant:
            if v is None and frame is tracer.frames[0] and i in tracer.pending:
                values[name] = rebuilder.arg_names[name]
            elif v is not None and v is not t.NULL:
                if varies(v):
                    note_local(code, name)
                values[name] = rebuilder.value(v)
    return values, [cells[n] for n in order]


def function_text(rebuilder: Any, frame: Frame, code: CodeType, cells: list[str]) -> str:
    """Return the expression of a function of `code` in the frame's globals."""
    if not cells:
        return rebuilder.hold(FunctionType(code, frame.globals, code.co_name))
    return (f"{rebuilder.hold(FunctionType)}({rebuilder.hold(code)}, {rebuilder.namespace(frame.globals)}, "
            f"{code.co_name!r}, None, ({', '.join(cells)},))")
