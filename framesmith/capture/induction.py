"""Induction variables: integers that a loop changes by a constant in each round, and sums and multiples of these."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from framesmith.symbolic.expr import Int
from framesmith.symbolic.node import expr_of

from . import trackers as t

_COMBINED: dict[Any, Callable[[Any, Any], Any]] = {
    operator.add: operator.add, operator.iadd: operator.add, operator.sub: operator.sub, operator.isub: operator.sub,
    operator.mul: operator.mul, operator.imul: operator.mul}


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer that is `first + step * k` in round k of `loop`, from 0; one of no loop is the same in all rounds."""

    loop: Any
    first: Any
    step: int = 0

    def after(self, rounds: Any) -> Any:
        """Return the value in the round after this number of rounds."""
        return self.first + self.step * rounds

    def least(self, rounds: Any) -> Any:
        """Return the least value in this number of rounds."""
        return self.first if self.step >= 0 else self.after(rounds - 1)

    def equals(self, other: Affine | None) -> bool:
        """Return whether both are known to be equal in all rounds."""
        return other is not None and self.loop is other.loop and self.step == other.step and difference(
            self.first, other.first) == 0


def difference(a: Any, b: Any) -> int | None:
    """Return `a - b` if it is the same number for all sizes."""
    found = expr_of(a - b)
    return found.value if isinstance(found, Int) else None


def affine(tracer: Any, x: t.Tracker) -> Affine | None:
    """Return an induction variable, or a number that is the same in all rounds; None for other values."""
    if id(x) in tracer.counters:
        return tracer.counters[id(x)][1]  # type: ignore[no-any-return]
    if is_integer(tracer, x):
        return Affine(None, tracer.size_or_real(x))
    fn = _COMBINED.get(x.fn) if type(x) is t.Data and x.kind is int and len(x.parts) == 2 else None
    if fn is None:
        return None
    a, b = [affine(tracer, p) for p in x.parts]  # type: ignore[attr-defined]
    if a is None or b is None or a.loop is not None and b.loop is not None and a.loop is not b.loop:
        return None
    if fn is operator.mul:
        factor, a = (a, b) if a.loop is None else (b, a)
        return Affine(a.loop, a.first * factor.first, a.step * factor.first) if type(factor.first) is int else None
    return Affine(a.loop or b.loop, fn(a.first, b.first), fn(a.step, b.step))


def is_integer(tracer: Any, x: t.Tracker | None) -> bool:
    """Return whether a value is an integer of the program or of sizes, and none of data."""
    if type(x) is t.Sym:
        return isinstance(x.value, torch.SymInt)
    return type(x) is t.Const and type(x.value) is int or type(x) is t.SymbolicNumber and tracer.may_be_size(x)


def tracker_of(n: Any) -> t.Tracker:
    """Return an integer as a value of the program."""
    return t.Sym(n) if isinstance(n, torch.SymInt) else t.Const(n)
