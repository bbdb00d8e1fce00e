"""The contraction node of a kernel body: a register-tiled product with a fused epilogue.

    contract m=i1<128 n=i2<768 k<768:  p0[768*i1 + k] * p1.packed
      v0 = accumulator
      v1 = load p2[i2]
      v2 = add v0 v1
      store p3[768*i1 + i2] = v2

For every (m, n) it forms

    acc = sum over p < runs[0], q < runs[1], k < depth of  A[a_index + p * strides[0] + q * strides[1] + k] * B[p, q, k,
    n]

and runs `body` with `Accumulator` as that value. With a `window` (depthwise convolution: depth is 1) each column has
its own column of A:

    acc = sum over p < runs[0], q < runs[1] inside of the image of  A[a_index + p * strides[0] + q * strides[1] + n] *
    B[p, q, n]

Linear: one run of K. Convolution in channels-last over a padded input: one run a kernel row, each of `kernel width *
channels` contiguous elements (implicit im2col), with the image and the output row as outer axes; with groups or
dilation, one run a kernel position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framesmith.loops.ir import Axis, Node, Op
from framesmith.symbolic.expr import Expr


@dataclass(slots=True, eq=False)
class Accumulator(Op):
    """The sum of the enclosing `Contract` node (float32)."""

    dtype: torch.dtype = torch.float32
    args = ()


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionWindow:
    """The condition under which a position of a depthwise kernel lies inside of the image: 0 <= y + p * dilation[0] <
    height, and likewise x, q and width.

    `y` is an expression over outer axes, `x` is linear in m alone. A is read only inside of the image (no padded copy
    is needed).
    """

    y: Expr
    x: Expr
    height: Expr
    width: Expr
    dilation: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """A tile of a contraction inside a kernel; see the module's text.

    `m`, `n`: the axes of the tile; `m.extent` rows (may be symbolic), `n.extent` columns (static). `body` is vectorised
    over n. `a`: parameter read at `a_index` (an expression over outer axes and m; linear in m), elements contiguous
    over k. `b`: parameter with the packed weights (`pack_columns`): panels of `columns` columns, each panel `runs[0] *
    runs[1] * depth` rows of `columns` contiguous elements; the last panel is narrower: the remaining columns rounded up
    to a multiple of `lane`, zero-filled. `b_index`: offset of the first panel over outer axes (groups, batches).
    `rows`, `vectors`: of the register tile that the choice of geometry prefers; it is as wide as a panel, or several.
    """

    m: Axis
    n: Axis
    a: str
    a_index: Expr
    runs: tuple[int, int]
    strides: tuple[Expr, Expr]
    depth: int
    b: str
    b_index: Expr
    columns: int
    rows: int
    vectors: int
    lane: int
    body: tuple[Node, ...]
    window: ConvolutionWindow | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.m, self.n

    @property
    def blocks(self) -> tuple[tuple[Node, ...], ...]:
        return (self.body,)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        w = self.window
        window = () if w is None else (w.y, w.x, w.height, w.width)
        return (self.m.extent, self.n.extent, self.a_index, self.b_index, *self.strides, *window)


def packed_columns(n: int, columns: int, lane: int) -> int:
    """Return the number of columns stored for `n` logical ones: full panels, and a last one rounded up to whole
    vectors."""
    full, rest = divmod(n, columns)
    return full * columns + -(-rest // lane) * lane


def pack_columns(weight: torch.Tensor, columns: int, lane: int) -> torch.Tensor:
    """Pack `weight` (depth, n) into panels: a flat tensor of `depth * packed_columns(n)` elements (see
    `Contract.b`)."""
    depth, n = weight.shape
    full, rest = divmod(n, columns)
    parts = []
    if full:
        parts.append(weight[:, : full * columns].reshape(depth, full, columns).permute(1, 0, 2).reshape(-1))
    if rest:
        last = weight.new_zeros(depth, -(-rest // lane) * lane)
        last[:, :rest] = weight[:, full * columns :]
        parts.append(last.reshape(-1))
    return torch.cat(parts) if len(parts) != 1 else parts[0].contiguous()


# Register tiles (rows, vectors a row) that fit 32 vector registers: accumulators + one row of B + one broadcast.
TILES_32 = ((7, 4), (6, 4), (5, 4), (4, 4), (8, 3), (7, 3), (14, 2), (12, 2), (10, 2), (8, 2), (28, 1), (14, 1), (8, 1))
# ... and 16 registers (AVX2).
TILES_16 = ((3, 4), (4, 3), (3, 3), (6, 2), (5, 2), (4, 2), (12, 1), (8, 1))


EVEN = 840  # rows that every tile divides, as good as any number of many


LINE = 16  # floats of a cache line: the columns of panels that code for any vectors reads


def choose_tile(m: int | None, n: int, lane: int, registers: int, lda: int = 0,
                lines: bool = False) -> tuple[int, int]:
    """Return (rows, vectors) of the register tile with the least modelled time for an m x n result, with rows `lda`
    floats apart; `m`: None if it is dynamic. `lines`: only tiles as wide as some cache lines.

    A row of vectors costs its multiply-adds, and no less than its loads at two a cycle or the latency (4) of a chain of
    adds.
    """
    tiles: tuple[tuple[int, int], ...] = TILES_32 if registers >= 32 else TILES_16
    # rows share two sets of the L1 cache (4 KiB a way): more of them evict each other, at half the speed
    if lda and lda % 512 == 0:
        tiles = tuple(t for t in tiles if t[0] <= 8)
    if lines:
        tiles = tuple(t for t in tiles if t[1] * lane % LINE == 0)
    vectors = -(-n // lane)

    def cost(tile: tuple[int, int]) -> tuple[float, int]:
        rows, wide = tile
        full_rows, rest_rows = divmod(EVEN if m is None else m, rows)
        full_wide, rest_wide = divmod(vectors, wide)
        total = 0.0
        for r, times_r in ((rows, full_rows), (rest_rows, 1 if rest_rows else 0)):
            for w, times_w in ((wide, full_wide), (rest_wide, 1 if rest_wide else 0)):
                if r and w:
                    total += times_r * times_w * max(r * w, (r + w) * 0.8, 4.0)
        return total, -rows * wide

    return min(tiles, key=cost)
