"""Lowering rows of indexing by tensors. Reads become closures over an index that is loaded; writes become a copy and a
scattering nest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.lower.context import Context, surely_smaller
from framesmith.lower.geometry import Size, flat, is_empty
from framesmith.lower.pointwise import operand
from framesmith.lower.table import lowers
from framesmith.lower.values import Computed, Lowered, Stored, cost_of, merge_reads
from framesmith.symbolic.expr import as_expr

_INDEX_COST = 3
_COPY = torch.ops.aten.copy_.default


def looked_up(ctx: Context, index: Lowered, size: Any, wrap: bool) -> Callable[[Builder, Sequence[Any]], Any]:
    """Return a function that gives the symbol of the index loaded at a position, with eager's range check."""
    symbol = ctx.indirect_symbol(size)
    known = ctx.writes and ctx.device.type == "cpu" and not (isinstance(index, Computed) and not index.reads)
    if known:
        index, wrap = ctx.checked(index, size, wrap), False

    def at(b: Builder, position: Sequence[Any]) -> Any:
        key = (symbol, tuple(position), b.mask)
        found = b.memo.get(key)
        if found is None:
            taken = any(type(k) is tuple and k and k[0] is symbol for k in b.memo)
            name = ctx.indirect_symbol(size) if taken else symbol
            found = b.memo[key] = b.indirect(index.element(b, position), name, size, wrap, not known)
        return found.symbol  # type: ignore[attr-defined]

    return at


def gathered(ctx: Context, spec: Any, x: Lowered, indices: Sequence[Lowered], element: Any) -> Computed:
    """Return a value each `element` of which is one of `x`, at a place that `indices` give."""
    values = [x, *indices]
    reads = merge_reads(list(indices))
    for name in merge_reads([x]):
        reads[name] = spec.numel  # one element of x for each element of the result
    return Computed(spec.shape, spec.dtype, element, _INDEX_COST + sum(map(cost_of, values)), reads, ctx.origin)


def _source(ctx: Context, x: Lowered, uses: Size) -> Lowered:
    """Return the tensor to gather from. Computed elements are recomputed for each use: if there may be more `uses` than
    elements, and they are not cheap, they are stored first."""
    return ctx.realise(x) if isinstance(x, Computed) and x.cost > 2 and not surely_smaller(uses, x.numel) else x


@lowers("embedding")
def embedding(ctx: Context, spec: Any, weight: Lowered, index: Lowered) -> Lowered | None:
    weight = _source(ctx, weight, spec.numel)
    row = looked_up(ctx, index, weight.shape[0], False)
    return gathered(ctx, spec, weight, [index], lambda b, i: weight.element(b, [row(b, i[:-1]), i[-1]]))


@lowers("gather")
def gather(ctx: Context, spec: Any, x: Lowered, index: Lowered, dim: int) -> Lowered | None:
    x = _source(ctx, x, spec.numel)
    if not x.shape:
        return x if not index.shape else None
    at = looked_up(ctx, index, x.shape[dim], False)
    return gathered(ctx, spec, x, [index], lambda b, i: x.element(b, [*i[:dim], at(b, i), *i[dim + 1 :]]))


@lowers("index_select")
def index_select(ctx: Context, spec: Any, x: Lowered, index: Lowered, dim: int) -> Lowered | None:
    x = _source(ctx, x, spec.numel)
    at = looked_up(ctx, index, x.shape[dim], False)
    return gathered(ctx, spec, x, [index], lambda b, i: x.element(b, [*i[:dim], at(b, [i[dim]]), *i[dim + 1 :]]))


@lowers("index")
def index(ctx: Context, spec: Any, x: Lowered, indices: Sequence[Lowered], dim: int) -> Lowered | None:
    x = _source(ctx, x, spec.numel)
    rank = len(indices[0].shape)
    at = [looked_up(ctx, v, x.shape[dim + k], True) for k, v in enumerate(indices)]

    def element(b: Builder, i: Sequence[Any]) -> Op:
        position = i[dim : dim + rank]
        return x.element(b, [*i[:dim], *(f(b, position) for f in at), *i[dim + rank :]])

    return gathered(ctx, spec, x, list(indices), element)


_DRAW_COST = 50


