"""Exceptions: the fields that C keeps (args, chaining, those of each builtin kind) are in `attrs`, by attribute
name."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, GetSetDescriptorType, MemberDescriptorType, TracebackType
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Pinned, Source
from .base import Tracker, always
from .constants import NONE, Const, boolean
from .objects import DELETED, Object
from .sequences import Tuple

CHAINING = ("__cause__", "__context__", "__suppress_context__")


class FrameEnd(Tracker):
    """A frame that an exception passed through, as tracebacks show it. `place`: its code, the user's, and the byte
    offset of its present instruction."""

    __slots__ = ("globals", "place")
    cls = FrameType
    truth = always

    def __init__(self, globals_: dict[str, Any], place: Callable[[], tuple[CodeType, int]]) -> None:
        self.globals = globals_
        self.place = place

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "f_code":
            return Const(self.place()[0])
        if name == "f_globals":
            return tracer.wrap(self.globals, Pinned(self.globals))
        return super().get(tracer, name)


class Traceback(Tracker):
    """One entry of the traceback of an exception: an instruction of a frame, by its byte offset in the user's code.
    `inner` is the rest, NONE at the end."""

    __slots__ = ("frame", "inner", "line", "offset")
    cls = TracebackType
    truth = always

    def __init__(self, frame: FrameEnd, offset: int, line: int, inner: Tracker) -> None:
        self.frame = frame
        self.offset = offset
        self.line = line
        self.inner = inner

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "tb_next":
            return self.inner
        if name == "tb_frame":
            return self.frame
        if name in ("tb_lineno", "tb_lasti"):
            tracer.surroundings.bind("the line of a traceback")
            return Const(self.line if name == "tb_lineno" else self.offset)
        return super().get(tracer, name)


class Error(Object):
    """An exception.  `init_args` are the arguments of `__new__`."""

    __slots__ = ("_args",)

    def __init__(self, cls: type, *, value: Any = None, source: Source | None = None) -> None:
        super().__init__(cls, value=value, source=source)
        self.init_args = []
        self._args: Tracker | None = None

    def field(self, name: str) -> Tracker:
        """Return the field that C keeps under `name`, of an exception made in the frame; None by default."""
        return self.attrs.get(name, NONE)

    def is_kept(self, tracer: Any, name: str) -> bool:
        """Return whether the attribute is a field that C keeps, not an entry of the instance dict."""
        raw = tracer.lookup(self.cls, name)
        return isinstance(raw, (MemberDescriptorType, GetSetDescriptorType)) and not raw.__objclass__.__flags__ & 1 << 9

    def args(self, tracer: Any) -> list[Tracker]:
        """Return the elements of `args`."""
        found = self.get(tracer, "args") if self.value is not None else self.args_tuple()
        return found.open(tracer)  # type: ignore[attr-defined]

    def args_tuple(self) -> Tracker:
        """`args` of an exception made in the frame."""
        found = self.attrs.get("args")
        if found is None:
            found = self._args = self._args or Tuple(self.init_args or [])
        return found

    def generic_get(self, tracer: Any, name: str, info: Any = None) -> Tracker:
        if self.value is None and self.is_kept(tracer, name):
            if name == "args":
                return self.args_tuple()
            if name == "__class__":
                return tracer.made(self.cls)
            if name == "__dict__":
                return tracer.instance_dict(self)
            if name == "__context__" and name not in self.attrs:
                tracer.nothing_handled_outside()
            if name == "__suppress_context__":
                return boolean(self.field(name).truth(tracer))
            return self.field(name)
        if name == "__traceback__" and self.value is not None:
            raise Unsupported(f"the traceback of {self.describe()}")
        return super().generic_get(tracer, name, info)

    def generic_set(self, tracer: Any, name: str, value: Tracker) -> None:
        if not self.is_kept(tracer, name):
            super().generic_set(tracer, name, value)
            return
        if self.value is not None:
            raise Unsupported(f"assignment to {name!r} of {self.describe()}")
        self.set_field(tracer, name, value)

    def set_field(self, tracer: Any, name: str, value: Tracker) -> None:
        """Assign to a field that C keeps."""
        if name == "args":
            value = Tuple(value.items_list(tracer))
        elif name == "__traceback__" and value is not NONE and not issubclass(value.pytype(), TracebackType):
            tracer.raise_(TypeError("__traceback__ must be a traceback or None"))
        elif name in ("__cause__", "__context__") and value is not NONE and not isinstance(value, Error):
            tracer.raise_(TypeError(f"exception {name.strip('_')} must be None or derive from BaseException"))
        self.attrs[name] = value
        if name == "__cause__":
            self.attrs["__suppress_context__"] = Const(True)

    def generic_delete(self, tracer: Any, name: str) -> None:
        if self.is_kept(tracer, name):
            raise Unsupported(f"deletion of {name!r} of an exception")
        super().generic_delete(tracer, name)

    def context(self) -> Tracker | None:
        """Return the exception that `__context__` names, if capture knows one."""
        found = self.attrs.get("__context__")
        return found if isinstance(found, Error) else None

    def fields(self) -> dict[str, Tracker]:
        """Return the attributes to set on the rebuilt exception, in an order that respects the side effects of
        setters."""
        out = {k: v for k, v in self.attrs.items() if k not in CHAINING and v is not DELETED}
        out.update({k: self.attrs[k] for k in CHAINING if k in self.attrs})
        return out

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        row = tracer.methods(Error, name)
        if row is not None:
            return row(tracer, self, *args, **kwargs)
        return super().builtin_method(tracer, name, args, kwargs)
