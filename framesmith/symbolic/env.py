"""The shape environment of one capture: its symbols with their hints, its guards, and the facts that they imply.

A guard is recorded once, in the symbols as they were made; what is learnt from it (equalities, ranges, divisibility)
decides later questions without a further guard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from framesmith.symbolic.expr import (
    Expr,
    FloorDiv,
    Int,
    Mod,
    Product,
    Rel,
    Substitution,
    Symbol,
    as_expr,
    eq,
    factors,
    ge,
    gt,
    linear,
    lt,
    not_,
    prod,
)
from framesmith.util.errors import DataDependent, GuardError, UnfitSizes, Unsupported

Frame = tuple[str, int, str]


@dataclass(frozen=True)
class ShapeGuard:
    """A relation that must hold for the graph to be used, and where in the user's program it was asked for."""

    rel: Rel
    stack: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        return f"{self.rel}" + (f"  # {self.stack[-1][0]}:{self.stack[-1][1]}" if self.stack else "")


class Late(NamedTuple):
    """Relations between sizes that were assumed when the guards were complete, of symbols that are `known` then."""

    relations: list[Rel]
    known: frozenset[Symbol]


class ShapeEnv:
    """Symbols, hints and guards. `where` returns the user's present stack. `closed`: the guards are complete, and a
    relation that they do not decide is an error. `data`: the symbols that cannot be guarded: those that the graph
    computes, and those of inputs, `given`, that the program has declared so. `small`: symbols that may be 0 or 1,
    including all of `data`. `asked_by`: who evaluates relations: derivatives' "formulas", whose shortcuts for sizes of
    0 and 1 agree with the general case, or C++ operators, "composites", of which only the shortcuts for 1 do.
    `assumed`: assumptions on `data`, which the graph checks at run time. `narrow`: quotients and remainders of sizes
    are not assumed to be large in questions of layout; `layout_assumptions`: the relations that were decided by that
    assumption, or by one on a symbol of `exact`: symbols of `small` for which size 1 must give eager's layout where it
    is visible. `copies`: relations under which eager makes a copy that the graph makes always, see `may_copy`. `late`:
    see `assuming`, `supposed`: see `supposing`, `held`: see `holding`."""

    __slots__ = ("asked_by", "assumed", "closed", "copies", "data", "exact", "given", "held", "hints", "late", "small",
                 "sources", "supposed", "symbols", "guards", "where", "narrow", "layout_assumptions", "_names",
                 "_facts", "_equal", "_change", "_canonical", "_simplify")

    probing = False
    """Operators without a shape rule are probed at several sizes, not only at the hints."""

    def __init__(self) -> None:
        self.closed = False
        self.late: Late | None = None
        self.supposed = False
        self.asked_by = ""
        self.assumed: list[Rel] = []
        self.held: list[Rel] = []
        self.narrow = False
        self.layout_assumptions: list[Rel] = []
        self.copies: list[Rel] = []
        self.data: set[Symbol] = set()
        self.given: set[Symbol] = set()
        self.small: set[Symbol] = set()
        self.exact: set[Expr] = set()
        self.hints: dict[str, int] = {}
        self.sources: dict[Symbol, Any] = {}
        self.symbols: list[Symbol] = []
        self.guards: list[ShapeGuard] = []
        self.where: Callable[[], tuple[Frame, ...]] = tuple
        self._names = itertools.count()
        self._facts: dict[Rel, None] = {}
        self._equal: dict[Expr, Expr] = {}  # over the environment's own symbols only
        self._change: dict[Expr, Expr] = {}  # also narrowed symbols and quotients
        self._canonical = Substitution({})
        self._simplify = Substitution({})

    # --- symbols
    def new_symbol(self, hint: int, source: Any, *, lo: int = 2, hi: int | None = None,
                   specialise: bool = True, guarded: bool = True) -> Expr:
        """Return a symbol for an integer that is `hint` now; the constant itself for 0 and 1 (`specialise`). `guarded`:
        guards may be taken of it.

        The caller guards that a specialised integer stays what it is.
        """
        if specialise and hint in (0, 1):
            return Int(hint)
        symbol = Symbol(f"{'s' if guarded else 'g'}{next(self._names)}", min(lo, hint), hi)
        if not specialise:
            self.small.add(symbol)
        if not guarded:
            self.data.add(symbol)
            self.given.add(symbol)
        self.hints[symbol.name] = hint
        self.sources[symbol] = source
        self.symbols.append(symbol)
        return symbol

    def data_symbol(self, lo: int | None, hi: int | None, source: Any) -> Symbol:
        """Return a symbol for an integer that the graph computes, in [lo, hi]. Its hint is a guess."""
        symbol = Symbol(self._name_of_data(), lo, hi)
        most = 64 if hi is None else hi
        self.hints[symbol.name] = max(most // 2, lo if lo is not None else most // 2)
        self.sources[symbol] = source
        self.data.add(symbol)
        self.small.add(symbol)
        return symbol

    def _name_of_data(self) -> str:
        return f"u{len(self.data) - len(self.given)}"

    def hint(self, e: Expr | int) -> int:
        """Return the value of `e` for the inputs of this capture."""
        return e if isinstance(e, int) else e.evaluate(self.hints)

    # --- knowledge
    def canonical(self, e: Expr) -> Expr:
        """`e` with symbols that are guarded to be equal replaced by one of them."""
        return self._canonical(e) if self._equal else e

    def simplify(self, e: Expr) -> Expr:
        """`e` with all that the guards imply; it may name narrowed symbols and quotients, so it is for decisions
        only."""
        for _ in range(4):
            after = self._simplify(e)
            if after is e:
                break
            e = after
        return e

    def known(self, rel: Rel) -> bool | None:
        """Return the truth of `rel` if ranges and the guards taken decide it; takes no guard."""
        if rel.known is not None:
            return rel.known
        if rel in self._facts or rel in self.held:
            return True
        if not_(rel) in self._facts or not_(rel) in self.held:
            return False
        if self._change:
            rel = rel.subs(self._simplify)
            if rel.known is not None:
                return rel.known
        if rel.op in ("and", "or"):
            return _CONNECT[rel.op]([self.known(r) for r in rel.args])
        if (shifted := _from_zero(rel)).known is not None:
            return shifted.known
        return True if self._implied(rel) else False if self._implied(not_(rel)) else None

    def _implied(self, rel: Rel) -> bool:
        """Return whether a known `f <= 0` gives `e <= 0` because e - f never exceeds 0."""
        if rel.op == "ne":
            return self._implied(lt(rel.args[0], 0)) or self._implied(gt(rel.args[0], 0))
        if rel.op != "le":
            return rel in self._facts or rel in self.held
        if _is_negative_without_floors(rel.args[0] - 1):
            return True
        for fact in (*self._facts, *self.held):
            if fact.op == "le":
                gap = (rel.args[0] - self.simplify(fact.args[0])).hi
                if gap is not None and gap <= 0:
                    return True
        return False

    # --- guards
    def guard(self, rel: Rel) -> bool:
        """Return the truth of `rel` for the present inputs; a guard is recorded if it is not known already. Raises
        GuardError if the environment is closed, and DataDependent for what only the graph can tell."""
        known = self.known(rel)
        if known is not None:
            return known
        if self.data and not self.data.isdisjoint(rel.free):
            raise DataDependent(f"whether {rel}, of a size or number that is known at run time only,",
                                symbols=self.given & rel.free)
        return self._taken(rel)

    def _taken(self, rel: Rel) -> bool:
        if self.supposed:
            raise Unsupported(f"whether {rel}, under an assumption")
        truth = rel.evaluate(self.hints)
        holds = rel if truth else not_(rel)
        if not self.closed:
            self.guards.append(ShapeGuard(holds, self.where()))
            self._learn(holds)
        elif self.late is not None and (own := holds.subs(self._canonical)).free <= self.late.known:
            self.late.relations.append(own)
        else:
            raise GuardError(f"a back end asks whether {rel}, which the guards do not decide")
        return truth

    @contextmanager
    def assuming(self, sizes: Mapping[Symbol, int]) -> Iterator[list[Rel]]:
        """Decide what the guards of a closed environment do not for these values of canonical symbols; gives the
        relations that are so assumed. For what is compiled late, and used for sizes of which they hold."""
        before = self.hints, self.late
        canonical = {s.name: self.canonical(s) for s in self.symbols}
        values = {name: e.evaluate(sizes) for name, e in canonical.items() if e.free <= sizes.keys()}
        self.hints, self.late = self.hints | values, Late([], frozenset(sizes))
        try:
            yield self.late.relations
        finally:
            self.hints, self.late = before

    @contextmanager
    def holding(self, rel: Rel | None) -> Iterator[None]:
        """Decide questions by `rel`, too, which holds wherever what is recorded in the block runs."""
        if rel is None:
            yield
            return
        e = rel.args[0]
        self.held.append(ge(e, 1) if rel.op == "ne" and e.lo == 0 else rel)
        try:
            yield
        finally:
            self.held.pop()

    def knowledge(self) -> tuple[Any, ...]:
        """Return what is known and assumed."""
        return dict(self._facts), self._equal, self._change, self._canonical, self._simplify, list(self.assumed)

    def know(self, knowledge: tuple[Any, ...]) -> None:
        """Know and assume no more than at an earlier time: no graph is made of what was recorded since."""
        self._facts, self._equal, self._change, self._canonical, self._simplify, self.assumed = knowledge

    @contextmanager
    def supposing(self, rel: Rel) -> Iterator[None]:
        """Decide questions as if `rel` held, which may be false for the present inputs. No guard is taken: a question
        that is not decided raises Unsupported."""
        before = self._facts, self._equal, self._change, self._canonical, self._simplify, self.supposed
        self._facts, self.supposed = dict(self._facts), True
        self._learn(rel)
        try:
            yield
        finally:
            self._facts, self._equal, self._change, self._canonical, self._simplify, self.supposed = before

    def may_copy(self, rel: Rel) -> bool:
        """Return whether the graph may always make a copy that eager makes if `rel`, which is not decided, holds. The
        relation is guarded where the program can tell the copy from the tensor."""
        return not self.closed and not self.narrow and self.data.isdisjoint(rel.free)

    def decide_layout(self, rel: Rel, general: bool | None = None) -> bool:
        """Return the truth of `rel` as `guard` has it; of symbols and of quotients of sizes that may be 0 or 1, and of
        remainders that may be 0, that for other values. It is for questions of layout: what is right for such sizes is
        right for 0 and 1, too. `general`: see `SymNode`; the answer where the graph alone can tell."""
        if (known := self.known(rel)) is not None:
            return known
        large: dict[Expr, Expr] = {s: Symbol(s.name, max(s.lo or 0, 2), s.hi) for s in self.small & rel.free}
        derived = {} if self.narrow else {q: Symbol(f"{least} or more: {q}", least, q.hi) for q, least in _small(rel)}
        if large or derived:
            known = self.known(rel.subs(Substitution({**large, **derived})))
        if known is None and self._change and (names := {_origin(s) for s in self.data & rel.free}):
            learnt = rel.subs(self._simplify)  # in quotients, say, which are sizes as well
            known = self.known(learnt.subs(Substitution({s: Symbol(s.name, max(s.lo or 0, 2), s.hi)
                                                         for s in learnt.free if _origin(s) in names})))
        if known is None and general is not None and not self.data.isdisjoint(rel.free):
            return general
        if known is None:
            return self.guard(rel)
        if derived:
            self.layout_assumptions.append(rel if known else not_(rel))
        return known

    def may_be_one(self, e: Expr) -> bool:
        """Return whether a size is one of `exact` that may be 1."""
        return e in self.exact and self.known(ge(e, 2)) is None

    def is_large(self, e: Expr) -> bool:
        """Return the truth of `e >= 2`, guarded, for a size that decided a layout under that assumption, or has such
        quotients; True for others."""
        if not self.layout_assumptions or not self.data.isdisjoint(e.free):
            return True
        large = ge(e, 2)
        decisive = large in self.layout_assumptions or any(type(q) is FloorDiv for q, _ in _small(e))
        return not decisive or self.guard(large)

    def asked(self, rel: Rel, general: bool | None = None) -> bool:
        """Return the truth of `rel` for C++ that asks: see `asked_by`."""
        if self.asked_by == "composites" and self.known(rel) is None:
            for symbol in sorted(self.small & rel.free - self.data, key=str):
                self.guard(gt(symbol, 0))
        return self.decide_layout(rel, general) if self.asked_by else self.guard(rel)

    def expect(self, rel: Rel) -> bool:
        """Return the truth of `rel`, where a program in which it does not hold raises. Of values that only the graph
        can tell it is assumed; of those of inputs it is looked at before."""
        if not self.data or self.closed or self.data.isdisjoint(rel.free) or self.known(rel) is not None:
            return self.guard(rel)
        if self.data & rel.free <= self.given:
            if not self._taken(rel):
                raise UnfitSizes(f"{rel} does not hold")
            return True
        self.assumed.append(rel)
        self._learn(rel)
        for s, divisor in _cut(rel):
            if self.known(ge(s, 1)) is None:
                self.assumed.append(ge(s, 1))
                self._learn(ge(s, 1))
            if (even := eq(self.simplify(s) % divisor, 0)).known is None:
                self._learn(even)
        return True

    def specialise(self, e: Expr | int) -> int:
        """Return the value of `e` now, guarded to stay that."""
        e = as_expr(e)
        small = self.simplify(e)
        if small.is_const:
            return small.const
        value = self.hint(e)
        if not self.guard(eq(e, value)):
            raise GuardError(f"{e} is not its own hint {value}")
        return value

    def square_root(self, e: Expr) -> Expr | None:
        """Return the root of a product of factors that are equal in pairs, which is guarded where it is not known; None
        if `e` is none for the present inputs."""
        terms, offset = linear(self.canonical(e))
        if len(terms) != 1 or offset or terms[0][1] < 0 or math.isqrt(terms[0][1]) ** 2 != terms[0][1]:
            return None
        ordered = sorted(factors(terms[0][0]), key=lambda f: (self.hint(f), str(f)))
        pairs = list(zip(ordered[::2], ordered[1::2]))
        if len(ordered) % 2 or any(self.known(ge(a, 0)) is not True or self.hint(a) != self.hint(b) for a, b in pairs):
            return None
        return prod([a for a, b in pairs if self.guard(eq(a, b))]) * math.isqrt(terms[0][1])

    def fixed_by(self, symbol: Symbol) -> ShapeGuard | None:
        """Return the first guard after which a symbol has only one possible value; None if it has several."""
        if not self.simplify(symbol).is_const:
            return None
        replayed = ShapeEnv()
        replayed.hints, replayed.symbols = dict(self.hints), self.symbols
        for guard in self.guards:
            replayed._learn(guard.rel)
            if replayed.simplify(symbol).is_const:
                return guard
        return None

    def check(self, values: Mapping[Any, int]) -> ShapeGuard | None:
        """Return the first guard that fails for other values of the symbols (by symbol or name)."""
        return next((g for g in self.guards if not g.rel.evaluate(values)), None)

    # --- learning
    def _learn(self, rel: Rel) -> None:
        self._facts[rel] = None
        simple = rel.subs(self._simplify) if self._change else rel
        _LEARN[simple.op](self, simple)

    def _learn_all(self, rel: Rel) -> None:
        for part in sorted(rel.args, key=lambda part: part.op == "or"):
            self._learn(part)

    def _learn_nothing(self, rel: Rel) -> None:
        """Record a relation only as a fact."""

    def _learn_or(self, rel: Rel) -> None:
        left = [part for part in rel.args if self.known(part) is not False] if self.supposed else []
        if len(left) == 1:
            self._learn(left[0])

    def _learn_ne(self, rel: Rel) -> None:
        terms, offset = linear(rel.args[0])
        atom, value = terms[0][0], -offset
        if self.supposed and len(terms) == 1 and value in (atom.lo, atom.hi):
            self._learn(ge(atom, value + 1) if value == atom.lo else lt(atom, value))

    def _learn_le(self, rel: Rel) -> None:
        terms, offset = linear(rel.args[0])
        if len(terms) != 1:
            return
        symbol, k = terms[0]
        if not isinstance(symbol, Symbol) and not self.supposed:
            return
        lo, hi = symbol.lo, symbol.hi
        if k > 0:
            hi = -offset // k if hi is None else min(hi, -offset // k)
        else:
            bound = -(offset // k)  # k < 0: symbol >= ceil(offset / -k)
            lo = bound if lo is None else max(lo, bound)
        if lo == hi and lo is not None and not isinstance(symbol, Symbol):
            self._learn_eq(eq(symbol, lo))
        elif (lo, hi) != (symbol.lo, symbol.hi):
            self._replace(symbol, Int(lo) if lo == hi and lo is not None else Symbol(symbol.text, lo, hi))

    def _learn_eq(self, rel: Rel) -> None:
        e = rel.args[0]
        terms, offset = linear(e)
        solved: list[Symbol] = [t for t, k in terms if isinstance(t, Symbol) and abs(k) == 1 and e.coeff(t) is not None]
        computed = {s.name for s in self.data - self.given}  # ranges may have been learnt, which make other symbols
        if any(_origin(s) in computed for s in e.free):  # the sizes of inputs are not expressed by what is computed
            solved = [t for t in solved if _origin(t) in computed]
        if solved:
            symbol = max(solved, key=lambda s: (s.name.count("/"), len(s.name), s.name))
            k = e.coeff(symbol) or 1
            self._replace(symbol, (e - symbol * k) * -k)
            return
        if len(terms) == 2 and not offset and terms[0][1] == -terms[1][1]:
            self._learn_same(*sorted([t for t, _ in terms], key=lambda t: t.uid))
        elif len(terms) > 1 and self.supposed:
            self._learn_quotient(e)
        if len(terms) != 1:
            return
        atom, k = terms[0]
        if isinstance(atom, Mod) and not offset and isinstance(atom.num, Symbol) and atom.den.is_const:
            self._learn_divisible(atom.num, atom.den.const)
        elif self.supposed and isinstance(atom, Mod) and not offset and len(linear(atom.num)[0]) == 1:
            self._learn_multiple(atom)
        elif isinstance(atom, Mod) and (divided := _divided(atom, -offset // k)) is not None:
            self._learn_divisible(divided, atom.den.const)
        elif not offset % k:
            self._replace(atom, Int(-offset // k))

    def _learn_same(self, early: Expr, late: Expr) -> None:
        """Two quotients, say, are equal: write one for the other, which has no part in it."""
        if early.subs({late: Int(0)}) is early:
            self._replace(late, early)

    def _learn_quotient(self, e: Expr) -> None:
        """The sum is 0: write a quotient in it, which is no part of another term, as the others."""
        for t, k in linear(e)[0]:
            others = (e - t * k) * -k
            if isinstance(t, FloorDiv) and abs(k) == 1 and others.subs({t: Int(0)}) is others:
                self._replace(t, others)
                return

    def _learn_multiple(self, remainder: Mod) -> None:
        """The remainder is 0: write what is divided as a multiple of the divisor, and its quotient rounded up as the
        one rounded down."""
        self._replace(remainder, Int(0))
        ((atom, k),), offset = linear(remainder.num)
        den, num = remainder.den, atom + offset * k
        down, up = num // den, -(-num // den)
        if abs(k) != 1:
            return
        if down.subs({atom: Int(0)}) is not down:
            down = Symbol(down.text, down.lo, down.hi)
        elif isinstance(up, FloorDiv):
            self._replace(up, down)
        self._replace(atom, den * down - offset * k)

    def _learn_divisible(self, symbol: Symbol, c: int) -> None:
        """symbol % c == 0: write symbol as c times a quotient."""
        name, _, divisor = symbol.name.partition("/")
        lo = None if symbol.lo is None else -(-symbol.lo // c)
        quotient = Symbol(f"{name}/{int(divisor or 1) * c}", lo, None if symbol.hi is None else symbol.hi // c)
        self.hints[quotient.name] = self.hints[symbol.name] // c
        self._replace(symbol, quotient * c)

    def _replace(self, atom: Expr, value: Expr) -> None:
        step = Substitution({atom: value})
        self._change = {k: step(v) for k, v in self._change.items()}
        self._change[atom] = value
        self._simplify = Substitution(self._change)
        own = {s.name: s for s in (*self.symbols, *self.data)}
        target, rest = (e.subs({s: own[s.name] for s in e.free if s.name in own}) for e in (atom, value))
        if isinstance(atom, Symbol):
            apart = target is not rest and target not in rest.free
        else:  # products, say, of sizes: what is computed is expressed by sizes of inputs, not they by it
            apart = type(target) is Product and self.data.isdisjoint(rest.free)
        if apart and all(s.name in own for s in target.free | rest.free):
            move = Substitution({target: rest})
            self._equal = {k: move(v) for k, v in self._equal.items()}
            self._equal[target] = rest
            self._canonical = Substitution(self._equal)

    def __str__(self) -> str:
        lines = [f"{s} = {self.hints[s.name]}  # {self.sources[s]}" for s in self.symbols]
        return "\n".join(lines + [f"guard {g}" for g in self.guards])


def _origin(symbol: Symbol) -> str:
    """Return the name of the symbol that one with a narrower range, or a quotient, is made of."""
    return symbol.name.partition("/")[0]


def _cut(rel: Rel) -> Iterator[tuple[Symbol, int]]:
    """Yield the symbols that an equation says to be cut into equal parts, with the number of elements of a part: s * t
    == 2*(s // 2) * 3*(t // 3) of positive symbols says that 2 divides s and 3 divides t, since no factor is larger than
    its counterpart."""
    terms, offset = linear(rel.args[0]) if rel.op == "eq" else ([], 1)
    if offset or len(terms) != 2:
        return
    (whole, k), (parts, n) = sorted(terms, key=lambda term: any(isinstance(f, FloorDiv) for f in factors(term[0])))
    cut = [(f.num, f.den.const) for f in factors(parts) if isinstance(f, FloorDiv) and f.den.is_const]
    symbols = [s for s, _ in cut]
    if (all(isinstance(s, Symbol) for s in symbols) and sorted(factors(whole), key=id) == sorted(symbols, key=id)
            and len(symbols) == len(factors(parts)) and n == -k * math.prod(divisor for _, divisor in cut)):
        yield from cut  # type: ignore[misc]


def _divided(remainder: Mod, value: int) -> Symbol | None:
    """Return the symbol that the divisor divides if a remainder has this value; None if there is none."""
    terms, offset = linear(remainder.num)
    if len(terms) != 1 or not remainder.den.is_const:
        return None
    ((symbol, k),) = terms
    if not isinstance(symbol, Symbol) or abs(k) != 1:
        return None
    divisor = remainder.den.const
    return symbol if 0 <= value < divisor and (value - offset) % divisor == 0 else None


def _from_zero(rel: Rel) -> Rel:
    """Return the relation in symbols that begin at 0, each less its least value: s*t - t >= 1 is s'*t' + s' + 2*t' + 1
    >= 0, where s, t >= 2, so that the ranges of the terms decide."""
    return rel.subs({s: Symbol(f"{s.name}-{s.lo}", 0, None if s.hi is None else s.hi - s.lo) + s.lo
                     for s in rel.free if s.lo})


def _is_negative_without_floors(e: Expr) -> bool:
    """Return whether e < 0 follows from (x - c + 1) / c <= x // c <= x / c for the quotients in a sum: x <= c * ((x + c
    - 1) // c), say."""
    terms, offset = linear(e)
    floors: dict[Expr, int] = {t: t.den.const for t, _ in terms if isinstance(t, FloorDiv) and t.den.is_const}
    if not floors or min(floors.values()) < 1:
        return False
    whole = math.lcm(*floors.values())
    bound: Expr = Int(offset * whole)
    for t, k in terms:
        share = k * whole // floors.get(t, 1)
        bound = bound + (t if t not in floors else t.num - (floors[t] - 1 if k < 0 else 0)) * share  # type: ignore[attr-defined]
    return bound.hi is not None and bound.hi < 0


def _small(e: Expr | Rel) -> Iterator[tuple[Expr, int]]:
    """Yield the quotients in an expression or a relation that ranges let be 0 or 1, the remainders that may be 0, none
    within another; with the least of their other values."""
    least = 2 if isinstance(e, FloorDiv) else 1
    if isinstance(e, FloorDiv | Mod) and e.lo in (0, least - 1):
        if e.hi is None or e.hi >= least:
            yield e, least
    else:
        for part in e.args:
            yield from _small(part)


_LEARN: dict[str, Callable[[ShapeEnv, Rel], None]] = {
    "le": ShapeEnv._learn_le,
    "eq": ShapeEnv._learn_eq,
    "and": ShapeEnv._learn_all,
    "ne": ShapeEnv._learn_ne,
    "or": ShapeEnv._learn_or,
    "true": ShapeEnv._learn_nothing,
    "false": ShapeEnv._learn_nothing,
}


def _all_of(truths: list[bool | None]) -> bool | None:
    return False if False in truths else None if None in truths else True


def _any_of(truths: list[bool | None]) -> bool | None:
    return True if True in truths else None if None in truths else False


_CONNECT: dict[str, Callable[[list[bool | None]], bool | None]] = {"and": _all_of, "or": _any_of}
