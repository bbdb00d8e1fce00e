"""Rewrite float32 products of matrices that change from call to call (all of training's) into the operator of
csrc/matmul.cpp.

    mm(a, b), bmm(a, b)             ->  framesmith::matmul(a, b)
    addmm(c, a, b), baddbmm(c, a, b) ->  framesmith::matmul(a, b, c)

where that was measured to be faster. It packs both matrices within the call, whichever way they lie in memory: nothing
is kept of a weight.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from framesmith import _C
from framesmith.lower.contractions.choice import CANDIDATES, WORK, Candidate
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import Choose, Request, rewrites, static

aten = torch.ops.aten
library = torch.ops.framesmith
assert _C.LANES  # importing the core registers the operators

MEASURED_FLOPS = 4e7  # larger products are measured as smaller ones of about the same form, each once
SMALLEST_CUT = 128
LEAST = 4  # rows and columns: a product of fewer is bound by memory, not by arithmetic


@rewrites(aten.mm.default, aten.bmm.default)
def _rewrite_product(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    a, b = node.args
    return _product(graph, node, choose, a, b, None)


@rewrites(aten.addmm.default, aten.baddbmm.default)
def _rewrite_sum(graph: fx.Graph, node: fx.Node, choose: Choose) -> fx.Node | None:
    bias, a, b = node.args
    return None if node.kwargs or bias.meta["val"].dtype is not torch.float32 else _product(  # type: ignore[union-attr]
        graph, node,
                                                                                            choose,
                                                                                            a,
                                                                                            b,
                                                                                            bias)


def _product(graph: fx.Graph, node: fx.Node, choose: Choose, a: Any, b: Any, bias: Any) -> fx.Node | None:
    va, vb = a.meta["val"], b.meta["val"]
    if va.dtype is not torch.float32 or vb.dtype is not torch.float32 or va.device.type != "cpu" or not static(va, vb):
        return None
    *batch, m, k = va.shape
    n = vb.shape[-1]
    count = batch[0] if batch else 1
    if m < LEAST or n < LEAST or not k or not count:
        return None
    if choose(Request("product", torch.float32, (*_cut(count, m, k, n), _turned(va), _turned(vb)))) != "own":
        return None
    return Nodes(graph, node)(library.matmul.default, (a, b, bias), (*batch, m, n))


def _turned(value: Any) -> int:
    """Return whether a matrix lies in memory column by column."""
    rows, columns = value.stride()[-2:] if callable(value.stride) else value.stride[-2:]
    return int(columns != 1 and rows == 1)


def _cut(*sizes: int) -> list[int]:
    """The sizes (count, m, k, n) of a product that takes less time and runs at the same rate."""
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
