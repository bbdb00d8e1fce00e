"""Random numbers. They have eager's distribution, and are others than eager's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from framesmith.onnx.emitter import Emitter, Value, dtype_of
from framesmith.onnx.table import aten, row

draw = partial(row, "random numbers")


def _drawn(m: Emitter, op: str, shape: Value, dtype: torch.dtype, **how: Any) -> Value:
    kind = dtype if dtype.is_floating_point else torch.float32
    return m(op, m("Expand", m.constant(0, kind), shape), dtype=from_torch_dtype(kind), **how)


@draw(aten.rand.default)
def _rand(m: Emitter, size: Sequence[Any], **_: Any) -> Value:
    return _drawn(m, "RandomUniformLike", m.ints(size), m.out.dtype)


@draw(aten.randn.default)
def _randn(m: Emitter, size: Sequence[Any], **_: Any) -> Value:
    return _drawn(m, "RandomNormalLike", m.ints(size), m.out.dtype)


@draw(aten.rand_like.default)
def _rand_like(m: Emitter, x: Value, **_: Any) -> Value:
    return _drawn(m, "RandomUniformLike", m("Shape", x), m.out.dtype)


@draw(aten.randn_like.default)
def _randn_like(m: Emitter, x: Value, **_: Any) -> Value:
    return _drawn(m, "RandomNormalLike", m("Shape", x), m.out.dtype)


@draw(aten.randint.low)
def _randint(m: Emitter, low: int, high: int, size: Sequence[Any], **_: Any) -> Value:
    found = m("Floor", _drawn(m, "RandomUniformLike", m.ints(size), torch.float64, low=float(low), high=float(high)))
    return m.cast(m("Clip", found, None, m.constant(high - 1, torch.float64)), m.out.dtype)


@draw(aten.randint.default)
def _randint_from_zero(m: Emitter, high: int, size: Sequence[Any], **options: Any) -> Value:
    return _randint(m, 0, high, size, **options)  # type: ignore[no-any-return]


@draw(aten.bernoulli.default)
def _bernoulli(m: Emitter, x: Value, *, generator: Any = None) -> Value:
    return _happens(m, x, x)


@draw(aten.bernoulli.p)
def _bernoulli_of(m: Emitter, x: Value, p: float = 0.5, *, generator: Any = None) -> Value:
    return _happens(m, x, m.constant(p, torch.float32))


def _happens(m: Emitter, x: Value, p: Value) -> Value:
    # not by ONNX's Bernoulli: optimizers take it for a function of its input, and fold it
    found = m("Less", _drawn(m, "RandomUniformLike", m("Shape", x), dtype_of(p)), p)
    return m("Cast", found, to=from_torch_dtype(m.out.dtype))


@draw(aten.multinomial.default)
def _multinomial(m: Emitter, x: Value, count: int, replacement: bool = False, *, generator: Any = None) -> Value:
    if not replacement:  # the greatest of log p with Gumbel's noise (Vieira 2014)
        noise = m("Log", m("Neg", m("Log", _drawn(m, "RandomUniformLike", m("Shape", x), dtype_of(x)))))
        return m("TopK", m("Sub", m("Log", x), noise), m.ints([count]), axis=-1, outputs=2)[1]
    single = len(m.out.shape) == 1
    chances = m("Log", m.unsqueeze(x, 0) if single else x)
    made = m("Multinomial", chances, sample_size=count, dtype=from_torch_dtype(torch.int64))
    return m.squeeze(made, 0) if single else made


@draw(aten.uniform.default)
def _uniform(m: Emitter, x: Value, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Value:
    return _drawn(m, "RandomUniformLike", m("Shape", x), m.out.dtype, low=float(low), high=float(high))


@draw(aten.exponential.default)
def _exponential(m: Emitter, x: Value, rate: float = 1.0, *, generator: Any = None) -> Value:
    rest = m("Sub", m.constant(1, m.out.dtype), _drawn(m, "RandomUniformLike", m("Shape", x), m.out.dtype))
    return m("Mul", m("Log", rest), m.constant(-1 / rate, m.out.dtype))  # rest is above 0


@draw(aten.normal_functional.default)
def _normal_like(m: Emitter, x: Value, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Value:
    return _drawn(m, "RandomNormalLike", m("Shape", x), m.out.dtype, mean=float(mean), scale=float(std))


@draw(aten.normal.float_float)
def _normal(m: Emitter, mean: float, std: float, size: Sequence[Any], **_: Any) -> Value:
    return _drawn(m, "RandomNormalLike", m.ints(size), m.out.dtype, mean=float(mean), scale=float(std))


@draw(aten.normal.Tensor_Tensor)
def _normal_about(m: Emitter, mean: Value, std: Value, *, generator: Any = None) -> Value:
    zero = m("Mul", m("Add", mean, std), m.constant(0, m.out.dtype))
    return m("Add", m("Mul", std, _drawn(m, "RandomNormalLike", m("Shape", zero), m.out.dtype)), mean)


@draw(aten.randint_like.default)
def _randint_like(m: Emitter, x: Value, high: int, **options: Any) -> Value:
    return _randint(m, 0, high, m.sizes(x), **options)  # type: ignore[no-any-return]


@draw(aten.randint_like.low_dtype)
def _randint_like_from(m: Emitter, x: Value, low: int, high: int, **options: Any) -> Value:
    return _randint(m, low, high, m.sizes(x), **options)  # type: ignore[no-any-return]
