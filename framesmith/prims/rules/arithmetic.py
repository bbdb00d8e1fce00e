"""Pointwise arithmetic: promotion of types, then the prim of that name."""

from __future__ import annotations

import math
from typing import Any

import torch

from framesmith.prims.builder import Builder, Value
from framesmith.prims.core import Prim, table
from framesmith.prims.promotion import BOOL, FLOAT, INTEGER, category, floating, result_dtype
from framesmith.prims.registry import decomposes, decomposes_named, rules
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.util.precision import HALF, compute_dtype

aten = torch.ops.aten

# -- one operand ------------------------------------------------------------------------------------------------------


def _float(prim: Prim) -> Any:
    """Return a rule for functions of floats, to which other numbers are converted."""
    return lambda b, x: b.emit(prim, (b.convert(x, floating(x.dtype)),))


def _number(prim: Prim, on_integers: bool = True) -> Any:
    """Return a rule that keeps the dtype; the identity on integers if `on_integers` is false."""

    def rule(b: Builder, x: Value) -> Any:
        rank = category(x.dtype)
        if rank == FLOAT or (rank == INTEGER and on_integers):
            return b.emit(prim, (x,))
        return x if rank == INTEGER else NotImplemented

    return rule


def _numbers(prim: Prim) -> Any:
    """Return a rule for operands of a common number type; bool stays with eager."""
    return lambda b, x, y: _on_numbers(b, prim.name, *b.promote(x, y))


_RULES: dict[str, Any] = {
    "float": _float, "number": _number, "whole": lambda prim: _number(prim, on_integers=False), "numbers": _numbers,
    "floats": lambda prim: lambda b, x, y: b.emit(prim, tuple(b.promote_float(x, y))),
    "any": lambda prim: lambda b, x, y: b.emit(prim, tuple(b.promote(x, y))),
}
"""Rules that map an overload to the prim of a scalar operation: for one operand, then for two, which are promoted."""

for _scalar in SCALAR_OPS.values():
    if _scalar.rule:
        decomposes_named(*_scalar.aten)(_RULES[_scalar.rule](table[_scalar.name]))
rules[aten.sgn.default] = rules[aten.sign.default]


@decomposes(aten.frac.default)
def frac(b: Builder, x: Value) -> Value:
    return x - b.trunc(x)


@decomposes(aten.round.decimals)
def round_decimals(b: Builder, x: Value, *, decimals: int) -> Any:
    if decimals == 0:
        return round_whole(b, x)
    if category(x.dtype) != FLOAT:
        return NotImplemented
    scale = float(10 ** abs(decimals))
    wide = b.wide(x)
    out = b.round(wide * scale) / scale if decimals > 0 else b.round(wide / scale) * scale
    return b.convert(out, x.dtype)


round_whole = rules[aten.round.default]


@decomposes(aten.bitwise_not.default)
def bitwise_not(b: Builder, x: Value) -> Value:
    return b.bitwise_not(x)


@decomposes(aten.logit.default)
def logit(b: Builder, x: Value, eps: float | None = None) -> Value:
    x = b.convert(x, floating(x.dtype))
    wide = b.wide(x)
    if eps is not None and eps >= 0.0:
        wide = b.where(wide < float(eps), float(eps), b.where(wide > 1.0 - float(eps), 1.0 - float(eps), wide))
    return b.convert(b.log(wide / (1.0 - wide)), x.dtype)


@decomposes(aten.sinc.default)
def sinc(b: Builder, x: Value) -> Value:
    x = b.convert(x, floating(x.dtype))
    wide = b.wide(x)
    angle = wide * math.pi
    return b.convert(b.where(b.eq(wide, 0.0), 1.0, b.sin(angle) / angle), x.dtype)


@decomposes(aten.deg2rad.default)
def deg2rad(b: Builder, x: Value) -> Value:
    return b.convert(x, floating(x.dtype)) * (math.pi / 180.0)


@decomposes(aten.rad2deg.default)
def rad2deg(b: Builder, x: Value) -> Value:
    return b.convert(x, floating(x.dtype)) * (180.0 / math.pi)


@decomposes(aten.nan_to_num.default)
def nan_to_num(b: Builder, x: Value, nan: float | None = None, posinf: float | None = None,
               neginf: float | None = None) -> Value:
    if category(x.dtype) != FLOAT:
        return x
    info = torch.finfo(x.dtype)
    out = b.where(b.eq(x, math.inf), info.max if posinf is None else float(posinf), x)
    out = b.where(b.eq(x, -math.inf), info.min if neginf is None else float(neginf), out)
    return b.where(b.isnan(x), 0.0 if nan is None else float(nan), out)


# -- two operands -----------------------------------------------------------------------------------------------------


