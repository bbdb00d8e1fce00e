"""Options by the names that torch.compile has for them. Nothing of it is imported: its text says which names there
are."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_ROWS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "recompile_limit": lambda value: {"max_variants": value},
    "max_autotune": lambda value: {"mode": "max-autotune-no-cudagraphs"} if value else {},
    "triton.cudagraphs": lambda value: {"mode": "reduce-overhead"} if value else {},
    "fx_graph_cache": lambda value: {"cache": value},
    "force_disable_caches": lambda value: {"cache": False} if value else {},
    "compile_threads": lambda value: {"build_jobs": value},
    "emulate_precision_casts": lambda value: {"numerics": "eager"} if value else {},
    "epilogue_fusion": lambda value: {} if value else {"fusion": False},
    "fallback_random": lambda value: {},  # random numbers are eager's
}
"""torch.compile's name -> its value as fields of `Config`"""
_OF_COMPILE = frozenset({"guard_filter_fn", "use_aoti"})
"""Names that torch.compile itself takes."""


def own_options(options: dict[str, Any], fields: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options as fields of `Config`, unknown names as they are; and the names of torch.compile's that have
    no counterpart."""
    own: dict[str, Any] = {}
    ignored = []
    for given, value in options.items():
        name = given.replace("-", "_")
        if name not in fields and (row := _ROWS.get(name)) is not None:
            found = row(value)
            if {found.get("mode"), own.get("mode")} == {"max-autotune-no-cudagraphs", "reduce-overhead"}:
                found = {"mode": "max-autotune"}
            own.update(found)
        elif name not in fields and (name in _OF_COMPILE or name in known_names()):
            ignored.append(name)
        else:
            own[name] = value
    return own, ignored


@functools.cache
def known_names() -> frozenset[str]:
    """Return the names of options in the text of the installed torch."""
    path = Path(next(iter(torch.__path__))) / "_inductor" / "config.py"
    return frozenset(_assigned(ast.parse(path.read_text()).body, "")) if path.exists() else frozenset(_ROWS)


def _assigned(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _assigned(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
