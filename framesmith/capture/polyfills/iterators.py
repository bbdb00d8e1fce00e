"""itertools, lazily."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

_NONE: Any = object()


def accumulate(iterable: Iterable[Any], func: Any = None, *, initial: Any = None) -> Generator[Any]:
    it = iter(iterable)
    fn = operator.add if func is None else func
    total = initial
    if initial is None:
        for total in it:  # noqa: B007
            break
        else:
            return
    yield total
    for value in it:
        total = fn(total, value)
        yield total


def from_iterable(iterables: Iterable[Iterable[Any]]) -> Generator[Any]:
    for each in iterables:
        yield from each


def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Generator[Any]:
    for value, wanted in zip(data, selectors):
        if wanted:
            yield value


def cycle(iterable: Iterable[Any]) -> Generator[Any]:
    saved = []
    for value in iterable:
        yield value
        saved.append(value)
    while saved:
        yield from saved


def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Generator[Any]:
    it = iter(iterable)
    for value in it:
        if not predicate(value):
            yield value
            break
    for value in it:
        yield value


def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Generator[Any]:
    for value in iterable:
        if not predicate(value):
            break
        yield value


def filterfalse(predicate: Any, iterable: Iterable[Any]) -> Generator[Any]:
    for value in iterable:
        if not (value if predicate is None else predicate(value)):
            yield value


def starmap(function: Callable[..., Any], iterable: Iterable[Any]) -> Generator[Any]:
    for args in iterable:
        yield function(*args)


def pairwise(iterable: Iterable[Any]) -> Generator[Any]:
    it = iter(iterable)
    for before in it:
        for value in it:
            yield before, value
            before = value


def batched(iterable: Iterable[Any], n: int) -> Generator[Any]:
    if n < 1:
        raise ValueError("n must be at least one")
    row = []
    for value in iterable:
        row.append(value)
        if len(row) == n:
            yield tuple(row)
            row = []
    if row:
        yield tuple(row)


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Generator[Any]:
    its: list[Any] = [iter(it) for it in iterables]
    active = len(its)
    while active:
        row = []
        for i, it in enumerate(its):
            value = fillvalue
            if it is not None:
                value = next(it, _NONE)
                if value is _NONE:
                    value = fillvalue
                    its[i] = None
                    active -= 1
                    if not active:
                        return
            row.append(value)
        yield tuple(row)


def tee(iterable: Iterable[Any], n: int = 2) -> tuple[Iterator[Any], ...]:
    if n < 0:
        raise ValueError("n must be >= 0")
    it = iter(iterable)
    queues: list[list[Any]] = [[] for _ in range(n)]

    def each(mine: list[Any]) -> Generator[Any]:
        while True:
            if not mine:
                value = next(it, _NONE)
                if value is _NONE:
                    return
                for queue in queues:
                    queue.append(value)
            yield mine.pop(0)

    return tuple([each(queue) for queue in queues])


class Groups:
    """groupby: an iterator over (key, iterator over the group)."""

    def __init__(self, iterable: Iterable[Any], key: Any = None) -> None:
        self.it = iter(iterable)
        self.key = key
        self.target = self.current = self.value = _NONE
        self.group: Any = None

    def __iter__(self) -> Groups:
        return self

    def step(self) -> bool:
        """Read the next value and its key; False at the end."""
        value = next(self.it, _NONE)
        if value is _NONE:
            return False
        self.value = value
        self.current = value if self.key is None else self.key(value)
        return True

    def __next__(self) -> Any:
        self.group = None
        while self.current is _NONE or (self.target is not _NONE and self.current == self.target):
            if not self.step():
                raise StopIteration
        self.target = self.current
        self.group = group = Group(self, self.target)
        return self.current, group


class Group:
    """The values of one key."""

    def __init__(self, groups: Groups, target: Any) -> None:
        self.groups = groups
        self.target = target

    def __iter__(self) -> Group:
        return self

    def __next__(self) -> Any:
        groups = self.groups
        if groups.group is not self:
            raise StopIteration
        if groups.value is _NONE and not groups.step():
            raise StopIteration
        if not groups.target == groups.current:
            raise StopIteration
        value, groups.value = groups.value, _NONE
        return value
