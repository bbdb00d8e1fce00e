"""Floor division and remainder, simplified with ranges. Quotient and remainder by a constant are made together, so
that what one of them drops the other keeps and `c*(x//c) + x%c` is x again."""

from __future__ import annotations

from math import gcd

from framesmith.symbolic.compound import FloorDiv, Mod, make
from framesmith.symbolic.nodes import Expr, Int, linear, make_sum, rule
from framesmith.symbolic.polynomial import cancel, divide, upper

Terms = tuple[tuple[Expr, int], ...]
_SPLIT: dict[tuple[Expr, int], tuple[Expr, Expr]] = {}


@rule("floordiv")
def floordiv(a: Expr, b: Expr) -> Expr:
    """`a // b`; ZeroDivisionError if b is the constant 0."""
    if isinstance(b, Int):
        return _floordiv_const(a, b.value)
    if a is b:
        return Int(1)
    if isinstance(a, Int) and a.value == 0:
        return a
    q, r = divide(a, b)
    if r.is_const and not r.const:
        return q
    if _is_remainder(r, b):
        return q
    r, b = cancel(r, b)
    if isinstance(b, Int):
        return q + _floordiv_const(r, b.value)
    if isinstance(r, FloorDiv) and b.lo is not None and b.lo > 0:
        return q + r.num // (r.den * b)  # x // a // b -> x // (a*b)
    return q + make(FloorDiv, (r, b))


@rule("mod")
def mod(a: Expr, b: Expr) -> Expr:
    """`a % b`; ZeroDivisionError if b is the constant 0."""
    if isinstance(b, Int):
        return _mod_const(a, b.value)
    if a is b:
        return Int(0)
    _, r = divide(a, b)
    if isinstance(r, Int) and r.value == 0:
        return r
    if _is_remainder(r, b):
        return r
    num, den = cancel(r, b)
    if den is not b:  # (g*x) % (g*y) -> g*(x % y)
        factor, _ = divide(b, den)
        return factor * (num % den)
    if isinstance(r, Mod) and r.den is b:
        return r
    return make(Mod, (r, b))


def _is_remainder(r: Expr, b: Expr) -> bool:
    """Return whether 0 <= r < b is known."""
    if r.lo is None or r.lo < 0 or b.lo is None or b.lo <= 0:
        return False
    if r.hi is not None and r.hi < b.lo:
        return True
    top = upper(r)
    return top is not None and ((slack := (b - top).lo) is not None) and slack >= 1


def _floordiv_const(a: Expr, c: int) -> Expr:
    if c < 0:
        return _floordiv_const(-a, -c)  # a // -c -> -a // c
    if c == 0:
        raise ZeroDivisionError(f"{a} // 0")
    return split(a, c)[0]


def _mod_const(a: Expr, c: int) -> Expr:
    if c < 0:
        return -_mod_const(-a, -c)
    if c == 0:
        raise ZeroDivisionError(f"{a} % 0")
    terms, offset = linear(a)
    if any(isinstance(t, Mod) and t.den.is_const and not k * t.den.const % c for t, k in terms):
        total: Expr = Int(offset)  # (x % (m*c) + y) % c -> (x + y) % c
        for t, k in terms:
            drop = isinstance(t, Mod) and t.den.is_const and not k * t.den.const % c
            total = total + (t.num if drop else t) * k  # type: ignore[attr-defined]
        if total is not a:
            return _mod_const(total, c)
    return split(a, c)[1]


def split(a: Expr, c: int) -> tuple[Expr, Expr]:
    """`(a // c, a % c)` for a constant c >= 1."""
    if isinstance(a, Int):
        q, r = divmod(a.value, c)
        return Int(q), Int(r)
    if c == 1:
        return a, Int(0)
    found = _SPLIT.get((a, c))
    if found is None:
        found = _SPLIT[a, c] = _split(a, c)
    return found


def _split(a: Expr, c: int) -> tuple[Expr, Expr]:
    terms, offset = linear(a)
    if a.lo is not None and a.hi is not None and a.lo // c == a.hi // c:
        d = a.lo // c
        return Int(d), a - c * d
    quotient: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    for t, k in terms:
        whole = k // c if k >= 0 else -(-k // c)
        if whole:
            quotient[t] = whole
        if k != whole * c:
            rest[t] = k - whole * c
    whole, offset = divmod(offset, c)
    q = make_sum(quotient, whole)
    q_rest, r = _split_rest(make_sum(rest, offset), c)
    return q + q_rest, r


def _split_rest(a: Expr, c: int) -> tuple[Expr, Expr]:
    """Split where no coefficient reaches c and the offset is in [0, c)."""
    if isinstance(a, Int):
        return Int(0), a
    if a.lo is not None and a.hi is not None and a.lo // c == a.hi // c:
        d = a.lo // c
        return Int(d), a - c * d
    terms, offset = linear(a)
    shared = gcd(c, *(k for _, k in terms))
    if shared > 1:  # (g*x + e) // (g*c) -> x // c, for 0 <= e < g
        inner = make_sum({t: k // shared for t, k in terms}, offset // shared)
        q, r = split(inner, c // shared)
        return q, r * shared + offset % shared
    found = _split_by_ranges(terms, offset, c)
    if found is not None:
        return found
    if len(terms) == 1 and terms[0][1] == 1:
        return _split_nested(a, terms[0][0], offset, c)
    if all(k < 0 for _, k in terms):  # (-x) // c -> -((x + c - 1) // c)
        return -((Int(c - 1) - a) // Int(c)), make(Mod, (a, Int(c)))
    return make(FloorDiv, (a, Int(c))), make(Mod, (a, Int(c)))


def _split_by_ranges(terms: Terms, offset: int, c: int) -> tuple[Expr, Expr] | None:
    """(g*x + y) // (g*c) -> x // c and (g*x + y) % (g*c) -> g*(x % c) + y, where 0 <= y < g, for the largest such g."""
    for g in sorted({gcd(k, c) for _, k in terms}, reverse=True):
        if g == 1:
            return None
        low = make_sum({t: k for t, k in terms if k % g}, offset % g)
        if low.lo is None or low.hi is None or low.lo // g != low.hi // g:
            continue
        shift = low.lo // g
        high = make_sum({t: k // g for t, k in terms if not k % g}, offset // g + shift)
        q, r = split(high, c // g)
        return q, r * g + (low - shift * g)
    return None


def _split_nested(a: Expr, t: Expr, offset: int, c: int) -> tuple[Expr, Expr]:
    """Split `t + offset` by c, where t may be a division or a remainder itself."""
    den = Int(c)
    if isinstance(t, FloorDiv) and t.den.lo is not None and t.den.lo > 0:
        return (t.num + t.den * offset) // (t.den * c), make(Mod, (a, den))  # x // b // c -> x // (b*c)
    if isinstance(t, Mod) and not offset and t.den.is_const and t.den.const > 0 and not t.den.const % c:
        return t.num // c % (t.den.const // c), t.num % c  # x % (m*c) // c -> x // c % m
    return make(FloorDiv, (a, den)), make(Mod, (a, den))
