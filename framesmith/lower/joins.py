"""Lowering rows of operators that join or overlay tensors: cat, pad, slice_scatter, select_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.lower.context import Context
from framesmith.lower.contractions.geometry import contract
from framesmith.lower.layouts import channels_last, is_channels_last
from framesmith.lower.pointwise import operand
from framesmith.lower.table import lowers
from framesmith.lower.values import Computed, Joined, Lowered, Stored, cost_of, merge_reads
from framesmith.lower.views import window
from framesmith.prims.core import Prim
from framesmith.symbolic.expr import as_expr, simplify_int

_INLINE_PIECES = 4


def inside(b: Builder, position: Any, low: Any, high: Any) -> Op:
    """low <= position < high."""
    return b.scalar("logical_and", b.pred(as_expr(low) - 1, position), b.pred(position, high))


def _all_fusible(ctx: Context) -> bool:
    """Return whether every user of the current node is pointwise (so that a join need not be stored)."""
    node = ctx.node
    assert node is not None
    if node in ctx.wanted:
        return False
    return all(isinstance(u.target, Prim) and u.target.kind in ("pointwise", "reduction") for u in node.users)


@lowers("cat")
def cat(ctx: Context, spec: Any, tensors: Sequence[Lowered], dim: int) -> Lowered | None:
    pieces = [t for t in tensors if not (type(t.shape[dim]) is int and t.shape[dim] == 0)] or [tensors[0]]
    if len(pieces) == 1:
        return pieces[0]
    closure = _cat_closure(ctx, spec, pieces, dim)
    if len(pieces) <= _INLINE_PIECES and _all_fusible(ctx):
        return closure
    joined = Joined(closure, pieces, dim)
    assert ctx.node is not None
    if stored_by_reader(ctx, ctx.node):
        return joined
    target = ctx.join_target(spec, _image_layout(ctx, spec, pieces))
    ctx.write(joined, target)
    return target


def _image_layout(ctx: Context, spec: Any, pieces: list[Lowered]) -> tuple[Any, ...] | None:
    """Return channels-last if all images among `pieces` that are in memory on the CPU are laid out so."""
    images = [p for p in pieces if isinstance(p, Stored)] if ctx.device.type == "cpu" else []
    return channels_last(spec.shape) if images and all(map(is_channels_last, images)) else None


def stored_by_reader(ctx: Context, node: fx.Node) -> bool:
    """Return whether a node is a join whose only user permutes it for the only operator that needs it in memory,
    padded or as it is: its pieces are stored where that operator reads them."""
    names = []
    while isinstance(node.target, Prim) and node not in ctx.wanted and len(node.users) == 1:
        names.append(node.target.name)
        node = next(iter(node.users))
    return names in (["cat", "permute"], ["cat", "permute", "pad"]) and node.target is contract


def _cat_closure(ctx: Context, spec: Any, pieces: list[Lowered], dim: int) -> Computed:
    starts: list[Any] = [0]
    for piece in pieces:
        starts.append(simplify_int(starts[-1] + piece.shape[dim]))

    def element(b: Builder, index: Sequence[Any]) -> Op:
        at = index[dim]

        def piece_at(k: int) -> Op:
            shifted = [*index[:dim], as_expr(at) - starts[k], *index[dim + 1 :]]
            here = inside(b, at, starts[k], starts[k + 1])
            return b.masked(here, lambda: pieces[k].element(b, shifted), 0)

        result = piece_at(len(pieces) - 1)
        for k in reversed(range(len(pieces) - 1)):
            result = b.scalar("where", b.pred(at, starts[k + 1]), piece_at(k), result)
        return result

    cost = max(map(cost_of, pieces)) + len(pieces)
    return Computed(spec.shape, spec.dtype, element, cost, merge_reads(pieces), ctx.origin)


@lowers("pad")
def pad(ctx: Context, spec: Any, x: Lowered, pads: Sequence[tuple[Any, Any]], value: Any) -> Lowered | None:
    changed = [d for d, (low, high) in enumerate(pads) if not (low == 0 and high == 0)]
    if not changed:
        return x
    if _all_extern(ctx) and all(type(n) is int and n >= 0 for pair in pads for n in pair):
        return _padded_buffer(ctx, spec, x, pads, value)

    def element(b: Builder, index: Sequence[Any]) -> Op:
        at = [as_expr(i) - low for i, (low, _) in zip(index, pads)]
        mask: Op = b.const(True, torch.bool)
        for d in changed:
            mask = b.scalar("logical_and", mask, inside(b, at[d], 0, x.shape[d]))
        return b.masked(mask, lambda: x.element(b, at), value)

    return Computed(spec.shape, spec.dtype, element, cost_of(x) + 2, merge_reads([x]), ctx.origin)


def _all_extern(ctx: Context) -> bool:
    """Return whether every user of the current node needs it in memory."""
    assert ctx.node is not None
    return ctx.node not in ctx.wanted and all(not isinstance(u.target, Prim) and u.op == "call_function"
                                              for u in ctx.node.users)


def _padded_buffer(ctx: Context, spec: Any, x: Lowered, pads: Sequence[tuple[int, int]], value: Any) -> Stored:
    """Return a buffer whose border is filled by small nests, and whose middle is written by the nest that computes
    `x`."""
    target = ctx.join_target(spec)
    start = [0] * len(pads)
    size = list(spec.shape)
    fill = operand(value, (), spec.dtype)
    for d, (low, high) in enumerate(pads):
        for at, n in ((0, low), (spec.shape[d] - high, high)):
            if n:
                place, shape = [*start], [*size]
                place[d], shape[d] = at, n
                ctx.write(Computed(tuple(shape), spec.dtype, fill, 0, {}, ctx.origin), _part(target, place, shape))
        start[d], size[d] = low, x.shape[d]
    ctx.write(x, _part(target, start, size))
    return target


def _part(target: Stored, start: Sequence[int], shape: Sequence[int]) -> Stored:
    offset = as_expr(target.offset)
    for at, stride in zip(start, target.stride):
        offset = offset + as_expr(stride) * at
    return window(target, shape, target.stride, offset)


def _overlay(ctx: Context, spec: Any, x: Lowered, src: Any, dim: int, start: Any, stop: Any, step: int,
             keep: bool) -> Computed:
    """x with positions start, start+step, ... < stop of `dim` replaced by src (`keep`: src has the dim)."""
    shape = (*spec.shape[:dim], *spec.shape[dim + 1 :])
    source = src.element if keep else operand(src, shape, spec.dtype)

    def element(b: Builder, index: Sequence[Any]) -> Op:
        at = as_expr(index[dim])
        mask = inside(b, at, start, stop)
        if step != 1:
            rest = (at - start) % step
            mask = b.scalar("logical_and", mask, b.pred(rest, 1))
        middle = [(at - start) // step] if keep else []
        new = b.masked(mask, lambda: source(b, [*index[:dim], *middle, *index[dim + 1 :]]), 0)
        return b.scalar("where", mask, new, x.element(b, index))

    values = [v for v in (x, src) if isinstance(v, Lowered)]
    return Computed(spec.shape, spec.dtype, element, 2 + max(map(cost_of, values)), merge_reads(values), ctx.origin)


@lowers("slice_scatter")
def slice_scatter(ctx: Context, spec: Any, x: Lowered, src: Lowered, dim: int, start: Any, stop: Any,
                  step: int) -> Lowered | None:
    if step != 1 and dim == len(spec.shape) - 1:
        return _interleaved(ctx, spec, x, src, start, step)
    return _overlay(ctx, spec, x, src, dim, start, stop, step, True)


def _interleaved(ctx: Context, spec: Any, x: Lowered, src: Lowered, start: Any, step: int) -> Stored:
    """Write both tensors: selecting per element would make lanes read `src` with gaps."""
    target = ctx.join_target(spec)
    ctx.write(x, target)
    offset = as_expr(target.offset) + as_expr(target.stride[-1]) * start
    strides = (*target.stride[:-1], simplify_int(as_expr(target.stride[-1]) * step))
    ctx.write(src, window(target, src.shape, strides, offset), opaque=True)
    return target


@lowers("select_scatter")
def select_scatter(ctx: Context, spec: Any, x: Lowered, src: Lowered, dim: int, index: Any) -> Lowered | None:
    return _overlay(ctx, spec, x, src, dim, index, simplify_int(as_expr(index) + 1), 1, False)

