"""Images of channels-last memory made 2, 4, 8, ... times as large between their elements, as pointwise nests with
lanes along channels. Factors of two have places and weights that float32 holds, so these are eager's bit for bit.

Along a dimension, element i of the result is at (2i + 1 - factor) / (2 factor) of the image, or at 0 before its first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.lower.context import Context
from framesmith.lower.joins import stored_by_reader
from framesmith.lower.layouts import channels_last, is_channels_last
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Computed, Lowered, Stored, reads_of
from framesmith.symbolic.expr import Expr, as_expr, max_, min_

aten = torch.ops.aten
COST = 12
CHANNELS = 8  # from which lanes along channels are worth it


@lowers_extern(aten.upsample_bilinear2d.default)
def upsample_bilinear2d(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered | None:
    """Return the larger image, channels-last, or as a closure where a join stores it; None (eager's kernel) for other
    factors and layouts."""
    x, _, corners, *given = args
    spec = node.meta["val"]
    if kwargs or corners or ctx.device.type != "cpu" or x.dtype is not torch.float32:
        return None
    factors = [_factor(x.shape[d + 2], spec.shape[d + 2], given[d] if given else None) for d in (0, 1)]
    if type(x.shape[1]) is not int or x.shape[1] < CHANNELS or 0 in factors:
        return None
    x = ctx.realise(x)
    if not is_channels_last(x):
        return None
    large = Computed(spec.shape, x.dtype, _element(x, factors), COST, reads_of(x), ctx.origin)
    joins = [user for user in node.users if node not in ctx.wanted and stored_by_reader(ctx, user)]
    return large if len(joins) == len(node.users) == 1 else ctx.realise(large, channels_last(spec.shape))


def _factor(size: Any, wanted: Any, given: float | None) -> int:
    """Return the power of two by which a size grows; 0: none, or it is not known here."""
    if type(size) is not int or type(wanted) is not int or not size or wanted % size:
        return 0
    factor: int = wanted // size
    return factor if factor > 1 and factor & (factor - 1) == 0 and given in (None, factor) else 0


def _element(x: Stored, factors: Sequence[int]) -> Any:
    """Return the function of one element: what four elements of `x` weigh there."""

    def element(b: Builder, index: Sequence[Any]) -> Op:
        n, c, *at = index
        rows, columns = (_between(b, at[d], factors[d], x.shape[d + 2]) for d in (0, 1))
        terms = [b.scalar("mul", b.scalar("mul", row_weight, weight), x.element(b, [n, c, row, column]))
                 for row, row_weight in rows for column, weight in columns]
        total = terms[0]
        for term in terms[1:]:
            total = b.scalar("add", total, term)
        return total

    return element


def _between(b: Builder, at: Any, factor: int, size: int) -> list[tuple[Expr, Op]]:
    """Return the two elements between which one of the result is, and their weights."""
    place = max_(as_expr(at) * 2 + (1 - factor), 0)
    first = place // (2 * factor)
    share = b.scalar("mul", b.cast(b.index(place % (2 * factor)), torch.float32),
                     b.const(0.5 / factor, torch.float32))
    rest = b.scalar("sub", b.const(1.0, torch.float32), share)
    return [(first, rest), (min_(first + 1, size - 1), share)]
