"""print, logging and warnings: kept in order, and emitted after the graph that they stand in."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..registry import calls
from ..sources import Pinned

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


def _settled(x: t.Tracker) -> bool:
    """Nothing that happens later in the frame changes how `x` prints."""
    if isinstance(x, t.Tuple) and x._items is not None:
        return all(map(_settled, x.items))
    return isinstance(x, (t.Const, t.Static))


def defer(cx: Any, fn: t.Tracker, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call `fn` when the graph has run."""
    if not all(map(_settled, [*args, *kwargs.values()])):
        raise Unsupported("a message about a value that may still change", hint="format it, or move it out of the compiled code")
    cx.deferred.append((fn, args, kwargs))
    return t.NONE


@calls(print)
def _print(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if (id(sys.__dict__), "stdout") in cx.global_writes:
        raise Unsupported("print() to a stdout that the frame has changed")
    return defer(cx, cx.made(print), [a if _settled(a) else _snapshot(cx, a) for a in args], kwargs)


def _snapshot(cx: Any, x: t.Tracker) -> t.Tracker:
    """The text of a value as it is now, if it shows no tensor."""
    return x if isinstance(x, t.Tensor) else cx.text(x)


@calls(warnings.warn)
def _warn(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and isinstance(args[0], t.Object):
        raise Unsupported("a warning object")
    return defer(cx, cx.made(warnings.warn), args, {k: v for k, v in kwargs.items() if k != "stacklevel"})


class _Disabled:
    """The logger drops messages of this level."""

    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, logger: Any) -> bool:
        return not logger.isEnabledFor(self.level)


def _logs(method: Any, level: int) -> None:
    @calls(method)
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        logger = args[0]
        if not isinstance(logger, t.Object) or logger.value is None or not isinstance(logger.value, logging.Logger):
            raise Unsupported("a logger made in the frame")
        if not logger.value.isEnabledFor(level):
            cx.guard(Pinned(logger.value), "callable", _Disabled(level))
            return t.NONE
        return defer(cx, t.Method(cx.made(method), logger), args[1:], {k: v for k, v in kwargs.items() if k != "stacklevel"})


for _method, _level in ((logging.Logger.debug, 10), (logging.Logger.info, 20), (logging.Logger.warning, 30), (logging.Logger.error, 40),
                        (logging.Logger.critical, 50)):
    _logs(_method, _level)
