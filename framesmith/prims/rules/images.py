"""Padding, pixel shuffles, nearest resizing and the pools that are plain means; other pools and resizings stay extern
calls."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.promotion import coerce
from framesmith.prims.registry import decomposes, decomposes_named
from framesmith.prims.rules.reductions import mean

aten = torch.ops.aten

# -- padding ----------------------------------------------------------------------------------------------------------


def _pairs(ndim: int, amounts: Any) -> tuple[tuple[Any, Any], ...]:
    """Return (low, high) of each dim, from eager's list that starts at the last dim."""
    pairs = [(amounts[place], amounts[place + 1]) for place in range(0, len(amounts), 2)]
    return (*[(0, 0)] * (ndim - len(pairs)), *reversed(pairs))


@decomposes(aten.constant_pad_nd.default)
def constant_pad(b: Builder, x: Value, pad: Any, value: Any = 0) -> Value:
    return b.pad(x, _pairs(x.ndim, pad), coerce(value, x.dtype))


def _reflected(b: Builder, place: Value, size: Any) -> Value:
    last = size - 1
    return b.sub(last, b.abs(b.sub(last, b.abs(place))))


def _replicated(b: Builder, place: Value, size: Any) -> Value:
    return b.minimum(b.maximum(place, 0), size - 1)


def _circled(b: Builder, place: Value, size: Any) -> Value:
    return b.mod(place, size)


_MODES = {"reflect": _reflected, "replicate": _replicated, "circular": _circled}


def padded(b: Builder, x: Value, pad: Any, mode: str) -> Value:
    """Pad dim by dim, by an index computed from the place."""
    for dim, (low, high) in enumerate(_pairs(x.ndim, pad)):
        if (low, high) != (0, 0):
            size = x.shape[dim]
            place = b.iota(size + low + high, 0, 1, torch.int64, x.device)
            shifted = place - low if low != 0 else place
            x = b.index_select(x, _MODES[mode](b, shifted, size), dim)
    return x


@decomposes(aten.pad.default)
def pad(b: Builder, x: Value, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    if mode == "circular" and any(type(amount) is int and amount < 0 for amount in pad):
        return NotImplemented  # eager wraps what it has cropped
    return constant_pad(b, x, pad, value or 0) if mode == "constant" else padded(b, x, pad, mode)


@decomposes(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(b: Builder, x: Value, padding: Any) -> Value:
    return padded(b, x, padding, "reflect")


@decomposes(aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)
def replication_pad(b: Builder, x: Value, padding: Any) -> Value:
    return padded(b, x, padding, "replicate")


# -- channels and pixels ----------------------------------------------------------------------------------------------


@decomposes(aten.pixel_shuffle.default)
def pixel_shuffle(b: Builder, x: Value, upscale_factor: int) -> Value:
    lead, (c, h, w), r = x.shape[:-3], x.shape[-3:], upscale_factor
    n = len(lead)
    y = b.reshape(x, (*lead, c // (r * r), r, r, h, w))
    return b.reshape(b.permute(y, (*range(n), n, n + 3, n + 1, n + 4, n + 2)), b.out.shape)


@decomposes(aten.pixel_unshuffle.default)
def pixel_unshuffle(b: Builder, x: Value, downscale_factor: int) -> Value:
    lead, (c, h, w), r = x.shape[:-3], x.shape[-3:], downscale_factor
    n = len(lead)
    y = b.reshape(x, (*lead, c, h // r, r, w // r, r))
    return b.reshape(b.permute(y, (*range(n), n, n + 2, n + 4, n + 1, n + 3)), b.out.shape)


@decomposes_named("channel_shuffle")
def channel_shuffle(b: Builder, x: Value, groups: int) -> Value:
    n, c = x.shape[:2]
    y = b.reshape(x, (n, groups, c // groups, *x.shape[2:]))
    return b.reshape(b.transpose(y, 1, 2), x.shape)


# -- resizing ---------------------------------------------------------------------------------------------------------


def _nearest_along(b: Builder, x: Value, dim: int, wanted: Any, factor: float | None, exact: bool) -> Any:
    """Resize along one dim: each place reads one place of the input."""
    size = x.shape[dim]
    if type(size) is not int or type(wanted) is not int:
        return NotImplemented
    whole = factor is None or size * factor == wanted
    if whole and wanted % size == 0:
        wide = (*x.shape[: dim + 1], wanted // size, *x.shape[dim + 1 :])
        return b.reshape(b.expand(b.unsqueeze(x, dim + 1), wide), (*x.shape[:dim], wanted, *x.shape[dim + 1 :]))
    if whole and size % wanted == 0:
        step = size // wanted
        return b.slice(x, dim, step // 2 if exact else 0, size, step)
    # as eager: place * scale in float32
    scale = torch.tensor(1.0 / factor) if factor else torch.tensor(float(size)) / wanted
    place = b.iota(wanted, 0.5 if exact else 0.0, 1.0, torch.float32, x.device) * scale.item()
    return b.index_select(x, b.minimum(b.convert(b.floor(place), torch.int64), size - 1), dim)


def _nearest(b: Builder, x: Value, factors: tuple[Any, ...], exact: bool) -> Any:
    """Resize dim by dim; `factors` are the explicit scales, if given."""
    if 0 in x.shape:
        return NotImplemented
    for dim in range(2, x.ndim):
        factor = factors[dim - 2] if len(factors) == x.ndim - 2 else None
        x = _nearest_along(b, x, dim, b.out.shape[dim], factor, exact)
        if x is NotImplemented:
            return x
    return x


@decomposes_named("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample_nearest(b: Builder, x: Value, output_size: Any, *factors: Any, **named: Any) -> Any:
    return _nearest(b, x, (*factors, *named.values()), False)


@decomposes_named("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def upsample_nearest_exact(b: Builder, x: Value, output_size: Any, *factors: Any, **named: Any) -> Any:
    return _nearest(b, x, (*factors, *named.values()), True)


@decomposes_named("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def upsample_nearest_vec(b: Builder, x: Value, output_size: Any, scale_factors: Any = None) -> Any:
    return _nearest(b, x, tuple(scale_factors or ()), False)


# -- pooling to a point -----------------------------------------------------------------------------------------------


@decomposes(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(b: Builder, x: Value, output_size: Any) -> Any:
    sizes = tuple(output_size)
    rank = len(sizes)
    if tuple(x.shape[x.ndim - rank :]) == sizes:
        return x + 0.0  # sums begin with zero: that of -0.0 is 0.0
    if any(size != 1 for size in sizes):
        return NotImplemented
    return mean(b, x, tuple(range(x.ndim - rank, x.ndim)), True)
