"""Depthwise convolution: each channel of a channels-last image with its own small kernel, vectorised over channels.

    conv2d(x, W, b, groups=channels)  ->  permute(depthwise(permute(x), pack(W)) + b)

The image is not padded: positions of the kernel outside of it are left out (see `loops.contract.Window`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.loops.build import Builder
from framesmith.loops.contract import Accumulator, ConvolutionWindow
from framesmith.loops.evaluate import unpacked
from framesmith.loops.nest import Compute
from framesmith.lower.context import Context
from framesmith.lower.contractions.geometry import HOST, VectorUnit, panels
from framesmith.lower.contractions.lowering import TilePlan, tile_axes
from framesmith.lower.geometry import Size, row_major
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Stored
from framesmith.symbolic.expr import as_expr

ROWS = 4  # output pixels in flight: enough for the latency of a chain of multiply-adds
MOST_VECTORS = 4  # of channels in a tile
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """An image x of (images, height, width, channels) in row-major order, and the window that runs over it."""

    images: Size
    height: Size
    width: Size
    channels: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    vectors: int
    columns: int
    lane: int

    @property
    def shape(self) -> tuple[Size, Size, Size, int]:
        """The shape of the result, row-major."""
        sizes = zip((self.height, self.width), self.kernel, self.stride, self.padding, self.dilation)
        h, w = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return (self.images, h, w, self.channels)


def depthwise_geometry(x: tuple[Size, ...], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
                       unit: VectorUnit = HOST) -> Geometry:
    """`x`: shape of the channels-last image."""
    images, height, width, channels = x
    vectors = MOST_VECTORS if unit.shared else min(MOST_VECTORS, -(-channels // unit.lanes))
    return Geometry(images, height, width, channels, kernel, stride, padding, dilation, vectors, *panels(unit, vectors))


def depthwise(x: torch.Tensor, packed: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return the operator on real tensors, as its definition."""
    g = geometry
    weight = unpacked(packed, g.kernel[0] * g.kernel[1], g.channels, g.columns, g.lane)
    weight = weight.t().reshape(g.channels, 1, *g.kernel)
    out = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, None, g.stride, g.padding, g.dilation, g.channels)
    return out.permute(0, 2, 3, 1).contiguous()


@lowers_extern(depthwise)
def lower_depthwise(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored:
    """Lower to one `Compute` over (image, line, column, channel)."""
    x, packed, g = args
    x = ctx.realise(x, row_major(x.shape))
    packed = ctx.realise(packed)
    images, lines, width, channels = g.shape
    out = ctx.storage(g.shape, row_major(g.shape), torch.float32)
    (image, line), axes = ctx.axes((images, lines), "o")
    (m, n), tile = tile_axes(width, channels)
    y, column = as_expr(line * g.stride[0] - g.padding[0]), as_expr(m * g.stride[1] - g.padding[1])
    a_index = as_expr(((image * g.height + y) * g.width + column) * channels + x.offset)
    b = Builder()
    accumulator = Accumulator()
    b.ops.append(accumulator)
    at = (image * lines + line) * width + (0 if width == 1 else m)
    b.store(out.buffer, at * channels + (0 if channels == 1 else n), accumulator)
    window = ConvolutionWindow(y, column, as_expr(g.height), as_expr(g.width), g.dilation)
    rows = min(ROWS, width) if type(width) is int else ROWS
    strides = (g.dilation[0] * g.width * channels, g.dilation[1] * channels)
    plan = TilePlan(x.buffer, a_index, packed.buffer, g.kernel, strides, 1, g.columns, rows, g.vectors, g.lane, window)
    ctx.items.append(Compute((*axes, *tile), (), (), tuple(b.ops), ctx.origin, contract=plan))
    return out
