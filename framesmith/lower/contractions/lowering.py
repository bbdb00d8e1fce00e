"""The lowering row of `contract`: a nest over images, lines, rows and columns whose body starts from the tile's accumulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.contract import Accumulator
from framesmith.loops.ir import Axis
from framesmith.loops.nest import Compute
from framesmith.lower.context import Context
from framesmith.lower.contractions.geometry import Geometry, contract
from framesmith.lower.geometry import row_major
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Strided
from framesmith.symbolic.expr import Expr, Symbol, as_expr


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a contraction nest asks of the scheduler: its last two axes are the tile's m and n, the axes before are outer.

    `a_index` is an expression over the outer axes and m; the fields are those of `loops.contract.Contract`. `reads` are the buffers a and b.
    """

    a: str
    a_index: Expr
    b: str
    geometry: Geometry
    reads: tuple[str, str]


@lowers_extern(contract)
def lower_contract(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Strided:
    """One `Compute` over (image, line, m, n), each axis of extent 1 left out but m and n."""
    x, packed, g = args
    x = ctx.realise(x, row_major(x.shape))
    packed = ctx.realise(packed)
    out = ctx.storage(g.shape, row_major(g.shape), torch.float32)
    index, axes = ctx.axes((g.images, g.lines), "o")
    (m, n), tile = _tile_axes(g)
    a_index = index[0] * g.image_stride + index[1] * g.line_stride + m * g.lda + x.offset
    b = Builder()
    accumulator = Accumulator()
    b.ops.append(accumulator)
    b.store(out.buffer, ((index[0] * g.lines + index[1]) * g.m + m) * g.n + n, accumulator)
    plan = Plan(x.buffer, a_index, packed.buffer, g, (x.buffer, packed.buffer))
    ctx.items.append(Compute((*axes, *tile), (), (), tuple(b.ops), ctx.origin, contract=plan))
    return out


def _tile_axes(g: Geometry) -> tuple[list[Expr], tuple[Axis, Axis]]:
    """The axes m and n, kept even when their extent is 1 (an index of 0 then)."""
    symbols = [Symbol(name, 0, size - 1) for name, size in (("m", g.m), ("n", g.n))]
    return symbols, tuple(Axis(s, as_expr(size)) for s, size in zip(symbols, (g.m, g.n), strict=True))  # type: ignore[return-value]
