"""Weak references made in the frame, to objects that live outside of it."""

from __future__ import annotations

import weakref
from typing import Any

from framesmith.util.errors import Unsupported

from .base import Tracker


class WeakRef(Tracker):
    """weakref.ref(target) without a callback: there is one such reference an object."""

    __slots__ = ("target",)

    def __init__(self, target: Tracker) -> None:
        self.source = None
        self.target = target

    def pytype(self) -> type:
        return weakref.ReferenceType

    def truth(self, cx: Any) -> bool:
        return True

    def real(self, cx: Any) -> Any:
        return weakref.ref(self.target.identity())

    def identity(self) -> Any:
        return weakref.ref(self.target.identity())

    def key(self, cx: Any) -> Any:
        return self.identity()

    def call(self, cx: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if cx.may_have_died(self.target.identity()):
            raise Unsupported("a weak reference to what the frame may have let go of")
        return self.target
