"""Numbers in a kernel's text that could be arguments: the printer marks them, and `kernel_dedup.py` decides.

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
    """A number and the type that it would have as an argument: "i32", or "fp32" for an operand of float32; "divisor"
    for a divisor of a tile's index. `loose`: no address or mask along a contiguous dimension depends on it."""

    kind: str
    value: int | float
    loose: bool = field(default=False, compare=False)

    @property
    def multiple(self) -> int:
        """The power of two that divides it, up to the size of vectors of memory."""
        return math.gcd(self.value, VECTOR) if isinstance(self.value, int) else 1


VECTOR = 16  # elements of a byte that a thread moves at once


def integer(value: int, loose: bool = False) -> str:
    """Mark an integer of an index. The smallest ones are part of the code's structure, and stay."""
    return f"{OPEN}{LOOSE if loose else ''}{value}{CLOSE}" if 1 < value < 1 << 31 else str(value)


def divided(name: str, by: int | None, modulo: int | None, loose: bool) -> str:
    """Mark the index `name` of a tile, divided and reduced."""
    text = name if by is None else f"{name} // {by}"
    text = text if modulo is None else f"{text} % {modulo}" if by is None else f"({text}) % {modulo}"
    return text if text == name else f"{OPEN}{LOOSE if loose else ''}{text}{CLOSE}"


def real(text: str) -> str:
    """Mark a finite number that is an operand of float32."""
    return f"{OPEN}{text}{CLOSE}"


def plain(text: str) -> str:
    """Return the text without marks."""
    return _MARKED.sub(lambda found: found[1].removeprefix(LOOSE), text)


def numbers(text: str) -> tuple[Number, ...]:
    """Return the marked numbers in order."""
    return tuple([number for found in _MARKED.findall(text) for number in _numbers(found)])


def replaced(text: str, other: Callable[[int], str], divide: Callable[[str, list[tuple[str, int]]], str]) -> str:
    """Return the text with its marked number k replaced by `other(k)`, and a division by `divide(name, [("//", k),
    ("%", k + 1)])`."""
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
