"""Numbers in the text of a kernel that could be arguments as well: the printer marks them, and `sharing.py` decides.

    i0 < «24»     i0 + «40»*i1     tl.div_rn(v0, «512.0»)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

OPEN, CLOSE = "\x02", "\x03"
_MARKED = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")


@dataclass(frozen=True, slots=True)
class Number:
    """A number and the type that it would have as an argument: "i32", or "fp32" for what an operation on float32 takes."""

    kind: str
    value: int | float

    @property
    def multiple(self) -> int:
        """The power of two that it is known to be a multiple of, as far as vectors of memory go."""
        return math.gcd(self.value, VECTOR) if isinstance(self.value, int) else 1


VECTOR = 16  # elements of a byte that a thread moves at once


def integer(value: int) -> str:
    """An integer of an index, marked. Those that could not be smaller say what is done, not how much there is of it."""
    return f"{OPEN}{value}{CLOSE}" if 1 < value < 1 << 31 else str(value)


def real(text: str) -> str:
    """A finite number beside values of float32, marked."""
    return f"{OPEN}{text}{CLOSE}"


def plain(text: str) -> str:
    """The text with its numbers in it."""
    return _MARKED.sub(r"\1", text)


def numbers(text: str) -> tuple[Number, ...]:
    """The marked numbers in their order."""
    return tuple([_number(found) for found in _MARKED.findall(text)])


def replaced(text: str, other: Callable[[int], str]) -> str:
    """The text with `other(k)` in the place of its marked number k."""
    count = iter(range(text.count(OPEN)))
    return _MARKED.sub(lambda _: other(next(count)), text)


def _number(text: str) -> Number:
    return Number("i32", int(text)) if text.isdigit() else Number("fp32", float(text))
