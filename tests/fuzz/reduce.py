"""Makes a failing program small: statements and expressions are taken away while it still fails in the same way."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator

from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict

_LISTS = ("body", "orelse", "finalbody", "handlers", "cases", "decorator_list", "items", "elts", "args", "keywords", "values")


def signature(verdict: Verdict) -> str:
    """How a program fails, without its own names and numbers."""
    where = verdict.detail.split(": ")[1].split(".")[0] if verdict.kind == "different" else verdict.detail
    return f"{verdict.kind}: {re.sub(r'[0-9]+', '', where)[:160]}"


def reduce(source: str, judge: Callable[[str], Verdict], rounds: int = 6) -> str:
    """A smaller program with the same signature (or `source`); each candidate runs in a process of its own."""

    def verdict_of(text: str) -> Verdict:
        return next(v for _, v in run_all(judge, [text]))

    want = signature(verdict_of(source))
    tree = ast.parse(source)
    for _ in range(rounds):
        before = ast.unparse(tree)
        for make in _candidates(tree):
            smaller = make(copy.deepcopy(tree))
            if smaller is None:
                continue
            text = ast.unparse(ast.fix_missing_locations(smaller))
            if len(text) >= len(ast.unparse(tree)) or not _parses(text):
                continue
            if signature(verdict_of(text)) == want:
                tree = ast.parse(text)
        if ast.unparse(tree) == before:
            break
    found = verdict_of(ast.unparse(tree))
    return f"{ast.unparse(tree)}\n\n# {found.kind}: {found.detail}"


def _parses(text: str) -> bool:
    try:
        compile(text, "<smaller>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _candidates(tree: ast.Module) -> Iterator[Callable[[ast.Module], ast.Module | None]]:
    """Edits to try, from the coarse to the fine. Each is by position, so it also fits a tree that has become smaller."""
    size = sum(1 for _ in ast.walk(tree))
    for width in (8, 4, 2, 1):
        for at in range(size):
            yield lambda t, at=at, width=width: _without(t, at, width)
    for at in range(size):
        yield lambda t, at=at: _hoisted(t, at)
    for at in range(size):
        yield lambda t, at=at: _simpler(t, at)


def _lists(tree: ast.Module) -> list[tuple[ast.AST, str, int]]:
    """(node, field, index) of each element of a list in the tree, last first."""
    out = [(node, name, i) for node in ast.walk(tree) for name in _LISTS for i in range(len(_list(node, name)))]
    return out[::-1]


def _list(node: ast.AST, name: str) -> list[ast.AST]:
    value = getattr(node, name, None)
    return value if isinstance(value, list) else []


def _without(tree: ast.Module, at: int, width: int) -> ast.Module | None:
    """`width` neighbours of a list taken out."""
    places = _lists(tree)
    if at >= len(places):
        return None
    node, name, i = places[at]
    items = _list(node, name)
    if width > 1 and (name != "body" or i + 1 < width):
        return None
    gone = items[max(0, i + 1 - width):i + 1]
    if any(isinstance(g, ast.ImportFrom) for g in gone) or name in ("elts", "args") and isinstance(node, ast.arguments):
        return None
    del items[max(0, i + 1 - width):i + 1]
    if not items and name == "body":
        items.append(ast.Pass())
    return tree


def _hoisted(tree: ast.Module, at: int) -> ast.Module | None:
    """A compound statement replaced by its body."""
    places = [p for p in _lists(tree) if p[1] in ("body", "orelse", "finalbody") and isinstance(_list(p[0], p[1])[p[2]], _COMPOUND)]
    if at >= len(places):
        return None
    node, name, i = places[at]
    items = _list(node, name)
    inner = items[i]
    items[i:i + 1] = [*_list(inner, "body"), *_list(inner, "orelse"), *_list(inner, "finalbody")]
    return tree


_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try)


def _simpler(tree: ast.Module, at: int) -> ast.Module | None:
    """An expression replaced by the first of its parts that is one, or by a number."""
    places = [(node, name, i) for node in ast.walk(tree) for name, value in ast.iter_fields(node)
              for i, v in enumerate(value if isinstance(value, list) else [value]) if isinstance(v, _EXPRESSIONS)]
    n, choice = divmod(at, 3)
    if n >= len(places):
        return None
    node, name, i = places[n]
    value = getattr(node, name)
    old = value[i] if isinstance(value, list) else value
    parts = [c for c in ast.iter_child_nodes(old) if isinstance(c, ast.expr)]
    parts.append(ast.Constant(1))
    if choice >= len(parts):
        return None
    if isinstance(value, list):
        value[i] = parts[choice]
    else:
        setattr(node, name, parts[choice])
    return tree


_EXPRESSIONS = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Call, ast.IfExp, ast.Compare, ast.Subscript, ast.ListComp, ast.DictComp, ast.SetComp,
                ast.GeneratorExp, ast.JoinedStr, ast.Lambda, ast.Attribute, ast.Tuple, ast.List, ast.Dict)
