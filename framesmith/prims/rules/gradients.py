"""The backward operators that the autograd engine calls, as formulas of the derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.prims.rules.indexing import diagonal_scatter
from framesmith.prims.rules.norms import spread
from framesmith.prims.rules.reductions import divided
from framesmith.prims.rules.views import row_major, slice_bounds

aten = torch.ops.aten


def _rounded(b: Builder, wide: Value, like: Value) -> Value:
    return b.convert(wide, like.dtype)


def _or_nan(b: Builder, test: Value, x: Value) -> Value:
    """Return `test`, on GPUs also true for NaN: eager's CPU kernels test which elements pass, its GPU kernels which do
    not."""
    return test if x.device.type == "cpu" else test | b.isnan(x)


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
        # (1 + tanh(u)) / 2 is sigmoid(2u), which costs less and loses nothing where it vanishes
        double = 2.0 * math.sqrt(2.0 / math.pi)
        square = wide * wide
        share = b.sigmoid(wide * (square * (0.044715 * double) + double))
        local = share * ((1.0 - share) * (wide * (square * (3.0 * 0.044715 * double) + double)) + 1.0)
    else:
        share = (b.erf(wide * math.sqrt(0.5)) + 1.0) * 0.5
        density = b.exp(wide * wide * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
        local = share + wide * density
    return _rounded(b, b.wide(grad) * local, grad)


@decomposes(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(b: Builder, grad: Value, x: Value) -> Value:
    sixth = 0.16666667163372040  # eager's, in float32 for every dtype
    return b.where((x > -3.0) & (x < 3.0), grad * sixth, 0.0)


@decomposes(aten.hardswish_backward.default)
def hardswish_backward(b: Builder, grad: Value, x: Value) -> Value:
    wide, up = b.wide(x), b.wide(grad)
    inner = b.where(_or_nan(b, wide >= 3.0, wide), up, up * (wide / 3.0 + 0.5))
    return _rounded(b, b.where(wide <= -3.0, 0.0, inner), grad)


@decomposes(aten.hardtanh_backward.default)
def hardtanh_backward(b: Builder, grad: Value, x: Value, min_val: Any, max_val: Any) -> Value:
    inside = (x > b.cast(min_val, x.dtype)) & (x < b.cast(max_val, x.dtype))
    return b.where(_or_nan(b, inside, x), grad, 0.0)


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
    return _rounded(b, b.where(_or_nan(b, wide > 0.0, wide), up * float(scale), low), grad)


@decomposes(aten.softplus_backward.default)
def softplus_backward(b: Builder, grad: Value, x: Value, beta: Any, threshold: Any) -> Value:
    scaled = b.wide(x) * float(beta)
    up = b.wide(grad)
    return _rounded(b, b.where(scaled > float(threshold), up, up * b.sigmoid(scaled)), grad)


@decomposes(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(b: Builder, grad: Value, x: Value, buffer: Value) -> Value:
    """Return the gradient of `log_sigmoid`; exp(-|x|), which the forward has kept, is computed again."""
    wide = b.wide(x)
    decay = b.exp(b.neg(b.abs(wide)))
    share = decay / (decay + 1.0)
    return _rounded(b, b.wide(grad) * b.where(wide < 0.0, 1.0 - share, share), grad)


@decomposes(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(b: Builder, grad: Value, x: Value, lambd: Any) -> Value:
    bound = float(lambd)
    return b.where(_or_nan(b, (x < -bound) | (x > bound), x), grad, 0.0)


@decomposes(aten.glu_backward.default)
def glu_backward(b: Builder, grad: Value, x: Value, dim: int) -> Value:
    dim %= x.ndim
    half = x.shape[dim] // 2
    left, right = (b.wide(b.slice(x, dim, start, start + half, 1)) for start in (0, half))
    gate, up = b.sigmoid(right), b.wide(grad)
    return b.cat((_rounded(b, up * gate, grad), _rounded(b, up * left * gate * (1.0 - gate), grad)), dim)


@decomposes_named("_prelu_kernel_backward")
def prelu_backward(b: Builder, grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    up = x > 0.0
    return b.where(up, grad, grad * weight), b.where(up, 0.0, grad * x)


@decomposes(aten.rrelu_with_noise_backward.default)
def rrelu_backward(b: Builder, grad: Value, x: Value, noise: Value, lower: Any, upper: Any, training: bool,
                   self_is_result: bool) -> Value:
    if training and upper - lower > 1e-6:
        return grad * noise
    return leaky_relu_backward(b, grad, x, (lower + upper) / 2, self_is_result)


@decomposes(aten.logit_backward.default)
def logit_backward(b: Builder, grad: Value, x: Value, eps: float | None = None) -> Value:
    wide = b.wide(x)
    slope = b.wide(grad) / (wide * (1.0 - wide))
    low, high, outside = (0.0, 1.0, math.nan) if eps is None or eps < 0 else (float(eps), 1.0 - float(eps), 0.0)
    return _rounded(b, b.where(_or_nan(b, (wide >= low) & (wide <= high), wide), slope, outside), grad)


# -- norms ------------------------------------------------------------------------------------------------------------


@decomposes(aten.native_layer_norm_backward.default)
def layer_norm_backward(b: Builder, grad: Value, x: Value, shape: Any, mean: Value, rstd: Value, weight: Any, bias: Any,
                        mask: Any) -> Any:
    lead = x.ndim - len(shape)
    inner, outer = tuple(range(lead, x.ndim)), tuple(range(lead))
    wide, up = b.wide(x), b.wide(grad)
    normal = (wide - b.convert(mean, wide.dtype)) * b.convert(rstd, wide.dtype)
    first = second = third = None
    if mask[0]:
        scaled = up if weight is None else up * b.wide(weight)
        count = math.prod(x.shape[lead:])
        drift = divided(b, b.sum(scaled, inner, True), count)
        pull = divided(b, b.sum(scaled * normal, inner, True), count)
        first = b.convert((scaled - drift - normal * pull) * b.convert(rstd, wide.dtype), x.dtype)
    if mask[1] and weight is not None:
        second = b.convert(b.reshape(b.sum(up * normal, outer, False), weight.shape), weight.dtype)
    if mask[2] and bias is not None:
        third = b.convert(b.reshape(b.sum(up, outer, False), bias.shape), bias.dtype)
    return first, second, third


@decomposes(aten.native_group_norm_backward.default)
def group_norm_backward(
    b: Builder, grad: Value, x: Value, mean: Value, rstd: Value, weight: Any, n: Any, c: Any, hxw: Any, groups: int,
    mask: Any
) -> Any:
    """Return the gradients of group norm from two sums over the places of each channel, in any layout of `x`."""
    if 0 in x.shape or type(count := math.prod(x.shape[1:])) is not int:
        return NotImplemented
    batch, channels = x.shape[:2]
    wide, up = b.wide(x), b.wide(grad)
    split = (batch, groups, channels // groups)
    scale = b.reshape(b.convert(rstd, wide.dtype), (batch, groups))
    centred = wide - spread(b, b.convert(mean, wide.dtype), x)
    places = tuple(range(2, x.ndim))
    total, dot = b.sum(up, places, True), b.sum(up * centred, places, True)
    factor = None if weight is None else b.reshape(b.wide(weight), (1, channels, *[1] * len(places)))
    first = second = third = None
    if mask[0]:
        parts = [b.reshape(one if factor is None else one * factor, split) for one in (total, dot)]
        drift, pull = (b.sum(one, (2,), False) * (float(groups) / count) for one in parts)
        direct = spread(b, scale, x) if factor is None else spread(b, scale, x) * factor
        first = b.convert(up * direct - centred * spread(b, pull * scale * scale * scale, x) - spread(b, drift * scale,
                                                                                                      x), x.dtype)
    if mask[1] and weight is not None:
        second = b.convert(b.reshape(b.sum(dot * spread(b, scale, x), (0,), False), weight.shape), b.out[1].dtype)
    if mask[2]:
        third = b.convert(b.reshape(b.sum(total, (0,), False), (channels,)), b.out[2].dtype)
    return first, second, third


@decomposes(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    b: Builder, grad: Value, x: Value, weight: Any, mean: Any, var: Any, save_mean: Any, save_rstd: Any, train: bool,
    eps: float, mask: Any
) -> Any:
    dims = (0, *range(2, x.ndim))
    count = math.prod(x.shape[dim] for dim in dims)
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
            pull = b.along(divided(b, dot * rstd * rstd, count), 1, x.ndim)
            out = out - centred * pull - b.along(divided(b, total, count), 1, x.ndim)
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
    zeros = _zeros(b, grad, shape)
    return b.slice_scatter(zeros, grad, dim, low, high, step)


@decomposes(aten.select_backward.default)
def select_backward(b: Builder, grad: Value, sizes: Any, dim: int, index: Any) -> Value:
    shape = tuple(sizes)
    dim %= len(shape)
    zeros = _zeros(b, grad, shape)
    place = index + shape[dim] if type(index) is int and index < 0 else index
    return b.select_scatter(zeros, grad, dim, place)


@decomposes(aten.diagonal_backward.default)
def diagonal_backward(b: Builder, grad: Value, sizes: Any, offset: int, dim1: int, dim2: int) -> Value:
    return diagonal_scatter(b, _zeros(b, grad, sizes), grad, offset, dim1, dim2)


_MOST_PARTS = 16


@decomposes(aten.unfold_backward.default)
def unfold_backward(b: Builder, grad: Value, sizes: Any, dim: int, size: int, step: int) -> Any:
    if not sizes:
        return b.reshape(grad, ())
    dim %= len(sizes)
    zeros = _zeros(b, grad, sizes)
    windows = grad.shape[dim]
    values = b.permute(grad, (*range(dim + 1), grad.ndim - 1, *range(dim + 1, grad.ndim - 1)))
    if type(windows) is not int or size > _MOST_PARTS:
        starts = b.unsqueeze(b.iota(windows, 0, step, torch.int64, grad.device), 1)
        return b.index_put(zeros, values, (starts + b.iota(size, 0, 1, torch.int64, grad.device),), dim, True)
    for inside in range(size):
        part = b.slice(zeros, dim, inside, inside + (windows - 1) * step + 1, step)
        zeros = b.slice_scatter(zeros, part + b.select(values, dim + 1, inside), dim, inside,
                                inside + (windows - 1) * step + 1, step)
    return zeros


@decomposes(aten.as_strided_scatter.default)
def as_strided_scatter(b: Builder, x: Value, src: Value, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    """Write `src` to a window on the memory of `x`. If the window covers all of the memory, each element once, the
    result is a permutation of `src`."""
    recorded = b.source.args[0].meta["val"]  # type: ignore[union-attr]
    base = row_major(b, x, tuple(recorded.stride()), recorded.storage_offset())
    numbers = (*size, *stride, *x.shape)
    if base is None or any(type(n) is not int
                           for n in numbers) or storage_offset is None or _meets_itself(size, stride) or 0 in numbers:
        return NotImplemented
    src = b.convert(src, x.dtype)
    if storage_offset == 0 and src.spec.numel == base.spec.numel and (whole := row_major(b, src, tuple(stride),
                                                                                         0)) is not None:
        out = b.reshape(whole, base.shape)
    else:
        place: Any = storage_offset
        for dim, (length, step) in enumerate(zip(size, stride)):
            place = b.along(b.iota(length, 0, step, torch.int64, x.device), dim, len(size)) + place
        place = b.reshape(b.expand(place, tuple(size)), (src.spec.numel,)) if size else b.full((1,), place, torch.int64,
                                                                                               x.device)
        flat = b.reshape(base, (base.spec.numel,))
        out = b.reshape(b.index_put(flat, b.reshape(src, (src.spec.numel,)), (place,), 0, False), base.shape)
    order = sorted(range(x.ndim), key=lambda dim: (-recorded.stride()[dim], dim))
    return b.permute(out, tuple([order.index(dim) for dim in range(x.ndim)]))


def _meets_itself(size: Any, stride: Any) -> bool:
    """Return whether two places of a window may be the same element: False only if each stride exceeds the extent of
    all smaller dimensions."""
    reach = 0
    for step, length in sorted((step, length) for step, length in zip(stride, size) if length > 1):
        if step <= reach:
            return True
        reach += step * (length - 1)
    return False


def _zeros(b: Builder, like: Value, sizes: Any) -> Value:
    return b.full(tuple(sizes), b.cast(0, like.dtype), like.dtype, like.device)


@decomposes(aten.embedding_dense_backward.default)
def embedding_dense_backward(b: Builder, grad: Value, indices: Value, num_weights: Any, padding_idx: int,
                             scale_grad_by_freq: bool) -> Any:
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
