"""The lowering row of `contract`: a nest over images, lines, rows and columns whose body starts from the tile's
accumulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.contract import Accumulator, Contract, ConvolutionWindow
from framesmith.loops.ir import Axis, Node
from framesmith.loops.nest import Compute
from framesmith.lower.context import Context
from framesmith.lower.contractions.geometry import contract
from framesmith.lower.geometry import Size, row_major
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Stored
from framesmith.symbolic.expr import Expr, as_expr


@dataclass(frozen=True, slots=True, eq=False)
class TilePlan:
    """The request of a contraction nest to the scheduler: its last two axes are the tile's m and n, the axes before are
    outer.

    The fields are those of `loops.contract.Contract`, over the nest's own axes.
    """

    a: str
    a_index: Expr
    b: str
    runs: tuple[int, int]
    strides: tuple[Size, Size]
    depth: int
    columns: int
    rows: int
    vectors: int
    lane: int
    window: ConvolutionWindow | None = None
    b_index: Expr = as_expr(0)

    @property
    def reads(self) -> tuple[str, str]:
        return self.a, self.b

    def node(self, m: Axis, n: Axis, at: Callable[[Expr], Expr], body: tuple[Node, ...]) -> Contract:
        """Return the node over the kernel's axes; `at` takes an expression over the nest's axes to one over these."""
        strides = (as_expr(self.strides[0]), as_expr(self.strides[1]))
        w = self.window
        window = None if w is None else replace(w, y=at(w.y), x=at(w.x))
        return Contract(
            m, n, self.a, at(self.a_index), self.runs, strides, self.depth, self.b, at(self.b_index), self.columns,
            self.rows, self.vectors, self.lane, body, window,
        )  # fmt: skip


@lowers_extern(contract)
def lower_contract(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored:
    """Lower to one `Compute` over (image, line, group, m, n), each axis of extent 1 left out but m and n."""
    x, packed, g = args
    x = ctx.realise(x, row_major(x.shape))
    packed = ctx.realise(packed)
    out = ctx.storage(g.shape, row_major(g.shape), torch.float32)
    index, axes = ctx.axes((g.images, g.lines, g.groups), "o")
    (m, n), tile = tile_axes(g.m, g.n)
    row, column = 0 if g.m == 1 else m, 0 if g.n == 1 else n  # an axis of extent 1 is in no index
    a_index = index[0] * g.image_stride + index[1] * g.line_stride + row * g.lda + index[2] * g.group_stride + x.offset
    b = Builder()
    accumulator = Accumulator()
    b.ops.append(accumulator)
    at = (index[0] * g.lines + index[1]) * g.m + row
    b.store(out.buffer, (at * g.groups + index[2]) * g.n + column, accumulator)
    b_index = as_expr(index[2] * (packed.shape[0] // g.groups))
    plan = TilePlan(x.buffer, as_expr(a_index), packed.buffer, g.runs, g.strides, g.depth, g.columns, g.rows, g.vectors,
                    g.lane, None, b_index)
    ctx.items.append(Compute((*axes, *tile), (), (), tuple(b.ops), ctx.origin, contract=plan))
    return out


def tile_axes(rows: Size, columns: int) -> tuple[list[Expr], tuple[Axis, Axis]]:
    """Return the axes m and n, kept even if their extent is 1 (an index of 0)."""
    axes = Axis.of("m", rows), Axis.of("n", columns)
    return [a.symbol for a in axes], axes
