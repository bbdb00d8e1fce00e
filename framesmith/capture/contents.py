"""Functions by which guards and residual code read containers that have no subscript by position, for
`sources.Applied`."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable
from typing import Any

from .sources import Applied, Source


def _elements(deque: Any) -> Any:
    return list(deque)


def _entries(proxy: Any) -> Any:
    return dict(proxy)


def referent(ref: Any) -> Any:
    """Return the referent of a weak reference, even if its class overrides `__call__`; None if it is dead."""
    return weakref.ReferenceType.__call__(ref)


def in_order(mapping: Any, keys: Any) -> list[Any]:
    """Return the values of a dict for some of its keys, found by identity: no hash or equality of the program's
    runs."""
    values = {id(k): v for k, v in dict.items(mapping)}
    return [values[id(k)] for k in keys]


def _values(mapping: Any) -> Any:
    return list(dict.values(mapping))


def _ordered_values(mapping: Any) -> Any:
    return in_order(mapping, collections.OrderedDict.__iter__(mapping))


def elements_of(source: Source) -> Source:
    """Return the list of a deque's elements."""
    return Applied(source, _elements, "{}")


def entries_of(source: Source) -> Source:
    """Return the dict of a mapping proxy's entries."""
    return Applied(source, _entries, "{}")


def values_of(source: Source, ordered: bool) -> Source:
    """Return the list of a dict's values: residual code indexes it where a subscript would call the program's
    `__hash__`."""
    return Applied(source, _ordered_values if ordered else _values, "list({}.values())")


def target_of(source: Source) -> Source:
    """Return the source of the object that a weak reference refers to."""
    return Applied(source, referent, "{}()")


_TEXT = frozenset({str})


def plain_names(space: dict[Any, Any]) -> bool:
    """Return whether all keys are plain text: a lookup in an instance dict with others may run the program's code."""
    return _TEXT.issuperset(map(type, space))


def plain_part(value: Any) -> Any:
    """Return the builtin part of an instance of a subclass, without calling methods that the subclass defines."""
    return next(read(value) for base, read in _PARTS if issubclass(type(value), base))


_PARTS: tuple[tuple[type, Callable[[Any], Any]], ...] = ((str, str.__str__), (int, int.__int__),
                                                         (float, float.__float__))
