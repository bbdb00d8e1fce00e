"""The geometry of a contraction over a dense row-major activation and packed weights, and its two operators.

`contract(x, packed, geometry)` reads `x` as flat memory:

    out[i, j, m, n] = sum over p, q, k of  x.flat[i*image_stride + j*line_stride + m*lda + p*strides[0] + q*strides[1] +
    k] * B[p, q, k, n]

with B packed by `pack` into panels (see `loops.contract`). Both are ordinary graph targets: calling them is their eager
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from framesmith import _C
from framesmith.loops.contract import LINE, choose_tile, pack_columns, packed_columns
from framesmith.prims.core import Size, numel


@dataclass(frozen=True, slots=True)
class VectorUnit:
    """The vectors that code is made for: `lanes` of float32 in each, and how many `registers` hold one. `shared`:
    weights are packed as code for any other vectors reads them, too."""

    lanes: int
    registers: int
    shared: bool = False


HOST = VectorUnit(_C.LANES, _C.VECTOR_REGISTERS)
"""The geometry of this process."""
PACKED = 1 << 20
"""The number of elements that are packed at a time, which bounds how long concurrent calls wait."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Strides in elements of `x`; the result has shape `shape`, row-major, of images * lines * m * n elements.

    Dynamic sizes are expressions; then the operator runs only in kernels."""

    images: Size
    image_stride: Size
    lines: Size
    line_stride: Size
    m: Size
    lda: int
    n: int
    runs: tuple[int, int]
    strides: tuple[Size, Size]
    depth: int
    rows: int
    vectors: int
    columns: int
    lane: int
    shape: tuple[Size, ...]
    groups: int = 1
    # of x; a group's n columns stand side by side in the result, its packed weights one after another
    group_stride: int = 0


def contract(x: torch.Tensor, packed: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """Return the contraction on real float32 tensors, by the core's copy of the template."""
    g = geometry
    x = x.contiguous()
    parts = [torch.empty((*g.shape[:-1], g.n)) for _ in range(g.groups)]
    size = packed.numel() // g.groups
    for k, out in enumerate(parts):
        _C.contract(
            x.data_ptr() + 4 * k * g.group_stride, packed.data_ptr() + 4 * k * size, out.data_ptr(),
            (g.images, g.image_stride, g.lines, g.line_stride, g.m, g.lda, g.n, g.rows, g.columns,
             g.runs[0], g.strides[0], g.runs[1], g.strides[1], g.depth),
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def pack(weight: torch.Tensor, columns: int, lane: int) -> torch.Tensor:
    """Pack a weight of shape (depth in all, n); see `loops.contract.pack_columns`."""
    out, fill = begin_pack(weight, columns, lane)
    fill()
    return out


def begin_pack(weight: torch.Tensor, columns: int, lane: int,
               allocate: Callable[[int], torch.Tensor] = torch.empty) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return the result of `pack`, and the function that writes its elements, which must be called once.
    `allocate(n)`: an uninitialised float32 tensor of n elements."""
    if not packs_in_core(weight, lane):
        return pack_columns(weight, columns, lane), lambda: None
    weight = weight.detach()  # a parameter may have other memory by then
    out = allocate(weight.shape[0] * packed_columns(weight.shape[1], columns, lane))

    def fill() -> None:
        for piece in _pieces(weight, out, columns):
            _C.pack(*piece)
            _C.give_way()

    return out, fill


def packs_in_core(weight: torch.Tensor, lane: int) -> bool:
    """Return whether a weight is packed by `_C.pack`."""
    return weight.dtype is torch.float32 and lane == HOST.lanes


def is_packed(weight: torch.Tensor, out: torch.Tensor, columns: int) -> bool:
    """Return whether `out` has the elements that `_C.pack` would write to it, bit for bit."""
    for piece in _pieces(weight, out, columns):
        if not _C.is_packed(*piece):
            return False
        _C.give_way()
    return True


def _pieces(weight: torch.Tensor, out: torch.Tensor, columns: int) -> Iterator[tuple[int, ...]]:
    """Yield the arguments of `_C.pack` for each piece of a weight."""
    depth, n = weight.shape
    step = max(PACKED // (depth * columns), 1) * columns
    for first in range(0, n, step):  # panels stand one after another
        yield (weight.data_ptr() + 4 * first * weight.stride(1), out.data_ptr() + 4 * first * depth, depth,
               min(step, n - first), *weight.stride(), columns)


def pack_groups(weight: torch.Tensor, groups: int, columns: int, lane: int) -> torch.Tensor:
    """Return the packed weights of each group, one after another; `weight` (depth, groups * n) holds the groups side by
    side."""
    return torch.cat([pack(part, columns, lane) for part in weight.chunk(groups, 1)])


def _tile(unit: VectorUnit, rows: Size, n: int, lda: int) -> tuple[int, int, int, int]:
    """Return `rows`, `vectors`, `columns` and `lane` of a `Geometry`."""
    height, vectors = choose_tile(rows if type(rows) is int else None, n, unit.lanes, unit.registers, lda, unit.shared)
    return height, vectors, *panels(unit, vectors)


def panels(unit: VectorUnit, vectors: int) -> tuple[int, int]:
    """Return the columns of a panel, and the number that those of the last one are rounded up to a multiple of."""
    return (LINE, LINE) if unit.shared else (vectors * unit.lanes, unit.lanes)


def linear_geometry(rows: Size, depth: int, n: int, shape: tuple[Size, ...], unit: VectorUnit = HOST) -> Geometry:
    """x (rows, depth) @ (depth, n)."""
    return Geometry(1, 0, 1, 0, rows, depth, n, (1, 1), (0, 0), depth, *_tile(unit, rows, n, depth), shape)


def window_geometry(
    x: tuple[Size, Size, Size, int], n: int, kernel: tuple[int, int], stride: tuple[int, int],
    dilation: tuple[int, int], groups: int = 1, unit: VectorUnit = HOST
) -> Geometry:
    """Convolution of a padded channels-last image x = (images, height, width, channels) with (kernel, channels /
    groups, n) weights."""
    images, height, width, channels = x
    out_h = (height - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    out_w = (width - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    line = width * channels
    shape = (images, out_h, out_w, n)
    if kernel == (1, 1) and stride == (1, 1) and groups == 1:
        rows = numel(shape[:-1])
        tile = _tile(unit, rows, n, channels)
        return Geometry(1, 0, 1, 0, rows, channels, n, (1, 1), (0, 0), channels, *tile, shape)
    own = channels // groups
    if dilation[1] == 1 and groups == 1:
        runs, strides, depth = (kernel[0], 1), (dilation[0] * line, 0), kernel[1] * channels
    else:
        runs, strides, depth = kernel, (dilation[0] * line, dilation[1] * channels), own
    tile = _tile(unit, out_w, n // groups, stride[1] * channels)
    return Geometry(
        images, height * line, out_h, stride[0] * line, out_w, stride[1] * channels, n // groups,
        runs, strides, depth, *tile, shape, groups, own,
    )  # fmt: skip
