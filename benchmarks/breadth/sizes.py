"""The sizes of what a model is called with, and others beside them: batch, length, resolution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

LENGTH = 12


@dataclass(frozen=True, slots=True)
class Sizes:
    """`scale`: of the sides of pictures, relative to what the model is made for."""

    batch: int = 2
    length: int = LENGTH
    scale: float = 1.0

    def scaled(self, side: int) -> int:
        """A side of a picture, or a count of patches along it."""
        return round(side * self.scale)

    def time(self, count: int) -> int:
        """So many samples of sound, or other steps that are not tokens, in proportion to the length."""
        return count * self.length // LENGTH


FIRST = Sizes()
_NOW: ContextVar[Sizes] = ContextVar("sizes", default=FIRST)
DYNAMIC = (Sizes(2, 24, 1.5), Sizes(3, 31, 2.0), Sizes(5, 40, 2.5))
"""The sizes of three calls. Not of the scale 1: programs ask whether a picture has the size of their configuration, and
do something else then."""
VARYING = (("batch", "length", "scale"), ("batch", "length"), ("batch", "scale"), ("batch",), ("length", "scale"),
           ("length",), ("scale",))
"""What may vary, the most first: a model's configuration may fix some of it."""


def now() -> Sizes:
    """The sizes that inputs are made with."""
    return _NOW.get()


@contextmanager
def at(sizes: Sizes) -> Iterator[None]:
    """Inputs that are made inside have these sizes."""
    token = _NOW.set(sizes)
    try:
        yield
    finally:
        _NOW.reset(token)


def choices() -> Iterator[tuple[tuple[str, ...], list[Sizes]]]:
    """(what varies, the sizes of three calls) for each row of `VARYING`."""
    for varying in VARYING:
        yield varying, [only(varying, sizes) for sizes in DYNAMIC]


def only(varying: tuple[str, ...], sizes: Sizes) -> Sizes:
    """The first sizes, but for what varies."""
    return Sizes(**{name: getattr(sizes, name) for name in varying})


__all__ = ["DYNAMIC", "FIRST", "Sizes", "at", "choices", "now", "only"]
