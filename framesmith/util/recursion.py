"""Python's limit of recursion while frames are interpreted, which takes several calls of ours for one of the user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = 20000
_before: list[int] = []
"""The limit as each of those that are within began."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Have a limit of `LIMIT` at least; the last of several threads to leave sets back what the first found."""
    _before.append(sys.getrecursionlimit())
    sys.setrecursionlimit(max(_before[0], LIMIT))
    try:
        yield
    finally:
        before = _before.pop()
        if not _before:
            sys.setrecursionlimit(before)
