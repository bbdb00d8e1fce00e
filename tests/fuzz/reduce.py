"""Makes a failing program small: statements and expressions are taken away while it still fails in the same way."""

from __future__ import annotations

import ast
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.pool import run_all
from tests.fuzz.runner import Verdict

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_PARTS = ("decorator_list", "items", "elts", "args", "keywords", "values", "generators", "ifs", "targets", "bases")
_EXPRESSIONS = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Call, ast.IfExp, ast.Compare, ast.Subscript, ast.ListComp,
                ast.DictComp,
                ast.SetComp, ast.GeneratorExp, ast.JoinedStr, ast.Lambda, ast.Attribute, ast.Tuple, ast.List, ast.Dict)
Undo = Callable[[], None]


def signature(verdict: Verdict) -> str:
    """How a program fails, without its own names and numbers."""
    where = verdict.detail.split(": ")[1].split(".")[0] if verdict.kind == "different" else verdict.detail
    return f"{verdict.kind}: {re.sub(r'[0-9]+', '', where)[:160]}"


def reduce(
    source: str, judge: Callable[[str], Verdict], seconds: float = 240.0, sign: Callable[[Verdict], str] = signature
) -> str:
    """A smaller program with the same signature (or `source`). A crash is looked for in processes of its own."""
    first = next(v for _, v in run_all(judge, [source]))
    want = sign(first)
    apart = first.kind == "crash"
    end = time.monotonic() + seconds
    tree = ast.parse(source)
    size = len(ast.unparse(tree))

    def fails(text: str) -> bool:
        if not _parses(text):
            return False
        return sign(next(v for _, v in run_all(judge, [text])) if apart else judge(text)) == want

    while True:
        before = size
        for undo in _edits(tree):
            text = ast.unparse(ast.fix_missing_locations(tree))
            if len(text) < size and time.monotonic() < end and fails(text):
                size = len(text)
            else:
                undo()
        if size == before or time.monotonic() > end:
            break
    text = ast.unparse(tree)
    found = next(v for _, v in run_all(judge, [text]))
    return f"{text}\n\n# {found.kind}: {found.detail}"


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<smaller>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _edits(tree: ast.Module) -> Iterator[Undo]:
    """Each edit is made in the tree; what is given takes it back."""
    for width in (16, 8, 4, 2, 1):
        yield from _shortened(tree, _BODIES, width)
    yield from _hoisted(tree)
    yield from _shortened(tree, _PARTS, 1)
    yield from _simpler(tree)


def _shortened(tree: ast.Module, fields: tuple[str, ...], width: int) -> Iterator[Undo]:
    """`width` neighbours taken out of a list, the last ones first."""
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.arguments):
            continue
        for items in [v for f in fields if isinstance(v := getattr(node, f, None), list)]:
            at = len(items)
            while at > 0:
                low = max(0, at - width)
                if at - low == width and not any(isinstance(g, ast.ImportFrom) for g in items[low:at]):
                    yield _replaced(items, low, at, [])
                at = low


def _replaced(items: list[Any], low: int, high: int, new: list[Any]) -> Undo:
    saved = items[:]
    items[low:high] = new
    if not items and isinstance(saved[0], ast.stmt):
        items.append(ast.Pass())

    def undo() -> None:
        items[:] = saved

    return undo


def _hoisted(tree: ast.Module) -> Iterator[Undo]:
    """A compound statement replaced by what is in it."""
    for node in list(ast.walk(tree)):
        for items in [v for f in _BODIES if isinstance(v := getattr(node, f, None), list)]:
            for inner in [i for i in items if isinstance(i, (ast.If, ast.For, ast.While, ast.With, ast.Try))]:
                if inner in items:
                    at = items.index(inner)
                    yield _replaced(items, at, at + 1,
                                    [*inner.body, *getattr(inner, "orelse", []), *getattr(inner, "finalbody", [])])


def _simpler(tree: ast.Module) -> Iterator[Undo]:
    """An expression replaced by a part of it, or by a number."""
    for node in list(ast.walk(tree)):
        for name, value in list(ast.iter_fields(node)):
            slots = range(len(value)) if isinstance(value, list) else (None,)
            for i in slots:
                old = value[i] if i is not None and i < len(value) else value
                if isinstance(old, _EXPRESSIONS):
                    for new in [ast.Constant(1), *[c for c in ast.iter_child_nodes(old) if isinstance(c, ast.expr)]]:
                        yield _put(node, name, i, new)


def _put(node: ast.AST, name: str, i: int | None, new: ast.expr) -> Undo:
    if i is not None:
        return _replaced(getattr(node, name), i, i + 1, [new])
    old = getattr(node, name)
    setattr(node, name, new)
    return lambda: setattr(node, name, old)
