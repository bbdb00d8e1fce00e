"""Tile sizes of contractions: the configurations worth measuring, by dtype and shape.

As in `tuning`, all of the numbers are defined here.
"""

from __future__ import annotations

from dataclasses import replace

from framesmith.codegen.triton.tile_shape import Dim
from framesmith.codegen.triton.tuning import UNITS, Config, power, size_of
from framesmith.loops.ir import Kernel, Load
from framesmith.loops.product import MatrixProduct

LEAST = 16  # elements along each side that a matrix instruction takes
MOST = 8  # candidates that are measured
SHORT = 256  # of k: sums that take no longer than reading and writing ...
SMALL = 128 * 128  # ... want many small tiles

# (rows, columns, k, warps, stages) of a tile, the likeliest first, and the number of programs that share the tiles, if
# they do. Of 2 bytes, ...
HALVES: tuple[tuple[int, ...], ...] = (
    (128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (128, 128, 64, 4, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (128, 256, 64, 8, 3, UNITS), (128, 128, 64, 4, 4, UNITS), (128, 128, 64, 8, 3, 2 * UNITS),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 64, 128, 4, 4),
    (64, 32, 128, 4, 4),
    (128, 32, 128, 4, 4), (32, 64, 128, 4, 4), (32, 32, 128, 4, 4), (16, 64, 128, 4, 4), (64, 16, 128, 4, 4),
    (16, 32, 256, 4, 4),
    (16, 16, 256, 4, 4),
)  # fmt: skip
# ... of 4 bytes on matrix units, ...
TF32 = (
    (128, 128, 32, 4, 3), (128, 256, 32, 8, 3), (256, 128, 32, 8, 3), (128, 128, 32, 8, 3), (64, 128, 32, 4, 4),
    (128, 64, 32, 4, 4),
    (64, 64, 32, 4, 4), (32, 64, 64, 4, 3), (64, 32, 64, 4, 3), (32, 32, 64, 4, 4), (16, 64, 64, 4, 4),
    (64, 16, 64, 4, 4),
    (16, 32, 128, 4, 3), (16, 16, 128, 4, 3),
)  # fmt: skip
# ... and of 4 bytes without them.
PLAIN = (
    (64, 64, 32, 4, 3), (128, 64, 16, 8, 3), (64, 128, 16, 8, 3), (32, 64, 32, 4, 3), (64, 32, 32, 4, 3),
    (32, 32, 32, 4, 3),
    (16, 64, 32, 4, 3), (64, 16, 32, 4, 3), (16, 32, 64, 4, 3), (16, 16, 64, 4, 3),
)  # fmt: skip


def candidates(kernel: Kernel, p: MatrixProduct) -> tuple[Config, ...]:
    """Return configurations for `p`, the likeliest first: tiles that exceed the result little and leave few
    multiprocessors idle."""
    m, n, k = (size_of(Dim("", (axis,))) for axis in (p.m, p.n, p.k))
    batch = 1
    for a in kernel.outer:
        batch *= size_of(Dim("", (a,)))
    rows = HALVES if p.dtype.itemsize == 2 else TF32 if p.tf32 else PLAIN
    fitting = [r for r in rows if r[0] <= max(power(m), LEAST) and r[1] <= max(power(n), LEAST)] or [rows[-1]]
    if rows is not PLAIN and _lies_across(p):
        fitting = [r for r in fitting if not _is_slim(r)] or [rows[-1]]
    if k <= SHORT:
        fitting = [r for r in fitting if r[0] * r[1] <= SMALL] or fitting
    fitting = [r for r in fitting if len(r) < 6 or batch * -(-m // r[0]) * -(-n // r[1]) >= 2 * r[5]]
    ranked = [_config(r, k) for r in sorted(fitting, key=lambda r: _cost(batch, m, n, r))]
    if len(p.left) > 1 and k <= SHORT:
        ranked = [_tightened(c, k) for c in ranked]
    return tuple({repr(c): c for c in ranked}.values())[:MOST]


def _lies_across(p: MatrixProduct) -> bool:
    """Return whether the left operand is contiguous along the rows of the result."""
    return any(type(op) is Load and op.index.coeff(p.m.symbol) == 1 for op in p.left)


def _is_slim(row: tuple[int, ...]) -> bool:
    """Return whether a tile uses instructions of four warps with 16 columns: with a transposed left operand, Triton 3.6
    compiles it to code that reads out of bounds (seen on an H200: 1001 x 1200 by 1200 x 128, tiles of 64 x 16 x
    128)."""
    return row[0] >= 64 and row[1] == LEAST


def choose(kernel: Kernel, p: MatrixProduct) -> Config:
    """Return the configuration to use without a measurement."""
    return candidates(kernel, p)[0]


def _cost(batch: int, m: int, n: int, row: tuple[int, ...]) -> float:
    """Return an estimate of time in waves of programs: the larger of arithmetic and loads of operands."""
    y, x = row[:2]
    programs = batch * -(-m // y) * -(-n // x)
    waves = max(programs / UNITS, 1.0) if programs > 4 * UNITS else -(-programs // UNITS)
    return waves * max(y * x, 48 * (y + x))


def _tightened(c: Config, k: int) -> Config:
    """Return a configuration with half the block of k if that exceeds k less: computing an operand costs for the
    excess, too."""
    r = c.blocks["r"]
    half = max(r // 2, LEAST)
    return replace(c, blocks={**c.blocks, "r": half}) if -(-k // half) * half < -(-k // r) * r else c


def _config(row: tuple[int, ...], k: int) -> Config:
    y, x, r, warps, stages, programs = (*row, 0)[:6]
    r = max(min(r, power(k)), LEAST)
    return Config({"y": y, "x": x, "r": r}, warps, stages=stages if programs else min(stages, -(-k // r)),
                  programs=programs)
