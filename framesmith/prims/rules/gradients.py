"""The backward ops that the autograd engine calls, each as the derivative it is."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.prims.rules.views import slice_bounds

aten = torch.ops.aten


def _rounded(b: Builder, wide: Value, like: Value) -> Value:
    return b.convert(wide, like.dtype)


@decomposes(aten.threshold_backward.default)
def threshold_backward(b: Builder, grad: Value, x: Value, threshold: Any) -> Value:
    x, grad = b.promote(x, grad)
    return b.where(x <= b.cast(threshold, x.dtype), b.cast(0, grad.dtype), grad)


@decomposes(aten.sigmoid_backward.default)
def sigmoid_backward(b: Builder, grad: Value, y: Value) -> Value:
    wide = b.wide(y)
    return _rounded(b, b.wide(grad) * (1.0 - wide) * wide, grad)


@decomposes(aten.tanh_backward.default)
def tanh_backward(b: Builder, grad: Value, y: Value) -> Value:
    wide = b.wide(y)
    return _rounded(b, b.wide(grad) * (1.0 - wide * wide), grad)


@decomposes(aten.silu_backward.default)
def silu_backward(b: Builder, grad: Value, x: Value) -> Value:
    wide = b.wide(x)
    gate = b.sigmoid(wide)
    return _rounded(b, b.wide(grad) * gate * (wide * (1.0 - gate) + 1.0), grad)


@decomposes(aten.mish_backward.default)
def mish_backward(b: Builder, grad: Value, x: Value) -> Value:
    wide = b.wide(x)
    curve = b.tanh(b.log1p(b.exp(wide)))
    slope = wide * b.sigmoid(wide) * (1.0 - curve * curve)
    return _rounded(b, b.wide(grad) * (curve + slope), grad)


@decomposes(aten.gelu_backward.default)
def gelu_backward(b: Builder, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    wide = b.wide(x)
    if approximate == "tanh":
        scale = math.sqrt(2.0 / math.pi)
        square = wide * wide
        curve = b.tanh((wide + wide * square * 0.044715) * scale)
        slope = (1.0 - curve * curve) * ((square * (3.0 * 0.044715) + 1.0) * scale)
        local = (curve + 1.0) * 0.5 + wide * 0.5 * slope
    else:
        share = (b.erf(wide * math.sqrt(0.5)) + 1.0) * 0.5
        density = b.exp(wide * wide * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        local = share + wide * density
    return _rounded(b, b.wide(grad) * local, grad)


@decomposes(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, grad: Value, x: Value) -> Value:
    return b.where((x > -3.0) & (x < 3.0), grad * (1.0 / 6.0), 0.0)


@decomposes(aten.hardswish_backward.default)
def hardswish_backward(b: Builder, grad: Value, x: Value) -> Value:
    wide, up = b.wide(x), b.wide(grad)
    inner = b.where(wide <= 3.0, up * (wide / 3.0 + 0.5), up)
    return _rounded(b, b.where(wide < -3.0, 0.0, inner), grad)


@decomposes(aten.hardtanh_backward.default)
def hardtanh_backward(b: Builder, grad: Value, x: Value, min_val: Any, max_val: Any) -> Value:
    outside = (x <= b.cast(min_val, x.dtype)) | (x >= b.cast(max_val, x.dtype))
    return b.where(outside, 0.0, grad)


@decomposes(aten.leaky_relu_backward.default)
def leaky_relu_backward(b: Builder, grad: Value, x: Value, negative_slope: Any, self_is_result: bool) -> Value:
    return b.where(x > 0.0, grad, _rounded(b, b.wide(grad) * float(negative_slope), grad))


@decomposes(aten.elu_backward.default)
def elu_backward(b: Builder, grad: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value) -> Value:
    wide, up = b.wide(x), b.wide(grad)
    steep = float(input_scale)
    if is_result:
        low = up * steep * (wide + float(alpha * scale))
    else:
        low = up * (steep * float(alpha * scale)) * b.exp(wide * steep)
    return _rounded(b, b.where(wide <= 0.0, low, up * float(scale)), grad)


@decomposes(aten.softplus_backward.default)
def softplus_backward(b: Builder, grad: Value, x: Value, beta: Any, threshold: Any) -> Value:
    scaled = b.wide(x) * float(beta)
    up = b.wide(grad)
    return _rounded(b, b.where(scaled > float(threshold), up, up * b.sigmoid(scaled)), grad)


@decomposes(aten.logit_backward.default)
def logit_backward(b: Builder, grad: Value, x: Value, eps: float | None = None) -> Value:
    wide = b.wide(x)
    slope = b.wide(grad) / (wide * (1.0 - wide))
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (float(eps), 1.0 - float(eps), 0.0)
    return _rounded(b, b.where((wide < low) | (wide > high), outside, slope), grad)


# -- softmax and losses -----------------------------------------------------------------------------------------------


@decomposes(aten._softmax_backward_data.default)
def softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Any:
    if not y.ndim:
        return NotImplemented
    wide = b.wide(y)
    weighted = b.wide(grad) * wide
    out = weighted - wide * b.sum(weighted, (dim % y.ndim,), True)
    return b.convert(out, input_dtype)


@decomposes(aten._log_softmax_backward_data.default)
def log_softmax_backward(b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype) -> Any:
    if not y.ndim:
        return NotImplemented
    up = b.wide(grad)
    out = up - b.exp(b.wide(y)) * b.sum(up, (dim % y.ndim,), True)
    return b.convert(out, input_dtype)


@decomposes(aten.mse_loss_backward.default)
def mse_loss_backward(b: Builder, grad: Value, x: Value, target: Value, reduction: int) -> Any:
    count = x.spec.numel
    if type(count) is not int or x.dtype is not target.dtype:
        return NotImplemented
    factor = 2.0 / count if reduction == 1 else 2.0
    return _rounded(b, (b.wide(x) - b.wide(target)) * factor * b.wide(grad), x)


@decomposes(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder, grad: Value, x: Value, target: Value, weight: Any, reduction: int, ignore_index: int, total_weight: Value
) -> Value:
    dim = 1 if x.ndim > 1 else 0
    counts = b.ne(target, ignore_index)
    safe = b.where(counts, target, 0)
    up = grad / total_weight if reduction == 1 else grad
    if reduction == 0 and weight is None:
        up = b.expand(up, target.shape)
    share = up if weight is None else up * b.index(weight, (safe,), 0)
    share = b.where(b.expand(counts, target.shape), b.neg(b.expand(share, target.shape)), 0.0)
    classes = b.along(b.iota(x.shape[dim], 0, 1, torch.int64, x.device), dim, x.ndim)
    hit = b.eq(b.unsqueeze(safe, dim), classes)
    return b.where(hit, b.expand(b.unsqueeze(share, dim), x.shape), 0.0)


# -- norms ------------------------------------------------------------------------------------------------------------


@decomposes(aten.native_layer_norm_backward.default)
def layer_norm_backward(b: Builder, grad: Value, x: Value, shape: Any, mean: Value, rstd: Value, weight: Any, bias: Any, mask: Any) -> Any:
    lead = x.ndim - len(shape)
    inner, outer = tuple(range(lead, x.ndim)), tuple(range(lead))
    wide, up = b.wide(x), b.wide(grad)
    normal = (wide - b.convert(mean, wide.dtype)) * b.convert(rstd, wide.dtype)
    first = second = third = None
    if mask[0]:
        scaled = up if weight is None else up * b.wide(weight)
        count = math.prod(x.shape[lead:])
        drift = b.sum(scaled, inner, True) / float(count)
        pull = b.sum(scaled * normal, inner, True) / float(count)
        first = b.convert((scaled - drift - normal * pull) * b.convert(rstd, wide.dtype), x.dtype)
    if mask[1] and weight is not None:
        second = b.convert(b.reshape(b.sum(up * normal, outer, False), weight.shape), weight.dtype)
    if mask[2] and bias is not None:
        third = b.convert(b.reshape(b.sum(up, outer, False), bias.shape), bias.dtype)
    return first, second, third


@decomposes(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder, grad: Value, x: Value, weight: Any, mean: Any, var: Any, save_mean: Any, save_rstd: Any, train: bool, eps: float, mask: Any
) -> Any:
    dims = (0, *range(2, x.ndim))
    count = math.prod(x.shape[dim] for dim in dims)
    if type(count) is not int:
        return NotImplemented
    wide, up = b.wide(x), b.wide(grad)
    centre = b.wide(save_mean if train else mean)
    rstd = b.wide(save_rstd) if train else b.rsqrt(b.wide(var) + float(eps))
    centred = wide - b.along(centre, 1, x.ndim)
    total, dot = b.sum(up, dims, False), b.sum(up * centred, dims, False)
    factor = rstd if weight is None else rstd * b.wide(weight)
    first = second = third = None
    if mask[0]:
        out = up
        if train:
            out = out - centred * b.along(dot * rstd * rstd / float(count), 1, x.ndim) - b.along(total / float(count), 1, x.ndim)
        first = b.convert(out * b.along(factor, 1, x.ndim), x.dtype)
    if mask[1] and weight is not None:
        second = b.convert(dot * rstd, weight.dtype)
    if mask[2]:
        third = b.convert(total, x.dtype if weight is None else weight.dtype)
    return first, second, third


# -- views and lookups ------------------------------------------------------------------------------------------------


@decomposes(aten.slice_backward.default)
def slice_backward(b: Builder, grad: Value, sizes: Any, dim: int, start: Any, end: Any, step: int) -> Value:
    shape = tuple(sizes)
    dim %= len(shape)
    low, high = slice_bounds(shape[dim], start, end, grad.shape[dim], step)
    zeros = b.full(shape, b.cast(0, grad.dtype), grad.dtype, grad.device)
    return b.slice_scatter(zeros, grad, dim, low, high, step)


@decomposes(aten.select_backward.default)
def select_backward(b: Builder, grad: Value, sizes: Any, dim: int, index: Any) -> Value:
    shape = tuple(sizes)
    dim %= len(shape)
    zeros = b.full(shape, b.cast(0, grad.dtype), grad.dtype, grad.device)
    return b.select_scatter(zeros, grad, dim, index + shape[dim] if index < 0 else index)


@decomposes(aten.embedding_dense_backward.default)
def embedding_dense_backward(b: Builder, grad: Value, indices: Value, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool) -> Any:
    if scale_grad_by_freq:
        return NotImplemented
    wide = b.wide(grad)
    if padding_idx >= 0:
        wide = b.where(b.unsqueeze(b.eq(indices, padding_idx), indices.ndim), 0.0, wide)
    table = b.full((num_weights, grad.shape[-1]), 0.0, wide.dtype, grad.device)
    return b.convert(b.index_put(table, wide, (b.convert(indices, torch.int64),), 0, True), grad.dtype)


@decomposes_named("native_dropout_backward")
def native_dropout_backward(b: Builder, grad: Value, mask: Value, scale: float) -> Any:
    if b.out.dtype is not grad.dtype:
        return NotImplemented
    return grad * (b.convert(mask, grad.dtype) * float(scale))
