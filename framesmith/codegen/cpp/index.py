"""Integer expressions as C++ text, and their change from lane to lane of a vector.

A vector starts at a multiple of the width along its axis (loops step by whole vectors from 0), which is what makes `i
// 64` one number and `i % 64` contiguous over 16 lanes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from framesmith.codegen.term_order import Names, Syntax, calls
from framesmith.symbolic.expr import Expr, FloorDiv, Int, Max, Min, Mod, Product, Sum, Symbol, as_expr, linear


def integer(value: int) -> str:
    """Return an integer literal of sufficient width."""
    return str(value) if -(2**31) < value < 2**31 else f"{value}L"


_SYNTAX = Syntax(integer, {FloorDiv: "/", Mod: "%"},
                 {FloorDiv: "floordiv", Mod: "mod", Min: "min", Max: "max"}, "i64({})")


def expr_text(e: Expr, names: Names) -> str:
    """Return `e` as a C++ expression of type i64 that binds at least as tightly as a product; `names` maps symbols, and
    expressions that are stored in variables, to names."""
    return _SYNTAX.text(e, names)


def shared(exprs: Iterable[Expr]) -> list[Expr]:
    """Return the subexpressions that occur more than once in `exprs`, each after its own subexpressions."""
    uses: Counter[Expr] = Counter()
    ordered: list[Expr] = []

    def visit(e: Expr) -> None:
        uses[e] += 1
        if uses[e] > 1 or type(e) in (Int, Symbol):
            return
        for part in [term for term, _ in e.terms] if type(e) is Sum else e.args:
            visit(part)
        ordered.append(e)

    for e in exprs:
        visit(e)
    return [e for e in ordered if uses[e] > 1]


# ------------------------------------------------------------------------------------------------- movement along lanes


def divisor(e: Expr, axis: Symbol, width: int) -> int:
    """Return a number known to divide the value of `e` in the first lane (0: the value is 0)."""
    kind = type(e)
    if kind is Int:
        return abs(e.value)  # type: ignore[attr-defined]
    if kind is Symbol:
        return width if e is axis else 1
    if kind is Sum:
        terms, offset = linear(e)
        return math.gcd(offset, *(k * divisor(t, axis, width) for t, k in terms))
    if kind is Product:
        return math.prod(divisor(a, axis, width) for a in e.args)
    if kind is Mod and e.args[1].is_const:
        return math.gcd(divisor(e.args[0], axis, width), e.args[1].const)
    if kind is FloorDiv and e.args[1].is_const:
        known, den = divisor(e.args[0], axis, width), e.args[1].const
        return known // den if known % den == 0 else 1
    return 1


_ZERO, _ONE = Int(0), Int(1)


def lane_step(e: Expr, axis: Symbol, width: int) -> Expr | None:
    """Return the stride of `e` between consecutive lanes; None where it is not constant along the vector."""
    if axis not in e.free:
        return _ZERO
    kind = type(e)
    if kind is Symbol:
        return _ONE
    if kind is Sum:
        total: Expr = _ZERO
        for term, k in linear(e)[0]:
            step = lane_step(term, axis, width)
            if step is None:
                return None
            total = total + step * k
        return total
    if kind is Product:
        moving = [a for a in e.args if axis in a.free]
        step = lane_step(moving[0], axis, width) if len(moving) == 1 else None
        if step is None:
            return None
        for a in e.args:
            step = step if a is moving[0] else step * a
        return step
    if kind in (FloorDiv, Mod):
        return _step_of_division(e, axis, width)
    return None


def _step_of_division(e: Expr, axis: Symbol, width: int) -> Expr | None:
    # base + s*lane with s*width dividing base and den: all lanes have one quotient
    num, den = e.args
    step = lane_step(num, axis, width)
    if step is None or not step.is_const or not den.is_const or step.const <= 0:
        return None
    span = step.const * width
    if den.const % span or divisor(num, axis, width) % span:
        return None
    return _ZERO if type(e) is FloorDiv else step


# ----------------------------------------------------------------------------------------------------- one value a lane


def vector_text(e: Expr, names: Names, lanes: Mapping[Symbol, str]) -> str:
    """Return `e` as an expression of type vl; `lanes` gives the vl of each symbol that differs from lane to lane."""
    if e.free.isdisjoint(lanes):
        return f"splat(i64({expr_text(e, names)}))"
    kind = type(e)
    if kind is Symbol:
        return lanes[e]  # type: ignore[index]
    if kind is Sum:
        terms, offset = linear(e)
        parts = [vector_text(t, names, lanes) + ("" if k == 1 else f" * splat({k}L)") for t, k in terms]
        return "(" + " + ".join(parts + ([f"splat({offset}L)"] if offset else [])) + ")"
    texts = [vector_text(a, names, lanes) for a in e.args]
    if kind is Product:
        return "(" + " * ".join(texts) + ")"
    return calls(_SYNTAX.functions[kind], texts)


def split(e: Expr, moving: frozenset[Symbol]) -> tuple[Expr, Expr]:
    """Split `e` into a part without the symbols `moving`, and the rest."""
    if type(e) is not Sum:
        return (_ZERO, e) if e.free & moving else (e, _ZERO)
    terms, offset = linear(e)
    still, rest = as_expr(offset), as_expr(0)
    for term, k in terms:
        if term.free & moving:
            rest = rest + term * k
        else:
            still = still + term * k
    return still, rest


_NEAR = 1 << 21  # below it a division by floats is exact
_INT32 = 1 << 31


def near_text(e: Expr, names: Names, lanes: Mapping[Symbol, str]) -> str | None:
    """Return `e` as an expression of type vi if its range is known to be small enough; else None. `lanes` as in
    `vector_text`."""
    if e.lo is None or e.hi is None or e.lo < -_INT32 or e.hi >= _INT32:
        return None
    if e.free.isdisjoint(lanes):
        return f"splat(int({expr_text(e, names)}))"
    kind = type(e)
    if kind is Symbol:
        return f"to_i32({lanes[e]})"  # type: ignore[index]
    if kind is Sum:
        terms, offset = linear(e)
        parts = [near_text(t, names, lanes) for t, _ in terms]
        if None in parts:
            return None
        texts = [f"{p} * {k}" if k != 1 else f"{p}" for p, (_, k) in zip(parts, terms, strict=True)]
        return "(" + " + ".join(texts + ([str(offset)] if offset else [])) + ")"
    return _near_division(e, names, lanes) if kind in (FloorDiv, Mod) else None


def _near_division(e: Expr, names: Names, lanes: Mapping[Symbol, str]) -> str | None:
    num, den = e.args
    if not den.is_const or den.const <= 0 or num.lo is None or num.lo < 0 or num.hi is None:
        return None
    inner, d = near_text(num, names, lanes), den.const
    if inner is None:
        return None
    if d & (d - 1) == 0:
        return f"({inner} >> {d.bit_length() - 1})" if type(e) is FloorDiv else f"({inner} & {d - 1})"
    return None if num.hi >= _NEAR else f"{'divide_near' if type(e) is FloorDiv else 'modulo_near'}({inner}, {d})"
