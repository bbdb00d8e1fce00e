"""torch._higher_order_ops: scan, map and associative_scan, over slices that are computed one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

KEEPS_DIM = torch.__version__ >= "2.13"
"""True if a scan's results are stacked along the scanned dimension, False if along the first."""


def _stacked(parts: list[Any], dim: int) -> Any:
    """Return the results of slices joined, leaf by leaf; a leaf that has too few dimensions along the first."""
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


def over_slices(step: Any, state: list[Any], xs: list[Any], backwards: bool) -> Any:
    """`step(*state, *slices)`, which gives the next state, what is collected and its structure, for each slice of `xs`
    along the first dimension: the last state, the stacks, and their structure. Captured as one node."""
    count = xs[0].shape[0]
    found: list[Any] = [None] * count
    kind = None
    for k in range(count - 1, -1, -1) if backwards else range(count):
        state, found[k], kind = step(*state, *[x.select(0, k) for x in xs])
    return state, [torch.stack(parts) for parts in zip(*found)], kind


def scan_at_once(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    leaves, spec = tree_flatten(xs)
    state, form = tree_flatten(init)
    dim = dim + leaves[0].ndim if dim < 0 else dim

    def step(*given: Any) -> Any:
        carry, y = combine_fn(tree_unflatten(given[:len(state)], form), tree_unflatten(given[len(state):], spec))
        out, kind = tree_flatten(y)
        return tree_flatten(carry)[0], out, kind

    last, out, kind = over_slices(step, state, [x.movedim(dim, 0) for x in leaves], reverse)
    joined = [y.movedim(0, dim) if dim < y.ndim else y for y in out] if KEEPS_DIM else out
    return tree_unflatten(last, form), tree_unflatten(joined, kind)


def map_at_once(f: Any, xs: Any, *args: Any) -> Any:
    leaves, spec = tree_flatten(xs)

    def step(*given: Any) -> Any:
        out, kind = tree_flatten(f(tree_unflatten(given, spec), *args))
        return [], out, kind

    _, out, kind = over_slices(step, [], leaves, False)
    return tree_unflatten(out, kind)


def associative_scan_at_once(combine_fn: Any, xs: Any, dim: int, reverse: bool = False,
                             combine_mode: str = "pointwise") -> Any:
    leaves, spec = tree_flatten(xs)
    dim = dim + leaves[0].ndim if dim < 0 else dim
    leaves = [x.movedim(dim, 0) for x in leaves]
    size = leaves[0].shape[0]
    state = [x.select(0, size - 1 if reverse else 0) for x in leaves]

    def step(*given: Any) -> Any:
        found = tree_flatten(combine_fn(tree_unflatten(given[:len(state)], spec),
                                        tree_unflatten(given[len(state):], spec)))[0]
        return found, found, None

    _, out, _ = over_slices(step, state, [x.narrow(0, 0 if reverse else 1, size - 1) for x in leaves], reverse)
    firsts = [x.unsqueeze(0) for x in state]
    parts = [torch.cat([y, x] if reverse else [x, y]) for x, y in zip(firsts, out)]
    return tree_unflatten([y.movedim(0, dim).contiguous() for y in parts], spec)


def scanned(combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise") -> Any:
    """Return the associative scan of a function that works element by element: it is given many elements at once."""
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


def stacked(parts: list[Any], dim: int = 0) -> Any:
    """Return `torch.stack` of the slices of some tensors along their first dimension."""
    return torch.cat(parts).movedim(0, dim).contiguous()


def concatenated(parts: list[Any], dim: int = 0) -> Any:
    """Return `torch.cat` of the slices of some tensors along their first dimension."""
    dim = dim + parts[0].ndim - 1 if dim < 0 else dim
    return torch.cat([x.movedim(0, dim).flatten(dim, dim + 1) for x in parts], dim)
