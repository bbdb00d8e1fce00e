"""The roofline: the least time of a kernel on a chip with known rates of memory and of products.

Kernels that could not win in that time are not measured, and those that take little longer are not tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from framesmith.codegen.triton.product import product_of
from framesmith.loops.ir import Kernel, Load, Loop, Store, walk
from framesmith.loops.product import MatrixProduct
from framesmith.runtime import trial
from framesmith.runtime.trial import Memory
from framesmith.symbolic.expr import Symbol

SIDE = 4096  # of the products that tell the rate
COPIED = 1 << 28  # bytes of the copy
START = 0.001  # milliseconds of a kernel that does nothing
# times the operations of halves that those of float32 cost, rounded to TF32 or not: no fewer on any chip
TF32, PLAIN = 2, 10


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per millisecond: `bytes` that a copy moves, `halves`: operations of a half-precision product."""

    bytes: float
    halves: float


def measured() -> Rates:
    """Return the rates of the current device."""
    source = torch.empty(COPIED, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    matrix = Memory(SIDE * SIDE, torch.bfloat16).make().view(SIDE, SIDE)
    times = [trial.milliseconds(run) for run in (lambda: target.copy_(source), lambda: matrix @ matrix)]
    return Rates(2 * COPIED / times[0], 2 * SIDE**3 / times[1])


def least(kernel: Kernel, memory: Sequence[Memory], sizes: Mapping[Symbol, int], rates: Rates) -> float:
    """Return the least milliseconds of `kernel` over `memory` for the values `sizes` of its symbols."""
    p = product_of(kernel)
    axes = [*kernel.outer, *((p.m, p.n, p.k) if p is not None else ()),
            *(node.axis for node in walk(kernel.body) if type(node) is Loop)]
    extents = {a.symbol: a.extent.evaluate(sizes) for a in axes}
    elements: dict[str, int] = {}
    for op in walk(kernel.body):
        if isinstance(op, Load | Store):
            touched = prod(extents[s] for s in op.index.free if s in extents)
            elements[op.buffer] = max(touched, elements.get(op.buffer, 0))
    moved = sum(min(elements.get(q.name, 0), m.elements) * m.dtype.itemsize for q,
                m in zip(kernel.params, memory, strict=True))
    return START + max(moved / rates.bytes, _operations(p, extents) / rates.halves)


def _operations(p: MatrixProduct | None, extents: Mapping[Symbol, int]) -> float:
    """Return the operations of a product, in equivalents of half precision."""
    if p is None:
        return 0.0
    return 2.0 * prod(extents.values()) * (1 if p.dtype.itemsize == 2 else TF32 if p.tf32 else PLAIN)
