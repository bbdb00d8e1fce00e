"""Tables that handlers register themselves in: opcodes, calls of known functions, methods of builtin types."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from framesmith.util.tables import entry

Handler = Callable[..., Any]

OPS: dict[str, Handler] = {}
"""normalised opcode -> handler(frame, argument)"""

CALLS: dict[Any, Handler] = {}
"""function or class -> handler(tracer, args, kwargs) -> Tracker"""

CODES: dict[int, Handler] = {}
"""id of a code object of the standard library -> handler of calls of the functions that share it (closures made by a
decorator)"""

CONSTANT_METHODS: dict[tuple[type, str], Handler] = {}
"""(type of a constant, method name) -> handler(tracer, self, args, kwargs), for arguments that are none; None: run it
for real"""

BUILTIN_KINDS: dict[str, Handler] = {}
"""name of a class of callables -> handler(tracer, callable, args, kwargs)"""

PLAIN: set[type] = set()
"""Builtin classes whose instances are no more than their attributes."""

METHODS: dict[type, dict[str, Handler]] = {}
"""tracker family -> method name -> handler(tracer, self, *args, **kwargs) -> Tracker"""

OPAQUE: dict[tuple[type, str], Handler] = {}
"""(class, method name) -> handler(tracer, obj, *args, **kwargs) for objects of builtin classes without a family"""

BY_NAME: dict[str, Handler] = {}
"""module and qualified name of a function -> handler: for functions of modules that the package does not import"""

OUTSIDE: dict[str, Handler] = {}
"""module and name of a class that the package does not import -> handler(tracer, value, source) -> Tracker of an
instance from outside"""

LATE: list[tuple[Callable[[], bool], str]] = []
"""(condition, module): modules that fill tables when a frame is first captured while the condition holds"""

IDENTIFIED: set[str] = set()
"""Module and name of classes whose instances are constants, known by their identity."""

EAGER_MODULES: list[Callable[[Any], str | None]] = []
"""nn.Module -> why a call of it, with its hooks, is made in eager, or None. Its `forward` is captured by itself."""

FOLDED: set[Any] = set()
"""Pure functions: run for real when all arguments are constants."""

CACHED: list[Handler] = []
"""handlers(tracer, fn, args, kwargs) -> Tracker or None of calls of functions wrapped by lru_cache, asked in turn"""

DESCRIPTORS: dict[type, Handler] = {}
"""descriptor class -> handler(tracer, obj, descriptor, name) -> Tracker"""


def op(*names: str) -> Callable[[Handler], Handler]:
    """Register the handler of opcodes."""
    return entry(OPS, *names)


def calls(*functions: Any) -> Callable[[Handler], Handler]:
    """Register the handler of calls of `functions`."""
    return entry(CALLS, *functions)


def by_position(rows: dict[Any, Handler]) -> None:
    """Register handlers(tracer, *args, **kwargs) of calls."""
    for fn, row in rows.items():
        CALLS[fn] = lambda tracer, args, kwargs, row=row: row(tracer, *args, **kwargs)


def load_late() -> None:
    """Load the modules whose rows may be asked for now, and those that they add."""
    while (row := next((row for row in LATE if row[0]()), None)) is not None:
        LATE.remove(row)
        importlib.import_module(row[1])


def refuses(error: type[Exception], reason: str, *functions: Any, **more: Any) -> None:
    """Let calls of `functions` end the graph."""

    @calls(*functions)
    def row(tracer: Any, args: Any, kwargs: Any) -> Any:
        raise error(reason, **more)


def by_name(*paths: str) -> Callable[[Handler], Handler]:
    """Register the handler of calls of functions that are known by name."""
    return entry(BY_NAME, *paths)


def method(family: type, *names: str) -> Callable[[Handler], Handler]:
    """Register the handler of methods of a tracker family."""
    return entry(METHODS.setdefault(family, {}), *names)


def opaque(cls: type, *names: str) -> Callable[[Handler], Handler]:
    """Register the handler of methods of a builtin class."""
    return entry(OPAQUE, *[(cls, name) for name in names])


def named(path: str) -> Any:
    """Return the object that a user's program may call `path` (module and attribute), if its module is loaded; else
    None. Imports nothing."""
    module, _, name = path.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def folds(*functions: Any) -> None:
    """Declare functions pure."""
    FOLDED.update(functions)
