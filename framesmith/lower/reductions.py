"""Lowering rows of reductions: one nest each, its operand inlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Axis, Load, Op
from framesmith.loops.nest import Compute
from framesmith.lower.context import Context
from framesmith.lower.geometry import flat, memory_order, numel, strides_in_order
from framesmith.lower.table import lowers
from framesmith.lower.values import Computed, Lowered, Stored
from framesmith.symbolic.expr import Symbol, as_expr, max_, simplify_int


class Domain:
    """Axes of a reduction: `index` into the operand, kept axes and reduced axes, and the shape of the result."""

    def __init__(self, ctx: Context, shape: Sequence[Any], dims: Sequence[int]) -> None:
        reduced = set(dims)
        self.index: list[Any] = []
        kept: list[Axis] = []
        gone: list[Axis] = []
        self.out_index: list[Any] = []
        for d, size in enumerate(shape):
            prefix = "r" if d in reduced else "a"
            (i,), axis = ctx.axes((size,), f"{prefix}{d}_")
            self.index.append(i)
            (gone if d in reduced else kept).extend(axis)
            if d not in reduced:
                self.out_index.append(i)
        one = Axis.of("r_", 1)  # a reduction of single elements still has its loop
        self.axes, self.raxes = tuple(kept), tuple(gone) or (one,)
        self.shape = tuple(s for d, s in enumerate(shape) if d not in reduced)
        self.keep_shape = tuple(1 if d in reduced else s for d, s in enumerate(shape))

    def layout(self, ctx: Context, x: Lowered) -> tuple[Any, ...]:
        """Strides of the result (without reduced dims) that follow the operand's memory order."""
        if isinstance(x, Stored) and all(type(s) is int for s in x.stride):
            kept = [d for d, (i, k) in enumerate(zip(self.index, self.keep_shape))
                    if any(i is o for o in self.out_index)]
            order = memory_order(self.shape, [x.stride[d] for d in kept]) if len(kept) == len(self.shape) else None
            if order is not None:
                return strides_in_order(self.shape, order)
        return strides_in_order(self.shape, range(len(self.shape)))


Body = Callable[[Builder, Op], Op]


def reduce_nest(ctx: Context, x: Lowered, dims: Sequence[int], dtype: torch.dtype,
                inner: Callable[[Builder, Domain], Sequence[Op]],
                posts: Sequence[Callable[[Builder, Sequence[Op], Domain], Op]], strides: Sequence[Any] | None = None,
                kinds: Sequence[torch.dtype] | None = None) -> tuple[list[Stored], Domain]:
    """Append a nest: `inner` builds the reductions, each of `posts` one result (stored without the reduced dims)."""
    domain = Domain(ctx, x.shape, dims)
    body = Builder()
    results = inner(body, domain)
    after = Builder()
    stride = tuple(strides) if strides is not None else domain.layout(ctx, x)
    outs = []
    for k, post in enumerate(posts):
        out = ctx.storage(domain.shape, stride, kinds[k] if kinds else dtype)
        value = post(after, results, domain)
        after.store(out.buffer, flat(domain.out_index, stride), value)
        outs.append(out)
    origins = tuple(dict.fromkeys((*body.origins, *ctx.origin)))
    ctx.items.append(Compute(domain.axes, domain.raxes, tuple(body.ops), tuple(after.ops), origins))
    return outs, domain


def _kept(ctx: Context, out: Stored, keep_shape: tuple[Any, ...], dims: Sequence[int], keepdim: bool) -> Stored:
    if not keepdim:
        return out
    stride = list(out.stride)
    for d in sorted(dims):
        stride.insert(d, 1)
    return Stored(out.buffer, keep_shape, tuple(stride), 0, out.dtype)


def _wanted_strides(ctx: Context, dims: Sequence[int], keepdim: bool, shape: Sequence[Any]) -> tuple[Any, ...] | None:
    """Eager's strides without the reduced dims, when the current node is an output of the graph."""
    stride = ctx.wanted.get(ctx.node)  # type: ignore[arg-type]
    if stride is None or not isinstance(stride, tuple) or (stride and isinstance(stride[0], tuple)):
        return None
    return tuple(s for d, s in enumerate(stride) if d not in dims) if keepdim else stride


