"""Functions that residual code calls to emit the messages of captured code, with the user's file, line and function.

All run with the hook off: the user's handlers and streams are not part of the compiled program.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from framesmith import _C

Place = tuple[str, int, str]


def _unhooked(fn: Callable[..., None]) -> Callable[..., None]:
    return functools.update_wrapper(_C.CompiledFunction(fn, None), fn)


@_unhooked
def tell(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """`fn(*args, **kwargs)`"""
    fn(*args, **kwargs)


@_unhooked
def log_record(logger: logging.Logger, level: int, place: Place, msg: Any, *args: Any, extra: Any = None) -> None:
    """`logger.log(level, msg, *args, extra=extra)` called at `place`."""
    if logger.isEnabledFor(level):
        file, line, function = place
        record = logger.makeRecord(logger.name, level, file, line, msg, args, None, function,  # type: ignore[arg-type]
                                   extra,
                                   None)
        logger.handle(record)


@_unhooked
def log_root(level: int, place: Place, msg: Any, *args: Any, extra: Any = None) -> None:
    """Log as the functions of the module `logging` do, at a line of the user's."""
    if not logging.root.handlers:
        logging.basicConfig()
    log_record(logging.root, level, place, msg, *args, extra=extra)


@_unhooked
def warn_at(message: str, category: type[Warning], file: str, line: int, space: dict[str, Any]) -> None:
    """`warnings.warn(message, category)` called at a line of a module whose globals are `space`."""
    registry = space.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, space.get("__name__") or "<string>", registry)


@_unhooked
def warn_above(message: str, category: type[Warning], up: int) -> None:
    """Warn at the line where the frame `up` levels above the residual code is."""
    try:
        frame = sys._getframe(1 + up)  # this function, residual code, ...
    except ValueError:
        warn_at(message, category, "sys", 1, sys.__dict__)
        return
    warn_at(message, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
