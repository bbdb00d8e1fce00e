"""What an exception gathers on its way out of frames under capture: its traceback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bytecode import decoded
from .origins import origin

if TYPE_CHECKING:
    from types import TracebackType

    from .frame import Frame

_OWN = str(Path(__file__).parents[1]) + "/"


def trace(frame: Frame, error: Any) -> None:
    """An exception comes out of the present instruction of `frame`: an entry, unless the instruction raises it on."""
    index = max(frame.ip - 1, 0)
    ins = frame.dec.instrs[index]
    if ins.op in ("RERAISE", "CLEANUP_THROW") or ins.op == "RAISE_VARARGS" and ins.arg == 0 or frame.code.co_filename.startswith(_OWN):
        return
    if error.value is not None:
        raise Unsupported("an exception that was made outside leaves a function")
    code, at = origin(frame.code, index)
    entry = t.Traceback(code, decoded(code).instrs[at].offset, ins.line, frame.globals, error.attrs.get("__traceback__", t.NONE))
    error.attrs["__traceback__"] = entry


def traced(tb: TracebackType | None) -> t.Tracker:
    """The traceback of an exception that a function raised which capture ran for real: from that function on."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_OWN):
        tb = tb.tb_next
    places = []
    while tb is not None and not tb.tb_frame.f_code.co_filename.startswith(_OWN):
        places.append((tb.tb_frame.f_code, tb.tb_lasti, tb.tb_lineno, tb.tb_frame.f_globals))
        tb = tb.tb_next
    found: t.Tracker = t.NONE
    for place in reversed(places):
        found = t.Traceback(*place, found)
    return found


__all__ = ["trace", "traced"]
