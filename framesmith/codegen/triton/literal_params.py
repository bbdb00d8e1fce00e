"""Numbers in the text of a kernel that could be arguments as well: the printer marks them, and `kernel_dedup.py`
decides.

    i0 < «24»     i0 + «40»*i1     tl.div_rn(v0, «512.0»)     «(x // 24) % 40»
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

OPEN, CLOSE, LOOSE = "\x02", "\x03", "~"
_MARKED = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")


@dataclass(frozen=True, slots=True)
class Number:
    """A number and the type that it would have as an argument: "i32", or "fp32" for what an operation on float32 takes;
    "divisor" for what the index of a tile is divided by. `loose`: no address or mask along which memory runs depends on
    it."""

    kind: str
    value: int | float
    loose: bool = field(default=False, compare=False)

    @property
    def multiple(self) -> int:
        """The power of two that it is known to be a multiple of, as far as vectors of memory go."""
        return math.gcd(self.value, VECTOR) if isinstance(self.value, int) else 1


VECTOR = 16  # elements of a byte that a thread moves at once


def integer(value: int, loose: bool = False) -> str:
    """An integer of an index, marked. Those that could not be smaller say what is done, not how much there is of it."""
    return f"{OPEN}{LOOSE if loose else ''}{value}{CLOSE}" if 1 < value < 1 << 31 else str(value)


def divided(name: str, by: int | None, modulo: int | None, loose: bool) -> str:
    """The index `name` of a tile, divided and cut, marked."""
    text = name if by is None else f"{name} // {by}"
    text = text if modulo is None else f"{text} % {modulo}" if by is None else f"({text}) % {modulo}"
    return text if text == name else f"{OPEN}{LOOSE if loose else ''}{text}{CLOSE}"


def real(text: str) -> str:
    """A finite number beside values of float32, marked."""
    return f"{OPEN}{text}{CLOSE}"


def plain(text: str) -> str:
    """The text with its numbers in it."""
    return _MARKED.sub(lambda found: found[1].removeprefix(LOOSE), text)


def numbers(text: str) -> tuple[Number, ...]:
    """The marked numbers in their order."""
    return tuple([number for found in _MARKED.findall(text) for number in _numbers(found)])


def replaced(text: str, other: Callable[[int], str], divide: Callable[[str, list[tuple[str, int]]], str]) -> str:
    """The text with `other(k)` in the place of its marked number k, and `divide(name, [("//", k), ("%", k + 1)])` in
    that of a division."""
    count = itertools.count()

    def one(found: re.Match[str]) -> str:
        name, *steps = _words(found[1])
        return divide(name, [(sign, next(count)) for sign in steps[::2]]) if steps else other(next(count))

    return _MARKED.sub(one, text)


def _words(text: str) -> list[str]:
    """Split a marked text into words: a number, or an index and its divisors, each after its operator."""
    return text.removeprefix(LOOSE).replace("(", "").replace(")", "").split(" ")


def _numbers(text: str) -> list[Number]:
    loose = text.startswith(LOOSE)
    first, *steps = _words(text)
    if steps:
        return [Number("divisor", int(digits), loose) for digits in steps[1::2]]
    return [Number("i32", int(first), loose) if first.isdigit() else Number("fp32", float(first))]
