"""The texts of `functions.tl`, each with the functions that it calls."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

IMPORTS = """import triton
import triton.language as tl
from triton.language.extra import libdevice
"""


@functools.cache
def _functions() -> dict[str, tuple[str, frozenset[str]]]:
    """Return for each name its text and the names that it uses, in the order of the file."""
    text = (Path(__file__).parent / "functions.tl").read_text()
    lines = text.splitlines(keepends=True)
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = node.decorator_list[0].lineno - 1
            names = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            found[node.name] = ("".join(lines[first : node.end_lineno]), names)
    return found


def texts_of(names: set[str]) -> list[str]:
    """Return the texts of the functions among `names`, with those that they call, in the order of the file."""
    known = _functions()
    wanted: set[str] = set()
    todo = [n for n in names if n in known]
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            todo += [n for n in known[name][1] if n in known]
    return [text for name, (text, _) in known.items() if name in wanted]
