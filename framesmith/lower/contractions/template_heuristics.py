"""Contractions for which our own tiles are chosen without a measurement: those for which the libraries are known to be
slow, and half-precision products that are bound by memory, or by launch overhead. Those of float32 are included where
TF32 is allowed.

    y = conv1x1(x, w)                        # reads x, writes y                    tile: reads x, writes z
    z = hardswish(y + b)                     # reads y, writes z

A library's product is a call, so what follows reads all of its result again and writes another one: for a short sum
that takes longer than the product. Our own tiles multiply at less than the library's rate; where memory is what both
wait for, that does not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from framesmith.loops.ir import Cast, Load, Ref, Scalar, Store
from framesmith.loops.nest import Compute, Item, LoopGraph
from framesmith.lower.contractions.pad_strides import vector
from framesmith.lower.contractions.prologue import Prologues
from framesmith.lower.contractions.tiled import Contraction, ImageWindow, contraction_of, replaced
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.util.precision import HALF

LARGE = 1 << 20  # results, ...
SIDE = 64  # ... and along each side, from which it shows how they are written
MOST_POSITIONS = 256  # of k, of a convolution of few channels: what is read is put together element by element

# In a microsecond of a chip with some hundred multiprocessors (an H200), as measured: ...
# bytes that a kernel moves, and a product in the library and in a tile of our own; ...
COPY, LIBRARYS_COPY, OWN_COPY = 4.1e6, 3.6e6, 2.9e6
RATES = {2: (650e6, 450e6), 4: (330e6, 90e6)}  # ... operations of products in both, by the bytes of a number, ...
NUMBERS, BEHIND = 30e6, 12e6  # ... and those of one number each, in a kernel for themselves and behind a product.
# microseconds of a product that does little, of 64 steps of its sums, and of a kernel for itself
START, STEP, PASS = 1.5, 0.15, 2.5
ALONG = 128  # of n, up to which one tile is as long
FEW = 1 << 23  # products of two numbers, of float32, ...
SHORT, SHORTEST = 1 << 23, 512  # ... and of whatever is short, along k
SURE = 1.1  # how much less ours must take
CHANNELS = 4  # of an image: libraries pad fewer
PROGRAMS = 100  # of 64 by 64 results, that read large operands together
FEWEST = 4  # rows or columns that are worth a tile
Readers = dict[str, list[Item]]


def unmeasured(graph: LoopGraph, tf32: bool = False) -> LoopGraph:
    """Return `graph` with such contractions as tiles. `tf32`: whether products of float32 may be rounded to TF32."""
    tiles = without_measurement(graph, tf32)
    return replaced(graph, tiles, tf32) if tiles else graph


def without_measurement(graph: LoopGraph, tf32: bool) -> dict[int, str]:
    """Return the places of such contractions among the items of `graph`, with the ways to compute them."""
    found = {k: c for k, item in enumerate(graph.items) if (c := contraction_of(item, graph.storages)) is not None}
    if not found:
        return {}
    readers: Readers = {}
    for item in graph.items:
        for name in item.reads:
            readers.setdefault(name, []).append(item)
    sizes = {name: s.dtype.itemsize * prod(s.size) for name,
             s in graph.storages.items() if all(type(n) is int for n in s.size)}
    outside = {graph.storages[o.name].base or o.name for o in graph.outputs if type(o) is Ref}
    tiles = {k: "tile" for k, c in found.items() if _is_askew(c, tf32) or _has_few_channels(c)}
    prologues = Prologues(graph.items)
    for k, c in found.items():
        alone = len(readers[c.left.buffer]) == 1 and c.left.buffer not in outside
        nest = prologues.nest(c.left.buffer, k) if alone else None
        taken = _takes_in(c, nest, graph, prologues) or _narrows(c, nest, prologues)
        ours = _is_product(c, tf32) and (_is_short(c)
                                         or _waits_for_memory(c, readers, sizes, c.out.buffer in outside, taken))
        if ours and k not in tiles:
            tiles[k] = "prologue" if taken else "tile"
    return tiles


def _is_askew(c: Contraction, tf32: bool) -> bool:
    """Return whether a contiguous dimension, of a large result on matrix units or k, is no multiple of a vector, while
    operands can be read in vectors: libraries then compute at half their rate."""
    if c.dtype not in HALF and not tf32 or not _is_known(c) or c.image is not None:
        return False
    unit = vector(c.dtype)
    large = c.batch * c.m * c.n * c.k >= LARGE * SIDE and min(c.m, c.n, c.k) >= SIDE
    result = c.out.stride[-1] == 1 and c.n % unit != 0 and c.batch * c.m * c.n >= LARGE
    summed = c.left.stride[-1] == 1 and c.k % unit != 0 and c.batch * c.m * c.k >= LARGE
    return large and (result or summed) and _in_vectors(c.left) and _in_vectors(c.right)


def _is_known(c: Contraction) -> bool:
    return all(type(s) is int for s in (c.batch, c.m, c.n, c.k))


def _is_product(c: Contraction, tf32: bool) -> bool:
    """Return whether a product's rates are known: half precision, or float32 on matrix units except for middle sizes,
    where tiles are slower."""
    if not _is_known(c) or c.dtype in HALF:
        return _is_known(c)
    few = c.batch * c.m * c.n * c.k <= FEW or c.batch * c.m * c.n >= LARGE
    return few and c.dtype is torch.float32 and (tf32 or c.rounded)


def _is_short(c: Contraction) -> bool:
    """Return whether a tile is no slower than the library, whatever follows: a launch costs the host less than a
    call."""
    few = c.batch * c.m * c.n * c.k <= SHORT and c.k <= SHORTEST and min(c.m, c.n) >= FEWEST
    return few and c.image is None and not c.activation


def _in_vectors(w: ImageWindow) -> bool:
    """Return whether each row of a matrix, or each column, is contiguous and aligned to vectors."""
    steps = sorted(w.stride[-2:])
    return steps[0] == 1 and steps[1] % vector(w.dtype) == 0


def _has_few_channels(c: Contraction) -> bool:
    """Return whether the library would pad the channels of an image: it takes several times as long as a kernel that
    reads them unpadded."""
    return c.dtype in HALF and c.image is not None and c.image.size[1] < CHANNELS and c.k <= MOST_POSITIONS


def _waits_for_memory(c: Contraction, readers: Readers, sizes: Mapping[str, int], kept: bool, taken: bool) -> bool:
    """Return whether a tile takes less time than the library and the kernel that follows it. `kept`: the result itself
    is stored; `taken`: the tile also fuses the computation of its left operand; `sizes`: of buffers, in bytes."""
    follow = readers.get(c.out.buffer, ())
    if c.activation or not follow or c.image is not None and prod(c.image.kernel) > 1:
        return False
    results = c.batch * c.m * c.n
    small = max(c.m, c.n) * c.k < LARGE
    vectors = small or _in_vectors(c.left) and _in_vectors(c.right)
    known = all(name in sizes for item in follow for name in (*item.reads, *item.writes))
    if not vectors or not known or min(c.m, c.n) < FEWEST or not all(_is_epilogue(item, results, readers)
                                                                     for item in follow):
        return False
    if c.batch * -(-c.m // 64) * -(-c.n // 64) < PROGRAMS and not small:
        return False
    product = 2.0 * results * c.k
    operands = c.dtype.itemsize * c.batch * (c.m + c.n) * c.k
    result = c.out.dtype.itemsize * results
    besides = sum(sizes[name] for name in dict.fromkeys(n for item in follow
                                                        for n in (*item.reads, *item.writes)) if name != c.out.buffer)
    numbers = results * max(map(_cost, follow))
    rate, ours = RATES[c.dtype.itemsize]
    library = START + max(product / rate, (operands + result) / LIBRARYS_COPY) + max((result + besides) / COPY,
                                                                                     numbers / NUMBERS, PASS)
    if taken:
        library += max(2 * c.dtype.itemsize * c.m * c.k / COPY, PASS)
    own = START + max(product / ours + numbers / BEHIND, (operands + besides + (result if kept else 0)) / OWN_COPY,
                      STEP * c.k / 64)
    return SURE * own <= library


def _takes_in(c: Contraction, nest: Compute | None, graph: LoopGraph, prologues: Prologues) -> bool:
    """Return whether a tile computes its left operand, again for each tile along n: one that would be a kernel of its
    own, since it needs broadcast numbers that are computed from its inputs (the gates of squeeze and excitation)."""
    if nest is None or nest.window or c.image is not None or c.n > ALONG:
        return False
    small = [name for name in nest.reads if name in prologues.writers and prod(graph.storages[name].size) < c.m * c.k]
    return len(small) > 0 and len(nest.reads) > len(small)


def _narrows(c: Contraction, nest: Compute | None, prologues: Prologues) -> bool:
    """Return whether a nest only casts an input of the graph to the left operand of a small product: the cast is never
    stored."""
    if nest is None or nest.window or c.image is not None or c.m * c.k * -(-c.n // ALONG) > LARGE:
        return False
    return all(type(op) in (Load, Cast, Store) for op in nest.ops) and prologues.writers.keys().isdisjoint(nest.reads)


def _is_epilogue(item: Item, results: int, readers: Readers) -> bool:
    """Return whether `item` is pointwise over the results, so that a tile fuses it, and would be a kernel of its own
    otherwise: not part of one that reduces its results (a residual before a norm)."""
    if not isinstance(item, Compute) or item.raxes or item.contract is not None or item.window or item.opaque:
        return False
    summed = any(isinstance(r, Compute) and r.raxes for name in item.writes for r in readers.get(name, ()))
    return not summed and all(a.extent.is_const for a in item.axes) and prod(a.extent.const
                                                                             for a in item.axes) == results


def _cost(item: Item) -> int:
    return sum(SCALAR_OPS[op.name].cost for op in item.ops if type(op) is Scalar) if isinstance(item, Compute) else 0
