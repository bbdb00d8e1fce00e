"""The number of rounds of a `while` loop whose condition compares induction variables."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from framesmith.util.errors import Unsupported

from . import trackers as t
from .induction import Affine, affine

_STRICT: dict[Any, tuple[int, int]] = {
    operator.lt: (1, 0), operator.le: (1, -1), operator.gt: (-1, 0), operator.ge: (-1, -1)}
"""For `a op b` the sign and the sum that make it `sign * (a - b) + sum < 0`."""

_NEGATED: dict[Any, Any] = {
    operator.lt: operator.ge, operator.le: operator.gt, operator.gt: operator.le, operator.ge: operator.lt,
    operator.eq: operator.ne}


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition at the end of a round: the number is below zero, or, if `nonzero`, not zero."""

    number: Affine
    nonzero: bool

    def equals(self, other: Condition | None) -> bool:
        """Return whether both are known to be equal in all rounds."""
        return other is not None and self.nonzero is other.nonzero and self.number.equals(other.number)

    def trip_count(self) -> Any:
        """Return the number of rounds, the one at whose end it is first asked included."""
        first, step = self.number.first, self.number.step
        if self.nonzero:
            more = -first * step
            if abs(step) != 1 or not more >= 0:
                raise Unsupported("a while loop whose number of rounds is not known")
            return more + 1
        if step < 1:
            raise Unsupported("a while loop that no number of rounds ends")
        more = (step - 1 - first) // step
        return more + 1 if more >= 0 else 1


def condition(tracer: Any, loop: Any, x: t.Tracker, holds: bool) -> Condition:
    """Return the condition for another round: that the truth of `x` is `holds`. Raises Unsupported where induction
    variables do not decide it."""
    number, nonzero = affine(tracer, x) if holds else None, True
    fn = getattr(x, "fn", None) if holds else _NEGATED.get(getattr(x, "fn", None))
    if type(x) is t.Data and len(x.parts) == 2 and (fn in _STRICT or fn is operator.ne):
        a, b = [affine(tracer, p) for p in x.parts]
        if a is not None and b is not None:
            sign, more = _STRICT.get(fn, (1, 0))
            number = Affine(a.loop or b.loop, sign * (a.first - b.first) + more, sign * (a.step - b.step))
            nonzero = fn is operator.ne
            if None not in (a.loop, b.loop) and a.loop is not b.loop:
                number = None
    if number is None or number.loop is not loop or not number.step:
        raise Unsupported("the condition of a while loop is no comparison of a number that each round changes by a "
                          "constant with one that none changes")
    return Condition(number, nonzero)


__all__ = ["Condition", "condition"]
