"""print, logging and warnings: kept in order, and emitted after the graph that they stand in.

What a message says is settled where it stands: text of Python values is made there, tensors are copied in the graph.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
import warnings
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..emitting import log_record, log_root, tell, warn_above, warn_at
from ..registry import CACHED, DESCRIPTORS, calls
from ..sources import Pinned

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]

_LATER = "format it, or move it out of the compiled code"


def settled(cx: Any, x: t.Tracker) -> t.Tracker:
    """A tracker that will print as `x` does now, whatever happens to `x` later in the frame."""
    if isinstance(x, (t.Const, t.Static, t.Data)):
        return x
    if isinstance(x, t.Tensor):
        if cx.wants_grad(x.fake) or x.pytype() is not torch.Tensor:
            raise Unsupported(f"a message about {x.describe()}", hint=_LATER)
        return cx.torch_call(torch.clone, [x], {})
    if type(x) is t.Tuple and x.cls is tuple:
        return t.Tuple([settled(cx, v) for v in x.items_list(cx)])
    if type(x) is t.List:
        return t.List([settled(cx, v) for v in x.items_list(cx)])
    if type(x) is t.Dict and x.cls is dict:
        return t.Dict({k: settled(cx, v) for k, v in x.open(cx).items()})
    raise Unsupported(f"a message about {x.describe()}", hint=_LATER)


def _printed(cx: Any, x: t.Tracker) -> t.Tracker:
    """The same for an argument of print, which only its text enters."""
    try:
        return settled(cx, x)
    except Unsupported:
        if isinstance(x, t.Tensor):
            raise
        return cx.text(x)


def _defer(cx: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cx.deferred.append((t.Static(fn), args, kwargs))
    return t.NONE


def _place(cx: Any, level: int) -> tuple[str, int, str]:
    """The `level`th frame from within."""
    if level > len(cx.frames):
        raise Unsupported("a message with a stacklevel beyond the compiled code")
    frame = cx.frames[-max(level, 1)]
    return frame.code.co_filename, frame.line, frame.code.co_name


def _integer(cx: Any, x: t.Tracker | None) -> int:
    level = 1 if x is None else x.real(cx)
    if not isinstance(level, int):
        raise Unsupported("a stacklevel that is no integer")
    return level


# --- print ---

def _has_python_write(x: t.Tracker) -> bool:
    return isinstance(getattr(x.pytype(), "write", None), types.FunctionType)


@calls(print)
def _print(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if (id(sys.__dict__), "stdout") in cx.global_writes:
        raise Unsupported("print() to a stdout that the frame has changed")
    for name in ("sep", "end"):
        if name in kwargs and not issubclass(kwargs[name].pytype(), (str, type(None))):
            cx.raise_(TypeError(f"{name} must be None or a string, not {kwargs[name].pytype().__name__}"))
    file = kwargs.get("file", t.NONE)
    if file is not t.NONE and (getattr(file, "value", None) is None or _has_python_write(file)):
        raise Unsupported("print to a file object of the program's own")
    rest = {k: v if k == "file" else settled(cx, v) for k, v in kwargs.items()}
    return _defer(cx, tell, [cx.made(print), *[_printed(cx, x) for x in args]], rest)


# --- warnings ---

class _NoError:
    """No filter turns warnings of the category into errors, which would have to be raised where they stand."""

    __slots__ = ("category",)

    def __init__(self, category: type[Warning]) -> None:
        self.category = category

    def __call__(self, module: Any) -> bool:
        return not any(row[0] == "error" and issubclass(self.category, row[2]) for row in module.filters)


@calls(warnings.warn)
def _warn(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    unknown = given.keys() - {"message", "category", "stacklevel"}
    message, category = given.get("message"), given.get("category", t.NONE)
    if unknown or not isinstance(message, t.Const) or not isinstance(message.value, str):
        raise Unsupported("a warning object" if not unknown else f"warnings.warn with {', '.join(sorted(unknown))}")
    kind = UserWarning if category is t.NONE else category.real(cx)
    no_error = _NoError(kind)
    if not no_error(warnings):
        raise Unsupported("a warning that a filter turns into an error")
    cx.guard(Pinned(warnings), "callable", no_error)
    level = max(_integer(cx, given.get("stacklevel")), 1)
    if level > len(cx.frames):
        return _defer(cx, warn_above, [message, cx.made(kind), t.Const(level - len(cx.frames))], {})
    frame = cx.frames[-level]
    space = cx.wrap(frame.globals, cx.globals_source(frame.globals))
    return _defer(cx, warn_at, [message, cx.made(kind), t.Const(frame.code.co_filename), t.Const(frame.line), space], {})


# --- logging ---

class _Disabled:
    """The logger drops messages of this level."""

    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, logger: Any) -> bool:
        return not logger.isEnabledFor(self.level)


def _log(cx: Any, logger: t.Tracker | None, level: int, args: Args, kwargs: Kwargs) -> t.Tracker:
    """A message of `logger` (None: of the root, through the module's functions)."""
    real = logging.root if logger is None else getattr(logger, "value", None)
    if not isinstance(real, logging.Logger):
        raise Unsupported("a logger made in the frame")
    if logger is not None and not real.isEnabledFor(level):
        cx.guard(Pinned(real), "callable", _Disabled(level))
        return t.NONE
    kwargs = dict(kwargs)
    place = _place(cx, _integer(cx, kwargs.pop("stacklevel", None)))
    if type(real)._log is not logging.Logger._log or kwargs.keys() - {"extra"} or not args:
        raise Unsupported(f"logging with {', '.join(kwargs) or 'a logger of another class'}")
    said = [settled(cx, x) for x in args]
    head = [] if logger is None else [logger]
    rest = {k: settled(cx, v) for k, v in kwargs.items()}
    return _defer(cx, log_root if logger is None else log_record, [*head, t.Const(level), cx.made(place), *said], rest)


def _logs(level: int, name: str) -> None:
    @calls(getattr(logging.Logger, name))
    def method(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return _log(cx, args[0], level, args[1:], kwargs)

    @calls(getattr(logging, name))
    def function(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return _log(cx, None, level, args, kwargs)


for _level, _name in ((10, "debug"), (20, "info"), (30, "warning"), (40, "error"), (50, "critical")):
    _logs(_level, _name)


@calls(logging.Logger.log)
def _log_method(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _log(cx, args[0], _integer(cx, args[1]), args[2:], kwargs)


@calls(logging.log)
def _log_function(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _log(cx, None, _integer(cx, args[0]), args[1:], kwargs)


def log_once(cx: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    """A cached function that a program put onto Logger (`logger.warning_once`): it is called as a whole, so that its cache holds.
    None if `fn` is another kind of cached function."""
    if getattr(logging.Logger, fn.__wrapped__.__name__, None) is not fn:
        return None
    logger, *said = args
    return _defer(cx, tell, [cx.made(fn), logger, *[settled(cx, x) for x in said]], {k: settled(cx, v) for k, v in kwargs.items()})


def _bound(cx: Any, obj: t.Tracker, raw: Any, name: str) -> t.Tracker:
    """A cached function in a class is a method, as a plain one is."""
    return t.Method(cx.class_function(raw), obj)


CACHED.append(log_once)
DESCRIPTORS[functools._lru_cache_wrapper] = _bound
