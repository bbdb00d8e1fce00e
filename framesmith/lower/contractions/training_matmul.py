"""Rewrite float32 products of matrices that change from call to call (all of training's) into the operator of
csrc/matmul.cpp, where that was measured to be faster. It packs both matrices within the call, whichever way they lie
in memory: nothing is kept of a weight.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.graph.patterns import Match, p, tensors
from framesmith.lower.contractions.choice import CANDIDATES, WORK, Candidate
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites, surely_filled, usual, value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import size_of

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

MEASURED_FLOPS = 4e7  # larger products are measured as smaller ones of about the same form, each once
SMALLEST_CUT = 128
LEAST = 4  # rows and columns: a product of fewer is bound by memory, not by arithmetic


a, b, c = tensors("a b c")


@rewrites((p.mm.default | p.bmm.default)(a, b) | (p.addmm.default | p.baddbmm.default)(c, a, b))
def _product(m: Match, choose: Choose) -> fx.Node | None:
    """framesmith::matmul(a, b, c)"""
    values = [value_of(x) for x in m[a, b, c] if x]
    if any(v.dtype is not torch.float32 for v in values) or values[0].device.type != "cpu":
        return None
    va, vb, *_ = values
    count, rows, k, n = usual(*va.shape[:-2]), usual(va.shape[-2]), usual(va.shape[-1]), usual(vb.shape[-1])
    if rows < LEAST or n < LEAST or not surely_filled(va, vb):
        return None
    if choose(Request("product", torch.float32, (*_cut(count, rows, k, n), _turned(va), _turned(vb)))) != "own":
        return None
    return Nodes(m.graph, m.root)(library.matmul.default, m[a, b, c], (*va.shape[:-1], vb.shape[-1]))


def _turned(value: Any) -> int:
    """Return whether a matrix is column-major."""
    rows, columns = map(size_of, strides_of(value)[-2:])
    return int(columns != 1 and rows == 1)


def _cut(*sizes: int) -> list[int]:
    """Return the sizes (count, m, k, n) of a smaller product that runs at the same rate."""
    cut = [min(sizes[0], 2 * torch.get_num_threads()), *sizes[1:]]
    while 2 * prod(cut) > MEASURED_FLOPS and max(cut[1:]) > SMALLEST_CUT:
        longest = max(range(1, 4), key=cut.__getitem__)
        cut[longest] //= 2
    return cut


def _candidates(request: Request) -> dict[str, Candidate]:
    count, m, k, n, turned_a, turned_b = request.shape
    a, b = (torch.ones(count, c, r).transpose(1, 2) if turned else torch.ones(count, r, c)
            for r, c, turned in ((m, k, turned_a), (k, n, turned_b)))
    out = torch.empty(count, m, n)
    if count == 1:
        a, b, out = a[0], b[0], out[0]
        return {"aten": lambda: torch.mm(a, b, out=out), "own": lambda: library.matmul.out(a, b, None, out=out)}
    return {"aten": lambda: torch.bmm(a, b, out=out), "own": lambda: library.matmul.out(a, b, None, out=out)}


CANDIDATES["product"] = _candidates
WORK["product"] = lambda request: 2 * prod(request.shape[:4])