def reduce(ctx: Context, x: Lowered, dims: Sequence[int], keepdim: bool, dtype: torch.dtype, kind: str,
           post: Body | None = None) -> Lowered:
    """Lower an ordinary reduction of `x`, with `post` applied to its result."""
    x = _split(ctx, x, dims, kind, dtype)
    dims = tuple(dims)
    strides = _wanted_strides(ctx, dims, keepdim, x.shape) if x.shape else None
    outs, domain = reduce_nest(ctx, x, dims, dtype, lambda b, d: (b.reduce(kind, (x.element(b, d.index),), dtype),),
                               [lambda b, r, d: post(b, r[0]) if post else r[0]], strides)
    return _kept(ctx, outs[0], domain.keep_shape, dims, keepdim)


def _split(ctx: Context, x: Lowered, dims: Sequence[int], kind: str, dtype: torch.dtype) -> Lowered:
    """Reduce parts first, for a large reduction to few results, so that threads share the work. The result has x's
    rank: the parts are in the outermost reduced dim."""
    start = ctx.limits.split
    if start is None:
        return x
    sizes = [x.shape[d] for d in dims]
    kept = numel([s for d, s in enumerate(x.shape) if d not in dims])
    whole = numel(sizes)
    if type(whole) is not int or type(kept) is not int or whole < start or kept >= 16:
        return x
    d = max(dims, key=lambda k: (_stride(x, k), -k) if x.shape[k] != 1 else (-1, -k))
    n = x.shape[d]
    parts = next((p for p in range(min(64, n), 3, -1) if n % p == 0), None)
    if parts is None or parts == n and len([s for s in sizes if s != 1]) == 1:
        return x
    domain = Domain(ctx, x.shape, dims)
    (part,), (axis,) = ctx.axes((parts,), "p")
    length = n // parts
    body = Builder()
    index = list(domain.index)
    raxes = [a for a in domain.raxes if a.symbol is not index[d]]
    if length > 1:
        raxes.append(Axis.of("q0", length))
        index[d] = part * length + raxes[-1].symbol
    else:
        index[d] = part
    value = body.reduce(kind, (x.element(body, index),), dtype)
    shape = tuple(parts if k == d else s for k, s in enumerate(domain.keep_shape))
    out = ctx.storage(shape, strides_in_order(shape, range(len(shape))),
                      torch.float32 if dtype.itemsize == 2 else dtype)
    after = Builder()
    target = [part if k == d else (i if i in domain.out_index else 0) for k, i in enumerate(domain.index)]
    after.store(out.buffer, flat(target, out.stride), value)
    ctx.items.append(Compute((axis, *domain.axes), tuple(raxes), tuple(body.ops), tuple(after.ops), ctx.origin))
    return out


def _stride(x: Lowered, dim: int) -> int:
    if isinstance(x, Stored):
        step = x.stride[dim]
        return step if type(step) is int else 1 << 60
    return len(x.shape) - dim


def _register(prim: str, kind: str, on_bool: str | None = None) -> None:
    @lowers(prim)
    def row(ctx: Context, spec: Any, x: Lowered, dims: Sequence[int], keepdim: bool) -> Lowered | None:
        return reduce(ctx, x, dims, keepdim, spec.dtype, on_bool if on_bool and x.dtype is torch.bool else kind)


for _prim, _kind, _bool in (("sum", "sum", None), ("prod", "prod", None), ("amax", "max", "any"),
                            ("amin", "min", "all"), ("any", "any", None), ("all", "all", None)):
    _register(_prim, _kind, _bool)


