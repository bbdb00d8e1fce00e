"""Metadata rows of resampled and reflected images of dynamic sizes, for which meta kernels require integers."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.fake.handlers import classify, handles
from framesmith.fake.infer import RULES, Rule
from framesmith.fake.layout import is_channels_last, suggested
from framesmith.fake.recording import Recording
from framesmith.fake.rules_views import pad
from framesmith.fake.tensor import FakeTensor, dense, is_row_major

aten = torch.ops.aten
_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
            "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_SMOOTH = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
           "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
RESAMPLING = tuple([getattr(aten, name).default for name in (*_NEAREST, *_SMOOTH)])
"""Operators (image, size, whether corners are aligned or not, factors or None)."""


def _is_static(*sizes: Any) -> bool:
    return all(type(n) is int for n in sizes)


def _resampled(x: FakeTensor, output_size: Any, *args: Any, **kwargs: Any) -> Any:
    if len(output_size) != x.dim() - 2:
        return NotImplemented
    if _is_static(*x.shape, *output_size) and not (x.device.type == "cpu" and is_channels_last(x)):
        return NotImplemented
    return suggested(x, (*x.shape[:2], *output_size))


def _gradient(known: Rule | None) -> Rule:
    """Return the gradient of an image, for a contiguous one of dynamic sizes."""

    def row(grad: FakeTensor, output_size: Any, shape: Any, *args: Any) -> Any:
        fits = len(shape) == grad.dim() == len(output_size) + 2 and not _is_static(*grad.shape, *shape)
        if fits and is_row_major(grad):
            return dense(grad, tuple(shape))
        return NotImplemented if known is None else known(grad, output_size, shape, *args)

    return row


def _reflected(known: Rule | None) -> Rule:
    def row(x: FakeTensor, padding: Any) -> Any:
        if not _is_static(*x.shape, *padding):
            return pad(x, padding, "reflect")
        return NotImplemented if known is None else known(x, padding)

    return row


def _by_sizes(rec: Recording, func: Any, args: tuple, kwargs: dict) -> Any:
    """Return the result of the overload with factors as of the one with sizes; for static sizes, as eager's own
    kernel."""
    x, sizes, *more, factors = args
    if _is_static(*x.shape, *(sizes or ())) or kwargs:
        return classify(func)(rec, func, args, kwargs)
    scales = list(factors) if factors is not None else [None] * (x.dim() - 2)
    sizes = sizes or [math.floor(n * scale) for n, scale in zip(x.shape[2:], scales)]
    return rec.inside(func.overloadpacket.default, x, sizes, *more, *scales)


for _name in (*_NEAREST, *_SMOOTH):
    RULES[getattr(aten, _name).default] = _resampled
    _back = getattr(aten, f"{_name}_backward").default
    RULES[_back] = _gradient(RULES.get(_back))
    handles(getattr(aten, _name).vec)(_by_sizes)
for _name in ("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"):
    RULES[getattr(aten, _name).default] = _reflected(RULES.get(getattr(aten, _name).default))
