"""Metadata rows of reflected and replicated padding and of shuffles: of channels-last images, which the meta kernels
ignore."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.infer import RULES, Rule, by_meta_kernel, rule
from framesmith.fake.layout import channels_last_strides, is_channels_last, suggested
from framesmith.fake.tensor import FakeTensor, new_fake

aten = torch.ops.aten
_PADS = [getattr(aten, f"{kind}_pad{rank}d") for kind in ("reflection", "replication") for rank in (2, 3)]


def _padded(func: Any) -> Rule:
    def row(x: FakeTensor, padding: Any) -> Any:
        if not is_channels_last(x):
            return NotImplemented
        shape = tuple(by_meta_kernel(func, (x, padding), {}).shape)
        return new_fake(shape, channels_last_strides(shape), x.dtype, x.device)

    return row


for _pad in _PADS:
    RULES[_pad.default] = _padded(_pad.default)


def _shuffled(func: Any) -> Rule:
    """Return the result of a shuffle: the CPU's kernel keeps the memory format; elsewhere it is a composition."""
    def row(x: FakeTensor, factor: int) -> Any:
        own = x.device.type == "cpu" and x.dim() == 4
        return suggested(x, by_meta_kernel(func, (x, factor), {}).shape) if own else NotImplemented

    return row


for _shuffle in (aten.channel_shuffle.default, aten.pixel_shuffle.default):
    RULES[_shuffle] = _shuffled(_shuffle)


@rule(*[getattr(aten, f"{pad.__name__}_backward").default for pad in _PADS])
def pad_backward(grad: FakeTensor, x: FakeTensor, padding: Any) -> Any:
    return suggested(x, x.shape)
