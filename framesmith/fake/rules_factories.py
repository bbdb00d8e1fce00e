"""Metadata rows of operators that create tensors: by size, like another tensor, and at random."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import torch

from framesmith.fake.infer import RULES, doubted, rule
from framesmith.fake.layout import broadcast, copied_strides, formatted_strides, preserved_strides
from framesmith.fake.tensor import CPU, FakeTensor, new_fake
from framesmith.prims.registry import overload
from framesmith.symbolic.layout import expected

aten = torch.ops.aten


def _made(shape: Any, dtype: Any, device: Any, memory_format: Any = None) -> Any:
    shape = tuple(shape)
    if not all(expected(n >= 0) for n in shape):
        return NotImplemented
    where = CPU if device is None else torch.device(device)
    return new_fake(shape, formatted_strides(shape, memory_format), dtype or torch.get_default_dtype(), where)


def _by_arguments(shape: Callable[..., Any], names: str, default: Callable[..., Any] = lambda *args: None) -> None:
    """Register rows whose positional arguments give the shape, with a default dtype."""
    def row(*args: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> Any:
        return _made(shape(*args), dtype or default(*args), device, memory_format)

    for name in names.split():
        RULES[overload(name)] = row


def _type_of(size: Any, value: Any) -> torch.dtype | None:
    if isinstance(value, (bool, torch.SymBool)):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    return torch.complex64 if isinstance(value, complex) else None


_by_arguments(lambda size, *_: size, "empty.memory_format zeros ones rand randn rand.generator randn.generator")
_by_arguments(lambda size, value: size, "full", _type_of)
_by_arguments(lambda value: (), "scalar_tensor")
_by_arguments(lambda n: (n, n), "eye")
_by_arguments(lambda start, end, steps: (steps,), "linspace")
_by_arguments(lambda high, size: size, "randint", lambda *args: torch.int64)
_by_arguments(lambda low, high, size: size, "randint.low", lambda *args: torch.int64)
doubted(aten.randint.default, lambda high, *_, **__: type(high) is int and high <= 0)
doubted(aten.randint.low, lambda low, high, *_, **__: type(low) is type(high) is int and low >= high)


@rule(aten._to_copy.default, aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default,
      aten.full_like.default, aten.rand_like.default, aten.randn_like.default)
def like(x: FakeTensor, *_: Any, dtype: Any = None, device: Any = None, memory_format: Any = None, **__: Any) -> Any:
    return new_fake(x.shape, copied_strides(x, memory_format), dtype or x.dtype,
                    x.device if device is None else torch.device(device))


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
    """Return a contiguous result for any argument (where torch's own meta kernels differ)."""
    tensor = x if isinstance(x, FakeTensor) else y
    return _made(tensor.shape, tensor.dtype, tensor.device)


@rule(aten.normal.Tensor_Tensor)
def normal(mean: FakeTensor, std: FakeTensor, *_: Any, **__: Any) -> Any:
    shape = broadcast(mean.shape, std.shape)
    return NotImplemented if shape is None else _made(shape, mean.dtype, mean.device)


@rule(aten.arange.start_step)
def arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    if not all(isinstance(v, (int, float, torch.SymInt)) for v in (start, end, step)):
        return NotImplemented
    fraction = any(isinstance(v, float) for v in (start, end, step))
    start, end, step = (int(v) if isinstance(v, float) and (v.is_integer() or dtype is torch.int64) else v
                        for v in (start, end, step))  # of int64, eager drops the fractions before it counts
    if step == 0 or not expected(end >= start if step > 0 else end <= start):
        return NotImplemented
    if all(isinstance(v, (int, torch.SymInt)) for v in (start, end, step)):
        count = (end - start + step - (1 if step > 0 else -1)) // step if step != 1 else end - start
    else:
        count = ceil((end - start) / step)
    return _made((count,), dtype or (None if fraction else torch.int64), device)


RULES[aten.arange.start] = arange
RULES[aten.arange.default] = lambda end, **options: arange(0, end, **options)


@rule(aten.empty_strided.default)
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    where = CPU if device is None else torch.device(device)
    return new_fake(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), where)

