"""Attention of float32 under autograd, on a CUDA device where products may be rounded to TF32: over tiles, forward and
backward.

    _scaled_dot_product_efficient_attention(q, k, v)                      ->  attention(q, k, v), sums as natural
                                                                              logarithms
    _scaled_dot_product_efficient_attention_backward(g, q, k, v, out, s)  ->  gradient of attention(q, k, v, g, s, sum
    of g * out)

The library multiplies three times, so that nothing is lost. Each gives what the other reads in PyTorch's form, so that
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
from framesmith.lower.contractions.masked_attention import has_tiles, original, triangle
from framesmith.lower.contractions.nodes import Nodes, argument
from framesmith.lower.contractions.pack_linear import value_of
from framesmith.prims.core import Spec, contiguous_strides

aten = torch.ops.aten
_FORWARD = aten._scaled_dot_product_efficient_attention.default
_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def tile_attention_tf32(graph: fx.Graph) -> None:
    """Rewrite such calls in place."""
    for node in list(graph.nodes):
        row = _ROWS.get(node.target) if node.op == "call_function" else None
        if row is not None:
            with graph.inserting_before(node):
                row(graph, node)


def _scores(node: fx.Node, tensors: tuple[Any, ...], bias: Any, dropout: Any, causal: Any) -> Scores | None:
    """Return what is done to the scores of a call that has tiles; None for other calls."""
    values = list(map(value_of, tensors))
    scale = node.kwargs.get("scale")
    if bias is not None or dropout or values[0].dtype is not torch.float32 or not has_tiles(values, True):
        return None
    q, k, _ = values
    mask = triangle((*q.shape[:3], k.shape[2]), q.device) if causal else None
    factor = q.shape[3] ** -0.5 if scale is None else float(scale)  # type: ignore[arg-type]
    return Scores(None, None, mask, (0, 0, 0), factor, None, causal=bool(causal), tf32=True)


def _forward(graph: fx.Graph, node: fx.Node) -> None:
    q, k, v, bias, _ = node.args[:5]
    scores = _scores(node, (q, k, v), bias, argument(node, 5, 0.0), argument(node, 6, False))
    if scores is None:
        return
    add = Nodes(graph, node).of
    out, kept, *numbers = node.meta["val"]
    total = _plain(tuple(value_of(q).shape[:3]), torch.float32, out.device)
    given = map(original, (q, k, v))  # type: ignore[arg-type]
    call = add(Attention(scores), (*given, *[None] * LISTS), (out, total))
    parts = {0: add(operator.getitem, (call, 0), out)}
    for user in list(node.users):
        place: Any = user.args[1]
        if place == 1 and 1 not in parts:
            parts[1] = _natural(add, add(operator.getitem, (call, 1), total), kept)
        # the generator's state, which only dropout would read; on the device, as where the library is recorded
        elif place not in parts:
            dtype = numbers[place - 2].dtype
            parts[place] = add(aten.zeros.default, ([],), _plain((), dtype, out.device), dtype=dtype, device=out.device)
    _replace(graph, node, parts)


def _natural(add: Callable[..., fx.Node], total: fx.Node, kept: Any) -> fx.Node:
    """Sums as the library keeps them: natural logarithms, in more rows."""
    value = value_of(total)
    sums = add(aten.mul.Tensor, (total, math.log(2)), value)
    more = kept.shape[2] - value.shape[2]
    return add(aten.constant_pad_nd.default, (sums, [0, more], 0.0), kept) if more > 0 else sums


def _backward(graph: fx.Graph, node: fx.Node) -> None:
    g, q, k, v, bias, out, kept, _, _, dropout, asked = node.args[:11]
    scores = _scores(node, (q, k, v), bias, dropout, argument(node, 11, False))
    if scores is None or not all(asked[:3]):  # type: ignore[index, arg-type]
        return
    add, value = Nodes(graph, node).of, value_of(out)
    row = _plain(tuple(value.shape[:3]), torch.float32, value.device)
    own = add(aten.slice.Tensor, (kept, 2, 0, value.shape[2]), _like(row, value_of(kept)))
    total = add(aten.mul.Tensor, (own, 1 / math.log(2)), row)
    product = add(aten.mul.Tensor, (g, out), _plain(tuple(value.shape), value.dtype, value.device))
    delta = add(aten.sum.dim_IntList, (product, [-1]), row)
    grads = node.meta["val"][:3]
    given = map(original, (q, k, v, g))  # type: ignore[arg-type]
    call = add(AttentionGradient(scores), (*given, total, delta, *[None] * LISTS), tuple(grads))
    places = {user.args[1] for user in node.users}
    _replace(graph, node, {p: add(operator.getitem, (call, p), grads[p]) for p in places})  # type: ignore[index, misc]


def _like(row: Spec, kept: Any) -> Spec:
    stride = kept.stride() if callable(kept.stride) else kept.stride
    return Spec(row.shape, row.dtype, row.device, tuple(stride))


def _plain(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Spec:
    return Spec(shape, dtype, device, contiguous_strides(shape))


def _replace(graph: fx.Graph, node: fx.Node, parts: dict[int, fx.Node]) -> None:
    for user in list(node.users):
        user.replace_all_uses_with(parts[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(node)


_ROWS = {_FORWARD: _forward, _BACKWARD: _backward}

__all__ = ["tile_attention_tf32"]
