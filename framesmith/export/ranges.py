"""The shape environment of an export: symbols with the names and ranges that the program declares, and what it asks of
them beyond these."""

from __future__ import annotations

import builtins
import itertools
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field

from framesmith.export.dims import Dim, Hint, Wish
from framesmith.symbolic.env import ShapeEnv, ShapeGuard
from framesmith.symbolic.expr import Expr, FloorDiv, Rel, Symbol, ge, linear, lt
from framesmith.util.errors import ExportError

USUAL = 2
"""Operators do the same for all sizes from here on; sizes of 0 and 1 broadcast, and leave strides open."""


class RangedEnv(ShapeEnv):
    """`inside`: an operator asks, not the program. It is answered as for the usual sizes where the range leaves 0 or 1
    open: eager's kernels make nothing of the difference. `reserved`: names of dimensions, which no size of data has.
    `unchecked`: the assumptions on sizes of data for which the graph has no assertion yet."""

    __slots__ = ("inside", "reserved", "unchecked", "wishes")
    probing = True

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.wishes: dict[str, Wish] = {}
        self.reserved: frozenset[str] = frozenset()
        self.unchecked: list[Rel] = []

    def _name_of_data(self) -> str:
        names = (f"u{k}" for k in itertools.count(len(self.data)))
        return next(name for name in names if name not in self.reserved and name not in self.hints)

    def declare(self, wish: Wish, size: int, label: str) -> Symbol:
        """Return the symbol of a named dimension or of a hint; `size`: that of the example."""
        name = wish.name if isinstance(wish, Dim) else _identifier(label)
        if keyword.iskeyword(name) or hasattr(builtins, name):
            name += "_"
        if name in self.wishes and isinstance(wish, Dim):
            symbol = next(s for s in self.symbols if s.name == name)
            old = self.wishes[name]
            assert isinstance(old, Dim)
            if (old.min, old.max) != (wish.min, wish.max):
                raise ExportError(f"{old} and {wish} have one name and different ranges")
            return symbol
        while name in self.wishes:
            name += "_"
        lo, hi = 1 if wish.min is None else wish.min, wish.max
        if isinstance(wish, Dim):
            size = (size - wish.offset) // wish.scale
        if wish.min is not None and size < wish.min or hi is not None and size > hi:
            raise ExportError(f"the example has the size {size} for {wish} ({label}), which is out of its range")
        symbol = Symbol(name, lo, hi)
        self.hints[name] = size if size >= USUAL else self._hint(max(lo, USUAL), hi)
        self.sources[symbol] = label
        self.symbols.append(symbol)
        self.wishes[name] = wish
        return symbol

    def _hint(self, lo: int, hi: int | None) -> int:
        """Return a size that is no other symbol's."""
        free = [n for n in range(lo + 1, lo + 2 + len(self.hints)) if n not in self.hints.values()]
        return lo if hi is not None and free[0] > hi else free[0]

    def guard(self, rel: Rel) -> bool:
        if self.inside and self.known(rel) is None:
            simple = rel.subs(self._simplify) if self._change else rel
            usual: dict[Expr, Expr | int] = {
                s: Symbol(f"{s.name}'", 0, None if s.hi is None else s.hi - USUAL) + USUAL for s in simple.free
                if s.lo is not None and s.lo <= USUAL and (s.hi is None or s.hi >= USUAL) and "/" not in s.name
                and (self.closed or s not in self.data)}
            if usual and (known := self.known(simple.subs(usual))) is not None:
                return known
        return super().guard(rel)


def _identifier(label: str) -> str:
    name = "".join(c if c.isalnum() else "_" for c in label).strip("_") or "size"
    return name if not name[0].isdigit() else f"s{name}"


@dataclass(frozen=True, slots=True)
class Dimension:
    """A symbol of an exported graph, with the sizes that it admits."""

    name: str
    lo: int
    hi: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.lo}.." if self.hi is None else f"{self.name}: {self.lo}..{self.hi}"


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that must hold between dimensions, and the user's line that requires it."""

    rel: Rel
    place: str = ""

    def __str__(self) -> str:
        return f"{self.rel}  # {self.place}" if self.place else str(self.rel)


@dataclass(frozen=True, slots=True)
class Violation:
    """A requirement of the program that contradicts the declared dimensions: `proposal` is the declaration to write
    instead."""

    text: str
    place: str
    line: str
    proposal: str

    def __str__(self) -> str:
        lines = [f"{self.text}, at {self.place}" if self.place else self.text, f"    {self.line}" if self.line else "",
                 f"  -> {self.proposal}"]
        return "\n".join(filter(None, lines))


