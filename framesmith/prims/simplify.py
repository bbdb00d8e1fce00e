"""Simplification rules: called with the builder and the prim's arguments, they return an existing value or None.

A rule may return an argument itself; a result that must not alias uses `copy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.util.tables import entry

SIMPLIFY: dict[str, Callable[..., Any]] = {}


def _simplifies(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return entry(SIMPLIFY, name)


@_simplifies("reshape")
def _reshape(b: Any, x: Any, shape: tuple[Any, ...]) -> Any:
    if x.shape == shape:
        return x
    # reshape(reshape(x, _), shape) -> reshape(x, shape)
    if x.prim == "reshape":
        return b.reshape(x.args[0], shape)
    return None


@_simplifies("permute")
def _permute(b: Any, x: Any, dims: tuple[int, ...]) -> Any:
    if dims == tuple(range(len(dims))):
        return x
    # permute(permute(x, p), q) -> permute(x, p[q])
    if x.prim == "permute":
        inner = x.args[1]
        return b.permute(x.args[0], tuple([inner[dim] for dim in dims]))
    return None


@_simplifies("expand")
def _expand(b: Any, x: Any, shape: tuple[Any, ...]) -> Any:
    return x if x.shape == shape else None


@_simplifies("convert")
def _convert(b: Any, x: Any, dtype: Any) -> Any:
    return x if x.dtype is dtype else None


@_simplifies("slice")
def _slice(b: Any, x: Any, dim: int, start: Any, stop: Any, step: int) -> Any:
    return x if step == 1 and start == 0 and stop == x.shape[dim] else None


@_simplifies("cat")
def _cat(b: Any, tensors: tuple[Any, ...], dim: int) -> Any:
    return tensors[0] if len(tensors) == 1 else None


@_simplifies("pad")
def _pad(b: Any, x: Any, pads: tuple[tuple[Any, Any], ...], value: Any) -> Any:
    return x if all(pair == (0, 0) for pair in pads) else None


@_simplifies("flip")
def _flip(b: Any, x: Any, dims: tuple[int, ...]) -> Any:
    return x if not dims else None


@_simplifies("roll")
def _roll(b: Any, x: Any, shifts: tuple[Any, ...], dims: tuple[int, ...]) -> Any:
    return x if all(shift == 0 for shift in shifts) else None


@_simplifies("add")
def _add(b: Any, x: Any, y: Any) -> Any:
    # index_put(full(0), v, at, add) + y -> index_put(y, v, at, add)
    for put, other in ((x, y), (y, x)):
        if getattr(put, "prim", "") != "index_put" or not hasattr(other, "spec") or not other.spec.same(put.spec):
            continue
        base, values, indices, dim, accumulate = put.args
        if accumulate and base.prim == "full" and base.args[1] == 0 and not put.node.users:
            return b.index_put(other, values, indices, dim, True)
    return None


def _over_nothing(b: Any, x: Any, dims: tuple[int, ...], keepdim: bool) -> Any:
    return x if not dims else None


for _name in ("sum", "prod", "amax", "amin", "any", "all"):
    SIMPLIFY[_name] = _over_nothing
