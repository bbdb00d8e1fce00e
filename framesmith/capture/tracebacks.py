"""Tracebacks of exceptions that captured code raised and caught, for those that live on: plain Python would have made one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from framesmith import _C


def _frame(getframe: Callable[[], FrameType] = sys._getframe) -> FrameType:
    return getframe()


_codes: dict[tuple[str, str, str], CodeType] = {}
_LIMIT = 1000


def _code(file: str, name: str, qualname: str) -> CodeType:
    """Code whose frames bear these names."""
    code = _codes.get((file, name, qualname))
    if code is None:
        if len(_codes) >= _LIMIT:
            _codes.clear()
        code = _codes[file, name, qualname] = _frame.__code__.replace(co_filename=file, co_name=name, co_qualname=qualname)
        _C.skip_code(code)
    return code


def made_traceback(*places: tuple[str, str, str, int, dict[str, Any]]) -> TracebackType | None:
    """A traceback through (file, name, qualified name, line, globals), outermost first. Its frames hold nothing but their globals."""
    found: TracebackType | None = None
    for file, name, qualname, line, space in reversed(places):
        frame = FunctionType(_code(file, name, qualname), space, name, _frame.__defaults__)()
        found = TracebackType(found, frame, -1, line)  # no instruction: the line counts
    return found


_C.skip_code(made_traceback.__code__)
_C.skip_code(_code.__code__)

__all__ = ["made_traceback"]
