"""Attention of one row in float32 (a decoding step) as sums, on a CUDA device: the library runs one program for all
keys of a head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from framesmith.graph.patterns import Match, rewrite
from framesmith.lower.contractions.attention import ATTENTION, causal, dropout, k, mask, q, scale, v
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import static, value_of
from framesmith.prims.core import Spec

aten = torch.ops.aten


def sum_decoded_rows(graph: fx.Graph) -> None:
    """Rewrite attention of one row into sums, in place."""
    rewrite(graph, {ATTENTION: _summed})


def _summed(m: Match) -> fx.Node | None:
    """weights = softmax(sum(k * q, -1) * s + mask);  sum(weights * v, -2)"""
    query, key, value = map(value_of, m[q, k, v])
    if m[dropout] or m[causal] or not _has_one_row(query, key, value):
        return None
    if m[mask] and (not static(value_of(m[mask])) or len(value_of(m[mask]).shape) < 2
                    or value_of(m[mask]).shape[-2] != 1):
        return None
    batch, heads, keys, width = key.shape
    wide = value.shape[3]
    add = Nodes(m.graph, m.root)
    scores = add(aten.sum.dim_IntList, (add(aten.mul.Tensor, m[k, q], tuple(key.shape)), [-1]), (batch, heads, keys))
    factor = width**-0.5 if m[scale] is None else float(m[scale])
    scores = add(aten.mul.Tensor, (scores, factor), (batch, heads, keys))
    if m[mask]:
        scores = _masked(add, scores, m[mask], (batch, heads, keys))
    weights = add(aten._safe_softmax.default, (scores, -1), (batch, heads, keys))
    column = add(aten.unsqueeze.default, (weights, -1), (batch, heads, keys, 1))
    whole = add(aten.mul.Tensor, (column, m[v]), (batch, heads, keys, wide))
    return add(aten.sum.dim_IntList, (whole, [-2], True), (batch, heads, 1, wide))


def _masked(add: Nodes, scores: fx.Node, added: Any, shape: tuple[int, ...]) -> fx.Node:
    value = value_of(added)
    sizes = (*value.shape[:-2], value.shape[-1])
    row = add.of(aten.select.int, (added, -2, 0), Spec.dense(sizes, value.dtype, value.device))
    if value.dtype is torch.bool:  # -inf is added, so that scores of NaN stay NaN
        number = Spec((), torch.float32, value.device, ())
        low, zero = [add.of(aten.full.default, ([], x), number, dtype=torch.float32, device=value.device)
                     for x in (-math.inf, 0.0)]
        row = add.of(aten.where.self, (row, zero, low), Spec.dense(sizes, torch.float32, value.device))
    return add(aten.add.Tensor, (scores, row), shape)


def _has_one_row(q: Any, k: Any, v: Any) -> bool:
    values = q, k, v
    if any(len(x.shape) != 4 or x.dtype is not torch.float32 for x in values) or not static(*values):
        return False
    return (q.shape[2] == 1 and q.shape[:2] == k.shape[:2] == v.shape[:2] and k.shape[2] == v.shape[2]
            and min(*k.shape, *v.shape) > 0)
