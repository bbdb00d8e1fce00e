"""Products of halves that wait for memory, as tiles that do what follows them as well: known to be better without a measurement.

    y = conv1x1(x, w)                        # reads x, writes y                    tile: reads x, writes z
    z = hardswish(y + b)                     # reads y, writes z

A library's product is a call, so what follows reads all of its result again and writes another one: for a short sum that takes longer than
the product. Our own tiles multiply at less than the library's rate; where memory is what both wait for, that does not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from framesmith.loops.build import HALF
from framesmith.loops.ir import Ref
from framesmith.loops.nest import Compute, Item, LoopGraph
from framesmith.lower.contractions.tiled import Contraction

COPY = 3.5e6  # bytes that move in a microsecond, ...
LIBRARY, OWN = 550e6, 300e6  # ... operations in the library's products and in our own, ...
LAUNCH = 3.0  # ... and microseconds of a kernel that does little
STEP = 0.6  # microseconds of a step of a sum, where there are too few tiles to hide it
PIECE = 64  # of k in such a step
TILES = 132 * 128 * 64  # results from which there are enough
WORTH = 0.9  # of the library's time, that ours may take


def bound_by_memory(graph: LoopGraph, found: Mapping[int, Contraction]) -> dict[int, str]:
    """The places of such products among `found`, and the way to compute them."""
    readers: dict[str, list[Item]] = {}
    for item in graph.items:
        for name in item.reads:
            readers.setdefault(name, []).append(item)
    outside = {graph.storages[o.name].base or o.name for o in graph.outputs if type(o) is Ref}
    return {k: "tile" for k, c in found.items() if _is_better(c, readers.get(c.out.buffer, []), c.out.buffer in outside)}


def _is_better(c: Contraction, readers: list[Item], kept: bool) -> bool:
    sizes = (c.batch, c.m, c.n, c.k)
    if c.dtype not in HALF or c.activation or not all(type(s) is int for s in sizes) or not readers:
        return False
    results = c.batch * c.m * c.n
    if not all(_is_epilogue(item, results) for item in readers):
        return False
    read = c.dtype.itemsize * c.batch * (c.m + c.n) * c.k
    result = c.dtype.itemsize * results
    work = 2 * results * c.k
    library = max(work / LIBRARY, (read + result) / COPY, LAUNCH)
    follows = max(result / COPY, LAUNCH) if kept or len(readers) > 1 else max(2 * result / COPY, LAUNCH)
    few = LAUNCH + STEP * c.k / PIECE if results < TILES else 0.0
    own = max(work / OWN, (read + result) / COPY, LAUNCH, few)
    return own <= WORTH * (library + follows)


def _is_epilogue(item: Item, results: int) -> bool:
    """Whether `item` goes over the results one by one, so that a tile takes it in."""
    if not isinstance(item, Compute) or item.raxes or item.contract is not None or item.window or item.opaque:
        return False
    return all(a.extent.is_const for a in item.axes) and prod(a.extent.const for a in item.axes) == results
