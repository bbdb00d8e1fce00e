"""Limits on how often a failed capture is tried again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Raising:
    """Captures of a code object that came to nothing for the call's own values, such as an exception that the program
    raises: after two in a row, calls run plain, 2, 4, 8 ... of them, before the next capture."""

    captures: int = 0
    waiting: int = 0

    def again(self) -> None:
        self.captures += 1
        self.waiting = 2 ** min(self.captures - 1, 12) if self.captures > 1 else 0

    def waits(self) -> bool:
        """Return whether this call is one of those that run plain."""
        self.waiting -= self.waiting > 0
        return self.waiting > 0