@lowers("uniform")
def uniform(
    ctx: Context, spec: Any, state: Lowered, shape: tuple[Any, ...], shift: Any, vector: int, threads: Any,
    steps: tuple[Any, ...]
) -> Lowered:
    """See `prims.philox`."""

    def element(b: Builder, i: Sequence[Any]) -> Op:
        offset = b.scalar("add", state.element(b, [1]), b.index(as_expr(shift)))
        ways = b.const(vector, torch.int64), b.index(as_expr(threads))
        bits = b.scalar("random_bits", state.element(b, [0]), offset, *ways, b.index(flat(i, steps)))
        some = b.scalar("mul", b.cast(bits, torch.float32), b.const(2.0**-32, torch.float32))
        return b.scalar("add", some, b.const(2.0**-33, torch.float32))

    return Computed(spec.shape, spec.dtype, element, _DRAW_COST, merge_reads([state]), ctx.origin)


# -------------------------------------------------------------------------------------------------------------- writing


def scatter_nest(ctx: Context, base: Lowered, shape: tuple[Any, ...], place: Any, value: Any,
                 mode: str | None) -> Stored:
    """Return a copy of `base`, with `value(b, i)` stored at `place(b, i)` for each i of `shape`, in any order. An input
    whose only update is this value is written in place."""
    out = base if _is_last_of(ctx, base) else ctx.materialise(base, ctx.wanted.get(ctx.node),  # type: ignore[arg-type]
                                                              written=True)
    assert isinstance(out, Stored)
    if is_empty(shape):  # an index without elements may have another rank
        return out
    b = Builder()
    i, axes = ctx.axes(shape)
    b.store(out.buffer, flat(place(b, i), out.stride, out.offset), value(b, i), mode)
    ctx.add(axes, b, opaque=True)
    return out


def _is_last_of(ctx: Context, base: Lowered) -> bool:
    """Return whether the node's value replaces the input `base`, which nothing else reads."""
    if not isinstance(base, Stored) or ctx.storages[base.buffer].kind != "input" or 0 in base.stride:
        return False
    node: Any = ctx.node
    place, users = node.args[0], set(node.args[0].users) - {node}
    written = [user for user in users if user.target is _COPY and user.args[:2] == (place, node)]
    return place.op == "placeholder" and len(written) == 1 == len(users)


@lowers("index_put")
def index_put(ctx: Context, spec: Any, x: Lowered, values: Any, indices: Sequence[Lowered], dim: int,
              accumulate: bool) -> Any:
    if accumulate and x.dtype.itemsize < 4:
        return None
    rank = len(indices[0].shape)
    shape = (*x.shape[:dim], *indices[0].shape, *x.shape[dim + len(indices) :])
    at = [looked_up(ctx, v, x.shape[dim + k], True) for k, v in enumerate(indices)]

    def place(b: Builder, i: Sequence[Any]) -> list[Any]:
        position = i[dim : dim + rank]
        return [*i[:dim], *(f(b, position) for f in at), *i[dim + rank :]]

    value = operand(_settled(ctx, values), shape, x.dtype)
    return scatter_nest(ctx, x, shape, place, value, "add" if accumulate else None)


def _settled(ctx: Context, src: Any) -> Any:
    return ctx.realise(src) if isinstance(src, Computed) and ctx.is_heavy(src) else src


@lowers("scatter")
def scatter(ctx: Context, spec: Any, x: Lowered, index: Lowered, src: Any, dim: int, mode: str | None = None) -> Any:
    if not x.shape:
        return None
    at = looked_up(ctx, index, x.shape[dim], False)
    src = _settled(ctx, src)
    if isinstance(src, Lowered):  # src may be larger than index: only its corner is used
        full = src
        value: Any = lambda b, i: full.element(b, i)  # noqa: E731
    else:
        value = operand(src, index.shape, x.dtype)
    return scatter_nest(ctx, x, index.shape, lambda b, i: [*i[:dim], at(b, i), *i[dim + 1 :]], value, mode)


@lowers("scatter_reduce")
def scatter_reduce(ctx: Context, spec: Any, x: Lowered, index: Lowered, src: Lowered, dim: int, how: str) -> Any:
    if how != "add" or x.dtype.itemsize < 4:
        return None
    return scatter(ctx, spec, x, index, src, dim, "add")


