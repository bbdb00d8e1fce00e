"""The order in which eager's dropout draws on a CUDA device, which our kernels follow to draw the same numbers.

Eager's kernel has as many threads as fit on the device at once, each of which takes adjacent elements, as many as a
vector load has, which differs between PyTorch's versions. So it is measured once, by a draw that is undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from framesmith import _C
from framesmith.prims.core import Size, contiguous_strides, numel, size_of
from framesmith.prims.philox import GROUP, uniform
from framesmith.symbolic.expr import as_expr, ceildiv, min_
from framesmith.symbolic.layout import is_dense

assert _C.LANES  # importing the core registers the operators
STATE = torch.ops.framesmith.draw_state.default
BLOCK = 256
"""Threads of a block of eager's kernel."""
_VECTORS = (16, 8, 4, 2, 1)
_TYPICAL = 132 * 8
"""The number of concurrent blocks of an absent device."""
_UNASKED = {2: 8, 4: 4, 8: 2}
_ASKED = 8 * BLOCK


@dataclass(frozen=True, slots=True)
class Order:
    """`vector` elements in each round of each of `threads` threads; `steps` give an element's place. The generator
    advances by `count`."""

    vector: int
    threads: Size
    steps: tuple[Size, ...]
    count: Size


def order_of(x: Any) -> Order | None:
    """Return the order in which eager draws for a tensor like `x`, with its strides and offset; None if it is unknown,
    or nothing is drawn."""
    shape, stride, offset = ([*map(size_of, x.shape)], [*map(size_of, x.stride())], size_of(x.storage_offset()))
    total = numel(shape)
    vector = _vector(x.device, x.dtype.itemsize) if _is_running(x.device) else _UNASKED[x.dtype.itemsize]
    if vector is None or type(offset) is not int or total == 0:
        return None
    if not is_dense(shape, stride):
        vector = 1
    while vector > 1 and (offset % vector or not _divides(vector, total)):
        vector //= 2
    steps = contiguous_strides(shape) if vector == 1 else tuple(stride)
    threads = BLOCK * min_(_blocks(x.device), ceildiv(total, BLOCK))
    count = ((as_expr(total) - 1) // (GROUP * threads) + 1) * GROUP
    return Order(vector, size_of(threads), steps, size_of(count))


def _divides(vector: int, total: Size) -> bool:
    rest = size_of(as_expr(total) % vector)
    return type(rest) is int and rest == 0


def _is_running(device: torch.device) -> bool:
    """Return whether the draws of eager's kernels on `device` can be measured."""
    return device.type == "cuda" and torch.cuda.is_initialized()


@cache
def _blocks(device: torch.device) -> int:
    if not _is_running(device):
        return _TYPICAL
    found = torch.cuda.get_device_properties(device)
    return found.multi_processor_count * (found.max_threads_per_multi_processor // BLOCK)


@cache
def _vector(device: torch.device, itemsize: int) -> int | None:
    """Return the number of elements that a thread takes at once, measured on eager's kernel; None if the pattern is
    another."""
    if torch.cuda.is_current_stream_capturing():
        return None
    dtype = {2: torch.float16, 4: torch.float32, 8: torch.float64}[itemsize]
    before = torch.cuda.get_rng_state(device)
    try:
        torch.cuda.default_generators[torch.cuda._utils._get_device_index(device)].manual_seed(_ASKED)
        kept = torch.native_dropout(torch.ones(_ASKED, dtype=dtype, device=device), 0.5, True)[1].cpu()
    finally:
        torch.cuda.set_rng_state(before, device)
    state = torch.tensor([_ASKED, 0])
    return next((v for v in _VECTORS if torch.equal(kept, uniform(state, (_ASKED,), 0, v, _ASKED, (1,)) < 0.5)), None)
