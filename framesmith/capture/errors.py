"""Exceptions of the captured program: raising, chaining, and the exception being handled."""

from __future__ import annotations

import sys
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .session import Session
from .sources import Pinned
from .tracing import traced
from .values import CONSTANT_TYPES

CARRIED: list[tuple[type[BaseException], tuple[str, ...]]] = [
    (AttributeError, ("name", "obj")), (NameError, ("name",)), (ImportError, ("msg", "name", "path")),
    (StopIteration, ("value",)),
    (SystemExit, ("code",)), (OSError, ("errno", "strerror", "filename", "filename2")),
    (UnicodeError, ("encoding", "object", "start", "end", "reason")),
    (SyntaxError, ("msg", "filename", "lineno", "offset", "text", "end_lineno", "end_offset", "print_file_and_line")),
]
"""The fields that a builtin exception has in addition to `args`."""


class Errors(Session):
    """The part of the session that raises."""

    def raise_(self, error: BaseException) -> Any:
        """Raise `error` in the captured program."""
        return self.throw_(self.made_error(error))

    def fail(self, cls: type[BaseException], *args: t.Tracker, **fields: t.Tracker) -> Any:
        """Raise `cls(*args)` in the captured program; `fields` are set in addition, as C does."""
        error = t.Error(cls)
        error.init_args = list(args)
        error.attrs.update(fields)
        return self.throw_(error)

    def no_attribute(self, x: t.Tracker, name: str, message: str | None = None) -> Any:
        """Raise the AttributeError of `x.name`."""
        text = message or f"'{x.pytype().__name__}' object has no attribute '{name}'"
        return self.fail(AttributeError, t.Const(text), name=t.Const(name), obj=x)

    def no_change(self, x: t.Tracker, name: str, message: str | None = None) -> Any:
        """Raise the AttributeError of `x.name = ...` or `del x.name`; unlike that of a lookup, it has no `name` and
        `obj`."""
        return self.fail(AttributeError,
                         t.Const(message or f"'{x.pytype().__name__}' object has no attribute '{name}'"))

    def set_error_context(self, error: t.Tracker, x: t.Tracker, name: str) -> None:
        """Set the `name` and `obj` of an AttributeError that leaves the lookup `x.name`, unless it has them."""
        if not isinstance(error, t.Error) or error.value is not None or not issubclass(error.cls, AttributeError):
            return
        if error.field("name") is t.NONE and error.field("obj") is t.NONE:
            error.attrs.update(name=t.Const(name), obj=x)

    def made_error(self, error: BaseException) -> t.Error:
        """Return the tracker of an exception that a function run at capture raised."""
        made = t.Error(type(error))
        made.init_args = [self.unkey(a) for a in error.args]
        for kind, names in CARRIED:
            if isinstance(error, kind):
                for name in names:
                    value = getattr(error, name, None)
                    if (type(value) in CONSTANT_TYPES or isinstance(value, type)
                        or value is sys.modules.get(getattr(value, "__name__", ""))):
                        made.attrs[name] = self.made(value)
        made.attrs.update((name, self.made(value)) for name, value in vars(error).items())
        if (tb := traced(error.__traceback__)) is not t.NONE:
            made.attrs["__traceback__"] = tb
        return made

    def throw_(self, error: t.Error) -> Any:
        """Raise `error` here: the exception being handled becomes its context."""
        self.chain(error, self.handled[-1] if self.handled else None)
        raise t.CapturedError(error)

    def chain(self, error: t.Error, handled: t.Tracker | None) -> None:
        """Set the context of `error`, raised while `handled` is being handled."""
        if error.value is not None:
            raise Unsupported("an exception that was made outside is raised", hint="raise a new exception")
        if isinstance(handled, t.Error) and handled is not error:
            seen: t.Error = handled
            met: set[int] = set()  # the program may have made a circle of contexts
            while (below := seen.context()) is not None and id(seen) not in met:
                met.add(id(seen))
                if below is error:
                    seen.attrs["__context__"] = t.NONE
                    break
                seen = below  # type: ignore[assignment]
            error.attrs["__context__"] = handled

    def nothing_handled_outside(self) -> None:
        """Assume that whoever called the captured frame is not handling an exception."""
        if sys.exc_info()[1] is not None:
            raise Unsupported("a look at the exception that the caller is handling")
        self.guard(Pinned(sys), "callable", _idle)

    def handling(self) -> t.Tracker:
        """Return the tracker of the exception being handled, or of None."""
        if self.handled:
            return self.handled[-1]
        self.nothing_handled_outside()
        return t.NONE


def _idle(system: Any) -> bool:
    """Return whether no exception is being handled."""
    return system.exc_info()[1] is None
