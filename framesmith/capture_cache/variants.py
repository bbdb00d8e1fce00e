"""Several values may be stored under one key of the cache; the first that fits is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from framesmith.runtime.cache import Cache
from framesmith.util import events
from framesmith.util.interrupts import raised_by_handler

from .references import Json, Stale

SUFFIX = ".capture"
MOST = 8
"""The maximal number of values of one key that are tried."""
T = TypeVar("T")


def first_fitting(cache: Cache, key: str, read: Callable[[str, Json], T], why: str) -> tuple[T | None, str]:
    """Return what `read` makes of the newest value under `key` that it accepts, given the value's own key and the
    value; or None, and the reason why it refused the last one. `why`: the reason if there is no value."""
    for number, (own, found) in enumerate(cache.variants(key, SUFFIX)):
        if number == MOST:
            break
        try:
            made = read(own, found)
        except Stale as stale:
            why = str(stale)
        except Exception as problem:  # the edge: a cache costs time, never an error
            if raised_by_handler(problem):
                raise
            why = f"{type(problem).__name__}: {problem}"
        else:
            events.emit(events.CacheLookup("capture", key, True))
            return made, ""
    events.emit(events.CacheLookup("capture", key, False, why))
    return None, why
