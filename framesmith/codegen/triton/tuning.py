"""How large tiles are and how many warps share one: a few rules over bytes and shape.

The numbers are for chips of some hundred multiprocessors (A100: 108, H100 and H200: 132, B200: 148), each of which hides the latency of
memory with some 2,000 threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from framesmith.codegen.triton.form import Dim, Form, Nest
from framesmith.loops.ir import Op, Reduce, Scalar
from framesmith.loops.scalar import SCALAR_OPS
from framesmith.symbolic.expr import Expr

UNITS = 132
TYPICAL = 1 << 20  # stands for a symbolic extent
PERSISTENT = 1 << 13  # elements of a row up to which all of it is one tile...
PERSISTENT_COLUMN = 64  # ... and where memory runs across the rows
SHARED_ROWS = 1024  # elements of a tile of several short rows: one warp has them, and adds without the others
LOOPED = 4096  # elements of a tile that goes through long rows
ACCUMULATORS = 128  # that a thread has registers for
COLUMNS = 32  # rows side by side of a tile where memory runs across them
BATCH = 1024  # elements of a tile of a row of a table, ...
PROGRAMS = 1 << 14  # ... and how many programs there are before one goes through several


@dataclass(frozen=True, slots=True)
class Config:
    """`blocks`: elements of the tile along each dimension, powers of two. `persistent`: the row is one tile. `parts`: tiles of a row of a
    table that one program goes through. `programs`: of a contraction, which share the tiles of its result; 0: one a tile."""

    blocks: Mapping[str, int]
    warps: int
    persistent: bool = True
    stages: int = 1
    parts: int = 1
    programs: int = 0


def choose(form: Form, batch: int = 0) -> Config:
    """The configuration for `form`; `batch`: elements in all rows of the table that it goes over."""
    if batch:
        return Config({"x": BATCH} if form.grid else {}, 4, parts=max(power(batch) // (BATCH * PROGRAMS), 1))
    if form.row is not None:
        return _rows(form, form.row)
    if form.vectors:
        return _vectors(form)
    if len(form.grid) == 2:
        return _transposing(form)
    return _pointwise(form) if form.grid else Config({}, 1)


def power(n: int) -> int:
    """The least power of two that is no less than n."""
    return 1 << max(n - 1, 0).bit_length()


def size_of(dim: Dim) -> int:
    """Elements along `dim`, as far as known."""
    return _size(dim.extent)


def _size(extent: Expr) -> int:
    return extent.const if extent.is_const else TYPICAL


def _bytes(form: Form) -> int:
    """Of the narrowest element that is read or written."""
    kinds = {p.name: p.dtype for p in form.kernel.params}
    return min((kinds[op.buffer].itemsize for op, _ in form.accesses()), default=4)


def _warps(elements: int, each: int) -> int:
    """Warps such that a thread has about `each` of the tile's elements."""
    return min(max(power(elements // (32 * each)), 1), 16)


def _pointwise(form: Form) -> Config:
    """Some whole vectors for each thread; smaller blocks while there are not several for each multiprocessor."""
    (dim,) = form.grid
    size, each = size_of(dim), 16 if _bytes(form) <= 2 else 8
    if _cost(form) > 400:  # as many values alive as fit
        each = 4
    block = 128 * each
    while block > 128 and size // block < 4 * UNITS:
        block //= 2
    block = min(block, power(size))
    return Config({"x": block}, min(4, _warps(block, 1 if block <= 128 else each)))


def _cost(form: Form) -> int:
    return sum(SCALAR_OPS[op.name].cost for op in form.body if isinstance(op, Op) and type(op) is Scalar)


def _vectors(form: Form) -> Config:
    """A vector for each thread; smaller blocks while there are not several for each multiprocessor."""
    y, x = form.grid
    size, block = size_of(y), 128
    while block > 32 and size // block < 4 * UNITS:
        block //= 2
    return Config({"y": block, "x": size_of(x)}, block // 32)


def _transposing(form: Form) -> Config:
    """Square tiles, as far as the dimensions reach."""
    y, x = form.grid
    side = 64 if _bytes(form) <= 2 else 32
    width, height = min(power(size_of(x)), side), min(power(size_of(y)), side)
    if width < side:
        height = min(power(size_of(y)), side * side // width)
    elif height < side:
        width = min(power(size_of(x)), side * side // height)
    return Config({"y": height, "x": width}, _warps(width * height, 16 if side == 64 else 8))


def _rows(form: Form, row: Dim) -> Config:
    length = size_of(row)
    count = size_of(form.grid[0]) if form.grid else 1
    across = _runs_across(form, row)
    known = row.extent.is_const
    reduces = [op for node in form.body if type(node) is Nest for op in node.ops if type(op) is Reduce]
    kinds = {op.kind for op in reduces}
    limit = PERSISTENT_COLUMN if across else PERSISTENT * (2 if len(form.kernel.params) <= 3 else 1)
    if known and length <= limit:
        return _persistent(form, max(power(length), 2), count, across)
    if across:
        x = min(power(count), COLUMNS)
        each = max(min(8, power(ACCUMULATORS // len(reduces) + 1) // 2), 1) if reduces else 8
        r = max(min(LOOPED // 16 * each // x, power(length)), 2)
        return _config(form, x, r, _warps(x * r, each), persistent=False)
    pairs = not kinds.isdisjoint(("argmax", "argmin"))  # accumulators are three words each
    most = LOOPED // 4 if pairs else LOOPED if count < 4 * UNITS else LOOPED // 2
    r = max(min(most, power(length)), 2)
    return _config(form, 1, r, _warps(r, 4 if pairs else 16 if "welford" in kinds else 8), persistent=False)


def _persistent(form: Form, r: int, count: int, across: bool) -> Config:
    if across:
        x = min(max(min(LOOPED // r, 128), COLUMNS), power(count))
        while x > COLUMNS and count // x < UNITS:
            x //= 2
        return _config(form, x, r, _warps(x * r, 8))
    x = min(max(SHARED_ROWS // r, 1), power(count))
    while x > 1 and count // x < 2 * UNITS:
        x //= 2
    each = 8 if count < UNITS else 32 if _bytes(form) <= 2 else 16
    return _config(form, x, r, _warps(x * r, each))


def _config(form: Form, x: int, r: int, warps: int, persistent: bool = True) -> Config:
    return Config({"x": x, "r": r} if form.grid else {"r": r}, warps, persistent)


def _runs_across(form: Form, row: Dim) -> bool:
    """Whether memory runs along the grid rather than along the row, by bytes."""
    if not form.grid:
        return False
    kinds = {p.name: p.dtype.itemsize for p in form.kernel.params}
    every = [a for d in (*form.grid, row) for a in d.axes]
    along = across = 0
    for op, index in form.accesses():
        moving = [a for a in row.axes if a.symbol in index.free]
        touched = kinds[op.buffer] * math.prod(_size(a.extent) for a in every if a.symbol in index.free)
        if any(index.coeff(a.symbol) == 1 for a in moving):
            along += touched
        elif moving and any(index.coeff(a.symbol) == 1 for a in form.grid[-1].axes):
            across += touched
    return across > along


# ---------------------------------------------------------------------------------------------------------------------- candidates

WIDEST = 1 << 14  # elements of a tile that are still tried, ...
EACH = (1, 64)  # ... and of a thread


def candidates(form: Form) -> tuple[Config, ...]:
    """The configuration of `choose`, and its neighbours: half and twice the elements along a dimension, half and twice the warps, and the
    row as one tile or part by part where both are possible."""
    first = choose(form)
    fixed = {"r"} if first.persistent else set()
    tiles = [first.blocks]
    for name, n in first.blocks.items():
        if name not in fixed:
            tiles += [{**first.blocks, name: m} for m in (n // 2, 2 * n)]
    found = [first, *_otherwise(form, first), *[replace(first, blocks=blocks) for blocks in tiles[1:]]]
    found += [replace(first, warps=warps) for warps in (first.warps // 2, 2 * first.warps)]
    return tuple({repr(c): c for c in found if c is first or _is_sound(form, c)}.values())


def _otherwise(form: Form, first: Config) -> list[Config]:
    """Long rows as one tile, or part by part with loads ahead; rows of one tile part by part."""
    row = form.row
    if row is None or not row.extent.is_const:
        return []
    length = max(power(size_of(row)), 2)
    x = {"x": 1} if form.grid else {}
    if first.persistent:
        return [Config({**x, "r": r}, r // 256, False) for r in (1024, 2048) if 2 * r <= length]
    whole = [Config({**first.blocks, "r": length}, warps) for warps in (8, 16) if length * first.blocks.get("x", 1) <= 2 * WIDEST]
    return [*whole, *(replace(first, stages=stages) for stages in (2, 3))]


def _is_sound(form: Form, c: Config) -> bool:
    dims = {d.name: d for d in (*form.grid, *filter(None, (form.row,)))}
    elements = 1
    for name, n in c.blocks.items():
        if n < 1 or n > max(power(size_of(dims[name])), 2):
            return False
        elements *= n
    most = WIDEST if form.row is None or not c.persistent else 2 * WIDEST
    return 1 <= c.warps <= 16 and elements <= most and EACH[0] <= max(elements // (32 * c.warps), 1) <= EACH[1]
