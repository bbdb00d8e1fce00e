"""A set of weakly held objects that threads may change while others go through it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Alive(Generic[T]):
    """A set of the added objects that are alive. (A `WeakSet` fails if one is added during an iteration.)"""

    def __init__(self) -> None:
        self._refs: set[weakref.ref[T]] = set()

    def add(self, item: T) -> None:
        """Hold one more. Each is compared by identity or by an `__eq__` that runs no Python."""
        self._refs.add(weakref.ref(item, self._refs.discard))

    def __iter__(self) -> Iterator[T]:
        # `set.copy` runs in one piece, while an iteration may be interrupted
        return iter([item for ref in self._refs.copy() if (item := ref()) is not None])

    def __len__(self) -> int:
        return len(self._refs)
