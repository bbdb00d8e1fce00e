"""print, logging and warnings: kept in order, and emitted after the graph that they occur in.

The content of a message is fixed where it occurs: text of Python values is made there, tensors are copied in the graph.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..deferred_io import log_record, log_root, tell, warn_above, warn_at
from ..registry import CACHED, DESCRIPTORS, calls
from ..sources import Pinned
from ..trackers import Args, Kwargs

_LATER = "format it, or move it out of the compiled code"


def settled(tracer: Any, x: t.Tracker) -> t.Tracker:
    """Return a tracker that prints as `x` does now, whatever happens to `x` later in the frame."""
    if isinstance(x, (t.Const, t.Static, t.Data)):
        return x
    if isinstance(x, t.Tensor):
        if tracer.wants_grad(x.fake) or x.pytype() is not torch.Tensor:
            raise Unsupported(f"a message about {x.describe()}", hint=_LATER)
        return tracer.torch_call(torch.clone, [x], {})
    if type(x) is t.Tuple and x.cls is tuple:
        return t.Tuple([settled(tracer, v) for v in x.items_list(tracer)])
    if type(x) is t.List:
        return t.List([settled(tracer, v) for v in x.items_list(tracer)])
    if type(x) is t.Dict and x.cls is dict:
        return t.Dict({k: settled(tracer, v) for k, v in x.open(tracer).items()})
    raise Unsupported(f"a message about {x.describe()}", hint=_LATER)


def _printed(tracer: Any, x: t.Tracker) -> t.Tracker:
    """Return the same for an argument of print, of which only the text matters."""
    try:
        return settled(tracer, x)
    except Unsupported:
        if isinstance(x, t.Tensor):
            raise
        return tracer.text(x)


def _defer(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    tracer.deferred.append((t.Static(fn), args, kwargs))
    return t.NONE


def _place(tracer: Any, level: int) -> tuple[str, int, str]:
    """Return the place of the `level`th frame, counted from the innermost."""
    if level > len(tracer.frames):
        raise Unsupported("a message with a stacklevel beyond the compiled code")
    frame = tracer.frames[-max(level, 1)]
    tracer.surroundings.bind("the line that a message names")
    return frame.code.co_filename, frame.line, frame.code.co_name


def _integer(tracer: Any, x: t.Tracker | None) -> int:
    level = 1 if x is None else x.real(tracer)
    if not isinstance(level, int):
        raise Unsupported("a stacklevel that is no integer")
    return level


# --- print ---

def _has_python_write(x: t.Tracker) -> bool:
    return isinstance(getattr(x.pytype(), "write", None), types.FunctionType)


@calls(print)
def _print(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if (id(sys.__dict__), "stdout") in tracer.global_writes:
        raise Unsupported("print() to a stdout that the frame has changed")
    for name in ("sep", "end"):
        if name in kwargs and not issubclass(kwargs[name].pytype(), (str, type(None))):
            tracer.raise_(TypeError(f"{name} must be None or a string, not {kwargs[name].pytype().__name__}"))
    file = kwargs.get("file", t.NONE)
    if file is not t.NONE and (getattr(file, "value", None) is None or _has_python_write(file)):
        raise Unsupported("print to a file object of the program's own")
    rest = {k: v if k == "file" else settled(tracer, v) for k, v in kwargs.items()}
    return _defer(tracer, tell, [tracer.made(print), *[_printed(tracer, x) for x in args]], rest)


# --- warnings ---

@dataclass(frozen=True, slots=True)
class _NoError:
    """No filter turns warnings of the category into errors, which would be raised in the middle of the frame."""

    category: type[Warning]

    def __call__(self, module: Any) -> bool:
        return not any(row[0] == "error" and issubclass(self.category, row[2]) for row in module.filters)


@calls(warnings.warn)
def _warn(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = dict(zip(("message", "category", "stacklevel", "source"), args, strict=False)) | kwargs
    unknown = given.keys() - {"message", "category", "stacklevel"}
    message, category = given.get("message"), given.get("category", t.NONE)
    if unknown or not isinstance(message, t.Const) or not isinstance(message.value, str):
        raise Unsupported("a warning object" if not unknown else f"warnings.warn with {', '.join(sorted(unknown))}")
    kind = UserWarning if category is t.NONE else category.real(tracer)
    no_error = _NoError(kind)
    if not no_error(warnings):
        raise Unsupported("a warning that a filter turns into an error")
    tracer.guard(Pinned(warnings), "callable", no_error)
    level = max(_integer(tracer, given.get("stacklevel")), 1)
    if level > len(tracer.frames):
        return _defer(tracer, warn_above, [message, tracer.made(kind), t.Const(level - len(tracer.frames))], {})
    frame = tracer.frames[-level]
    tracer.surroundings.bind("the line that a warning names")
    space = tracer.wrap(frame.globals, Pinned(frame.globals))
    return _defer(tracer, warn_at,
                  [message, tracer.made(kind), t.Const(frame.code.co_filename), t.Const(frame.line), space], {})


# --- logging ---

@dataclass(frozen=True, slots=True)
class _Disabled:
    """The logger drops messages of this level."""

    level: int

    def __call__(self, logger: Any) -> bool:
        return not logger.isEnabledFor(self.level)


def _log(tracer: Any, logger: t.Tracker | None, level: int, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Defer a message of `logger` (None: of the root, through the module's functions)."""
    real = logging.root if logger is None else getattr(logger, "value", None)
    if not isinstance(real, logging.Logger):
        raise Unsupported("a logger made in the frame")
    if logger is not None and not real.isEnabledFor(level):
        tracer.guard(Pinned(real), "callable", _Disabled(level))
        return t.NONE
    kwargs = dict(kwargs)
    place = _place(tracer, _integer(tracer, kwargs.pop("stacklevel", None)))
    if type(real)._log is not logging.Logger._log or kwargs.keys() - {"extra"} or not args:
        raise Unsupported(f"logging with {', '.join(kwargs) or 'a logger of another class'}")
    said = [settled(tracer, x) for x in args]
    head = [] if logger is None else [logger]
    rest = {k: settled(tracer, v) for k, v in kwargs.items()}
    return _defer(tracer, log_root if logger is None else log_record,
                  [*head, t.Const(level), tracer.made(place), *said], rest)


