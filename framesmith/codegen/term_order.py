"""Rules for printing expressions that all target languages share: signs, parentheses, and the order of terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from framesmith.symbolic.expr import Expr, Product


def sum_text(terms: Iterable[tuple[Expr, int]], offset: int, text: Callable[[Expr], str],
             number: Callable[[int], str] = str) -> str:
    """`terms` (expression, coefficient) and `offset` as a sum in parentheses: by the terms' names, what is subtracted
    last."""
    parts = []
    for term, k in sorted(terms, key=lambda item: item[0].text):
        parts.append((" - " if k < 0 else " + ") + (text(term) if abs(k) == 1 else f"{number(abs(k))}*{text(term)}"))
    if offset:
        parts.append(f" {'-' if offset < 0 else '+'} {number(abs(offset))}")
    parts.sort(key=lambda p: p[1] == "-")
    head = parts[0][3:] if parts[0][1] == "+" else "-" + parts[0][3:]
    return f"({head}{''.join(parts[1:])})"


def divisor_text(e: Expr, text: str) -> str:
    """`text` of `e`, which binds at least as tightly as a product, as the right operand of a division or remainder."""
    return f"({text})" if type(e) is Product else text
