"""torch._higher_order_ops: scan, map and associative_scan, over slices that are computed one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

KEEPS_DIM = torch.__version__ >= "2.13"
"""Whether a scan's results lie along the dimension that was scanned; else along the first."""


def _stacked(parts: list[Any], dim: int) -> Any:
    """The results of slices joined, leaf by leaf; a leaf that has too few dimensions along the first."""
    flat = [tree_flatten(part) for part in parts]
    joined = [torch.stack(leaves, dim if dim < leaves[0].ndim + 1 else 0) for leaves in zip(*[f[0] for f in flat])]
    return tree_unflatten(joined, flat[0][1])


def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    leaves, spec = tree_flatten(xs)
    if not leaves:
        return init, []
    dim = dim + leaves[0].ndim if dim < 0 else dim
    carry, out = init, []
    size = leaves[0].shape[dim]
    for k in range(size):
        at = size - 1 - k if reverse else k
        carry, y = combine_fn(carry, tree_unflatten([x.select(dim, at) for x in leaves], spec))
        out.append(y)
    if reverse:
        out.reverse()
    joined = _stacked(out, 0)
    return carry, tree_map(lambda y: y.movedim(0, dim) if dim < y.ndim else y, joined) if KEEPS_DIM else joined


def map_slices(f: Any, xs: Any, *args: Any) -> Any:
    leaves, spec = tree_flatten(xs)
    return _stacked([f(tree_unflatten([x.select(0, k) for x in leaves], spec), *args)
                     for k in range(leaves[0].shape[0])], 0)


def associative_scan(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    leaves, spec = tree_flatten(xs)
    dim = dim + leaves[0].ndim if dim < 0 else dim
    size = leaves[0].shape[dim]
    found = None
    out = []
    for k in range(size):
        here = tree_unflatten([x.select(dim, size - 1 - k if reverse else k) for x in leaves], spec)
        found = here if found is None else combine_fn(found, here)
        out.append(found)
    if reverse:
        out.reverse()
    return _stacked(out, dim)


def scanned(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """The associative scan of a function that works element by element: it is given many elements at once."""
    parts, spec = tree_flatten(xs)
    if reverse:
        parts = [x.flip(dim) for x in parts]
    size = parts[0].size(dim)
    reach = 1
    while reach < size:
        before = tree_unflatten([x.narrow(dim, 0, size - reach) for x in parts], spec)
        here = tree_unflatten([x.narrow(dim, reach, size - reach) for x in parts], spec)
        joined = tree_flatten(combine_fn(before, here))[0]
        parts = [torch.cat([x.narrow(dim, 0, reach), y], dim) for x, y in zip(parts, joined, strict=True)]
        reach = 2 * reach
    return tree_map(lambda x: x.flip(dim), tree_unflatten(parts, spec)) if reverse else tree_unflatten(parts, spec)