def _logs(level: int, name: str) -> None:
    @calls(getattr(logging.Logger, name))
    def method(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return _log(tracer, args[0], level, args[1:], kwargs)

    @calls(getattr(logging, name))
    def function(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        return _log(tracer, None, level, args, kwargs)


for _level, _name in ((10, "debug"), (20, "info"), (30, "warning"), (40, "error"), (50, "critical")):
    _logs(_level, _name)


@calls(logging.Logger.log)
def _log_method(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _log(tracer, args[0], _integer(tracer, args[1]), args[2:], kwargs)


@calls(logging.log)
def _log_function(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return _log(tracer, None, _integer(tracer, args[0]), args[1:], kwargs)


def log_once(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    """Defer a call of a cached function that a program added to Logger (`logger.warning_once`): it is called as a
    whole, which keeps its cache valid. Return None if `fn` is another kind of cached function."""
    if getattr(logging.Logger, fn.__wrapped__.__name__, None) is not fn:
        return None
    logger, *said = args
    return _defer(tracer, tell, [tracer.made(fn), logger, *[settled(tracer, x) for x in said]],
                  {k: settled(tracer, v) for k, v in kwargs.items()})


def _bound(tracer: Any, obj: t.Tracker, raw: Any, name: str) -> t.Tracker:
    """Bind a cached function that is found in a class, as a plain function is bound."""
    return t.Method(tracer.class_function(raw), obj)


CACHED.append(log_once)
DESCRIPTORS[functools._lru_cache_wrapper] = _bound
