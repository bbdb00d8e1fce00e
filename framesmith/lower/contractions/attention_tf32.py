"""Attention of float32 under autograd, on a CUDA device where products may be rounded to TF32: tiled kernels, forward
and backward.

The library multiplies three times to keep full precision. Each returns the other's operands in PyTorch's form, so that
either may be replaced alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from framesmith.graph.attention import LISTS, Attention, AttentionGradient, Scores
from framesmith.graph.patterns import Match, p, rewrite, tensors, values
from framesmith.lower.contractions.masked_attention import has_tiles, original, triangle
from framesmith.lower.contractions.nodes import Nodes
from framesmith.lower.contractions.pack_linear import value_of
from framesmith.lower.geometry import strides_of
from framesmith.prims.core import Spec

aten = torch.ops.aten
q, k, v, g, out, sums = tensors("q k v g out sums")
causal, scale, asked = values("causal scale asked")
FORWARD = p._scaled_dot_product_efficient_attention(q, k, v, None, ..., 0.0, causal, scale=scale)
BACKWARD = p._scaled_dot_product_efficient_attention_backward(g, q, k, v, None, out, sums, ..., ..., 0.0, asked, causal,
                                                              scale=scale)


def tile_attention_tf32(graph: fx.Graph) -> None:
    """Rewrite such attention and its gradient into tiled kernels, in place."""
    rewrite(graph, {FORWARD: _forward, BACKWARD: _backward})


def _scores(m: Match) -> Scores | None:
    """Return the modifications of the scores of a call that tiled kernels support; None for other calls."""
    query, key, _ = values = [*map(value_of, m[q, k, v])]
    if query.dtype is not torch.float32 or not has_tiles(values, True):
        return None
    mask = triangle((*query.shape[:3], key.shape[2]), query.device) if m[causal] else None
    factor = query.shape[3] ** -0.5 if m[scale] is None else float(m[scale])
    return Scores(None, None, mask, (0, 0, 0), factor, None, causal=bool(m[causal]), tf32=True)


def _forward(m: Match) -> None:
    """attention(q, k, v), sums as natural logarithms; takes the place of the results that are read."""
    scores = _scores(m)
    if scores is None:
        return
    add = Nodes(m.graph, m.root).of
    value, kept, *numbers = m.root.meta["val"]
    total = Spec.dense(tuple(value_of(m[q]).shape[:3]), torch.float32, value.device)
    call = add(Attention(scores), (*map(original, m[q, k, v]), *[None] * LISTS), (value, total))
    parts = {0: add(operator.getitem, (call, 0), value)}
    for user in list(m.root.users):
        place: Any = user.args[1]
        if place == 1 and 1 not in parts:
            parts[1] = _natural(add, add(operator.getitem, (call, 1), total), kept)
        # the generator's state, which only dropout would read; on the device, as where the library is recorded
        elif place not in parts:
            kind = {"dtype": numbers[place - 2].dtype, "device": value.device}
            parts[place] = add(aten.zeros.default, ([],), Spec.dense((), *kind.values()), **kind)
    _replace(m.root, parts)


def _natural(add: Callable[..., fx.Node], total: fx.Node, kept: Any) -> fx.Node:
    """Return the sums in the library's form: natural logarithms, in padded rows."""
    value = value_of(total)
    sums = add(aten.mul.Tensor, (total, math.log(2)), value)
    more = kept.shape[2] - value.shape[2]
    return add(aten.constant_pad_nd.default, (sums, [0, more], 0.0), kept) if more > 0 else sums


def _backward(m: Match) -> None:
    """gradient of attention(q, k, v, g, sums, sum of g * out); takes the place of the results that are read."""
    scores = _scores(m)
    if scores is None or not all(m[asked][:3]):
        return
    add, value = Nodes(m.graph, m.root).of, value_of(m[out])
    row = Spec.dense(tuple(value.shape[:3]), torch.float32, value.device)
    own = add(aten.slice.Tensor, (m[sums], 2, 0, value.shape[2]), _like(row, value_of(m[sums])))
    total = add(aten.mul.Tensor, (own, 1 / math.log(2)), row)
    product = add(aten.mul.Tensor, m[g, out], Spec.dense(tuple(value.shape), value.dtype, value.device))
    delta = add(aten.sum.dim_IntList, (product, [-1]), row)
    grads = m.root.meta["val"][:3]
    given = map(original, m[q, k, v, g])
    call = add(AttentionGradient(scores), (*given, total, delta, *[None] * LISTS), tuple(grads))
    places: set[Any] = {user.args[1] for user in m.root.users}
    _replace(m.root, {place: add(operator.getitem, (call, place), grads[place]) for place in places})


def _like(row: Spec, kept: Any) -> Spec:
    return Spec(row.shape, row.dtype, row.device, strides_of(kept))


def _replace(node: fx.Node, parts: dict[int, fx.Node]) -> None:
    for user in list(node.users):
        user.replace_all_uses_with(parts[user.args[1]])  # type: ignore[index]
        node.graph.erase_node(user)
    node.graph.erase_node(node)
