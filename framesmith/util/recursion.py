"""Python's recursion limit while frames are interpreted, which takes several of our calls for each of the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = 20000
_before: list[int] = []
"""The limit as each of those that are within began."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the limit to at least `LIMIT` within the block; the last of several threads restores the first one's."""
    _before.append(sys.getrecursionlimit())
    try:
        sys.setrecursionlimit(max(_before[0], LIMIT))
        yield
    finally:
        before = _before.pop()
        if not _before:
            sys.setrecursionlimit(before)
