"""Tile sizes and numbers of warps: a few rules over bytes and shapes.

The numbers are for chips of some hundred multiprocessors (A100: 108, H100 and H200: 132, B200: 148), each of which
hides the latency of memory with some 2,000 threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from framesmith.codegen.triton.tile_shape import SPARE, WIDE, Dim, Form, Nest
from framesmith.loops.ir import Load, Op, Reduce, Scalar, Store
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.symbolic.expr import Expr, Symbol

UNITS = 132
TYPICAL = 1 << 20  # stands for a symbolic extent
PERSISTENT = 1 << 13  # elements of a row up to which all of it is one tile...
PERSISTENT_COLUMN = 64  # ... and where memory runs across the rows
SHARED_ROWS = 1024  # elements of a tile of several short rows: one warp has them, and adds without the others
LOOPED = 4096  # elements of a tile that goes through long rows
ACCUMULATORS, MANY = 8, 128  # of each of several sums in a thread, and of all of them where there are many
# elements of a tile of long columns, and its warps, where there are fewer programs than multiprocessors
LONELY, LONELY_WARPS = 1024, 16
COLUMNS, FEWEST = 128, 32  # bytes side by side of a tile where memory runs across its rows, and where there are few
SLIM = 32  # short rows side by side of a tile, where there are many
LIGHT = 400  # work on a vector, times the bytes of an element, of which a thread has two
DEALT, DEALT_ROWS = 4096, 4  # bytes and rows of a tile of those that a program goes through and sums up, ...
# ... elements of it for each thread, or a third where sums and loads are more than so many, ...
DEALT_EACH, DEALT_FULL = 48, 6
# ... tiles at once (small ones: one more), and bytes on their way: programs share a multiprocessor
DEALT_STAGES, AHEAD = 3, 3 << 14
BATCH = 1024  # elements of a tile of a row of a table, ...
PROGRAMS = 1 << 14  # ... and how many programs there are before one goes through several
MOMENTS_STAGES = 3  # tiles at once of long columns whose moments are taken: a thread has no registers for more than one
KEPT = 1 << 17  # bytes of a row: as many as rows are worked on at once stay in the cache
VECTOR = 16  # bytes that a thread reads at once
STEP = 16  # elements: Triton sees by itself that masks and addresses allow vectors where lengths are multiples of it

Sizes = Mapping[Symbol, int]
NOTHING: Sizes = {}


@dataclass(frozen=True, slots=True)
class Config:
    """`blocks`: elements of the tile along each dimension, powers of two. `persistent`: the row is one tile, if it fits
    (`even`: and if its length is a multiple of a vector). `parts`: tiles of a row of a table that one program goes
    through. `programs`: of a contraction, which share the tiles of its result; 0: one a tile. `kept`: what a pass over
    the row reads stays in the cache for the next."""

    blocks: Mapping[str, int]
    warps: int
    persistent: bool = True
    stages: int = 1
    parts: int = 1
    programs: int = 0
    even: bool = False
    kept: bool = False


def choose(form: Form, batch: int = 0) -> Config:
    """Return the configuration for `form`; `batch`: elements in all rows of its table."""
    if batch:
        return Config({"x": BATCH} if form.grid else {}, 4, parts=max(power(batch) // (BATCH * PROGRAMS), 1))
    if form.row is not None:
        return _rows(form, form.row)
    if form.vectors:
        return _vectors(form)
    if len(form.grid) == 2 and not form.shared:
        return _transposing(form)
    return _pointwise(form) if form.grid else Config({}, 1)


def power(n: int) -> int:
    """Return the least power of two that is not less than n."""
    return 1 << max(n - 1, 0).bit_length()


def size_of(dim: Dim, sizes: Sizes = NOTHING) -> int:
    """Return the number of elements along `dim`, as far as known."""
    return _size(dim.extent, sizes)


def _size(extent: Expr, sizes: Sizes) -> int:
    if extent.is_const:
        return extent.const
    return extent.evaluate(sizes) if extent.free <= sizes.keys() else TYPICAL


def _bytes(form: Form) -> int:
    """Return the bytes of the narrowest element that is read or written."""
    kinds = {p.name: p.dtype for p in form.kernel.params}
    return min((kinds[op.buffer].itemsize for op, _ in form.accesses()), default=4)


def _warps(elements: int, each: int) -> int:
    """Return the number of warps for which a thread has about `each` of the tile's elements."""
    return min(max(power(elements // (32 * each)), 1), 16)


def _pointwise(form: Form) -> Config:
    """Return a configuration with some whole vectors for each thread; smaller blocks while there are not several for
    each multiprocessor."""
    size = math.prod(size_of(d, form.sizes) for d in form.grid)
    each = 16 if _bytes(form) <= 2 else 8
    if _cost(form) > 400:  # as many values alive as fit
        each = 4
    block = 128 * each
    while block > 128 and size // block < 4 * UNITS:
        block //= 2
    block = min(block, power(size))
    warps = min(4, _warps(block, 1 if block <= 128 else each))
    return Config(_sides(form, block) if form.shared else {"x": block}, warps)


def _sides(form: Form, block: int) -> dict[str, int]:
    """Return the sides of a tile of `block` elements, at most half of them along `x`: as long as contiguous runs allow
    without exceeding the end."""
    height, width = (size_of(d, form.sizes) for d in form.grid)
    x = max(block // 2, 1)
    while x > WIDE and -(-width // x) * x > SPARE * width:
        x //= 2
    return {"y": min(block // x, power(height)), "x": x}


def _cost(form: Form) -> int:
    return sum(SCALAR_OPS[op.name].cost for op in form.body if isinstance(op, Op) and type(op) is Scalar)


def _vectors(form: Form) -> Config:
    """Return a configuration with a vector for each thread, or two if that is little work; smaller blocks while there
    are not several for each multiprocessor."""
    y, x = form.grid
    size, block = size_of(y, form.sizes), 128
    while block > 32 and size // block < 4 * UNITS:
        block //= 2
    each = 2 if block > 32 and _cost(form) * _bytes(form) <= LIGHT else 1
    return Config({"y": block, "x": size_of(x)}, block // (32 * each))


def _transposing(form: Form) -> Config:
    """Return a configuration with square tiles, as far as the dimensions allow."""
    y, x = form.grid
    side = 64 if _bytes(form) <= 2 else 32
    most_y, most_x = power(size_of(y, form.sizes)), power(size_of(x, form.sizes))
    width, height = min(most_x, side), min(most_y, side)
    if width < side:
        height = min(most_y, side * side // width)
    elif height < side:
        width = min(most_x, side * side // height)
    return Config({"y": height, "x": width}, _warps(width * height, 16 if side == 64 else 8))


def _partial_sums(form: Form, row: Dim) -> Config:
    """Return a configuration for partial column sums: some rows at a time, of which a part has about a multiple, while
    others are prefetched; little work for few warps, since the number of concurrently waiting programs matters. A
    thread has a register for each of its elements of each sum."""
    r = max(power(size_of(row, form.sizes)), 2)
    each = -(-size_of(form.grid[0], form.sizes) // form.kernel.parts)
    moving = _moving(form, row)
    width = max(moving, default=1)
    x = min(max(DEALT // (r * width), 1), DEALT_ROWS)
    while x > 1 and -(-each // x) * x > SPARE * each:
        x //= 2
    sums = sum(type(op) is Store and op.mode == "sum" for node in form.body if type(node) is Nest for op in node.ops)
    full = sums > 2 or sums + len(moving) > DEALT_FULL
    warps = _few_warps(size_of(row, form.sizes), x, VECTOR // width, DEALT_EACH // 3 if full else DEALT_EACH)
    ahead = _ahead(form, row, x * r)
    stages = DEALT_STAGES if ahead > DEALT else DEALT_STAGES + 1
    return replace(_config(form, x, r, warps), stages=min(stages, 1 + AHEAD // ahead))


def _few_warps(length: int, rows: int, vector: int, most: int) -> int:
    """Return the fewest warps for which a thread has at most that many elements of `rows` rows. Vectors beyond the end
    of a row in all threads take no registers."""
    warps = 1
    while warps < 16 and -(-length // (32 * warps * vector)) * vector * rows > most:
        warps *= 2
    return warps


def _moving(form: Form, row: Dim) -> list[int]:
    """Return the bytes per element of the loads that a loop prefetches, which vary along rows and within them."""
    kinds = {p.name: p.dtype.itemsize for p in form.kernel.params}
    every = [{a.symbol for a in dim.axes} for dim in (row, *form.grid)]
    found = {(op.buffer, index) for op, index in form.accesses() if type(op) is Load}
    return [kinds[buffer] for buffer, index in found if not any(symbols.isdisjoint(index.free) for symbols in every)]


def _ahead(form: Form, row: Dim, elements: int) -> int:
    """Return the bytes of prefetched loads in shared memory for a tile of that many elements: those of all stages but
    one."""
    return elements * max(sum(_moving(form, row)), 1)


def _rows(form: Form, row: Dim) -> Config:
    if form.kernel.parts:
        return _partial_sums(form, row)
    length = size_of(row, form.sizes)
    count = size_of(form.grid[0], form.sizes) if form.grid else 1
    across = _columns(form, row, count) if _runs_across(form, row) else 0
    nests = [node for node in form.body if type(node) is Nest]
    reduces = [op for node in nests for op in node.ops if type(op) is Reduce]
    kinds = {op.kind for op in reduces}
    limit = max(LOOPED // across,
                PERSISTENT_COLUMN) if across else PERSISTENT * (2 if len(form.kernel.params) <= 3 else 1)
    if length <= limit and (row.extent.is_const or not across):
        even = not row.extent.is_const and all(form.sizes[n] % STEP == 0 for n in row.extent.free)
        return replace(_persistent(form, max(power(length), 2), count, across, even or row.extent.is_const), even=even)
    narrow = _bytes(form) <= 2
    stores = any(type(op) is Store for node in nests for op in node.ops)
    if across:
        return _long_columns(form, row, across, [op.kind for op in reduces], stores)
    if not kinds.isdisjoint(("argmax", "argmin")):  # accumulators are three words each
        most, each = LOOPED // 4, 4
    elif "welford" in kinds:
        most, each = LOOPED, 8
    elif stores:  # the row is read again: few rows at a time stay in the cache
        most, each = max(min(power(length) // 4, 4 * LOOPED), 2 * LOOPED) // (1 if narrow else 2), 16 if narrow else 8
    else:
        most, each = LOOPED if count < 4 * UNITS else LOOPED // 2, 16 if narrow else 8
    r = max(min(most, power(length + 1) // 2), 2)
    return replace(_config(form, 1, r, _warps(r, each), persistent=False), kept=length * _bytes(form) <= KEPT)


def _long_columns(form: Form, row: Dim, x: int, reduces: list[str], stores: bool) -> Config:
    """Return a configuration in parts for accesses that are contiguous across rows, `x` of them adjacent. A thread has
    few elements of each of several sums."""
    length, count = size_of(row, form.sizes), size_of(form.grid[0], form.sizes)
    if count < UNITS * x and not stores:
        return _config(form, x, max(min(LONELY // x, power(length) // 4), 2), LONELY_WARPS, persistent=False)
    each = 8 if _narrowest(form, row) > 2 else 16 if stores else 32
    if len(reduces) > 1:
        each = max(min(each, ACCUMULATORS, power(MANY // len(reduces) + 1) // 2), 1)
    most = LOOPED if stores else 256 * each // (2 if "welford" in reduces else 1)
    r = max(min(most // x, power(length) // 4), 2)  # in several parts: there are more programs
    stages = MOMENTS_STAGES if reduces == ["welford"] and not stores else 1
    return replace(_config(form, x, r, _warps(x * r, each), persistent=False), stages=stages)


def _columns(form: Form, row: Dim, count: int) -> int:
    """Return the number of adjacent rows of a tile, if accesses are contiguous across them."""
    width = max(_narrowest(form, row), 2)
    x = min(power(count), COLUMNS // width)
    while x > FEWEST // width and count // x < UNITS:
        x //= 2
    return x


def _narrowest(form: Form, row: Dim) -> int:
    """Return the bytes of the narrowest element that is read or written along the rows."""
    kinds, moving = {p.name: p.dtype.itemsize for p in form.kernel.params}, {a.symbol for a in row.axes}
    return min((kinds[op.buffer] for op, index in form.accesses() if not moving.isdisjoint(index.free)), default=4)


def _persistent(form: Form, r: int, count: int, across: int, whole: bool = True) -> Config:
    """Return a configuration with the row as one tile. `across`: the least number of adjacent rows, if accesses are
    contiguous across them. `whole`: rows of unknown length are whole vectors; only others would be processed in
    parts."""
    if across:
        return _persistent_columns(form, r, count, across)
    x = min(max(SHARED_ROWS // r, 1), power(count)) if whole else 1
    while x > 1 and count // x < 2 * UNITS:
        x //= 2
    each = 8 if count < UNITS else 32 if _bytes(form) <= 2 else 16
    return _config(form, x, r, _warps(x * r, each))


def _persistent_columns(form: Form, r: int, count: int, least: int) -> Config:
    """Return a configuration for column reductions in one tile: narrow tiles of several warps for few columns, which
    wait for memory once; one warp for many columns that are only summed."""
    if count < SLIM * UNITS:
        x = min(max(min(LOOPED // r, 128), least), power(count))
        while x > least and count // x < UNITS:
            x //= 2
        return _config(form, x, r, max(_warps(x * r, 16), min(4, x * r // 32)))
    inner = [op for node in form.body if type(node) is Nest for op in node.ops]
    sums = sum(type(op) is Load for op in inner) == 1 and not any(type(op) is Store for op in inner)
    x = min(max(min((LOOPED // 2 if sums else LOOPED) // r, 128), SLIM), power(count))
    return _config(form, x, r, _warps(x * r, 64 if sums else 16))


def _config(form: Form, x: int, r: int, warps: int, persistent: bool = True) -> Config:
    return Config({"x": x, "r": r} if form.grid else {"r": r}, warps, persistent)


def _runs_across(form: Form, row: Dim) -> bool:
    """Return whether accesses are contiguous along the grid rather than along the row, by bytes."""
    if not form.grid:
        return False
    kinds, sizes = {p.name: p.dtype.itemsize for p in form.kernel.params}, form.sizes
    every = [a for d in (*form.grid, row) for a in d.axes]
    along = across = 0
    for op, index in form.accesses():
        moving = [a for a in row.axes if a.symbol in index.free]
        touched = kinds[op.buffer] * math.prod(_size(a.extent, sizes) for a in every if a.symbol in index.free)
        if any(index.coeff(a.symbol) == 1 for a in moving):
            along += touched
        elif moving and any(index.coeff(a.symbol) == 1 for a in form.grid[-1].axes):
            across += touched
    return across > along


# ----------------------------------------------------------------------------------------------------------- candidates

WIDEST = 1 << 14  # elements of a tile that are still tried, ...
EACH = (1, 64)  # ... and of a thread


def candidates(form: Form) -> tuple[Config, ...]:
    """Return the configuration of `choose` and its neighbours: half and twice the elements along a dimension, half and
    twice the warps, and the row as one tile or in parts if both are possible."""
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
    """Return the alternatives: long rows as one tile, or in parts with prefetching; rows of one tile in parts."""
    row = form.row
    if row is None or not row.extent.is_const:
        return []
    if form.kernel.parts:
        return [replace(first, stages=stages) for stages in (1, 2, 3, 4)]
    length = max(power(size_of(row, form.sizes)), 2)
    x = {"x": 1} if form.grid else {}
    if first.persistent:
        return [Config({**x, "r": r}, r // 256, False) for r in (1024, 2048) if 2 * r <= length]
    whole = [Config({**first.blocks, "r": length}, warps)
             for warps in (8, 16) if length * first.blocks.get("x", 1) <= 2 * WIDEST]
    return [*whole, *(replace(first, stages=stages) for stages in (2, 3))]


def _is_sound(form: Form, c: Config) -> bool:
    dims = {d.name: d for d in (*form.grid, *filter(None, (form.row,)))}
    elements = 1
    for name, n in c.blocks.items():
        if n < 1 or n > max(power(size_of(dims[name], form.sizes)), 2):
            return False
        elements *= n
    if form.row is not None and (c.stages - 1) * _ahead(form, form.row, elements) > 2 * AHEAD:
        return False
    most = WIDEST if form.row is None or not c.persistent else 2 * WIDEST
    return 1 <= c.warps <= 16 and elements <= most and EACH[0] <= elements // (32 * c.warps) <= EACH[1]
