"""Metadata rows of what makes tensors: by size, like another tensor, and at random."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch

from framesmith.fake.infer import RULES, rule
from framesmith.fake.layout import broadcast, formatted_strides, preserved_strides
from framesmith.fake.tensor import CPU, FakeTensor, new_fake

aten = torch.ops.aten


def _made(shape: Any, dtype: Any, device: Any, memory_format: Any = None) -> Any:
    shape = tuple(shape)
    if any(n < 0 for n in shape):
        return NotImplemented
    where = CPU if device is None else torch.device(device)
    return new_fake(shape, formatted_strides(shape, memory_format), dtype or torch.get_default_dtype(), where)


@rule(
    aten.empty.memory_format,
    aten.zeros.default,
    aten.ones.default,
    aten.rand.default,
    aten.randn.default,
    aten.rand.generator,
    aten.randn.generator,
)
def by_size(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
    return _made(size, dtype, device, memory_format)


@rule(aten.full.default)
def full(size: Any, value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _made(size, dtype or _type_of(value), device)


@rule(aten.scalar_tensor.default)
def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _made((), dtype, device)


def _type_of(value: Any) -> torch.dtype | None:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    return torch.complex64 if isinstance(value, complex) else None


@rule(
    aten.empty_like.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.rand_like.default,
    aten.randn_like.default,
)
def like(x: FakeTensor, *_: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **__: Any) -> Any:
    if memory_format is None or memory_format is torch.preserve_format:
        stride = preserved_strides(x)
    else:
        stride = formatted_strides(x.shape, memory_format)
    return new_fake(x.shape, stride, dtype or x.dtype, x.device if device is None else torch.device(device))


@rule(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default)
def new(x: FakeTensor, size: Any, *_: Any, dtype: Any = None, device: Any = None, **__: Any) -> Any:
    return _made(size, dtype or x.dtype, x.device if device is None else device)


@rule(aten.uniform.default, aten.normal_functional.default, aten.exponential.default)
def drawn(x: FakeTensor, *_: Any, **__: Any) -> Any:
    return new_fake(x.shape, preserved_strides(x), x.dtype, x.device)


@rule(aten.bernoulli.p, aten.poisson.default, aten.normal.float_Tensor, aten.binomial.default,
      aten._standard_gamma.default, aten._standard_gamma_grad.default,
      aten._sample_dirichlet.default, aten._dirichlet_grad.default)
def drawn_in_order(x: Any, y: Any = None, *_: Any, **__: Any) -> Any:
    """Contiguous whatever the argument (for which torch's own meta kernels answer otherwise)."""
    tensor = x if isinstance(x, FakeTensor) else y
    return _made(tensor.shape, tensor.dtype, tensor.device)


@rule(aten.normal.Tensor_Tensor)
def normal(mean: FakeTensor, std: FakeTensor, *_: Any, **__: Any) -> Any:
    shape = broadcast(mean.shape, std.shape)
    return NotImplemented if shape is None else _made(shape, mean.dtype, mean.device)


@rule(aten.randint.default)
def randint(high: Any, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _made(size, dtype or torch.int64, device)


@rule(aten.randint.low)
def randint_low(low: Any, high: Any, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _made(size, dtype or torch.int64, device)


@rule(aten.arange.start_step)
def arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    values = (start, end, step)
    whole = all(isinstance(v, (int, torch.SymInt)) for v in values)
    if not whole and not all(isinstance(v, (int, float)) for v in values):
        return NotImplemented
    if dtype is torch.int64 and not whole:  # eager drops the fractions before it counts
        whole, (start, end, step) = True, (int(start), int(end), int(step))
    if step == 0 or (end < start if step > 0 else end > start):
        return NotImplemented
    if whole:
        count = (end - start + step - (1 if step > 0 else -1)) // step if step != 1 else end - start
    else:
        count = ceil((end - start) / step)
    return _made((count,), dtype or (torch.int64 if whole else None), device)


RULES[aten.arange.start] = arange
RULES[aten.arange.default] = lambda end, **options: arange(0, end, **options)


@rule(aten.linspace.default)
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _made((steps,), dtype, device) if steps >= 0 else NotImplemented


@rule(aten.eye.default)
def eye(n: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return _made((n, n), dtype, device)


@rule(aten.empty_strided.default)
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    where = CPU if device is None else torch.device(device)
    return new_fake(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), where)

