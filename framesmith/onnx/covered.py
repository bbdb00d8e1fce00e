"""The operators that have rows, and the ONNX operators that each emits, read from the code of the rows."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import torch

from framesmith.onnx import rows as _rows  # noqa: F401 - fills the table
from framesmith.onnx.emitter import Emitter
from framesmith.onnx.table import FAMILIES, ROWS

COMMON = frozenset(("Cast", "Concat", "Reshape", "Shape", "Expand"))
"""Operators with which rows of most families prepare operands; omitted where there are others."""


def covered() -> list[tuple[str, str, list[str]]]:
    """(family, operator, ONNX's operators) of each row, in order of families."""
    found: dict[tuple[str, str], set[str]] = {}
    for target, function in ROWS.items():
        key = FAMILIES[target], _name(target)
        found.setdefault(key, set()).update(_mentioned(function, set()))
    order = list(dict.fromkeys(FAMILIES.values()))
    return [(family, name, sorted(ops - COMMON or ops))
            for (family, name), ops in sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))]


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket).removeprefix("aten.")
    return f"{'' if isinstance(target, type) else 'size: '}{target.__name__}"


def _mentioned(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the names of ONNX's operators in a row, in the functions of this package that it calls, and in its
    closure."""
    if isinstance(function, str) and onnx.defs.has(function):
        yield function
    elif isinstance(function, tuple | frozenset):
        for part in function:
            yield from _mentioned(part, seen)
    elif isinstance(function, types.CodeType) and id(function) not in seen:
        seen.add(id(function))
        for part in function.co_consts:
            yield from _mentioned(part, seen)
    elif isinstance(function, types.FunctionType) and id(function.__code__) not in seen and _is_ours(function):
        yield from _mentioned(function.__code__, seen)
        for cell in function.__closure__ or ():
            yield from _mentioned(cell.cell_contents, seen)
        for name in _names(function.__code__):
            yield from _mentioned(function.__globals__.get(name) or Emitter.__dict__.get(name), seen)


def _is_ours(function: Callable[..., Any]) -> bool:
    return function.__module__.startswith("framesmith.onnx")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)
