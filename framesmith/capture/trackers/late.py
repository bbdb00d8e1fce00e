"""Numbers that vary from call to call: computed by residual code, not by capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Source
from .base import Tracker
from .constants import Const


class Late(Const):
    """An int or float at a source, or an expression over such: `example` is its value in this call.

    Whoever asks for `value` settles it: the leaves are guarded by equality, as those of any constant are.  `write(texts)` is the
    expression over the texts of `parts`.
    """

    __slots__ = ("cx", "example", "parts", "settled", "write")

    def __init__(self, cx: Any, example: Any, source: Source | None, parts: tuple[Tracker, ...] = (),
                 write: Callable[..., str] | None = None) -> None:
        self.cx = cx
        self.example = example
        self.source = source
        self.parts = parts
        self.write = write
        self.settled = False

    @property
    def value(self) -> Any:  # type: ignore[override]
        self.settle()
        return self.example

    def settle(self) -> None:
        """Assume the value of this call."""
        if self.settled:
            return
        self.settled = True
        if self.source is not None:
            self.cx.guard(self.source, "equals", self.example)
        for part in self.parts:
            if isinstance(part, Late):
                part.settle()

    def pytype(self) -> type:
        return type(self.example)

    def describe(self) -> str:
        return f"{type(self.example).__name__} {self.source or 'that varies'}"

    def truth(self, cx: Any) -> bool:
        if not self.settled:
            raise Unsupported("a branch on a number that varies from call to call", hint="pass it as a tensor, or keep it constant")
        return bool(self.example)

    def text(self, rb: Any) -> str:
        """The whole expression, for residual code that runs before any of its names is bound."""
        if self.write is None:
            return str(rb.source(self.source))
        return self.write(*[part.text(rb) if type(part) is Late else rb.value(part) for part in self.parts])

    def identity(self) -> Any:
        return self


def late(cx: Any, example: Any, parts: tuple[Tracker, ...], write: Callable[..., str]) -> Tracker:
    """The expression of some numbers, of which one is late."""
    if all(part.settled for part in parts if isinstance(part, Late)):
        return cx.made(example)
    return Late(cx, example, None, parts, write)


__all__ = ["Late", "late"]
