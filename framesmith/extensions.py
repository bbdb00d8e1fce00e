"""Passes, decompositions and lowerings that a program adds to the package's own.

A pass runs behind one of `pipeline.PASSES`; a decomposition or a lowering comes before ours. What is registered counts
for what is compiled from then on, and is part of the key of the disk cache.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from framesmith.graph.patterns import Pattern
from framesmith.lower.table import PRIM_ROWS
from framesmith.passes import IDENTITIES, REGISTERED, Context, Pass
from framesmith.pipeline import PASSES
from framesmith.prims.registry import rules
from framesmith.util.errors import FramesmithError

_OURS: list[tuple[Callable[..., Any], str, Callable[[], None]]] = []
"""The registrations: the function, its identity, and the function that undoes it."""
_ROWS: dict[tuple[int, Any], list[Any]] = {}
"""By table and key, the package's own row (None: it has none) and those of the program; the last one counts."""


def register_pass(after: str, form: str = "aten", *, name: str = "", targets: tuple[str, ...] = (),
                  when: Callable[[Context], bool] | None = None) -> Callable[..., Any]:
    """Decorate a function of a graph, or of a graph and a `Context`, that runs behind the pass named `after`.

    A pass of the forms "aten" and "prims" changes the `fx.Graph` in place, or returns another; each node that it makes
    needs `node.meta["val"]`, the shape, strides and dtype of the result (as a rule that of the node that it replaces).
    Raises `FramesmithError` if no pass of the form has that name.
    """
    known = [one.name for one in PASSES if one.form == form]
    if after not in known:
        raise FramesmithError(f"no pass {after!r} of the form {form!r}; there are {', '.join(known) or 'none'}")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        takes = len(inspect.signature(function).parameters)
        run = function if takes > 1 else lambda subject, context: function(subject)
        row = after, Pass(name or function.__name__, form, run, targets, when)
        REGISTERED.append(row)
        return _registered(function, f"{form} {after}", lambda: REGISTERED.remove(row))

    return decorate


def register_decomposition(*overloads: Any) -> Callable[..., Any]:
    """Decorate a rule that computes calls of ATen or custom operators (`torch.ops.namespace.name.overload`) of prims.

    It is called as `rule(b, *args, **kwargs)`: `b` has each prim as a method, tensors are values with `shape`, `dtype`
    and the operators of arithmetic. It returns a value (or a tuple of them) of the shape and dtype that the operator's
    fake implementation says, or NotImplemented: then the operator's own kernel is called.
    """
    return _row(rules, overloads)


def register_lowering(*prims: str) -> Callable[..., Any]:
    """Decorate the lowering of prims, by name: `row(context, spec, *args)` returns the result as loops over the
    arguments' elements, or None: then the prim's own ATen call stands for it. See `framesmith.lower.pointwise`."""
    return _row(PRIM_ROWS, prims)


def unregister(function: Callable[..., Any]) -> None:
    """Take back what was registered with `function`; what is compiled already stays."""
    for row in [row for row in _OURS if row[0] is function]:
        _OURS.remove(row)
        IDENTITIES.remove(row[1])
        row[2]()


def _row(table: dict[Any, Any], keys: tuple[Any, ...]) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for key in keys:
            rows = _ROWS.setdefault((id(table), key), [table.get(key)])
            rows.append(function)
            table[key] = function

        def back() -> None:
            for key in keys:
                rows = _ROWS[id(table), key]
                rows.remove(function)
                table[key] = rows[-1]
                if rows[-1] is None:
                    del table[key]

        return _registered(function, " ".join(map(str, keys)), back)

    return decorate


def _registered(function: Callable[..., Any], place: str, back: Callable[[], None]) -> Callable[..., Any]:
    identity = _identity(function, place)
    IDENTITIES.append(identity)
    _OURS.append((function, identity, back))
    return function


_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_CONSTANT = ("torch", "framesmith", "math")
"""Modules whose attributes no program changes."""


def _identity(function: Any, place: str) -> str:
    """Return the digest of a function's code and of the plain values that it reads; of one that reads anything else,
    whose meaning is not known, a text of its own, so that nothing of another process or registration is taken for
    it."""
    read = inspect.getclosurevars(function)
    values = {**read.globals, **read.nonlocals, "": (function.__defaults__ or (), function.__kwdefaults__ or {})}
    if not all(map(_is_known, values.values())):
        return uuid.uuid4().hex
    text = repr(sorted((name, repr(value)) for name, value in values.items()))
    return hashlib.sha256(f"{place} {text}".encode() + marshal.dumps(function.__code__)).hexdigest()


def _is_known(value: Any) -> bool:
    if isinstance(value, (tuple, dict)):
        return all(map(_is_known, value.values() if isinstance(value, dict) else value))
    if isinstance(value, ModuleType):
        return value.__name__.partition(".")[0] in _CONSTANT
    if isinstance(value, Pattern):
        return " at 0x" not in repr(value)  # has no condition, which may have another meaning elsewhere
    return type(value) in _PLAIN or isinstance(value, torch._ops.OpOverload)
