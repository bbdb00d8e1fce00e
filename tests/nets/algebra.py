"""Random expressions of the integer algebra against SymPy and against evaluation: `python -m tests.nets.algebra
--count N --seed S --jobs J`.

A case is one expression over symbols of some ranges, and what is said of it: its value, text, range, pickled form and
substitutions at random points; SymPy's value and, of polynomials, SymPy's normal form; relations with another
expression, and whether SymPy decides them otherwise; what a shape environment concludes from guards on them; ratios
that are rounded and compared.
"""

from __future__ import annotations

import argparse
import itertools
import math
import pickle
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import sympy

from framesmith.symbolic import floats
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.expr import Expr, Symbol, and_, as_expr, eq, ge, gt, le, linear, lt, max_, min_, ne, not_, or_
from framesmith.symbolic.floats import FloatExpr, as_float
from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict

Tree = Any
"""A name, an integer, or (operator, tree, ...)."""
Point = dict[str, int]
NAMES = "abcds"
CONSTANTS = (0, 1, 2, 3, 4, 6, 8, 16, 24, 32, -1, -3, 7, 12)
DIVISORS = (1, 2, 3, 4, 6, 8, 16, 24, 32, -3, -4)
Operators = Mapping[str, Callable[..., Any]]
ARITHMETIC: Operators = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "scaled": lambda x, y, k: (x * k + y) // k + (x * k + y) % k,
    "joined": lambda x, k, m: x % k + x // k % m * k - x // k * k,
    "up": lambda x, k: (x + k - 1) // k * k,
}
PLAIN: Operators = ARITHMETIC | {"min": min, "max": max}
OURS: Operators = ARITHMETIC | {"min": min_, "max": max_}


def _floor(x: Any, y: Any) -> Any:
    return sympy.floor(x / y) if y != 0 else _undefined()


def _undefined() -> Any:
    raise ZeroDivisionError


SYMPY: Operators = {
    **{name: ARITHMETIC[name] for name in "+-*"}, "//": _floor, "%": sympy.Mod, "min": sympy.Min, "max": sympy.Max,
    "scaled": lambda x, y, k: _floor(x * k + y, k) + sympy.Mod(x * k + y, k),
    "joined": lambda x, k, m: sympy.Mod(x, k) + sympy.Mod(_floor(x, k), m) * k - _floor(x, k) * k,
    "up": lambda x, k: _floor(x + k - 1, k) * k,
}
SYMPYS_OWN = "SymPy says"
"""How a difference begins in which Python is on our side."""
RELATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., bool]]] = {
    "<": (lt, sympy.Lt, lambda x, y: x < y), "<=": (le, sympy.Le, lambda x, y: x <= y),
    ">": (gt, sympy.Gt, lambda x, y: x > y), ">=": (ge, sympy.Ge, lambda x, y: x >= y),
    "==": (eq, sympy.Eq, lambda x, y: x == y), "!=": (ne, sympy.Ne, lambda x, y: x != y),
}


@dataclass(frozen=True)
class Variables:
    """The symbols of a case; `least` and `most` of each that is bounded by numbers, and below `below` for one whose
    greatest value is another symbol's less one."""

    ours: dict[str, Symbol]
    least: dict[str, int | None]
    most: dict[str, int | None]
    below: dict[str, str]

    def point(self, draw: random.Random) -> Point:
        """Values within the ranges."""
        found: Point = {}
        for name in reversed(NAMES):
            low, high = self.least[name], self.most[name]
            if name in self.below:
                high = found[self.below[name]] - 1
            low = (-60 if high is None else high - 60) if low is None else low
            found[name] = draw.randint(low, low + draw.choice((3, 60)) if high is None else high)
        return found


def variables(draw: random.Random) -> Variables:
    """Symbols bounded on both sides, on one, on none, or by another symbol."""
    ours: dict[str, Symbol] = {}
    least: dict[str, int | None] = {}
    most: dict[str, int | None] = {}
    below: dict[str, str] = {}
    for name in reversed(NAMES):
        low = draw.choice((0, 0, 1, 2, 2, -5, None))
        high = draw.choice((None, None, 1, 7, 31)) if low is not None else draw.choice((None, 9))
        if low is not None and high is not None:
            high = max(low, high)
        outer = draw.choice(sorted(ours)) if ours else None
        if outer and low == 0 and draw.random() < 0.4 and (least[outer] or 0) >= 1 and outer not in below:
            below[name], high = outer, None
        least[name], most[name] = low, high
        ours[name] = Symbol(name, low, ours[below[name]] - 1 if name in below else high)
    return Variables(ours, least, most, below)


