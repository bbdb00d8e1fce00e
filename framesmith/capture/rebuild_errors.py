"""Exceptions and their tracebacks -> statements of residual code that rebuild them."""

from __future__ import annotations

import types
from typing import Any

from . import trackers as t
from .tracebacks import Ended


def error(rebuilder: Any, x: t.Error) -> str:
    if x.value is not None:
        return rebuilder.hold(x.value)
    if "__context__" not in x.attrs and "__traceback__" in x.attrs:
        rebuilder.tracer.nothing_handled_outside()
    cls = rebuilder.klass(x.cls)
    name = rebuilder.bind(x, f"{cls}.__new__({', '.join([cls, *rebuilder.values(x.init_args or [])])})")
    setter = rebuilder.hold(object.__setattr__)
    for k, v in x.fields().items():
        if k not in ("message", "exceptions") or not issubclass(x.cls, BaseExceptionGroup):
            rebuilder.emit(f"{setter}({name}, {k!r}, {rebuilder.value(v)})")
    return name


def traceback(rebuilder: Any, x: t.Traceback) -> str:
    return rebuilder.temp(f"{rebuilder.hold(types.TracebackType)}({rebuilder.value(x.inner)}, "
                          f"{rebuilder.value(x.frame)}, {x.offset}, {x.line})")


def frame_end(rebuilder: Any, x: t.FrameEnd) -> str:
    return rebuilder.temp(f"{rebuilder.hold(Ended(*x.place()))}({rebuilder.namespace(x.globals)})")