def _sum_dtypes(x: Any, y: Any, alpha: Any) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype of a sum, and that of its scalars: eager's CPU kernels round these to 16 bits, those of other
    devices do not."""
    dtype = result_dtype(x, y)
    tensors = [operand for operand in (x, y) if type(operand) is Value]
    plain = len(tensors) == 2 and type(alpha) is int and alpha == 1
    return dtype, dtype if plain or tensors[0].device.type == "cpu" else compute_dtype(dtype)


@decomposes(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype, inner = _sum_dtypes(x, y, alpha)
    x, y = (b.cast(b.cast(operand, dtype) if type(operand) is Value else operand, inner) for operand in (x, y))
    if dtype is torch.bool:
        return b.bitwise_or(x, y) if alpha else x
    return b.convert(b.add(x, _scaled(b, y, alpha, inner)), dtype)


@decomposes(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype, inner = _sum_dtypes(x, y, alpha)
    x, y = (b.cast(b.cast(operand, dtype) if type(operand) is Value else operand, inner) for operand in (x, y))
    return b.convert(b.sub(x, _scaled(b, y, alpha, inner)), dtype) if dtype is not torch.bool else NotImplemented


@decomposes(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Any:
    return sub(b, y, x, alpha)


def _scaled(b: Builder, y: Any, alpha: Any, dtype: torch.dtype) -> Any:
    if type(alpha) in (int, float, bool) and alpha == 1:
        return y
    factor = b.cast(alpha, dtype)
    return b.mul(y, factor) if type(y) is Value else y * factor


@decomposes(aten.mul.Tensor, aten.mul.Scalar)
def mul(b: Builder, x: Any, y: Any) -> Value:
    dtype = result_dtype(x, y)
    x, y = b.factors(dtype, x, y)
    return b.bitwise_and(x, y) if dtype is torch.bool else b.convert(b.mul(x, y), dtype)


@decomposes(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, x: Any, y: Any) -> Value:
    dtype = floating(result_dtype(x, y))
    x, y = b.factors(dtype, x, y)
    return b.convert(b.over(x, y) if type(x) is Value else b.div(x, y), dtype)


@decomposes(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(b: Builder, x: Any, y: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return div(b, x, y)
    if rounding_mode == "trunc" and b.rounding and type(y) is Value and y.ndim and result_dtype(x, y) in HALF:
        return b.trunc(b.rounded(div(b, x, y)))  # as eager's kernel for two tensors
    return _whole_quotient(b, "floordiv" if rounding_mode == "floor" else "truncdiv", x, y)


def _whole_quotient(b: Builder, name: str, x: Any, y: Any) -> Any:
    dtype = result_dtype(x, y)
    out = _on_numbers(b, name, *b.factors(dtype, x, y))
    return out if out is NotImplemented else b.convert(out, dtype)


def _on_numbers(b: Builder, name: str, x: Any, y: Any) -> Any:
    dtype = (x if type(x) is Value else y).dtype
    if dtype is torch.bool or (type(y) is int and y == 0):  # eager's kernel raises
        return NotImplemented
    return b.emit(table[name], (x, y))


decomposes_named("floor_divide", "floor_divide.Scalar")(lambda b, x, y: _whole_quotient(b, "floordiv", x, y))


def _nan_loses(prim: str, path: str) -> None:
    def rule(b: Builder, x: Any, y: Any) -> Value:
        x, y = b.promote(x, y)
        return b.emit(table[prim if category(x.dtype) == FLOAT else prim.replace("f", "") + "imum"], (x, y))

    decomposes_named(path)(rule)


@decomposes(aten.nextafter.default)
def nextafter(b: Builder, x: Any, y: Any) -> Any:
    x, y = b.promote(x, y)
    return NotImplemented if x.dtype in HALF else b.nextafter(x, y)  # numbers between are those of float32


_nan_loses("fmax", "fmax")
_nan_loses("fmin", "fmin")

_POWERS = {1.0: lambda b, x: x, 2.0: lambda b, x: x * x, 3.0: lambda b, x: x * x * x}
_FLOAT_POWERS = {
    0.5: lambda b, x: b.sqrt(x),
    -0.5: lambda b, x: b.rsqrt(x),
    -1.0: lambda b, x: b.reciprocal(x),
    -2.0: lambda b, x: b.reciprocal(x * x),
}
_AFTER_SQUARE: dict[float, Any] = {3: lambda b, square, x: square * x, -2: lambda b, square, x: b.reciprocal(square)}
"""Powers for which eager's kernel rounds the square to bfloat16."""


@decomposes(aten.pow.Tensor_Scalar)
def pow_scalar(b: Builder, x: Value, exponent: Any) -> Any:
    dtype = result_dtype(x, exponent)
    rank = category(dtype)
    if rank == BOOL or not isinstance(exponent, (int, float)):
        return NotImplemented
    if exponent == 0:
        return b.full(x.shape, b.cast(1, dtype), dtype, x.device)
    x = b.convert(x, dtype)
    if dtype is torch.bfloat16 and exponent in _AFTER_SQUARE:
        wide = b.wide(x)
        return b.convert(_AFTER_SQUARE[exponent](b, b.halfway(wide * wide, dtype), wide), dtype)
    roots = rank == FLOAT and (dtype is not torch.float16 or x.device.type != "cpu")  # there pow(-0.0, 0.5) is 0.0
    short = _POWERS.get(exponent) or (_FLOAT_POWERS.get(exponent) if roots else None)
    if short is not None:
        return b.convert(short(b, b.wide(x)), dtype)
    if rank == INTEGER and exponent < 0:
        return NotImplemented
    return b.pow(x, b.cast(exponent, dtype))


