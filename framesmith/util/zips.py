"""Zip that refuses unequal lengths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def szip(*iterables: Iterable[Any]) -> zip:
    """`zip(..., strict=True)`: raises ValueError when lengths differ."""
    return zip(*iterables, strict=True)
