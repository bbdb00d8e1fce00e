"""What guards and residual code read of containers that have no subscript by position: functions for `sources.Applied`."""

from __future__ import annotations

import weakref
from typing import Any

from .sources import Applied, Source


def _elements(deque: Any) -> Any:
    return list(deque)


def _entries(proxy: Any) -> Any:
    return dict(proxy)


def referent(ref: Any) -> Any:
    """What a weak reference refers to, whatever a call of it gives in its class; None if that is dead."""
    return weakref.ReferenceType.__call__(ref)


def elements_of(source: Source) -> Source:
    """The list of a deque's elements."""
    return Applied(source, _elements, "{}")


def entries_of(source: Source) -> Source:
    """The dict of a mapping proxy's entries."""
    return Applied(source, _entries, "{}")


def target_of(source: Source) -> Source:
    """What a weak reference refers to."""
    return Applied(source, referent, "{}()")


__all__ = ["elements_of", "entries_of", "referent", "target_of"]
