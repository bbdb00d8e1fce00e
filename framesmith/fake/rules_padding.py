"""Metadata rows of reflected and replicated padding: of channels-last images, which the meta kernels overlook."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.fake.infer import rule
from framesmith.fake.layout import channels_last_strides, is_channels_last, suggested_strides
from framesmith.fake.tensor import FakeTensor, new_fake

aten = torch.ops.aten
_REFLECTED = aten.reflection_pad2d.default, aten.reflection_pad3d.default
_REPLICATED = aten.replication_pad2d.default, aten.replication_pad3d.default


def _padded(x: FakeTensor, padding: Any, largest: Any) -> Any:
    """`padding` counts the last dimension first, before and after it; `largest(size)` is what a dimension takes."""
    dims = len(padding) // 2
    if x.dim() != dims + 2 or not is_channels_last(x) or any(type(n) is not int for n in x.shape):
        return NotImplemented
    sizes = list(x.shape)
    for i in range(dims):
        if max(padding[2 * i : 2 * i + 2]) > largest(sizes[-1 - i]):
            return NotImplemented
        sizes[-1 - i] += padding[2 * i] + padding[2 * i + 1]
    shape = tuple(sizes)
    return new_fake(shape, channels_last_strides(shape), x.dtype, x.device) if min(shape) > 0 else NotImplemented


@rule(*_REFLECTED)
def reflection_pad(x: FakeTensor, padding: Any) -> Any:
    return _padded(x, padding, lambda size: size - 1)


@rule(*_REPLICATED)
def replication_pad(x: FakeTensor, padding: Any) -> Any:
    return _padded(x, padding, lambda size: max(padding))


@rule(*[getattr(aten, f"{op._schema.name.split('::')[1]}_backward").default for op in (*_REFLECTED, *_REPLICATED)])
def pad_backward(grad: FakeTensor, x: FakeTensor, padding: Any) -> Any:
    return new_fake(tuple(x.shape), suggested_strides(x, tuple(x.shape)), x.dtype, x.device)
