"""Relations between sizes as postfix programs, the form that the C++ guard tree evaluates."""

from __future__ import annotations

from framesmith.symbolic.expr import Expr, Int, Rel, Sum, Symbol

Code = tuple[tuple[str, int], ...]


def postfix(relation: Rel) -> tuple[Code, tuple[str, ...]]:
    """`(code, names)`: code of (operation, operand) pairs that leaves one truth value; `leaf` i reads symbol
    `names[i]`."""
    code: list[tuple[str, int]] = []
    names: dict[str, int] = {}
    _relation(relation, code, names)
    return tuple(code), tuple(names)


def _relation(relation: Rel, code: list[tuple[str, int]], names: dict[str, int]) -> None:
    if relation.op in ("true", "false"):
        code.append(("const", relation.op == "true"))
    elif relation.op in ("and", "or"):
        for i, part in enumerate(relation.args):
            _relation(part, code, names)
            if i:
                code.append((relation.op, 0))
    else:
        _expression(relation.args[0], code, names)
        code.append((relation.op, 0))


def _expression(e: Expr, code: list[tuple[str, int]], names: dict[str, int]) -> None:
    if isinstance(e, Int):
        code.append(("const", e.value))
    elif isinstance(e, Symbol):
        code.append(("leaf", names.setdefault(e.name, len(names))))
    elif isinstance(e, Sum):
        for i, (atom, k) in enumerate(e.terms):
            _expression(atom, code, names)
            code.extend((("const", k), ("mul", 0)))
            if i:
                code.append(("add", 0))
        code.extend((("const", e.offset), ("add", 0)))
    else:
        for i, part in enumerate(e.args):
            _expression(part, code, names)
            if i:
                code.append((e.op, 0))  # type: ignore[attr-defined]
