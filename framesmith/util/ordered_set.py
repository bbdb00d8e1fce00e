"""A set that iterates in insertion order, so that every pass is deterministic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from typing import TypeVar

T = TypeVar("T")


class OrderedSet(MutableSet[T]):
    """A set over a dict's keys: insertion order, O(1) membership."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: T) -> None:
        self._items[value] = None

    def discard(self, value: T) -> None:
        self._items.pop(value, None)

    def update(self, items: Iterable[T]) -> None:
        """Add each of `items`."""
        self._items.update(dict.fromkeys(items))

    def __repr__(self) -> str:
        return f"OrderedSet({list(self._items)!r})"
