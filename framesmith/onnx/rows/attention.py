"""Attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of, rank, shape_of
from framesmith.onnx.table import aten, row

attention = partial(row, "attention")
WHOLE = 23
"""The opset that has Attention. It takes queries of four dimensions; a row of which no key counts is NaN there,
and 0 in eager, so masks are left out of it."""


@attention(aten.scaled_dot_product_attention.default)
def _attention(m: Emitter, query: Value, key: Value, value: Value, mask: Value | None = None, dropout_p: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Value:
    if dropout_p:
        raise NoForm("attention with dropout")
    if m.opset >= WHOLE and mask is None and rank(query) == rank(key) == rank(value) == 4 and (
            enable_gqa or shape_of(query)[1] == shape_of(key)[1]):
        return m("Attention", query, key, value, is_causal=int(is_causal), scale=scale)
    dtype = dtype_of(query)
    if enable_gqa:
        key, value = (_repeated(m, x, shape_of(query)[-3], shape_of(x)[-3]) for x in (key, value))
    width = shape_of(query)[-1]
    if scale is None and not isinstance(width, int):
        raise NoForm("attention over heads of which the width varies")
    factor = width ** -0.5 if scale is None else scale
    across = m.transpose(key, [*range(rank(key) - 2), rank(key) - 1, rank(key) - 2])
    scores = m("MatMul", m("Mul", query, m.number(factor, dtype)), across)
    if is_causal:
        mask = _causal(m, query, key)
    if mask is None:
        return m("MatMul", m("Softmax", scores, axis=-1), value)
    lowest, zero = m.constant(float("-inf"), dtype), m.constant(0.0, dtype)
    if is_causal or dtype_of(mask) is torch.bool:
        scores = m("Where", mask, scores, lowest)
    else:
        scores = m("Add", scores, m.cast(mask, dtype))
    weights = m("Softmax", scores, axis=-1)
    if not is_causal:  # a row of which no key counts is nothing
        best = m("ReduceMax", scores, m.ints([-1]), keepdims=1)
        weights = m("Where", m("Equal", best, lowest), zero, weights)
    return m("MatMul", weights, value)


def _causal(m: Emitter, query: Value, key: Value) -> Value:
    zero, one = m.constant(0, torch.int64), m.constant(1, torch.int64)
    rows, columns = (m("Range", zero, m.number(m.size(x, -2), torch.int64), one) for x in (query, key))
    return m("GreaterOrEqual", m.unsqueeze(rows, 1), columns)


def _repeated(m: Emitter, x: Value, heads: Any, groups: Any) -> Value:
    """Keys or values of groups, once for each head of a group."""
    if not isinstance(heads, int) or not isinstance(groups, int):
        raise NoForm("attention of groups of which the number varies")
    if heads == groups:
        return x
    places = [k // (heads // groups) for k in range(heads)]
    made = m("Gather", x, m.constant(places, torch.int64), axis=rank(x) - 3)
    made.meta["spec"] = x.meta["spec"]
    return made


