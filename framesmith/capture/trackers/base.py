"""The protocol of trackers: the operations of the interpreter on a value that it tracks through a frame.

A tracker stands for one Python value during capture. Trackers of values that came from outside hold the real object and
its `source`; they guard what is read of it when it is read. Mutation changes the tracker only; `effects` replays it.
`tracer` is the capture session; it makes trackers of values (`tracer.wrap`, `tracer.made`), calls functions and records
guards.
"""

from __future__ import annotations

from types import BuiltinFunctionType, ClassMethodDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Source


class CapturedError(Exception):
    """The captured program raises `tracker`, an exception value."""

    def __init__(self, tracker: Any) -> None:
        super().__init__(tracker)
        self.tracker = tracker


class Tracker:
    """The base of all trackers. An operation that a family does not support raises `Unsupported`."""

    __slots__ = ()
    source: Source | None = None
    cls: type
    """The type, where a family has one, or each tracker keeps it."""
    constant = False
    """True: `value` is an immutable Python value, which may be used for folding."""

    def pytype(self) -> type:
        """Return the type that `type(x)` would give."""
        return self.cls

    def real(self, tracer: Any) -> Any:
        """Return a Python value to hand to torch or to a folded function: constants as they are, tensors as fakes."""
        raise Unsupported(f"{self.describe()} as an argument of a function that cannot be followed")

    def describe(self) -> str:
        """Describe the value in the user's terms."""
        t = self.pytype().__name__
        return f"{t} {self.source}" if self.source is not None else f"a {t}"

    def get(self, tracer: Any, name: str) -> Tracker:
        """`x.name`"""
        raise Unsupported(f"attribute {name!r} of {self.describe()}")

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        """`x.name = value`"""
        _refuse_change(tracer, self, name)
        raise Unsupported(f"assignment to attribute {name!r} of {self.describe()}")

    def delete(self, tracer: Any, name: str) -> None:
        """`del x.name`"""
        _refuse_change(tracer, self, name)
        raise Unsupported(f"deletion of attribute {name!r} of {self.describe()}")

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        """`x(*args, **kwargs)`"""
        return tracer.call_special(self, "__call__", args, kwargs)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        """`x[key]`"""
        return tracer.call_special(self, "__getitem__", [key])

    def set_item(self, tracer: Any, key: Tracker, value: Tracker) -> None:
        """`x[key] = value`"""
        tracer.call_special(self, "__setitem__", [key, value])

    def del_item(self, tracer: Any, key: Tracker) -> None:
        """`del x[key]`"""
        tracer.call_special(self, "__delitem__", [key])

    def truth(self, tracer: Any) -> bool:
        """`bool(x)`"""
        raise Unsupported(f"truth of {self.describe()}")

    def size(self, tracer: Any) -> Any:
        """`len(x)`, an int or a SymInt"""
        raise Unsupported(f"len of {self.describe()}")

    def iterate(self, tracer: Any) -> Tracker:
        """`iter(x)`"""
        return tracer.call_special(self, "__iter__", [])

    def next(self, tracer: Any) -> Tracker | None:
        """Return the next value of an iterator; None when it is exhausted."""
        return tracer.not_iterator(self)

    def items_list(self, tracer: Any) -> list[Tracker]:
        """Return all values of an iteration."""
        it = self.iterate(tracer)
        out = []
        while (v := it.next(tracer)) is not None:
            out.append(v)
        return out

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        """Return the method `name` of the builtin type behind the value, by its row."""
        return tracer.apply_row(self, name, args, kwargs)

    def plain(self) -> Tracker:
        """Return the builtin part of an instance of a subclass of a builtin class; itself, for anything else."""
        return self

    def builtin_attribute(self, tracer: Any, name: str) -> Tracker:
        """`x.name` of an instance of a builtin class: the attribute of the class, or AttributeError."""
        kind = self.pytype()
        if name == "__class__":
            return tracer.made(kind)
        return by_class(tracer, self, kind, name) if has_member(kind, name) else tracer.no_attribute(self, name)

    def identity(self) -> Any:
        """Return an object whose identity is the value's."""
        return self

    def key(self, tracer: Any) -> Any:
        """Return a hashable that stands for the value as a dict key; a tracker when only its identity can."""
        return tracer.no_key(self)

    def element(self, tracer: Any) -> Any:
        """Return the same for an element of a set."""
        return self.key(tracer)


def always(self: Tracker, tracer: Any) -> bool:
    """`bool(x)` of an object with neither `__bool__` nor `__len__`."""
    return True


class Holder(Tracker):
    """A tracker with the real object in `value`, or None if the frame has made it."""

    __slots__ = ("source",)
    value: Any

    def identity(self) -> Any:
        return self.value if self.value is not None else self


Args = list[Tracker]
Kwargs = dict[str, Tracker]


def _refuse_change(tracer: Any, x: Tracker, name: str) -> None:
    """Raise the AttributeError of an assignment to (or deletion of) an attribute of a builtin value, which has no
    instance dict."""
    kind = x.pytype()
    if kind.__flags__ & _HEAP_TYPE or any("__dict__" in base.__dict__ for base in kind.__mro__):
        return
    raw = getattr(kind, name, tracer)
    if raw is tracer:
        tracer.no_change(x, name)
    if not hasattr(type(raw), "__set__"):
        tracer.no_change(x, name, f"'{kind.__name__}' object attribute '{name}' is read-only")


_HEAP_TYPE = 1 << 9


def has_member(cls: type, name: str) -> bool:
    """Return whether instances of `cls` have the attribute through their class, not its metaclass."""
    return any(name in base.__dict__ for base in cls.__mro__)


def by_class(tracer: Any, x: Tracker, kind: type, name: str) -> Tracker:
    """`x.name`, an attribute of the class: a method, or a constant; computed attributes are refused."""
    raw = next(base.__dict__[name] for base in kind.__mro__ if name in base.__dict__)
    if isinstance(raw, _METHODS):
        return Bound(x, name)
    if hasattr(type(raw), "__get__"):
        raise Unsupported(f"attribute {name!r} of {x.describe()}")
    return tracer.made(raw)


_METHODS = (MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType, BuiltinFunctionType, staticmethod,
            classmethod)


class Null(Tracker):
    """The NULL that the call protocol pushes."""

    __slots__ = ()
    cls = type(None)


NULL = Null()


class Handled(Null):
    """The stack entry present while an exception is handled: the exception handled before, which POP_EXCEPT
    restores."""

    __slots__ = ("before", "error")

    def __init__(self, error: Tracker, before: Tracker | None) -> None:
        self.error = error
        self.before = before


class Lasti(Null):
    """The index of the instruction that raised, which an exception handler finds below the exception."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Bound(Tracker):
    """A method of a builtin type, bound to a tracker: resolved by name when called.

    `raw`: the descriptor that was found, where `obj.name` may find another one (by super(), or past the object's own
    attributes).
    """

    __slots__ = ("name", "obj", "raw")
    cls: type = type([].append)
    truth = always

    def __init__(self, obj: Tracker, name: str, raw: Any = None) -> None:
        self.obj = obj
        self.name = name
        self.raw = raw

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if self.raw is not None:
            return tracer.call_raw(self.raw, self.obj, args, kwargs)
        return self.obj.builtin_method(tracer, self.name, args, kwargs)

    def get(self, tracer: Any, name: str) -> Tracker:
        if name == "__self__":
            return self.obj
        if name == "__name__":
            return tracer.made(self.name)
        return super().get(tracer, name)
