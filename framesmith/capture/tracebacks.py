"""Tracebacks of exceptions that captured code raised and caught, for those that live on: plain Python would have made one."""

from __future__ import annotations

import weakref
from types import CodeType, TracebackType
from typing import Any

from framesmith import _C


class Place:
    """An instruction, by its byte offset, that an exception came out of.  Kept by residual code, so it keeps no code alive."""

    __slots__ = ("code", "line", "offset")

    def __init__(self, code: CodeType, offset: int, line: int) -> None:
        self.code = weakref.ref(code)
        self.offset = offset
        self.line = line

    def __call__(self, inner: TracebackType | None, space: dict[str, Any]) -> TracebackType | None:
        """The traceback that leads from here to `inner`. Its frame holds nothing but its globals."""
        code = self.code()
        if code is None:  # of a function that is gone
            return inner
        return TracebackType(inner, _C.dead_frame(code, space, self.offset), self.offset, self.line)


_C.skip_code(Place.__call__)

__all__ = ["Place"]
