"""The results of a class statement in the captured frame: the class, and descriptors around its functions."""

from __future__ import annotations

from typing import Any

from .base import Tracker
from .statics import Class, Static


class MadeClass(Class):
    """A class made in the frame; `value` is its stand-in.

    `after`: the functions that residual code calls on the new class (`abc`'s preparation, a dataclass decorator).
    """

    __slots__ = ("after", "bases", "meta", "space", "taken")

    def __init__(self, value: type, meta: Tracker, bases: list[Tracker], space: dict[str, Tracker]) -> None:
        super().__init__(value)
        self.meta = meta
        self.bases = bases
        self.space = space
        self.after: list[Any] = []
        self.taken = False
        """A call of `after` has read the attributes, which are final."""

    def put(self, tracer: Any, name: str, value: Tracker | None) -> None:
        """type.__setattr__, or type.__delattr__ for None."""
        if value is None:
            if name not in vars(self.value):
                tracer.no_attribute(self, name, f"type object '{self.value.__name__}' has no attribute '{name}'")
            self.space.pop(name, None)
            type.__delattr__(self.value, name)
        else:
            self.space[name] = value
            type.__setattr__(self.value, name, tracer.stand_in(value))
        tracer.class_changed(self.value)


class Wrapped(Static):
    """A property, classmethod or staticmethod made in the frame; `value` holds stand-ins of its `parts`.

    `name`: a property's name in the class statement, for its messages.
    """

    __slots__ = ("name", "parts")

    def __init__(self, value: Any, parts: dict[str, Tracker]) -> None:
        super().__init__(value)
        self.parts = parts
        self.name: str | None = None

    def set_name(self, name: str) -> None:
        """Call `__set_name__` of a value that has one."""
        if isinstance(self.value, property):
            self.name = name
            self.value.__set_name__(None, name)  # type: ignore[attr-defined]

    def get(self, tracer: Any, name: str) -> Tracker:
        found = self.parts.get(name)
        if found is not None:
            return found
        if name in ("setter", "getter", "deleter") and isinstance(self.value, property):
            return tracer.wrapped_setter(self, f"f{name[:3]}")
        if name == "__isabstractmethod__" or not hasattr(self.value, name):
            return tracer.fold(getattr, (self.value, name))
        return super().get(tracer, name)

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if isinstance(self.value, staticmethod):
            return self.parts["__func__"].call(tracer, args, kwargs)
        return tracer.raise_(TypeError(f"'{self.pytype().__name__}' object is not callable"))

