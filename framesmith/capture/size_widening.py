"""Results of branches and loops whose sizes differ from path to path or from round to round: these sizes are symbols,
which the graph reads off the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from framesmith.fake.tensor import FakeTensor, new_fake
from framesmith.graph.control import layout_of
from framesmith.symbolic.env import ShapeEnv
from framesmith.symbolic.layout import contiguous_strides
from framesmith.symbolic.node import expr_of, symint

SYM_SIZE = torch.ops.aten.sym_size.int


def widened(env: ShapeEnv | None, val: FakeTensor, other: FakeTensor, opened: set[Any],
            bounded: bool = False) -> FakeTensor | None:
    """Return metadata that holds for `val` and `other`: `val` itself if its sizes that differ are symbols of `opened`,
    else a copy with new symbols for those, which are added to `opened`. None if there is none: they differ in more than
    sizes, or are not contiguous, or the graph may have no symbols of data (`env` is None). `bounded`: a size is one of
    the two."""
    if (val.dim(), val.dtype, val.device) != (other.dim(), other.dtype, other.device):
        return None
    if layout_of(val, expr_of) == layout_of(other, expr_of):
        return val
    if env is None or not (_in_rows(val) and _in_rows(other)):
        return None
    pairs = [(expr_of(a), expr_of(b)) for a, b in zip(val.shape, other.shape, strict=True)]
    bounds = [max(a.hi, b.hi) if bounded and a.hi is not None and b.hi is not None else None for a, b in pairs]
    return _with_symbols(env, val, [a not in opened and a is not b for a, b in pairs], opened, bounds)


def renewed(env: ShapeEnv, val: FakeTensor, opened: set[Any]) -> FakeTensor:
    """Return metadata with a new symbol for each size of `opened`."""
    return _with_symbols(env, val, [expr_of(n) in opened for n in val.shape], set(), [None] * val.dim())


def bind_sizes(recorder: Any, fakes: Iterable[FakeTensor]) -> None:
    """Record that new symbols among the sizes of tensors are read off these."""
    env = recorder.shape_env
    for x in fakes:
        for dim, n in enumerate(x.shape):
            symbol = expr_of(n)
            if env is not None and symbol in env.data and env.sources[symbol] is None:
                recorder.emit(SYM_SIZE, (recorder.nodes(x), dim), n).meta["binds"] = symbol
                env.sources[symbol] = x, dim


def _with_symbols(env: ShapeEnv, val: FakeTensor, fresh: Sequence[bool], opened: set[Any],
                  bounds: Sequence[int | None]) -> FakeTensor:
    if not any(fresh):
        return val
    symbols = [env.data_symbol(0, most, None) if new else None for new, most in zip(fresh, bounds, strict=True)]
    opened.update(s for s in symbols if s is not None)
    sizes = [n if s is None else symint(s, env) for n, s in zip(val.shape, symbols, strict=True)]
    return new_fake(tuple(sizes), contiguous_strides(sizes), val.dtype, val.device)


def _in_rows(x: FakeTensor) -> bool:
    return tuple(map(expr_of, x.stride())) == tuple(map(expr_of, contiguous_strides(x.shape)))


__all__ = ["bind_sizes", "renewed", "widened"]
