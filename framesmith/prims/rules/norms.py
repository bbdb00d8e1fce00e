"""Softmax, and the normalisation layers; computed in float32 for 16-bit inputs and rounded once."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.promotion import FLOAT, category
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.prims.rules.reductions import count_of, divided
from framesmith.util.precision import compute_dtype

aten = torch.ops.aten

# -- softmax ----------------------------------------------------------------------------------------------------------


def softmax_of(b: Builder, x: Value, dim: int) -> Value:
    """exp(x - max) over its sum, in x's dtype."""
    grown = b.exp(x - b.amax(x, (dim,), True))
    return grown / b.sum(grown, (dim,), True)


def log_softmax_of(b: Builder, x: Value, dim: int) -> Value:
    """x - max - log of the sum of exp(x - max), in x's dtype."""
    shifted = x - b.amax(x, (dim,), True)
    return shifted - b.log(b.sum(b.exp(shifted), (dim,), True))


def _over(b: Builder, body: Any, x: Value, dim: int, dtype: Any) -> Any:
    dtype = dtype or b.out.dtype
    if category(dtype) != FLOAT or 0 in x.shape:
        return NotImplemented
    wide = b.convert(x, compute_dtype(dtype))
    if not x.ndim:
        return b.reshape(b.convert(body(b, b.reshape(wide, (1,)), 0), dtype), ())
    return b.convert(body(b, wide, dim % x.ndim), dtype)


@decomposes(aten.softmax.int)
def softmax(b: Builder, x: Value, dim: int, dtype: Any = None) -> Any:
    return _over(b, softmax_of, x, dim, dtype)


@decomposes(aten._softmax.default)
def softmax_plain(b: Builder, x: Value, dim: int, half_to_float: bool) -> Any:
    return _over(b, softmax_of, x, dim, None)


@decomposes_named("_safe_softmax")
def softmax_safe(b: Builder, x: Value, dim: int, dtype: Any = None) -> Any:
    def body(b: Builder, x: Value, dim: int) -> Value:
        dead = b.all(b.eq(x, float("-inf")), (dim,), True)
        return b.where(dead, 0.0, softmax_of(b, x, dim))

    return _over(b, body, x, dim, dtype)


@decomposes(aten.log_softmax.int)
def log_softmax(b: Builder, x: Value, dim: int, dtype: Any = None) -> Any:
    return _over(b, log_softmax_of, x, dim, dtype)


@decomposes(aten._log_softmax.default)
def log_softmax_plain(b: Builder, x: Value, dim: int, half_to_float: bool) -> Any:
    return _over(b, log_softmax_of, x, dim, None)


# -- layer, group and RMS norm ----------------------------------------------------------------------------------------


