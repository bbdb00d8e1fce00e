"""Locks of `threading`, tracked within one capture: no other thread can see the effects of captured code before they
are replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Source
from .base import Holder, Tracker, always
from .constants import FALSE, NONE, TRUE, Const, boolean


@dataclass(frozen=True, slots=True)
class _Locked:
    """A lock is in the same state."""

    read: Any
    held: bool

    def __call__(self, lock: Any) -> bool:
        return self.read(lock) is self.held


class Lock(Holder):
    """A lock from outside. `held`: acquisitions minus releases in captured code; while it is positive, no effects are
    allowed, since they would be replayed after the release."""

    __slots__ = ("before", "cls", "held", "recursive", "value")
    truth = always
    get = Holder.builtin_attribute

    def __init__(self, cls: type, value: Any, source: Source | None) -> None:
        self.cls = cls
        self.value = value
        self.source = source
        self.held = 0
        self.recursive = hasattr(value, "_is_owned")
        self.before: bool | None = None

    def key(self, tracer: Any) -> Any:
        return self.value

    def locked(self, tracer: Any) -> bool:
        """Return whether the lock is held now; for a recursive one, by this thread."""
        if self.before is None:
            read = self.cls._is_owned if self.recursive else self.cls.locked  # type: ignore[attr-defined]
            self.before = read(self.value)
            tracer.guard(self.source, "callable", _Locked(read, self.before))
        return self.before + self.held > 0

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        row = _METHODS.get(name)
        if row is None:
            raise Unsupported(f"method {name!r} of a lock")
        return row(tracer, self, *args, **kwargs)


def _acquire(tracer: Any, self: Lock, blocking: Tracker = TRUE, timeout: Tracker = Const(-1)) -> Tracker:  # noqa: B008
    if self.locked(tracer) and not self.recursive:
        if blocking.truth(tracer):
            raise Unsupported("a wait for a lock")
        return FALSE
    self.held += 1
    tracer.locks[id(self)] = self
    return TRUE


def _release(tracer: Any, self: Lock, *unused: Tracker) -> Tracker:
    if not self.locked(tracer):
        tracer.raise_(RuntimeError("cannot release un-acquired lock" if self.recursive else "release unlocked lock"))
    self.held -= 1
    tracer.locks[id(self)] = self
    return NONE


_METHODS: dict[str, Any] = {
    "acquire": _acquire,
    "__enter__": _acquire,
    "release": _release,
    "__exit__": _release,
    "locked": lambda tracer, self: boolean(self.locked(tracer)),
    "_is_owned": lambda tracer, self: boolean(self.locked(tracer)),
}
