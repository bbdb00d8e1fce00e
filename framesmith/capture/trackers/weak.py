"""Weak references made in the frame, to objects that live outside of it."""

from __future__ import annotations

import weakref
from typing import Any

from framesmith.util.errors import Unsupported

from .base import Tracker, always


class WeakRef(Tracker):
    """weakref.ref(target) without a callback: there is one such reference an object."""

    __slots__ = ("target",)
    cls = weakref.ReferenceType
    truth = always

    def __init__(self, target: Tracker) -> None:
        self.target = target

    def real(self, tracer: Any) -> Any:
        return weakref.ref(self.target.identity())

    def identity(self) -> Any:
        return weakref.ref(self.target.identity())

    def key(self, tracer: Any) -> Any:
        """Return the key of a reference: that of its referent, by identity unless its class defines a hash or
        equality."""
        kind = self.target.pytype()
        if tracer.lookup(kind, "__hash__") is not object.__hash__ or tracer.lookup(kind, "__eq__") is not object.__eq__:
            raise Unsupported(f"a weak reference to {self.target.describe()}, which has a hash of its own, as a key")
        tracer.guard(self.target.source, "id", self.target.identity())
        return self.identity()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if tracer.may_have_died(self.target.identity()):
            raise Unsupported("a weak reference to an object that the frame may have dropped")
        return self.target
