"""Strings made during capture that residual code hands out: each stays the object that it is."""

from __future__ import annotations

import sys


class Kept:
    """Holds a string: among the constants of code, one that looks like a name would be interned, and become another
    object."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value


def lasts(text: str) -> bool:
    """Return whether a string stays the object that it is among the constants of code."""
    return (len(text) < 2 or not text.isascii() or not text.replace("_", "a").isalnum()
            or sys.intern("".join(text)) is text)
