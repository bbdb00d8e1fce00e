"""Activations: computed in float32 for 16-bit inputs, as eager's kernels do, and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.draws import order_of
from framesmith.prims.promotion import FLOAT, category
from framesmith.prims.registry import decomposes, decomposes_named, overload, rules

aten = torch.ops.aten


def activation(*paths: str) -> Callable[[Callable[..., Value]], Callable[..., Any]]:
    """Register a rule that is written for a float input in its computing dtype; other inputs stay with eager."""

    def register(body: Callable[..., Value]) -> Callable[..., Any]:
        def rule(b: Builder, x: Value, *args: Any, **kwargs: Any) -> Any:
            if category(x.dtype) != FLOAT:
                return NotImplemented
            return b.convert(body(b, b.wide(x), *args, **kwargs), x.dtype)

        for path in paths:
            found = overload(path)
            if found is not None:
                rules[found] = rule
        return body

    return register


@activation("silu")
def silu(b: Builder, x: Value) -> Value:
    return x * b.sigmoid(x)


@activation("mish")
def mish(b: Builder, x: Value) -> Value:
    return x * b.tanh(b.log1p(b.exp(x)))


@activation("gelu")
def gelu(b: Builder, x: Value, approximate: str = "none", **_: Any) -> Value:
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
        return x * 0.5 * (b.tanh(inner) + 1.0)
    return x * 0.5 * (b.erf(x * math.sqrt(0.5)) + 1.0)


@activation("hardsigmoid")
def hardsigmoid(b: Builder, x: Value) -> Value:
    return b.over(b.minimum(b.maximum(x + 3.0, 0.0), 6.0), 6.0)


@activation("hardswish")
def hardswish(b: Builder, x: Value) -> Value:
    return b.over(x * b.minimum(b.maximum(x + 3.0, 0.0), 6.0), 6.0)


@activation("leaky_relu")
def leaky_relu(b: Builder, x: Value, negative_slope: Any = 0.01) -> Value:
    return b.where(x > 0.0, x, x * float(negative_slope))


@activation("elu")
def elu(b: Builder, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    return b.where(x <= 0.0, b.expm1(_times(x, input_scale)) * float(alpha * scale), _times(x, scale))


def _times(x: Value, factor: Any) -> Value:
    return x if factor == 1 else x * float(factor)


@activation("celu")
def celu(b: Builder, x: Value, alpha: Any = 1.0) -> Value:
    return elu(b, x, alpha, 1, 1.0 / float(alpha))


@activation("softplus")
def softplus(b: Builder, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = _times(x, beta)
    soft = b.log1p(b.exp(scaled))
    return b.where(scaled > float(threshold), x, soft if beta == 1 else soft / float(beta))


@activation("softshrink")
def softshrink(b: Builder, x: Value, lambd: Any = 0.5) -> Value:
    bound = float(lambd)
    inside = b.where(b.isnan(x), x, 0.0)
    return b.where(x > bound, x - bound, b.where(x < -bound, x + bound, inside))


@activation("hardshrink")
def hardshrink(b: Builder, x: Value, lambd: Any = 0.5) -> Value:
    bound = float(lambd)
    return b.where((x >= -bound) & (x <= bound), 0.0, x)


@decomposes(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(b: Builder, x: Value) -> Any:
    wide, kept = b.wide(x), b.out[1]
    decay = b.exp(b.neg(b.abs(wide)))
    buffer = decay if kept.shape == x.shape else b.full(kept.shape, 0.0, wide.dtype, x.device)
    return b.convert(b.minimum(wide, 0.0) - b.log1p(decay), x.dtype), b.convert(buffer, kept.dtype)


@decomposes(aten.hardtanh.default)
def hardtanh(b: Builder, x: Value, min_val: Any = -1, max_val: Any = 1) -> Any:
    if x.dtype is torch.bool:
        return NotImplemented
    return b.minimum(b.cast(max_val, x.dtype), b.maximum(b.cast(min_val, x.dtype), x))


@decomposes_named("_prelu_kernel")
def prelu(b: Builder, x: Value, weight: Value) -> Value:
    return b.where(x > 0.0, x, x * weight)


@decomposes_named("glu")
def glu(b: Builder, x: Value, dim: int = -1) -> Value:
    dim %= x.ndim
    half = x.shape[dim] // 2
    left = b.slice(x, dim, 0, half, 1)
    right = b.slice(x, dim, half, 2 * half, 1)
    return b.convert(b.wide(left) * b.sigmoid(b.wide(right)), x.dtype)


DRAWING = frozenset(("cuda",))
"""Types of devices on which our kernels draw eager's numbers."""


@decomposes(aten.native_dropout.default)
def native_dropout(b: Builder, x: Value, p: float, train: bool | None) -> Any:
    if train is False:
        return x, b.full(x.shape, True, torch.bool, x.device)
    if x.device.type not in DRAWING or category(x.dtype) != FLOAT:
        return NotImplemented
    if p == 1:
        return b.full(x.shape, 0.0, x.dtype, x.device), b.full(x.shape, False, torch.bool, x.device)
    order = order_of(b.source.args[0].meta["val"])  # type: ignore[union-attr]
    if order is None:
        return NotImplemented
    state, shift = b.draw(x.device, order.count)
    keep = _as_eager_has_it(1.0 - p, x.dtype)
    drawn = b.uniform(state, x.shape, shift, order.vector, order.threads, order.steps)
    wide = b.wide(x)
    kept = b.convert(drawn, wide.dtype) < keep
    scale = _as_eager_has_it(1.0 / keep, x.dtype) if keep else math.inf
    return b.convert(wide * b.convert(kept, wide.dtype) * scale, x.dtype), kept


def _as_eager_has_it(number: float, dtype: torch.dtype) -> float:
    """Return a number rounded to the compute type of eager's kernel."""
    return number if dtype is torch.float64 else torch.tensor(number, dtype=torch.float32).item()
