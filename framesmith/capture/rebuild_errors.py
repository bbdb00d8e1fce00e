"""Exceptions and their tracebacks -> statements of residual code that make them again."""

from __future__ import annotations

import types
from typing import Any

from . import trackers as t
from .tracebacks import Ended


def error(rb: Any, x: t.Error) -> str:
    if x.value is not None:
        return rb.hold(x.value) if x.source is None else rb.temp(rb.source(x.source))
    if "__context__" not in x.attrs and "__traceback__" in x.attrs:
        rb.cx.nothing_handled_outside()
    cls = rb.klass(x.cls)
    name = rb.bind(x, f"{cls}.__new__({', '.join([cls, *rb.values(x.init_args or [])])})")
    setter = rb.hold(object.__setattr__)
    for k, v in x.fields().items():
        if k not in ("message", "exceptions") or not issubclass(x.cls, BaseExceptionGroup):
            rb.emit(f"{setter}({name}, {k!r}, {rb.value(v)})")
    return name


def traceback(rb: Any, x: t.Traceback) -> str:
    return rb.temp(f"{rb.hold(types.TracebackType)}({rb.value(x.inner)}, {rb.value(x.frame)}, {x.offset}, {x.line})")


def frame_end(rb: Any, x: t.FrameEnd) -> str:
    return rb.temp(f"{rb.hold(Ended(*x.place()))}({rb.namespace(x.globals)})")
