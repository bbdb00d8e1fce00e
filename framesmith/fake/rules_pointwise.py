"""Metadata rows of the element-wise operators: their type promotion, and which arguments are operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.fake.decomposed import by_decomposition
from framesmith.fake.infer import DOUBTED, RULES, doubted
from framesmith.fake.layout import broadcast, elementwise_strides, preserved_strides, same_shape
from framesmith.fake.tensor import CPU, FakeTensor, dense, new_fake
from framesmith.prims.promotion import floating, result_dtype
from framesmith.prims.registry import overload
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.symbolic.layout import expected, is_dense

aten = torch.ops.aten


def elementwise(operands: list[FakeTensor], dtype: torch.dtype, numbers: bool = False) -> Any:
    """Return the result of an element-wise operator over `operands` (and `numbers`, which eager treats as tensors);
    NotImplemented if they do not broadcast, or all are numbers."""
    if not operands:
        return NotImplemented
    first = operands[0]
    shape: Any = first.shape
    device = first.device
    for t in operands[1:]:
        other = t.shape
        if not same_shape(other, shape):
            shape = broadcast(shape, other)
            if shape is None:
                return NotImplemented
        if device is CPU or device.type == "cpu":
            device = t.device
    return new_fake(shape, elementwise_strides(shape, operands, numbers), dtype, device)


def _promoting(first: int, last: int, finish: Callable[[torch.dtype], torch.dtype] | None,
               numbers: bool = True) -> Callable[..., Any]:
    """Make a row whose operands are the arguments from `first` to `last`, numbers too if `numbers`; `finish` maps the
    promoted dtype to the result's."""

    def row(*args: Any, **kwargs: Any) -> Any:
        values = args[first:last]
        operands = [a for a in args[:last] if type(a) is FakeTensor]
        dtype = result_dtype(*values)
        if dtype is torch.bool and finish is None and first == 0 and kwargs:
            return NotImplemented
        count = sum(type(v) is FakeTensor for v in values)
        result = dtype if finish is None else finish(dtype)
        operands = [_cast(x, dtype if result is torch.bool else result) for x in operands]
        return elementwise(operands, result, numbers and count < len(values) == 2)

    return row


def _cast(x: FakeTensor, dtype: torch.dtype) -> FakeTensor:
    """Return an operand as eager's CPU loops read it: one of another dtype than the others is copied to a dense
    tensor."""
    if x.dtype is dtype or x.device.type != "cpu" or x.dim() == 0 or is_dense(x.shape, x.stride()):
        return x
    return new_fake(tuple(x.shape), preserved_strides(x), dtype, x.device)


def _always_bool(_: torch.dtype) -> torch.dtype:
    return torch.bool


