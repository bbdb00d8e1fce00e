"""Lookahead on iterators from outside: reading the next values without advancing the iterator, and advancing it
afterwards."""

from __future__ import annotations

import collections
import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from framesmith import _C

_WALKED: tuple[Any, ...] = ([], (), "", "é", b"", range(0), range(1 << 70), {}, {}.values(), {}.items(), set())
_COPIED = (*(type(iter(x)) for x in _WALKED), type(reversed([])), type(reversed({})))
"""Iterators whose copy advances independently."""


def _copy(it: Any, n: int) -> list[Any]:
    return list(itertools.islice(copy.copy(it), n))


def _zip(it: Any, n: int) -> list[Any]:
    parts = it.__reduce__()[1]
    return list(zip(*(upcoming(part, n) for part in parts))) if parts else []


def _enumerate(it: Any, n: int) -> list[Any]:
    inner, start = it.__reduce__()[1]
    return list(enumerate(upcoming(inner, n), start))


_ROWS: dict[type, Callable[[Any, int], list[Any]]] = {**dict.fromkeys(_COPIED, _copy), zip: _zip, enumerate: _enumerate}


WITH_LOOKAHEAD = tuple(_ROWS)
"""Classes of iterators that allow lookahead."""


def allows_lookahead(it: Any) -> bool:
    """Return whether `upcoming` knows the iterator."""
    if type(it) is zip:
        made = it.__reduce__()
        # a strict one says so in its state; an iterator in two places gives to both
        return len(made) == 2 and all(map(allows_lookahead, made[1])) and len({*map(id, made[1])}) == len(made[1])
    if type(it) is enumerate:
        return allows_lookahead(it.__reduce__()[1][0])
    return type(it) in _ROWS


def upcoming(it: Iterator[Any], n: int) -> list[Any]:
    """Return the next `n` values of an iterator that allows lookahead, or all that are left. Raises RuntimeError for a
    changed dict or set."""
    return _ROWS[type(it)](it, n)


def containers_of(it: Any) -> list[Any]:
    """Return the containers that an iterator, or one that it reads from, iterates over, and their other elements."""
    return [*gc.get_referents(it), *(x for part in components(it) for x in containers_of(part))]


def components(it: Any) -> list[Any]:
    """Return the iterators that an iterator reads from."""
    rows: dict[type, Callable[[Any], list[Any]]] = {zip: lambda made: list(made[1]),
                                                    enumerate: lambda made: [made[1][0]]}
    row = rows.get(type(it))
    return [] if row is None else row(it.__reduce__())


@dataclass(frozen=True, slots=True)
class Component:
    """The function that returns the iterator number `i` of those that an iterator reads from."""

    i: int

    def __call__(self, it: Any) -> Any:
        return components(it)[self.i]


@dataclass(frozen=True, slots=True)
class Ahead:
    """The function that returns `upcoming` by `n`."""

    n: int

    def __call__(self, it: Any) -> list[Any]:
        return upcoming(it, self.n)


def advance(it: Iterator[Any], n: int) -> None:
    """Take `n` values, or find the end."""
    collections.deque(itertools.islice(it, n), maxlen=0)


_C.skip_code(advance.__code__)
