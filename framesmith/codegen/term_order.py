"""Rules for printing expressions that all target languages share: signs, parentheses, and the order of terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from framesmith.symbolic.expr import Expr, FloorDiv, Int, Mod, Product, Sum, Symbol

Names = Mapping[Any, str]
Digits = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax of a language's integer expressions: `digits` prints numbers; `signs` are the operators for divisions
    of operands that are not negative; other operations are calls of `functions`, with operands formatted by
    `operand`."""

    digits: Digits
    signs: Mapping[type[Expr], str]
    functions: Mapping[type[Expr], str]
    operand: str = "{}"

    def text(self, e: Expr, names: Names, digits: Digits | None = None) -> str:
        """Return `e`, binding at least as tightly as a product; `names` maps symbols, and expressions that are stored
        in variables, to names. `digits` prints numbers, except divisors."""
        kind, number = type(e), digits or self.digits
        if (found := names.get(e)) is not None:
            return found
        if kind is Int:
            return number(e.const)
        if kind is Symbol:
            return e.name  # type: ignore[attr-defined, no-any-return]
        if kind is Sum:
            terms: tuple[tuple[Expr, int], ...] = e.terms  # type: ignore[attr-defined]
            return sum_text(terms, e.offset, lambda x: self.text(x, names, digits), number)  # type: ignore[attr-defined]
        if kind in (FloorDiv, Mod):
            return self._division(e, names, digits)
        texts = [self.text(a, names, digits) for a in e.args]
        if kind is Product:
            return "*".join(texts)
        return calls(self.functions[kind], map(self.operand.format, texts))

    def _division(self, e: Expr, names: Names, digits: Digits | None) -> str:
        num, den = e.args
        a, b = self.text(num, names, digits), self.text(den, names)
        if num.lo is not None and num.lo >= 0 and den.lo is not None and den.lo > 0:
            return f"({a} {self.signs[type(e)]} {divisor_text(den, b)})"
        return calls(self.functions[type(e)], map(self.operand.format, (a, b)))


def calls(function: str, operands: Iterable[str]) -> str:
    """Return the text of a binary function applied to several operands, from left to right."""
    return reduce(lambda first, other: f"{function}({first}, {other})", operands)


def sum_text(terms: Iterable[tuple[Expr, int]], offset: int, text: Callable[[Expr], str],
             number: Callable[[int], str] = str) -> str:
    """Return `terms` (expression, coefficient) and `offset` as a sum in parentheses: sorted by the terms' names,
    subtractions last."""
    parts = []
    for term, k in sorted(terms, key=lambda item: item[0].text):
        parts.append((" - " if k < 0 else " + ") + (text(term) if abs(k) == 1 else f"{number(abs(k))}*{text(term)}"))
    if offset:
        parts.append(f" {'-' if offset < 0 else '+'} {number(abs(offset))}")
    parts.sort(key=lambda p: p[1] == "-")
    head = parts[0][3:] if parts[0][1] == "+" else "-" + parts[0][3:]
    return f"({head}{''.join(parts[1:])})"


def divisor_text(e: Expr, text: str) -> str:
    """Return `text` of `e`, which binds at least as tightly as a product, as the right operand of a division or
    remainder."""
    return f"({text})" if type(e) is Product else text