def tree(draw: random.Random, leaves: int, operators: tuple[str, ...]) -> Tree:
    """A random tree of at most so many leaves."""
    if leaves <= 1:
        return draw.choice(NAMES) if draw.random() < 0.7 else draw.choice(CONSTANTS)
    op = draw.choice(operators)
    if op in ("//", "%", "up"):
        divisor = draw.choice(DIVISORS) if op == "up" or draw.random() < 0.7 else draw.choice(("d", "s", ("*", "s", 4),
                                                                                              ("*", "d", "s")))
        return op, tree(draw, leaves - 1, operators), abs(divisor) if op == "up" else divisor
    if op == "joined":
        return op, tree(draw, leaves - 1, operators), draw.choice((2, 4, 8, 32)), draw.choice((2, 3, 8))
    left = draw.randint(1, leaves - 1)
    both = tree(draw, left, operators), tree(draw, leaves - left, operators)
    return (op, *both, draw.choice((2, 4, 8, 32))) if op == "scaled" else (op, *both)


ALL = ("+", "+", "-", "*", "*", "//", "//", "%", "%", "min", "max", "scaled", "joined", "up")
POLYNOMIAL = ("+", "-", "*")


def build(of: Tree, leaf: Mapping[str, Any], operators: Operators) -> Any:
    """The tree over other leaves."""
    if not isinstance(of, tuple):
        return leaf[of] if isinstance(of, str) else of
    return operators[of[0]](*[build(part, leaf, operators) for part in of[1:]])


def value(of: Tree, point: Point) -> int | None:
    """Python's value, None where a divisor is 0."""
    try:
        return build(of, point, PLAIN)  # type: ignore[no-any-return]
    except ZeroDivisionError:
        return None


Found = Iterator[str]


def evaluation(e: Expr, of: Tree, known: Variables, points: list[Point], draw: random.Random) -> Found:
    """Value, text, range, substitution, pickle."""
    if pickle.loads(pickle.dumps(e)) is not e:
        yield f"{e} is another when it was pickled"
    name, other = draw.choice(NAMES), tree(draw, 3, ALL)
    moved = _ours(other, known)
    put = None if moved is None or known.below else _or_none(lambda: e.subs({known.ours[name]: moved}))
    for point in points:
        want = value(of, point)
        if want is None:
            continue
        said = (e.evaluate(point), eval(e.text, {"min": min, "max": max}, point),
                e.subs({known.ours[k]: v for k, v in point.items()}).const)
        if set(said) != {want}:
            yield f"{e} is {said} at {point}, not {want}"
        if (e.lo is not None and e.lo > want) or (e.hi is not None and e.hi < want):
            yield f"{e} is not within {e.lo}..{e.hi}: {want} at {point}"
        inner = value(other, point)
        low, high = known.least[name], known.most[name]
        if put is None or inner is None or (low is not None and inner < low) or (high is not None and inner > high):
            continue
        there = value(of, point | {name: inner})
        if there is not None and put.evaluate(point) != there:
            yield f"{e} with {moved} for {name} is {put}: {put.evaluate(point)} at {point}, not {there}"


def _ours(of: Tree, known: Variables) -> Expr | None:
    return _or_none(lambda: as_expr(build(of, known.ours, OURS)))


