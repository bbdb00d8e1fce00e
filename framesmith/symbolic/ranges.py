"""Interval arithmetic: the range of each operation from its operands' ranges. A bound is an int or None (no bound)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Bound = int | None
Range = tuple[Bound, Bound]
_INF = float("inf")


class Ranged(Protocol):
    """An expression, of which only its range counts here."""

    @property
    def lo(self) -> Bound: ...
    @property
    def hi(self) -> Bound: ...


def of_sum(items: Sequence[tuple[Ranged, int]], offset: int) -> Range:
    """Return the range of `offset + Σ k·atom`."""
    lo: Bound = offset
    hi: Bound = offset
    for atom, k in items:
        a, b = (atom.lo, atom.hi) if k > 0 else (atom.hi, atom.lo)
        lo = None if lo is None or a is None else lo + k * a
        hi = None if hi is None or b is None else hi + k * b
    return lo, hi


def _ext(lo: Bound, hi: Bound) -> tuple[float, float]:
    return (-_INF if lo is None else lo), (_INF if hi is None else hi)


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _bounds(values: Sequence[float]) -> Range:
    lo, hi = min(values), max(values)
    return (None if lo == -_INF else lo), (None if hi == _INF else hi)  # type: ignore[return-value]


def of_product(args: Sequence[Ranged]) -> Range:
    """Return the range of a product. Even powers are not negative."""
    if all(a.lo is not None and a.lo >= 0 for a in args):
        lo, hi = 1, 1  # the common case, without infinities
        for a in args:
            lo *= a.lo  # type: ignore[operator]
            hi = None if hi is None or a.hi is None else hi * a.hi  # type: ignore[assignment]
        return lo, hi
    low, high = 1, 1
    for a in args:
        x, y = _ext(a.lo, a.hi)
        corners = (_times(low, x), _times(low, y), _times(high, x), _times(high, y))
        low, high = min(corners), max(corners)  # type: ignore[assignment]
    if low < 0 and len(args) % 2 == 0 and all(args[i] is args[i + 1] for i in range(0, len(args), 2)):
        low = 0
    return _bounds((low, high))


def of_floordiv(args: Sequence[Ranged]) -> Range:
    """Return the range of `a // b`; nothing is known when b may change sign."""
    a, b = args
    if a.lo is not None and a.hi is not None and b.lo is not None and b.hi is not None and (b.lo > 0 or b.hi < 0):
        corners = (a.lo // b.lo, a.lo // b.hi, a.hi // b.lo, a.hi // b.hi)
        return min(corners), max(corners)
    if b.lo is None or b.lo <= 0:
        return None, None
    # b in [b.lo, b.hi], b.lo >= 1: a bound of a is divided by the b that brings it furthest out.
    lo: Bound = None
    hi: Bound = None
    if a.lo is not None:
        lo = (0 if b.hi is None else a.lo // b.hi) if a.lo >= 0 else a.lo // b.lo
    if a.hi is not None:
        hi = a.hi // b.lo if a.hi >= 0 else (-1 if b.hi is None else a.hi // b.hi)
    return lo, hi


def of_mod(args: Sequence[Ranged]) -> Range:
    """Return the range of `a % b`, whose sign is b's."""
    a, b = args
    if b.lo is not None and b.lo > 0:
        hi = None if b.hi is None else b.hi - 1
        if a.lo is not None and a.lo >= 0 and a.hi is not None:
            hi = a.hi if hi is None else min(hi, a.hi)
        return 0, hi
    if b.hi is not None and b.hi < 0:
        return (None if b.lo is None else b.lo + 1), 0
    return None, None


def of_min(args: Sequence[Ranged]) -> Range:
    """Return the range of a minimum."""
    los = [a.lo for a in args]
    his = [a.hi for a in args if a.hi is not None]
    return (None if None in los else min(los)), (min(his) if his else None)  # type: ignore[type-var]


def of_max(args: Sequence[Ranged]) -> Range:
    """Return the range of a maximum."""
    los = [a.lo for a in args if a.lo is not None]
    his = [a.hi for a in args]
    return (max(los) if los else None), (None if None in his else max(his))  # type: ignore[type-var]


RULES: dict[str, Callable[[Sequence[Ranged]], Range]] = {
    "mul": of_product,
    "floordiv": of_floordiv,
    "mod": of_mod,
    "min": of_min,
    "max": of_max,
}
