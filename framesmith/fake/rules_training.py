"""Metadata rows of operators that are recorded under autograd, and of those that the engine calls for them."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.infer import DOUBTED, rule
from framesmith.fake.layout import preserved_strides, suggested
from framesmith.fake.rules_nn import batch_norm, convolution_strides, group_norm, layer_norm
from framesmith.fake.tensor import FakeTensor, dense, new_fake

aten = torch.ops.aten


# -- normalisation


@rule(aten.native_layer_norm.default)
def native_layer_norm(x: FakeTensor, over: Any, weight: Any, bias: Any, eps: float) -> Any:
    """native_layer_norm; statistics have the dtype of the parameters, on a CUDA device the dtype of the computation."""
    out = layer_norm(x, over, weight)
    if out is NotImplemented:
        return out
    like = next((t for t in (weight, bias) if t is not None), x)
    kept = torch.float32 if x.device.type == "cuda" and x.dtype is not torch.float64 else like.dtype
    saved = (*x.shape[: x.dim() - len(over)], *[1] * len(over))
    return out, dense(like, saved, kept), dense(like, saved, kept)


@rule(aten.native_group_norm.default)
def native_group_norm(x: FakeTensor, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, groups: int, eps: float) -> Any:
    out = group_norm(x, groups, weight, bias)
    if not isinstance(out, FakeTensor):
        return out
    like = next((t for t in (weight, bias) if t is not None), x)
    return out, dense(like, (n, groups)), dense(like, (n, groups))


@rule(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    grad: FakeTensor, x: FakeTensor, mean: FakeTensor, rstd: FakeTensor, weight: Any, n: Any, c: Any, hxw: Any,
    groups: int, mask: Any
) -> Any:
    if weight is None and (mask[1] or mask[2]):
        return NotImplemented
    first = suggested(x, x.shape) if mask[0] else None
    return first, *[dense(weight, (c,)) if asked else None for asked in mask[1:]]


@rule(aten.native_batch_norm.default)
def native_batch_norm(x: FakeTensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *args: Any) -> Any:
    """native_batch_norm; without training the saved statistics are empty."""
    out = batch_norm(x, weight, bias, mean, var, training)
    if out is DOUBTED:
        return out
    like = next((t for t in (weight, bias, mean, var) if t is not None), x)
    saved = tuple(x.shape[1:2]) if training else (0,)
    return out, dense(like, saved), dense(like, saved)


# -- dropout


@rule(aten.native_dropout.default)
def native_dropout(x: FakeTensor, p: float, train: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    stride = preserved_strides(x)
    return new_fake(x.shape, stride, x.dtype, x.device), new_fake(x.shape, stride, torch.bool, x.device)


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: FakeTensor) -> Any:
    if x.device.type != "cpu" or not x.dtype.is_floating_point:
        return NotImplemented
    return dense(x, tuple(x.shape)), dense(x, tuple(x.shape))


# -- convolution


@rule(aten.convolution_backward.default)
def convolution_backward(
    grad: FakeTensor, x: FakeTensor, weight: FakeTensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, extra: Any, groups: Any, mask: Any,
) -> Any:  # fmt: skip
    if (grad.dim() != x.dim() or x.dim() != weight.dim() or x.dim() not in (3, 4, 5)
        or not x.dtype is weight.dtype is grad.dtype):
        return NotImplemented
    if any(type(n) is int and n == 0 for t in (x, weight, grad) for n in t.shape):
        return NotImplemented
    outs = weight.shape[1] * groups if transposed else weight.shape[0]
    grads = [new_fake(tuple(t.shape), convolution_strides(x, weight, tuple(t.shape)), t.dtype, t.device)
             for t in (x, weight)]
    return tuple([g if asked else None for g, asked in zip((*grads, dense(x, (outs,))), mask)])


# -- what has no meta kernel


@rule(
    aten.multi_margin_loss_backward.default, aten.multilabel_margin_loss_backward.default,
    aten.fractional_max_pool3d_backward.default
)  # fmt: skip
def like_second(grad: FakeTensor, x: FakeTensor, *args: Any) -> Any:
    return dense(x, tuple(x.shape))
