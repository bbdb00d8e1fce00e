"""Symbolic coefficients; division by symbolic divisors: exact where it is exact, common factors cancelled; and symbolic
upper bounds."""

from __future__ import annotations

from collections import Counter
from math import gcd

from framesmith.symbolic.compound import Product
from framesmith.symbolic.nodes import Expr, Int, Symbol, linear, make_sum
from framesmith.symbolic.ring import factors, monomial

_STEPS = 16


def coefficient(e: Expr, atom: Expr) -> Expr | None:
    """Return the coefficient of `atom` where the expression is linear in it, constant or not; else None."""
    total: Expr = Int(0)
    for term, k in linear(e)[0]:
        if term is atom:
            total = total + k
        elif atom in term.free:
            left = without(factors(term), (atom,))
            if left is None or any(atom in f.free for f in left):
                return None
            total = total + monomial(left) * k
    return total


def divide(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Some `(q, r)` with `a == q*b + r`; r is 0 where b divides a as polynomials (within a few steps).

    For a monomial b every divisible term goes to q. For a sum b the terms go only if nothing indivisible grows.
    """
    terms, offset = linear(b)
    if not terms:
        return _divide_monomial(a, (), offset)
    if len(terms) == 1 and not offset:
        return _divide_monomial(a, factors(terms[0][0]), terms[0][1])
    lead, k = max(terms, key=lambda item: (len(factors(item[0])), item[0].uid))
    q: Expr = Int(0)
    r = a
    for _ in range(_STEPS):
        step, rest = _divide_monomial(r, factors(lead), k)
        if rest is r:
            break
        q = q + step
        r = r - step * b
        if r.is_const:
            break
    if r.is_const and not r.const:
        return q, r
    size = len(linear(a)[0])
    return (q, r) if len(linear(r)[0]) < size else (Int(0), a)


def _divide_monomial(a: Expr, den: tuple[Expr, ...], k: int) -> tuple[Expr, Expr]:
    """Return the terms of `a` that `k * Π den` divides, divided; and the others."""
    terms, offset = linear(a)
    quotient: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    shift = 0
    for t, c in terms:
        left = None if c % k else without(factors(t), den)
        if left is None:
            rest[t] = c
        elif left:
            quotient[monomial(left)] = c // k
        else:
            shift = c // k
    if not quotient and not shift:
        return Int(0), a
    return make_sum(quotient, shift), make_sum(rest, offset)


def without(atoms: tuple[Expr, ...], taken: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
    """`atoms` less each of `taken` once; None if one is missing."""
    left = list(atoms)
    for t in taken:
        if t not in left:
            return None
        left.remove(t)
    return tuple(left)


def cancel(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`(a/g, b/g)` for the greatest monomial g that divides every term of both."""
    k, common = _content(b)
    k_a, common_a = _content(a)
    k = gcd(k, k_a)
    common = common & common_a
    if k == 1 and not common:
        return a, b
    taken = tuple(common.elements())
    return _shrink(a, taken, k), _shrink(b, taken, k)


def _content(e: Expr) -> tuple[int, Counter[Expr]]:
    terms, offset = linear(e)
    k = gcd(offset, *(c for _, c in terms))
    if offset or not terms:
        return k, Counter()
    common = Counter(factors(terms[0][0]))
    for t, _ in terms[1:]:
        common &= Counter(factors(t))
    return k, common


def _shrink(e: Expr, taken: tuple[Expr, ...], k: int) -> Expr:
    q, _ = _divide_monomial(e, taken, k)
    offset = linear(e)[1]
    return q if taken else q + offset // k


def upper(e: Expr) -> Expr | None:
    """Return an expression that is at least `e`, with symbols replaced by their symbolic bound; None if `e` has none to
    use.

    Only terms that are one symbol, or a product of one bounded symbol and others that are not negative, are raised.
    """
    terms, offset = linear(e)
    total: Expr = Int(offset)
    raised = False
    for t, k in terms:
        bound = _raise(t) if k > 0 else None
        raised = raised or bound is not None
        total = total + (t if bound is None else bound) * k
    return total if raised else None


def _raise(t: Expr) -> Expr | None:
    atoms = t.args if isinstance(t, Product) else (t,)
    if any(a.lo is None or a.lo < 0 for a in atoms):
        return None
    total: Expr = Int(1)
    changed = False
    for a in atoms:
        if isinstance(a, Symbol) and a.sup is not None:
            total, changed = total * a.sup, True
        else:
            total = total * a
    return total if changed else None