def _register_arg(prim: str) -> None:
    @lowers(prim)
    def row(ctx: Context, spec: Any, x: Lowered, dim: int, keepdim: bool) -> Lowered | None:
        if x.dtype is torch.bool or not x.shape:
            return None
        def first(b: Builder, d: Domain) -> tuple[Op]:
            return (b.reduce(prim, (x.element(b, d.index), b.index(d.index[dim])), torch.int64),)

        outs, domain = reduce_nest(ctx, x, (dim,), torch.int64, first, [lambda b, r, d: r[0]],
                                   _wanted_strides(ctx, (dim,), keepdim, x.shape))
        return _kept(ctx, outs[0], domain.keep_shape, (dim,), keepdim)


_register_arg("argmax")
_register_arg("argmin")


@lowers("var_mean")
def var_mean(ctx: Context, spec: Any, x: Lowered, dims: Sequence[int], keepdim: bool, correction: Any) -> Any:
    dims = tuple(dims)
    count = numel([x.shape[d] for d in dims])
    if ctx.is_heavy(x) or (isinstance(x, Computed) and x.cost > 2):
        x = ctx.realise(x)
    limit = ctx.limits.columns if _runs_across(ctx, x, dims) else ctx.limits.two_pass
    if type(count) is int and count > limit:
        return _welford(ctx, x, dims, keepdim, correction, count)
    mean = _mean(ctx, x, dims, count)
    divisor: Any = (simplify_int(max_(as_expr(count) - correction, 0)) if isinstance(correction, int)
                    else count - float(correction))
    deviation = _deviation(ctx, x, mean, dims)
    var = reduce(ctx, deviation, dims, True, x.dtype, "sum", lambda b, s: _divide(b, s, divisor))
    if keepdim:
        return var, mean
    return tuple(_dropped(v, dims) for v in (var, mean))


def _runs_across(ctx: Context, x: Lowered, dims: Sequence[int]) -> bool:
    """Return whether adjacent elements in memory contribute to different results."""
    b = Builder()
    index, _ = ctx.axes(x.shape)
    x.element(b, index)
    gone = [index[d] for d in dims if isinstance(index[d], Symbol)]
    return not any(op.index.coeff(s) == 1 for op in b.ops if type(op) is Load for s in gone)


def _dropped(value: Any, dims: Sequence[int]) -> Stored:
    keep = [d for d in range(len(value.shape)) if d not in dims]
    return Stored(value.buffer, tuple(value.shape[d] for d in keep), tuple(value.stride[d] for d in keep), 0,
                  value.dtype)


def _divide(b: Builder, value: Op, divisor: Any) -> Op:
    if isinstance(divisor, (int, float)):
        return b.scalar("div", value, b.const(float(max(0, divisor)), value.dtype))
    return b.scalar("div", value, b.index(divisor, value.dtype))


def _mean(ctx: Context, x: Lowered, dims: Sequence[int], count: Any) -> Lowered:
    return reduce(ctx, x, dims, True, x.dtype, "sum", lambda b, s: _divide(b, s, count))


def _deviation(ctx: Context, x: Lowered, mean: Lowered, dims: Sequence[int]) -> Computed:
    def element(b: Builder, index: Sequence[Any]) -> Op:
        at = [0 if d in dims else i for d, i in enumerate(index)]
        difference = b.scalar("sub", x.element(b, index), mean.element(b, at))
        return b.scalar("mul", difference, difference)

    return Computed(x.shape, x.dtype, element, 2, {}, ctx.origin)


def _welford(ctx: Context, x: Lowered, dims: Sequence[int], keepdim: bool, correction: Any, count: int) -> Any:
    divisor = max(0, count - correction)  # of NaN, as in eager, nothing
    outs, domain = reduce_nest(
        ctx,
        x,
        dims,
        x.dtype,
        lambda b, d: (b.reduce("welford", (x.element(b, d.index),), x.dtype),),
        [
            lambda b, r, d: b.scalar("div", b.part(r[0], 1, x.dtype), b.const(float(divisor), x.dtype)),
            lambda b, r, d: r[0],
        ],
    )
    return tuple(_kept(ctx, out, domain.keep_shape, dims, keepdim) for out in outs)

