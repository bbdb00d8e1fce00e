"""Passes, decompositions and lowerings that a program adds to the package's own.

A pass runs behind one of `pipeline.PASSES`; a decomposition or a lowering comes before ours. What is registered counts
for what is compiled from then on, and is part of the key of the disk cache.
"""

from __future__ import annotations

import hashlib
import inspect
import marshal
from collections.abc import Callable
from typing import Any

from framesmith.lower.table import PRIM_ROWS
from framesmith.passes import IDENTITIES, REGISTERED, Context, Pass
from framesmith.pipeline import PASSES
from framesmith.prims.registry import rules
from framesmith.util.errors import FramesmithError

_OURS: list[tuple[Callable[..., Any], str, Callable[[], None]]] = []
"""What was registered: the function, its identity, and what takes it back."""


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
        before = {key: table.get(key) for key in keys}
        table.update(dict.fromkeys(keys, function))

        def back() -> None:
            for key, row in before.items():
                table.pop(key)
                if row is not None:
                    table[key] = row

        return _registered(function, " ".join(map(str, keys)), back)

    return decorate


def _registered(function: Callable[..., Any], place: str, back: Callable[[], None]) -> Callable[..., Any]:
    code = marshal.dumps(function.__code__)
    identity = hashlib.sha256(place.encode() + code).hexdigest()[:16]
    IDENTITIES.append(identity)
    _OURS.append((function, identity, back))
    return function


__all__ = ["register_decomposition", "register_lowering", "register_pass", "unregister"]