def _keeping(floats_only: bool) -> Callable[..., Any]:
    """Make a row with the dtype of the first argument, which must be a float if `floats_only`."""

    def row(x: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype.is_complex or floats_only and not x.dtype.is_floating_point:
            return NotImplemented
        return elementwise([x], x.dtype)

    return row


def _register(row: Callable[..., Any], names: str) -> None:
    for name in names.split():
        RULES[overload(name)] = row


def _no_bool(row: Callable[..., Any]) -> Callable[..., Any]:
    """Let `sub`, `neg` and similar operators refuse bools, with eager's error."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if any(type(a) is bool or type(a) is FakeTensor and a.dtype is torch.bool for a in args[:2]):
            return DOUBTED
        return row(*args, **kwargs)

    return guarded


_two = _promoting(0, 2, None)
_register(_two, "add.Tensor add.Scalar mul.Tensor mul.Scalar maximum minimum fmax fmin")
_register(_two, "remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar floor_divide.default floor_divide.Scalar")
_register(_two, "heaviside logaddexp logaddexp2 gcd lcm")
_register(_promoting(0, 2, None, False), "pow.Tensor_Tensor pow.Tensor_Scalar")
_register(_no_bool(_two), "sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar")
_register(_two, "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_and.Scalar bitwise_or.Scalar "
                "bitwise_xor.Scalar")
_register(_promoting(0, 2, floating), "div.Tensor div.Scalar atan2 xlogy.Tensor copysign.Tensor special_xlog1py")
_register(
    _promoting(0, 2, _always_bool),
    "eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor "
    "ge.Scalar logical_and logical_or logical_xor logical_not isnan isinf",
)
_register(
    _promoting(0, 1, floating),
    " ".join(path for op in SCALAR_OPS.values() if op.rule == "float" for path in op.aten),
)
_register(_keeping(False), "relu neg floor ceil round trunc sign bitwise_not abs hardtanh")
_register(_keeping(True),
          "gelu silu mish hardswish hardsigmoid leaky_relu elu softplus hardshrink softshrink frac")
_register(_promoting(0, 3, None, False), "addcmul addcdiv lerp.Tensor lerp.Scalar clamp clamp.Tensor")
_register(_promoting(0, 2, None, False), "clamp_min clamp_max clamp_min.Tensor clamp_max.Tensor")


def _div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    dtype = result_dtype(x, y)
    operands = [a for a in (x, y) if type(a) is FakeTensor]
    return elementwise(operands, floating(dtype) if rounding_mode is None else dtype)


def _where(condition: FakeTensor, x: Any, y: Any) -> Any:
    if condition.dtype not in (torch.bool, torch.uint8):
        return NotImplemented
    return elementwise([a for a in (condition, x, y) if type(a) is FakeTensor], result_dtype(x, y))


doubted(aten.gelu.default, lambda x, *, approximate="none": approximate not in ("none", "tanh"))
doubted(aten.softshrink.default, lambda x, width=0.5: (type(width) in (int, float) and x.dtype.is_floating_point
                                                        and not 0 <= width <= torch.finfo(x.dtype).max))


doubted(aten.heaviside.default, lambda x, y: x.dtype is not y.dtype or x.dtype.is_complex)
for _name in ("logaddexp", "logaddexp2"):
    doubted(getattr(aten, _name).default, lambda x, y: floating(dtype := result_dtype(x, y)) is not dtype)
for _name in ("gcd", "lcm"):
    doubted(getattr(aten, _name).default, lambda x, y: (d := result_dtype(x, y)) is torch.bool or floating(d) is d)
for _func in (getattr(getattr(aten, name), kind) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
              for kind in ("Tensor", "Scalar")):
    doubted(_func, lambda x, y: floating(d := result_dtype(x, y)) is d)
for _func in (aten.copysign.Tensor, aten.special_xlog1py.default):
    doubted(_func, lambda x, y: result_dtype(x, y).is_complex)


def _angle(x: FakeTensor) -> Any:
    if not x.dtype.is_complex:
        return elementwise([x], floating(x.dtype))
    return dense(x, x.shape, x.dtype.to_real())


def _masked_fill(x: FakeTensor, mask: FakeTensor, value: Any) -> Any:
    if type(value) is FakeTensor and value.dim():
        return DOUBTED
    if mask.dtype is not torch.bool or not same_shape(broadcast(x.shape, mask.shape) or (), x.shape):
        return NotImplemented
    return dense(x, x.shape)


def _complex(a: FakeTensor, b: FakeTensor) -> Any:
    if a.dtype not in (torch.float32, torch.float64) or a.dtype is not b.dtype:
        return NotImplemented
    return elementwise([a, b], a.dtype.to_complex())


def _glu(x: FakeTensor, dim: int = -1) -> Any:
    """glu; eager refuses to halve an odd size."""
    if not -x.dim() <= dim < x.dim() or not expected(x.shape[dim] % 2 == 0) or not x.dtype.is_floating_point:
        return NotImplemented
    shape = tuple([n // 2 if d == dim % x.dim() else n for d, n in enumerate(x.shape)])
    half = new_fake(shape, x.stride(), x.dtype, x.device)
    return elementwise([half, half], x.dtype)


RULES[aten.angle.default] = _angle
RULES[aten.complex.default] = RULES[aten.polar.default] = _complex
RULES[aten.glu.default] = _glu
by_decomposition("pow.Scalar")
RULES[aten.div.Tensor_mode] = _div_mode
RULES[aten.div.Scalar_mode] = _div_mode
RULES[aten.where.self] = _where
RULES[aten.masked_fill.Scalar] = _masked_fill
RULES[aten.masked_fill.Tensor] = _masked_fill
by_decomposition("tril triu", lambda x, *_: x.dim() >= 2)