def _scaled(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """x * weight + bias, in x's dtype."""
    if weight is not None:
        x = x * b.convert(weight, x.dtype)
    return x + b.convert(bias, x.dtype) if bias is not None else x


def _layer_norm(b: Builder, x: Value, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Value, Value, Value]:
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    wide = b.wide(x)
    variance, mean = b.var_mean(wide, dims, True, 0)
    rstd = b.rsqrt(variance + float(eps))
    return b.convert(_scaled(b, (wide - mean) * rstd, weight, bias), x.dtype), mean, rstd


@decomposes(aten.layer_norm.default)
def layer_norm(b: Builder, x: Value, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn_enable: bool = True) -> Any:
    return _layer_norm(b, x, shape, weight, bias, eps)[0]


@decomposes(aten.native_layer_norm.default)
def native_layer_norm(b: Builder, x: Value, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    y, mean, rstd = _layer_norm(b, x, shape, weight, bias, eps)
    dtype = b.out[1].dtype
    return y, b.convert(mean, dtype), b.convert(rstd, dtype)


@decomposes(aten.rms_norm.default)
def rms_norm(b: Builder, x: Value, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if category(x.dtype) != FLOAT or b.out.dtype is not x.dtype:
        return NotImplemented
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    wide = b.wide(x)
    mean_square = divided(b, b.sum(wide * wide, dims, True), count_of(x, dims))
    epsilon = torch.finfo(wide.dtype).eps if eps is None else float(eps)
    return b.convert(_scaled(b, wide * b.rsqrt(mean_square + epsilon), weight, None), x.dtype)


def spread(b: Builder, one: Value, x: Value) -> Value:
    """Expand a number for each sample and group, (batch, groups), to one for each channel that broadcasts along `x`."""
    batch, channels = x.shape[:2]
    groups = one.shape[1]
    wide = b.expand(b.reshape(one, (batch, groups, 1)), (batch, groups, channels // groups))
    return b.reshape(wide, (batch, channels, *[1] * (x.ndim - 2)))


_FEW_PLACES = 32


def _lies_in_order(node: Any) -> bool:
    """Return whether the places of each channel of an image on a CUDA device are contiguous. Results of convolutions
    get their layout later, usually channels-last; an input's is fixed."""
    val = node.meta["val"]
    return node.op == "placeholder" and val.is_cuda and "layout" not in node.meta and val.is_contiguous()


def _group_moments(b: Builder, wide: Value, groups: int) -> tuple[Value, Value]:
    """Return variance and mean of each sample and group: from those of each channel, which work in any layout, unless a
    group is known to be contiguous."""
    batch, channels = wide.shape[:2]
    split = (batch, groups, channels // groups)
    places = math.prod(wide.shape[2:])
    known = type(places) is int and type(channels) is int
    if (not known or places < _FEW_PLACES or channels == groups or b.source is not None
        and _lies_in_order(b.source.args[0])):
        grouped = b.reshape(wide, (*split, *wide.shape[2:]))
        return b.var_mean(grouped, tuple(range(2, grouped.ndim)), False, 0)
    variance, mean = (b.reshape(one, split) for one in b.var_mean(wide, tuple(range(2, wide.ndim)), False, 0))
    share = groups / channels
    whole = b.sum(mean, (2,), True) * share
    gap = mean - whole
    return b.sum(variance + gap * gap, (2,), False) * share, b.reshape(whole, (batch, groups))


def _group_norm(b: Builder, x: Value, groups: int, weight: Any, bias: Any, eps: float) -> tuple[Value, Value, Value]:
    wide = b.wide(x)
    variance, mean = _group_moments(b, wide, groups)
    rstd = b.rsqrt(variance + float(eps))
    y = (wide - spread(b, mean, x)) * spread(b, rstd, x)
    along = [None if one is None else b.along(one, 1, x.ndim) for one in (weight, bias)]
    return b.convert(_scaled(b, y, *along), x.dtype), mean, rstd


@decomposes(aten.group_norm.default)
def group_norm(b: Builder, x: Value, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn: bool = True) -> Any:
    return _group_norm(b, x, groups, weight, bias, eps)[0]


@decomposes(aten.native_group_norm.default)
def native_group_norm(b: Builder, x: Value, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, group: int,
                      eps: float) -> Any:
    y, mean, rstd = _group_norm(b, x, group, weight, bias, eps)
    spec = b.out[1]
    return y, *[b.convert(b.reshape(one, spec.shape), spec.dtype) for one in (mean, rstd)]


# -- batch norm -------------------------------------------------------------------------------------------------------


def _normalised(b: Builder, x: Value, mean: Value, rstd: Value, weight: Any, bias: Any) -> Value:
    """(x - mean) * rstd * weight + bias, with one factor and one term for each channel; `mean` and `rstd` are 1-d and
    wide."""
    factor = rstd if weight is None else rstd * b.convert(weight, rstd.dtype)
    term = b.neg(mean * factor) if bias is None else b.convert(bias, rstd.dtype) - mean * factor
    y = b.wide(x) * b.along(factor, 1, x.ndim) + b.along(term, 1, x.ndim)
    return b.convert(y, x.dtype)


def _with_running(b: Builder, x: Value, weight: Any, bias: Any, mean: Value, var: Value, eps: float) -> Value:
    return _normalised(b, x, b.wide(mean), b.rsqrt(b.wide(var) + float(eps)), weight, bias)


def batch_moments(b: Builder, x: Value) -> tuple[Value, Value, Any]:
    """Return variance and mean of each channel, and the number of elements for each."""
    dims = (0, *range(2, x.ndim))
    variance, mean = b.var_mean(b.wide(x), dims, False, 0)
    return variance, mean, count_of(x, dims)


def _batch_norm(b: Builder, x: Value, weight: Any, bias: Any, eps: float) -> tuple[Value, Value, Value, Value, Any]:
    """Return the result in training, the mean, 1/sqrt(var + eps), the variance, and the count. Eager stores the two in
    the parameters' dtype."""
    variance, mean, count = batch_moments(b, x)
    wide = b.wide(x)
    kept = next((p for p in (weight, bias) if p is not None), x).dtype
    mean, rstd = (b.halfway(one, kept) for one in (mean, b.rsqrt(variance + float(eps))))
    y = (wide - b.along(mean, 1, x.ndim)) * b.along(rstd, 1, x.ndim)
    along = [None if one is None else b.along(one, 1, x.ndim) for one in (weight, bias)]
    return b.convert(_scaled(b, y, *along), x.dtype), mean, rstd, variance, count


@decomposes(aten.batch_norm.default)
def batch_norm(
    b: Builder, x: Value, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float,
    cudnn: bool
) -> Any:
    if 0 in x.shape:
        return NotImplemented
    if not training:
        return _with_running(b, x, weight, bias, mean, var, eps)
    return _batch_norm(b, x, weight, bias, eps)[0] if mean is None and var is None else NotImplemented


@decomposes_named("_native_batch_norm_legit_no_training", "native_batch_norm", "_native_batch_norm_legit.no_stats")
def native_batch_norm(b: Builder, x: Value, weight: Any, bias: Any, *rest: Any) -> Any:
    if len(rest) == 4:  # mean, var, momentum, eps: no training
        mean, var, _, eps = rest
        training = False
    elif len(rest) == 3:  # training, momentum, eps: no statistics kept
        mean = var = None
        training, _, eps = rest
    else:
        mean, var, training, _, eps = rest
    if training:
        if mean is not None or var is not None:
            return NotImplemented  # writes to its arguments
        y, mean, rstd, _, _ = _batch_norm(b, x, weight, bias, eps)
        return y, b.convert(mean, b.out[1].dtype), b.convert(rstd, b.out[2].dtype)
    y = _with_running(b, x, weight, bias, mean, var, eps)
    return y, *[b.full(spec.shape, 0.0, spec.dtype, spec.device) for spec in b.out[1:]]


@decomposes_named("_native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder, x: Value, weight: Any, bias: Any, mean: Value, var: Value, training: bool, momentum: float, eps: float
) -> Any:
    if not training:
        y = _with_running(b, x, weight, bias, mean, var, eps)
        return y, *[b.full(spec.shape, 0.0, spec.dtype, spec.device) for spec in b.out[1:3]], mean, var
    y, average, rstd, variance, count = _batch_norm(b, x, weight, bias, eps)
    unbiased = variance * (count / (count - 1)) if type(count) is int and count > 1 else None
    if unbiased is None:
        return NotImplemented
    # Eager averages the mean as stored, rounded, but unrounded for dense tensors of float16.
    seen = batch_moments(b, x)[1] if x.dtype is torch.float16 else average
    new_mean, new_var = _moved(b, mean, seen, momentum), _moved(b, var, unbiased, momentum)
    return y, b.convert(average, b.out[1].dtype), b.convert(rstd, b.out[2].dtype), new_mean, new_var


def _moved(b: Builder, running: Value, seen: Value, momentum: float) -> Value:
    """Return the exponential average after one more batch."""
    wide = b.wide(running)
    return b.convert(b.convert(seen, wide.dtype) * momentum + wide * (1.0 - momentum), running.dtype)