def _or_none(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ZeroDivisionError:
        return None


def _theirs(known: Variables) -> dict[str, sympy.Symbol]:
    return {name: sympy.Symbol(name, integer=True, positive=True if (known.least[name] or 0) > 0 else None,
                               nonnegative=True if known.least[name] == 0 else None) for name in NAMES}


def with_sympy(e: Expr, of: Tree, known: Variables, points: list[Point], polynomial: bool) -> Found:
    """SymPy's value of the same expression, and its normal form of a polynomial."""
    names = _theirs(known)
    theirs = _or_none(lambda: sympy.sympify(build(of, names, SYMPY)))
    if theirs is None:
        return
    if polynomial:
        wanted = {tuple(k): int(c) for k, c in sympy.Poly(sympy.expand(theirs), *names.values()).terms() if c}
        if (got := _monomials(e)) != wanted:
            yield f"{of} has the terms {got}, SymPy's are {wanted}"
    point = next((p for p in points if value(of, p) is not None), None)
    if point is None:
        return
    if (said := theirs.xreplace({names[k]: sympy.Integer(v) for k, v in point.items()})) != (want := value(of, point)):
        yield f"{SYMPYS_OWN} {said} of {theirs} at {point}, Python {want}"


def _monomials(e: Expr) -> dict[tuple[int, ...], int]:
    terms, offset = linear(e)
    found = {(0,) * len(NAMES): offset} if offset else {}
    for t, k in terms:
        powers = Counter(s.text for s in (t.args or (t,)))
        found[tuple(powers[name] for name in NAMES)] = k
    return found


def relations(pair: tuple[Expr, Expr], of: tuple[Tree, Tree], known: Variables, points: list[Point]) -> Found:
    """Truth of relations and of their opposites, at points and where it is known, and where SymPy knows it."""
    names = _theirs(known)
    known_here = any(make(*pair).known is not None for make, _, _ in RELATIONS.values())
    theirs = _or_none(lambda: [sympy.sympify(build(part, names, SYMPY)) for part in of]) if known_here else None
    for sign, (ours, sympys, plain) in RELATIONS.items():
        rel = ours(*pair)
        for point in points:
            values = [value(part, point) for part in of]
            if None in values:
                continue
            want = plain(*values)
            if rel.evaluate(point) is not want or not_(rel).evaluate(point) is want or rel.known not in (None, want):
                yield f"{pair[0]} {sign} {pair[1]} is {rel}, at {point} {want}"
        if theirs is not None and rel.known is not None:
            said = sympys(*theirs)
            if said in (sympy.true, sympy.false) and bool(said) is not rel.known:
                yield f"{pair[0]} {sign} {pair[1]} is {rel}, SymPy says {said}"


def environment(draw: random.Random) -> Found:
    """What an environment concludes from guards holds wherever the guards do."""
    env = ShapeEnv()
    hints = {name: draw.choice((0, 1, 2, 3, 4, 6, 8, 12)) for name in NAMES[:draw.randint(2, 4)]}
    symbols = {name: env.new_symbol(hint, name, lo=draw.choice((0, 2)), specialise=False)
               for name, hint in hints.items()}
    def some() -> tuple[Tree, Expr]:
        while True:
            made = tree(draw, draw.choice((1, 1, 2, 3)), ALL)
            if _names(made) <= set(symbols) and (e := _or_none(partial(build, made, symbols, OURS))) is not None:
                return made, as_expr(e)

    def relation() -> tuple[Any, Callable[[Point], bool | None]]:
        (left, x), c = some(), draw.choice((0, 1, 2, 4))
        right, y = some() if draw.random() < 0.6 else (c, as_expr(c))
        sign = draw.choice(list(RELATIONS))

        def truth(point: Point) -> bool | None:
            values = value(left, point), value(right, point)
            return None if None in values else RELATIONS[sign][2](*values)

        return RELATIONS[sign][0](x, y), truth

    held: list[tuple[Any, Callable[[Point], bool | None], bool]] = []
    for _ in range(draw.randint(1, 5)):
        rel, truth = relation()
        if (want := truth(hints)) is None:
            continue
        if draw.random() < 0.2:
            joined, other = relation()
            if (second := other(hints)) is None:
                continue
            both, truths = (and_, all) if want and second else (or_, any)
            if env.guard(both(rel, joined)) is not truths((want, second)):
                yield f"guard {both(rel, joined)} is not {truths((want, second))} for {hints}\n{env}"
        if env.guard(rel) is not want:
            yield f"guard {rel} is not {want} for {hints}\n{env}"
        held.append((rel, truth, want))
    asked = [relation() for _ in range(6)]
    said = [(rel, truth, _or_none(partial(env.known, rel))) for rel, truth in asked]
    terms = [some() for _ in range(4)]
    equal = [(made, _or_none(partial(env.canonical, e)), _or_none(partial(env.simplify, e))) for made, e in terms]
    for point in _near(hints, draw):
        inside = {s.name: point[name] for name, s in symbols.items()}  # type: ignore[attr-defined]
        if any(s.lo is not None and inside[s.name] < s.lo for s in env.symbols):
            continue
        try:
            if env.check(inside) is not None or any(truth(point) is not want for _, truth, want in held):
                continue
        except ZeroDivisionError:
            continue
        for rel, truth, known in said:
            if known is not None and truth(point) not in (known, None):
                yield f"{rel} is said to be {known}, at {inside} it is not\n{env}"
        for made, canonical, simple in equal:
            want_value = value(made, point)
            if want_value is None:
                continue
            if canonical is None or simple is None:
                yield f"{made} is taken for a division by 0, at {inside} it is {want_value}\n{env}"
                return
            if canonical.evaluate(inside) != want_value:
                yield f"{made} is {canonical}, at {inside} it is not\n{env}"
            if simple.is_const and simple.const != want_value or (simple.lo or want_value) > want_value:
                yield f"{made} is {simple} of {simple.lo}..{simple.hi}, at {inside} it is {want_value}\n{env}"


def _names(of: Tree) -> set[str]:
    return {of} if isinstance(of, str) else set().union(*map(_names, of[1:])) if isinstance(of, tuple) else set()


def _near(hints: Point, draw: random.Random) -> Iterator[Point]:
    """Points of which some satisfy what the hints do: multiples of them, equal ones, any."""
    yield hints
    for _ in range(40):
        factor = draw.choice((1, 1, 2, 3))
        moved = {name: draw.choice((hint * factor, hint + draw.randint(-2, 4), draw.randint(0, 24)))
                 for name, hint in hints.items()}
        if draw.random() < 0.5:  # the same for equal hints
            moved = {name: moved[next(k for k in hints if hints[k] == hint)] for name, hint in hints.items()}
        yield moved


def ratios(pair: tuple[Expr, Expr], of: tuple[Tree, Tree], points: list[Point], draw: random.Random) -> Found:
    """Rounding and comparing ratios of expressions, beside Python's exact fractions."""
    scale = draw.choice((2, 3, 4, 0.5, 0.25, 1.5, -2.0, 10))
    a = FloatExpr(draw.choice(("truediv", "mul")), as_float(pair[0]), as_float(scale))
    factor = 1 / Fraction(scale) if a.op == "truediv" else Fraction(scale)
    rounded = {"floor": (floats.floor(a), math.floor), "ceil": (floats.ceil(a), math.ceil),
               "trunc": (floats.trunc(a), math.trunc)}
    compared = {sign: floats.compare(name, a, as_float(pair[1])) for sign, name in
                (("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge"), ("==", "eq"), ("!=", "ne"))}
    for point in points:
        n, m = value(of[0], point), value(of[1], point)
        if n is None or m is None:
            continue
        for name, (e, plain) in rounded.items():
            if e is not None and e.evaluate(point) != plain(n * factor):
                yield f"{name} of {a} is {e}: {e.evaluate(point)} at {point}, not {plain(n * factor)}"
        for sign, rel in compared.items():
            if rel is not None and rel.evaluate(point) is not RELATIONS[sign][2](n * factor, m):
                yield f"{a} {sign} {pair[1]} is {rel}, at {point} it is not"


def differences(seed: int) -> Found:
    """All that is wrong with the case of a seed."""
    draw = random.Random(seed)
    known = variables(draw)
    polynomial = draw.random() < 0.3
    size = draw.randint(2, 7 if polynomial else 11)
    of, other = tree(draw, size, POLYNOMIAL if polynomial else ALL), tree(draw, draw.randint(1, 4), ALL)
    points = [known.point(draw) for _ in range(6)]
    yield from environment(draw)
    e, f = _ours(of, known), _ours(other, known)
    if e is None or f is None:
        if all(value(t, point) is not None for t, x in ((of, e), (other, f)) if x is None for point in points):
            yield f"{of} or {other} is taken for a division by 0"
        return
    yield from evaluation(e, of, known, points, draw)
    yield from with_sympy(e, of, known, points, polynomial)
    yield from relations((e, f), (of, other), known, points)
    yield from ratios((e, f), (of, other), points, draw)


def judge(seed: int) -> Verdict:
    """The first difference of a seed; one that is SymPy's own is left out."""
    try:
        found = list(itertools.islice(differences(seed), 5))
    except Exception:
        return Verdict("internal", traceback.format_exc(limit=-4))
    ours = [text for text in found if not text.startswith(SYMPYS_OWN)]
    return Verdict("different", ours[0]) if ours else Verdict("left out" if found else "same", *found[:1])


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tests.nets.algebra", description="Random integer expressions.")
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=1000, help="how many expressions")
    p.add_argument("--jobs", type=int, default=1, help="processes")
    p.add_argument("--seconds", type=float, default=1e9, help="begin no more after so long")
    a = p.parse_args()
    end = time.monotonic() + a.seconds
    kinds: Counter[str] = Counter()
    seeds = itertools.takewhile(lambda _: time.monotonic() < end, range(a.seed, a.seed + a.count))
    for seed, verdict in run_all(judge, seeds, a.jobs, 1000):
        kinds[verdict.kind] += 1
        if not verdict.good:
            print(f"# seed {seed}: {verdict.kind}: {verdict.detail}\n", flush=True)
    print(f"{kinds.total()} expressions from seed {a.seed}: {dict(kinds)}")
    return 1 if kinds.total() - kinds["same"] - kinds["left out"] else 0


if __name__ == "__main__":
    sys.exit(main())