@decomposes(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(b: Builder, x: Any, exponent: Any) -> Any:
    x, exponent = b.promote(x, exponent)
    return b.pow(x, exponent) if category(exponent.dtype) == FLOAT else NotImplemented


@decomposes(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(b: Builder, x: Any, y: Any) -> Value:
    return _log_product(b, x, y, b.log)


@decomposes(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def xlog1py(b: Builder, x: Any, y: Any) -> Value:
    return _log_product(b, x, y, b.log1p)


def _log_product(b: Builder, x: Any, y: Any, log: Any) -> Value:
    x, y = b.promote_float(x, y)
    like = x if type(x) is Value else y
    x, y = b.tensor(x, like), b.tensor(y, like)
    return b.where(b.isnan(y), math.nan, b.where(b.eq(x, 0.0), 0.0, _times_log(b, x, y, log)))


def _times_log(b: Builder, x: Value, y: Value, log: Any) -> Value:
    return b.convert(b.wide(x) * b.halfway(log(b.wide(y)), x.dtype), x.dtype)


@decomposes(aten.special_entr.default)
def entr(b: Builder, x: Value) -> Value:
    x = b.convert(x, floating(x.dtype))
    out = b.where(b.eq(x, 0.0), 0.0, b.where(x > 0.0, b.neg(_times_log(b, x, x, b.log)), -math.inf))
    return b.where(b.isnan(x), x, out)


@decomposes(aten.logaddexp.default)
def logaddexp(b: Builder, x: Value, y: Value) -> Any:
    return _log_add(b, x, y, b.exp, b.log1p, 1.0)


@decomposes(aten.logaddexp2.default)
def logaddexp2(b: Builder, x: Value, y: Value) -> Any:
    return _log_add(b, x, y, b.exp2, b.log1p, 1.0 / math.log(2.0))


def _log_add(b: Builder, x: Value, y: Value, exp: Any, log1p: Any, scale: float) -> Any:
    x, y = b.promote(x, y)
    if category(x.dtype) != FLOAT:
        return NotImplemented
    x, y = b.wide(x), b.wide(y)
    high = b.maximum(x, y)
    rest = log1p(exp(b.neg(b.abs(x - y))))
    out = high + (rest if scale == 1.0 else rest * scale)
    return b.convert(b.where(b.isinf(x) & b.eq(x, y), x, out), b.out.dtype)


@decomposes(aten.ldexp.Tensor)
def ldexp(b: Builder, x: Value, exponent: Value) -> Any:
    x, exponent = b.promote_float(x, exponent)
    return x * b.exp2(exponent) if x.dtype.itemsize >= 4 else NotImplemented


@decomposes(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, start: Value, end: Value, weight: Any) -> Value:
    dtype = start.dtype
    wide, far = b.wide(start), b.wide(end)
    if type(weight) is Value:
        weight = b.wide(weight)
        near = weight.b.abs(weight) < 0.5
        return b.convert(b.where(near, wide + weight * (far - wide), far - (far - wide) * (1.0 - weight)), dtype)
    weight = float(weight)
    out = wide + (far - wide) * weight if abs(weight) < 0.5 else far - (far - wide) * (1.0 - weight)
    return b.convert(out, dtype)


@decomposes(aten.addcmul.default)
def addcmul(b: Builder, x: Value, first: Value, second: Value, *, value: Any = 1) -> Any:
    x, first, second = b.promote(x, first, second)
    if x.dtype is torch.bool:
        return NotImplemented
    out = b.wide(x) + _scaled(b, b.wide(first), value, compute_dtype(x.dtype)) * b.wide(second)
    return b.convert(out, x.dtype)


@decomposes(aten.addcdiv.default)
def addcdiv(b: Builder, x: Value, first: Value, second: Value, *, value: Any = 1) -> Any:
    x, first, second = b.promote(x, first, second)
    if category(x.dtype) != FLOAT:
        return NotImplemented
    out = b.wide(x) + _scaled(b, b.wide(first), value, compute_dtype(x.dtype)) / b.wide(second)
    return b.convert(out, x.dtype)


# -- bounds -----------------------------------------------------------------------------------------------------------


@decomposes(aten.clamp.default, aten.clamp.Tensor)
def clamp(b: Builder, x: Value, min: Any = None, max: Any = None) -> Any:
    dtype = result_dtype(*[one for one in (x, min, max) if one is not None])
    if dtype is torch.bool:
        return NotImplemented
    out = b.convert(x, dtype)  # of equals the second is taken: a zero keeps its sign, as in eager
    if min is not None:
        out = b.maximum(b.cast(min, dtype), out)
    if max is not None:
        out = b.minimum(b.cast(max, dtype), out)
    return out


@decomposes(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(b: Builder, x: Value, min: Any) -> Any:
    return clamp(b, x, min)


@decomposes(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(b: Builder, x: Value, max: Any) -> Any:
    return clamp(b, x, None, max)
