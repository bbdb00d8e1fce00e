"""Dynamic numbers: computed by residual code, not by capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import Source
from .base import Tracker
from .constants import Const


class SymbolicNumber(Const):
    """An int or float at a source, or an expression over such: `example` is its value in this call.

    Reading `value` specialises it: the leaves are guarded by equality, like any constant. `write(texts)` is the
    expression over the texts of `parts`, and `fn` computes it.

    `open`: a number not known to be dynamic, or a comparison of such numbers. It is a constant except in comparisons
    and conditions, which guard their outcomes, and where it is only passed on.
    """

    __slots__ = ("tracer", "example", "fn", "open", "parts", "settled", "write")

    def __init__(self, tracer: Any, example: Any, source: Source | None, parts: tuple[Tracker, ...] = (),
                 write: Callable[..., str] | None = None, fn: Callable[..., Any] | None = None,
                 open: bool = False) -> None:
        self.tracer = tracer
        self.fn = fn
        self.open: bool = open or bool(parts) and all(part.open or part.settled
                                                      for part in parts if isinstance(part, SymbolicNumber))
        self.example = example
        self.source = source
        self.parts = parts
        self.write = write
        self.settled: bool = False

    @property
    def value(self) -> Any:  # type: ignore[override]
        self.settle()
        return self.example

    def settle(self) -> None:
        """Specialise to the value of this call."""
        if self.settled:
            return
        self.settled = True
        if self.source is not None:
            self.tracer.guard(self.source, "equals", self.example)
        for part in self.parts:
            if isinstance(part, SymbolicNumber):
                part.settle()

    @property
    def varies(self) -> bool:
        """True if it is not specialised."""
        return not self.settled and not self.open

    def is_early(self) -> bool:
        """True if the integers that it is computed from may still be specialised."""
        if self.source is not None:
            return bool(self.tracer.is_early(self.source))
        return all(part.is_early() for part in self.parts if isinstance(part, SymbolicNumber) and not part.settled)

    def pytype(self) -> type:
        return type(self.example)

    def describe(self) -> str:
        return f"{type(self.example).__name__} {self.source or 'that varies'}"

    def truth(self, tracer: Any) -> bool:
        if not self.settled and tracer.outcome(self) is None:
            if not self.open and not self.is_early():
                raise Unsupported("a branch on a number that varies from call to call",
                                  hint="pass it as a tensor, or keep it constant")
            self.settle()
        return bool(self.example)

    def text(self, rebuilder: Any) -> str:
        """Return the whole expression, for residual code that runs before any of its names is bound."""
        if self.write is None:
            return str(rebuilder.source(self.source))
        return self.write(*[part.text(rebuilder) if type(part) is SymbolicNumber else rebuilder.value(part)
                            for part in self.parts])

    def identity(self) -> Any:
        return self.value if self.open else self


def present_value(x: Tracker) -> Any:
    """Return the value of a constant in this call; a dynamic number is not specialised."""
    return x.example if type(x) is SymbolicNumber else x.value  # type: ignore[attr-defined]


def symbolic(tracer: Any, example: Any, parts: tuple[Tracker, ...], write: Callable[..., str],
             fn: Callable[..., Any] | None = None) -> Tracker:
    """Return an expression of numbers, one of which is symbolic."""
    if all(part.settled for part in parts if isinstance(part, SymbolicNumber)):
        return tracer.made(example)
    return SymbolicNumber(tracer, example, None, parts, write, fn)


def is_symbolic(*values: Tracker) -> bool:
    """Return whether one of some values is a symbolic number."""
    return any(type(v) is SymbolicNumber and v.varies for v in values)
