"""Tracebacks of exceptions that pass through frames under capture."""

from __future__ import annotations

from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Protocol

from framesmith.util.errors import Unsupported

from . import trackers as t
from .bytecode import Decoded, decoded
from .origins import origin

_OWN = str(Path(__file__).parents[1]) + "/"


class TracedFrame(Protocol):
    """The part of `frame.Frame` that tracebacks read."""

    code: CodeType
    dec: Decoded
    globals: Any
    ip: int
    again: int
    end: t.FrameEnd | None
    tracer: Any


def trace(frame: TracedFrame, error: Any) -> None:
    """Add an entry for an exception that leaves the present instruction of `frame`, unless the instruction re-raises
    it."""
    index = max(frame.ip - 1, 0)
    ins = frame.dec.instrs[index]
    if (ins.op in ("RERAISE", "CLEANUP_THROW") or ins.op == "RAISE_VARARGS" and ins.arg == 0
        or frame.code.co_filename.startswith(_OWN)):
        return
    if error.value is not None:
        raise Unsupported("an exception that was made outside leaves a function")
    if frame.end is None:
        frame.end = t.FrameEnd(frame.globals, lambda: place(frame))
        frame.tracer.traced.append(frame)
    error.attrs["__traceback__"] = t.Traceback(frame.end, place(frame)[1], ins.line,
                                               error.attrs.get("__traceback__", t.NONE))


def place(frame: TracedFrame) -> tuple[CodeType, int]:
    """Return the user's code and the byte offset of the present instruction in it."""
    code, at = origin(frame.code, raised_at(frame))
    return code, decoded(code).instrs[at].offset


def raised_at(frame: TracedFrame) -> int:
    """Return the present instruction, or the one whose exception it re-raises."""
    index = max(frame.ip - 1, 0)
    return frame.again if frame.dec.instrs[index].op == "RERAISE" and frame.again >= 0 else index


def traced(tb: TracebackType | None) -> t.Tracker:
    """Return the traceback of an exception of a function that capture ran for real: from that function on."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_OWN):
        tb = tb.tb_next
    entries = []
    while tb is not None and not tb.tb_frame.f_code.co_filename.startswith(_OWN):
        end = tb.tb_frame.f_code, tb.tb_frame.f_lasti
        entries.append((t.FrameEnd(tb.tb_frame.f_globals, lambda end=end: end), tb.tb_lasti,  # type: ignore[misc]
                        tb.tb_lineno))
        tb = tb.tb_next
    found: t.Tracker = t.NONE
    for entry in reversed(entries):
        found = t.Traceback(*entry, found)
    return found
