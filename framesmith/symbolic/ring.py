"""Sums and products: the normal form is a sum of products, and `x//c` and `x%c` of one number are joined."""

from __future__ import annotations

from framesmith.symbolic.compound import FloorDiv, Mod, Product, make
from framesmith.symbolic.nodes import Expr, Int, linear, make_sum, rule


@rule("add")
def add(a: Expr, b: Expr) -> Expr:
    """`a + b`."""
    if isinstance(a, Int):
        a, b = b, a
    terms, offset = linear(a)
    if isinstance(b, Int):
        return a if not b.value else make_sum(dict(terms), offset + b.value)
    more, offset_b = linear(b)
    total = dict(terms)
    for t, k in more:
        total[t] = total.get(t, 0) + k
    return collect(total, offset + offset_b)


def collect(terms: dict[Expr, int], offset: int) -> Expr:
    """Return the sum `offset + Σ k·t`, with division and remainder of the same number joined. Consumes `terms`."""
    while len(terms) > 1 and any(type(f) in _JOINABLE for t in terms for f in factors(t)):
        terms = {t: k for t, k in terms.items() if k}
        joined = _join_mod(terms)
        if joined is None:
            joined = _join_floordiv(terms)
        if joined is None:
            joined = _join_multiple(terms)
        if joined is None:
            break
        more, shift = linear(joined)
        offset += shift
        for t, k in more:
            terms[t] = terms.get(t, 0) + k
    return make_sum(terms, offset)


_JOINABLE = frozenset((Mod, FloorDiv))


def _join_mod(terms: dict[Expr, int]) -> Expr | None:
    """Take two terms that are one out of `terms` and return that one.

    k*(x % c) + k*c*(x // c)        ->  k*x             of sizes that vary, too
    k*(x % c) + k*c*(x // c % d)    ->  k*(x % (c*d))
    """
    whole = _join_quotient(terms)
    if whole is not None:
        return whole
    mods = [t for t in terms if isinstance(t, Mod) and t.den.is_const]
    by_num: dict[Expr, list[Mod]] = {}
    for m in mods:
        by_num.setdefault(m.num, []).append(m)
    for m in mods if len(mods) > 1 else ():
        k, c = terms[m], m.den.const
        quotient = m.num // c
        for high in by_num.get(quotient, ()):
            if terms[high] == k * c:
                del terms[m], terms[high]
                return (m.num % (c * high.den.const)) * k
    return None


def _join_quotient(terms: dict[Expr, int]) -> Expr | None:
    """k*(x % c) + k*c*(x // c)  ->  k*x"""
    return _with_remainder(terms, 1)


def _join_multiple(terms: dict[Expr, int]) -> Expr | None:
    """k*x - k*(x % c)  ->  k*c*(x // c), where every term of k*x is there: what is padded to a multiple of c is one;
    k*x + k*(x % 2)  ->  2*k*((x + 1) // 2)"""
    return _with_remainder(terms, -1)


def _with_remainder(terms: dict[Expr, int], sign: int) -> Expr | None:
    """Take a multiple of x % c, and as much of c * (x // c), out of `terms`, and return that multiple of x; for the
    `sign` -1, take as much of x with the other sign, and return that multiple of c * (x // c)."""
    for t, k in terms.items():
        atoms = factors(t)
        m = next((f for f in atoms if isinstance(f, Mod)), None)
        if m is None:
            continue
        rest = list(atoms)
        rest.remove(m)
        times = monomial(tuple(rest)) * (sign * k)
        for num in (m.num, -m.num) if sign < 0 and m.den is Int(2) else (m.num,):  # x % 2 is -x % 2
            whole = num // m.den * m.den
            taken, made = (whole, num) if sign > 0 else (num, whole)
            parts, offset = linear(taken * times)
            if parts and not (offset and sign > 0) and all(terms.get(u) == c for u, c in parts):
                del terms[t]
                for u, _ in parts:
                    del terms[u]
                return made * times - offset
    return None


def _join_floordiv(terms: dict[Expr, int]) -> Expr | None:
    """k*x - k*c*(x // c)  ->  k*(x % c), where every term of x is there with k times its coefficient."""
    for t, coefficient in terms.items():
        if not isinstance(t, FloorDiv) or not t.den.is_const:
            continue
        k, rest = divmod(-coefficient, t.den.const)
        if rest:
            continue
        inner, shift = linear(t.num)
        if inner and all(terms.get(u) == k * ku for u, ku in inner):
            remainder = t.num % t.den
            del terms[t]
            for u, _ in inner:
                del terms[u]
            return (remainder - shift) * k
    return None


@rule("mul")
def mul(a: Expr, b: Expr) -> Expr:
    """`a * b`, multiplied out."""
    if isinstance(a, Int):
        a, b = b, a
    terms, offset = linear(a)
    if isinstance(b, Int):
        k = b.value
        if k == 1:
            return a
        if k == 0:
            return b
        return make_sum({t: c * k for t, c in terms}, offset * k)
    more, offset_b = linear(b)
    total: dict[Expr, int] = {}
    for t, k in terms:
        for u, c in more:
            p = monomial(factors(t) + factors(u))
            total[p] = total.get(p, 0) + k * c
        if offset_b:
            total[t] = total.get(t, 0) + k * offset_b
    if offset:
        for u, c in more:
            total[u] = total.get(u, 0) + c * offset
    return collect(total, offset * offset_b)


def factors(atom: Expr) -> tuple[Expr, ...]:
    """Return the factors of a term's atom, with repetition."""
    return atom.args if isinstance(atom, Product) else (atom,)


def monomial(atoms: tuple[Expr, ...]) -> Expr:
    """Return the product of atoms that are not Products (1 for none)."""
    if len(atoms) > 1:
        return make(Product, tuple(sorted(atoms, key=_uid)))
    return atoms[0] if atoms else Int(1)


def _uid(e: Expr) -> int:
    return e.uid