class SpecialisedDimension(ExportError):
    """Dimensions that were to vary, and that the program ties down. `violations` has all of them."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("\n".join(["the program asks more of its dimensions than was declared:",
                                    *map(str, violations)]))
        self.violations = violations


@dataclass(slots=True)
class Constraints:
    """The constraints that the guards amount to."""

    dimensions: list[Dimension] = field(default_factory=list)
    relations: list[Relation] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


def settle(env: RangedEnv, guards: list[tuple[ShapeGuard, str, str]]) -> Constraints:
    """Return the ranges and relations that the guards (with the user's place and line) leave, and the declarations that
    they break."""
    out = Constraints()
    bounds = {s.name: [s.lo or 0, s.hi] for s in env.symbols}
    for guard, place, line in guards:
        for rel in guard.rel.args if guard.rel.op == "and" else (guard.rel,):
            if not _bound(env, rel, bounds, out, place, line):
                _relation(env, rel, out, place, line)
    out.dimensions = [Dimension(s.name, *bounds[s.name]) for s in env.symbols]  # type: ignore[arg-type]
    return out


def _bound(env: RangedEnv, rel: Rel, bounds: dict[str, list[int | None]], out: Constraints, place: str,
           line: str) -> bool:
    """Take a relation of one symbol with a number, if it is one."""
    if rel.op not in ("le", "ne", "eq"):
        return False
    terms, offset = linear(rel.args[0])
    if rel.op == "le" and len(terms) == 1 and isinstance(terms[0][0], FloorDiv) and terms[0][0].args[1].is_const:
        return _bound(env, _undivided(terms[0][0], terms[0][1], offset), bounds, out, place, line)
    if len(terms) != 1 or not isinstance(terms[0][0], Symbol):
        return False
    name, k = terms[0][0].name, terms[0][1]
    wish, (lo, hi) = env.wishes[name], bounds[name]
    assert lo is not None
    low: int = lo
    high: int | None = hi
    if rel.op == "eq":
        value = -offset // k
        if isinstance(wish, Hint) and wish.kind == "auto":
            bounds[name] = [value, value]
        else:
            out.violations.append(Violation(
                f"{name} is always {value} here", place, line,
                f"make it a constant (None or {value} for it in dynamic_shapes), or do not read its value there"))
        return True
    if rel.op == "ne":
        at = -offset // k
        if at < lo or hi is not None and at > hi:
            return True
        if at not in (lo, hi):
            return False
        if at == lo:
            low = lo + 1
        else:
            high = at - 1
    elif k > 0:
        high = -offset // k if hi is None else min(hi, -offset // k)
    else:
        low = max(lo, -(offset // k))
    free = isinstance(wish, Hint)
    if low > lo and not free and wish.min is not None or high != hi and not free:
        kind, edge = ("min", low) if low > lo else ("max", high)
        out.violations.append(Violation(f"{name} is taken to be at {'least' if kind == 'min' else 'most'} {edge} here",
                                        place, line, f"declare {_declared(wish, kind, edge)}"))
    bounds[name] = [max(low, lo), high]
    return True


def _undivided(quotient: FloorDiv, k: int, offset: int) -> Rel:
    """k * (e // c) + offset <= 0, without the division."""
    e, c = quotient.args[0], quotient.args[1].const
    if k > 0:  # e // c <= q -> e < (q + 1) * c
        return lt(e, (-offset // k + 1) * c)
    return ge(e, -(offset // k) * c)  # e // c >= q -> e >= q * c


def _declared(wish: Wish, kind: str, value: int | None) -> Dim:
    assert isinstance(wish, Dim)
    return Dim(wish.name, value if kind == "min" else wish.min, value if kind == "max" else wish.max)


def _relation(env: RangedEnv, rel: Rel, out: Constraints, place: str, line: str) -> None:
    names = sorted({s.name for s in rel.free})
    named = [n for n in names if isinstance(env.wishes.get(n), Dim)]
    if len(named) == len(names):
        out.violations.append(Violation(f"{rel} is taken to hold here", place, line, _proposal(rel, names)))
    out.relations.append(Relation(rel, place))


def _proposal(rel: Rel, names: list[str]) -> str:
    if rel.op == "eq":
        terms, offset = linear(rel.args[0])
        symbols = [t for t, _ in terms if isinstance(t, Symbol)]
        if len(symbols) == len(terms) == 2:
            first, second = terms
            one = first if abs(first[1]) == 1 else second
            other = second if one is first else first
            if abs(one[1]) == 1:
                scale, shift = -other[1] * one[1], -offset * one[1]
                text = other[0].text if scale == 1 else f"{scale} * {other[0].text}"
                text += f" {'-' if shift < 0 else '+'} {abs(shift)}" if shift else ""
                same = "use one Dim for both" if text == other[0].text else f"declare it as {text}"
                return f"{one[0].text} is {text}: {same}"
        if len(terms) == 1 and type(terms[0][0]).__name__ == "Mod" and not offset:
            num, den = terms[0][0].args
            if isinstance(num, Symbol) and den.is_const:
                return f'declare {num} as {den.const} * Dim("{num}_{den.const}")'
    return f"use Dim.AUTO for {' and '.join(names)}, or make {'them constants' if names[1:] else 'it a constant'}"


def check(constraints: Constraints, values: Mapping[str, int]) -> None:
    """Raise ValueError where sizes do not fit."""
    for d in constraints.dimensions:
        size = values.get(d.name)
        if size is not None and (size < d.lo or d.hi is not None and size > d.hi):
            raise ValueError(f"{d.name} is {size}; the program was exported for {d}")
    for relation in constraints.relations:
        if not relation.rel.evaluate(values):
            raise ValueError(f"{relation} does not hold for "
                             f"{', '.join(f'{s.name} = {values[s.name]}' for s in relation.rel.free)}")


def solve(sizes: Expr, value: int) -> tuple[str, int] | None:
    """Name and value of the symbol for which a size `scale * symbol + offset` is `value`; None if there is none."""
    terms, offset = linear(sizes)
    if len(terms) != 1 or not isinstance(terms[0][0], Symbol):
        return None
    k = terms[0][1]
    return None if (value - offset) % k else (terms[0][0].name, (value - offset) // k)
