"""Functions of elements: arithmetic, comparisons, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from onnx_ir.tensor_adapters import from_torch_dtype

from framesmith.onnx.emitter import Emitter, NoForm, Value, dtype_of
from framesmith.onnx.table import aten, row

pointwise = partial(row, "pointwise")


def _reals(m: Emitter, *xs: Any) -> list[Value]:
    """Operands in the dtype of the result."""
    return [m.cast(x, m.out.dtype) for x in xs]


def _promoted(m: Emitter, *xs: Any) -> list[Value]:
    """Operands in the dtype to which eager promotes them."""
    dtype = m.common(*xs)
    return [m.cast(x, dtype) for x in xs]


def _ordered(m: Emitter, *xs: Any) -> list[Value]:
    """Operands in a dtype that ONNX can order: bools are not."""
    dtype = m.common(*xs)
    return [m.cast(m.cast(x, dtype), torch.int32 if dtype is torch.bool else dtype) for x in xs]


# --- of one operand
def _unary(op: str) -> Callable[..., Value]:
    return lambda m, x: m(op, *_reals(m, x))


for _name, _op in (
        ("abs", "Abs"), ("neg", "Neg"), ("sqrt", "Sqrt"), ("reciprocal", "Reciprocal"), ("exp", "Exp"), ("log", "Log"),
        ("sin", "Sin"), ("cos", "Cos"), ("tan", "Tan"), ("asin", "Asin"), ("acos", "Acos"), ("atan", "Atan"),
        ("sinh", "Sinh"), ("cosh", "Cosh"), ("tanh", "Tanh"), ("asinh", "Asinh"), ("acosh", "Acosh"),
        ("atanh", "Atanh"), ("erf", "Erf"), ("sigmoid", "Sigmoid")):
    pointwise(getattr(aten, _name).default)(_unary(_op))


@pointwise(aten.relu.default)
def _relu(m: Emitter, x: Value) -> Value:
    return m("Relu", x) if dtype_of(x).is_floating_point else m("Max", x, m.constant(0, dtype_of(x)))


def _whole(op: str) -> Callable[..., Value]:
    """Return a rounding, which leaves integers as they are."""
    return lambda m, x: m(op, x) if dtype_of(x).is_floating_point else x


for _name, _op in (("ceil", "Ceil"), ("floor", "Floor"), ("round", "Round")):
    pointwise(getattr(aten, _name).default)(_whole(_op))


@pointwise(aten.trunc.default)
def _trunc(m: Emitter, x: Value) -> Value:
    if not dtype_of(x).is_floating_point:
        return x
    return m("Where", m("Less", x, m.constant(0, dtype_of(x))), m("Ceil", x), m("Floor", x))


@pointwise(aten.sign.default)
def _sign(m: Emitter, x: Value) -> Value:
    if dtype_of(x) is torch.bool:
        return x
    zero = m.constant(0, dtype_of(x))
    if not dtype_of(x).is_floating_point:
        return m("Sign", x)
    return m("Where", m("IsNaN", x), zero, m("Sign", x))


@pointwise(aten.sgn.default)
def _sgn(m: Emitter, x: Value) -> Value:
    return _sign(m, x)  # type: ignore[no-any-return]


@pointwise(aten.signbit.default)
def _signbit(m: Emitter, x: Value) -> Value:
    if not dtype_of(x).is_floating_point:
        return m("Less", m.cast(x, torch.int64), m.constant(0, torch.int64))
    zero, one = m.constant(0, dtype_of(x)), m.constant(1, dtype_of(x))
    return m("Less", m("Where", m("Equal", x, zero), m("Div", one, x), x), zero)  # 1 / -0.0 is -inf


@pointwise(aten.heaviside.default)
def _heaviside(m: Emitter, x: Value, at_zero: Value) -> Value:
    zero = m.constant(0, m.out.dtype)
    step = m("Cast", m("Greater", x, zero), to=from_torch_dtype(m.out.dtype))
    return m("Where", m("Equal", x, zero), at_zero, step)


@pointwise(aten.rsqrt.default)
def _rsqrt(m: Emitter, x: Value) -> Value:
    return m("Reciprocal", m("Sqrt", *_reals(m, x)))


def _log_to(base: float) -> Callable[..., Value]:
    return lambda m, x: m("Div", m("Log", *_reals(m, x)), m.constant(math.log(base), m.out.dtype))


pointwise(aten.log2.default)(_log_to(2))
pointwise(aten.log10.default)(_log_to(10))


@pointwise(aten.exp2.default)
def _exp2(m: Emitter, x: Value) -> Value:
    return m("Pow", m.constant(2, m.out.dtype), *_reals(m, x))


@pointwise(aten.expm1.default)
def _expm1(m: Emitter, x: Value) -> Value:
    (x,) = _reals(m, x)  # exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), which does not cancel near 0
    return m("Mul", m("Tanh", m("Mul", x, m.constant(0.5, m.out.dtype))),
             m("Add", m("Exp", x), m.constant(1, m.out.dtype)))


@pointwise(aten.log1p.default)
def _log1p(m: Emitter, x: Value) -> Value:
    (x,) = _reals(m, x)  # log(1 + x) = 2 atanh(x / (2 + x)), which does not cancel near 0
    dtype = m.out.dtype
    near = m("Mul", m("Atanh", m("Div", x, m("Add", x, m.constant(2, dtype)))), m.constant(2, dtype))
    far = m("Log", m("Add", x, m.constant(1, dtype)))
    return m("Where", m("Less", m("Abs", x), m.constant(0.5, dtype)), near, far)


@pointwise(aten.erfc.default)
def _erfc(m: Emitter, x: Value) -> Value:
    return m("Sub", m.constant(1, m.out.dtype), m("Erf", *_reals(m, x)))


@pointwise(aten.deg2rad.default)
def _radians(m: Emitter, x: Value) -> Value:
    return m("Mul", *_reals(m, x), m.constant(math.pi / 180, m.out.dtype))


@pointwise(aten.angle.default)
def _angle(m: Emitter, x: Value) -> Value:
    (x,), zero = _reals(m, x), m.constant(0, m.out.dtype)
    angle = m("Where", m("Less", x, zero), m.constant(math.pi, m.out.dtype), zero)
    return m("Where", m("IsNaN", x), x, angle)


def _polynomial(m: Emitter, x: Value, *coefficients: float) -> Value:
    """Return a polynomial; the coefficient of the highest power comes first."""
    made = m.constant(coefficients[0], m.out.dtype)
    for c in coefficients[1:]:
        made = m("Add", m("Mul", made, x), m.constant(c, m.out.dtype))
    return made


@pointwise(aten.erfinv.default)
def _erfinv(m: Emitter, x: Value) -> Value:
    """A rational function in the middle and one at the ends, then two steps of Newton's, as in eager."""
    (x,), dtype = _reals(m, x), m.out.dtype
    one, size = m.constant(1, dtype), m("Abs", x)
    z = m("Mul", x, x)
    middle = m("Mul", x, m("Div", _polynomial(m, z, -0.140543331, 0.914624893, -1.645349621, 0.886226899),
                           _polynomial(m, z, 0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0)))
    half = m("Div", m("Sub", one, size), m.constant(2, dtype))
    z = m("Sqrt", m("Neg", m("Log", half)))
    end = m("Div", _polynomial(m, z, 1.641345311, 3.429567803, -1.624906493, -1.970840454),
            _polynomial(m, z, 1.637067800, 3.543889200, 1.0))
    made = m("Where", m("LessOrEqual", size, m.constant(0.7, dtype)), middle, m("Mul", m("Sign", x), end))
    for _ in range(2):
        slope = m("Mul", m("Exp", m("Neg", m("Mul", made, made))), m.constant(2 / math.sqrt(math.pi), dtype))
        made = m("Sub", made, m("Div", m("Sub", m("Erf", made), x), slope))
    return m("Where", m("Equal", size, one), m("Mul", x, m.constant(math.inf, dtype)), made)


@pointwise(aten.isnan.default)
def _isnan(m: Emitter, x: Value) -> Value:
    return m("IsNaN", x if dtype_of(x).is_floating_point else m.cast(x, torch.float32))


@pointwise(aten.isinf.default)
def _isinf(m: Emitter, x: Value) -> Value:
    return m("IsInf", x if dtype_of(x).is_floating_point else m.cast(x, torch.float32))


@pointwise(aten.logical_not.default)
def _logical_not(m: Emitter, x: Value) -> Value:
    return m("Not", m.cast(x, torch.bool))


@pointwise(aten.bitwise_not.default)
def _bitwise_not(m: Emitter, x: Value) -> Value:
    return m("Not" if dtype_of(x) is torch.bool else "BitwiseNot", x)


# --- of two operands
def _arithmetic(op: str, of_bools: str) -> Callable[..., Value]:
    """Return an operation that has another name for bools."""
    return lambda m, a, b: m(of_bools if m.out.dtype is torch.bool else op, *_reals(m, a, b))


for _targets, _op, _of_bools in (
        ((aten.mul.Tensor, aten.mul.Scalar), "Mul", "And"), ((aten.maximum.default,), "Max", "Or"),
        ((aten.minimum.default,), "Min", "And"), ((aten.pow.Tensor_Tensor,), "Pow", "Pow"),
        ((aten.pow.Scalar,), "Pow", "Pow")):
    pointwise(*_targets)(_arithmetic(_op, _of_bools))


@pointwise(aten.pow.Tensor_Scalar)
def _power(m: Emitter, x: Value, exponent: Any) -> Value:
    if not isinstance(exponent, Value) and exponent == 2:
        (x,) = _reals(m, x)
        return m("Mul", x, x)
    return m("Pow", *_reals(m, x, exponent))


def _sum(op: str) -> Callable[..., Value]:
    def emit(m: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
        a, b = _reals(m, a, b)
        if isinstance(alpha, Value) or alpha != 1:
            b = m("And" if m.out.dtype is torch.bool else "Mul", b, m.cast(alpha, m.out.dtype))
        return m("Or" if m.out.dtype is torch.bool else op, a, b)

    return emit


pointwise(aten.add.Tensor, aten.add.Scalar)(_sum("Add"))
pointwise(aten.sub.Tensor, aten.sub.Scalar)(_sum("Sub"))


@pointwise(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(m: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    return _sum("Sub")(m, b, a, alpha)  # type: ignore[no-any-return]


@pointwise(aten.div.Tensor, aten.div.Scalar)
def _quotient(m: Emitter, a: Any, b: Any) -> Value:
    return m("Div", *_reals(m, a, b))


@pointwise(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _rounded_quotient(m: Emitter, a: Any, b: Any, *, rounding_mode: str | None) -> Value:
    a, b = _reals(m, a, b)
    if rounding_mode is None:
        return m("Div", a, b)
    if not m.out.dtype.is_floating_point:  # Div truncates; Mod has the sign of b
        return m("Div", a if rounding_mode == "trunc" else m("Sub", a, m("Mod", a, b)), b)
    found = m("Div", a, b)
    if rounding_mode == "floor":
        return m("Floor", found)
    return m("Where", m("Less", found, m.constant(0, m.out.dtype)), m("Ceil", found), m("Floor", found))


@pointwise(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_quotient(m: Emitter, a: Any, b: Any) -> Value:
    return _rounded_quotient(m, a, b, rounding_mode="floor")  # type: ignore[no-any-return]


@pointwise(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(m: Emitter, a: Any, b: Any) -> Value:
    return m("Mod", *_reals(m, a, b), fmod=1)


@pointwise(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(m: Emitter, a: Any, b: Any) -> Value:
    a, b = _reals(m, a, b)
    if not m.out.dtype.is_floating_point:
        return m("Mod", a, b)
    zero = m.constant(0, m.out.dtype)
    rest = m("Mod", a, b, fmod=1)  # with the sign of a
    other = m("Xor", m("Less", rest, zero), m("Less", b, zero))
    return m("Where", m("And", other, m("Not", m("Equal", rest, zero))), m("Add", rest, b), rest)


@pointwise(aten.atan2.default)
def _atan2(m: Emitter, y: Any, x: Any) -> Value:
    y, x = _reals(m, y, x)
    dtype = m.out.dtype
    zero, pi = m.constant(0, dtype), m.constant(math.pi, dtype)
    # the angle to the nearer axis: its tangent is at most 1, and has no 0 below the line unless both are
    steep = m("Greater", m("Abs", y), m("Abs", x))
    below = m("Where", steep, y, x)
    origin = m("Equal", below, zero)
    even = m("Equal", m("Abs", y), m("Abs", x))  # of two infinite numbers too
    ratio = m("Where", even, m("Mul", m("Sign", y), m("Sign", x)),
              m("Div", m("Where", steep, x, y), m("Where", origin, m.constant(1, dtype), below)))
    angle = m("Atan", ratio)
    signed = m("Where", m("Less", y, zero), m.constant(-math.pi / 2, dtype), m.constant(math.pi / 2, dtype))
    behind = m("Where", m("Less", y, zero), m("Sub", angle, pi), m("Add", angle, pi))
    return m("Where", steep, m("Sub", signed, angle), m("Where", m("Less", x, zero), behind, angle))


@pointwise(aten.fmax.default)
def _fmax(m: Emitter, a: Any, b: Any) -> Value:
    return _of_numbers(m, "Max", *_reals(m, a, b))


@pointwise(aten.fmin.default)
def _fmin(m: Emitter, a: Any, b: Any) -> Value:
    return _of_numbers(m, "Min", *_reals(m, a, b))


def _of_numbers(m: Emitter, op: str, a: Value, b: Value) -> Value:
    """Return the greater or smaller of two, where either may be NaN."""
    if not m.out.dtype.is_floating_point:
        return m(("Or" if op == "Max" else "And") if m.out.dtype is torch.bool else op, a, b)
    return m("Where", m("IsNaN", a), b, m("Where", m("IsNaN", b), a, m(op, a, b)))


@pointwise(aten.hypot.default)
def _hypot(m: Emitter, a: Any, b: Any) -> Value:
    a, b = _reals(m, a, b)
    return m("Sqrt", m("Add", m("Mul", a, a), m("Mul", b, b)))


@pointwise(aten.copysign.Tensor, aten.copysign.Scalar)
def _copysign(m: Emitter, a: Any, b: Any) -> Value:
    a, b = _reals(m, a, b)
    one = m.constant(1, m.out.dtype)  # 1 / -0.0 is -inf
    negative = m("Less", m("Where", m("Equal", b, m.constant(0, m.out.dtype)), m("Div", one, b), b),
                 m.constant(0, m.out.dtype))
    return m("Where", negative, m("Neg", m("Abs", a)), m("Abs", a))


for _name, _op, _of_bools in (("bitwise_and", "BitwiseAnd", "And"), ("bitwise_or", "BitwiseOr", "Or"),
                              ("bitwise_xor", "BitwiseXor", "Xor")):
    pointwise(*[getattr(getattr(aten, _name), o) for o in ("Tensor", "Scalar", "Scalar_Tensor")])(
        _arithmetic(_op, _of_bools))


def _logical(op: str) -> Callable[..., Value]:
    return lambda m, a, b: m(op, m.cast(a, torch.bool), m.cast(b, torch.bool))


for _name, _op in (("logical_and", "And"), ("logical_or", "Or"), ("logical_xor", "Xor")):
    pointwise(getattr(aten, _name).default)(_logical(_op))


def _comparison(op: str) -> Callable[..., Value]:
    return lambda m, a, b: m(op, *_ordered(m, a, b))


for _name, _op in (("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"), ("ge", "GreaterOrEqual"), ("eq", "Equal")):
    pointwise(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_comparison(_op))


@pointwise(aten.ne.Tensor, aten.ne.Scalar)
def _unequal(m: Emitter, a: Any, b: Any) -> Value:
    return m("Not", m("Equal", *_promoted(m, a, b)))


@pointwise(aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar)
def _left_shift(m: Emitter, a: Any, b: Any) -> Value:
    a, b = _reals(m, a, b)  # ONNX shifts unsigned numbers alone
    return m("Mul", a, _power_of_two(m, b))


@pointwise(aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar)
def _right_shift(m: Emitter, a: Any, b: Any) -> Value:
    a, b = _reals(m, a, b)
    step = _power_of_two(m, b)
    return m("Div", m("Sub", a, m("Mod", a, step)), step)


def _power_of_two(m: Emitter, x: Value) -> Value:
    return m("Cast", m("Pow", m.constant(2.0, torch.float64), m("Cast", x, to=from_torch_dtype(torch.float64))),
             to=from_torch_dtype(m.out.dtype))


# --- of more
@pointwise(aten.where.self)
def _where(m: Emitter, condition: Value, a: Any, b: Any) -> Value:
    condition = m.cast(condition, torch.bool)
    a, b = _reals(m, a, b)
    if m.out.dtype is torch.bool:  # engines have no Where of bools
        return m("Or", m("And", condition, a), m("And", m("Not", condition), b))
    return m("Where", condition, a, b)


@pointwise(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(m: Emitter, x: Value, mask: Value, value: Any) -> Value:
    return _where(m, mask, value, x)  # type: ignore[no-any-return]


@pointwise(aten.clamp.default, aten.clamp.Tensor)
def _clamp(m: Emitter, x: Value, low: Any = None, high: Any = None) -> Value:
    (x,) = _reals(m, x)
    x = x if low is None else m("Max", x, m.cast(low, m.out.dtype))
    return x if high is None else m("Min", x, m.cast(high, m.out.dtype))


@pointwise(aten.clamp_min.default, aten.clamp_min.Tensor)
def _at_least(m: Emitter, x: Value, low: Any) -> Value:
    return _clamp(m, x, low)  # type: ignore[no-any-return]


@pointwise(aten.clamp_max.default, aten.clamp_max.Tensor)
def _at_most(m: Emitter, x: Value, high: Any) -> Value:
    return _clamp(m, x, None, high)  # type: ignore[no-any-return]


@pointwise(aten.hardtanh.default)
def _hardtanh(m: Emitter, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    return _clamp(m, x, low, high)


# --- activations
@pointwise(aten.gelu.default)
def _gelu(m: Emitter, x: Value, *, approximate: str = "none") -> Value:
    if m.opset >= 20:
        return m("Gelu", x, approximate=approximate)
    dtype, half = m.out.dtype, m.constant(0.5, m.out.dtype)
    if approximate == "none":
        slope = m("Erf", m("Mul", x, m.constant(math.sqrt(0.5), dtype)))
    else:
        cube = m("Mul", m("Mul", m("Mul", x, x), x), m.constant(0.044715, dtype))
        slope = m("Tanh", m("Mul", m("Add", x, cube), m.constant(math.sqrt(2 / math.pi), dtype)))
    return m("Mul", m("Mul", x, half), m("Add", slope, m.constant(1, dtype)))


@pointwise(aten.silu.default)
def _silu(m: Emitter, x: Value) -> Value:
    return m("Mul", x, m("Sigmoid", x))


@pointwise(aten.elu.default)
def _elu(m: Emitter, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    dtype, zero = m.out.dtype, m.constant(0, m.out.dtype)
    below = _expm1(m, m("Mul", m("Min", x, zero), m.constant(input_scale, dtype)))
    below = m("Mul", below, m.constant(alpha * scale, dtype))
    return m("Where", m("LessOrEqual", x, zero), below, m("Mul", x, m.constant(scale, dtype)))


@pointwise(aten.leaky_relu.default)
def _leaky_relu(m: Emitter, x: Value, slope: float = 0.01) -> Value:
    return m("LeakyRelu", x, alpha=float(slope))


@pointwise(aten.softplus.default)
def _softplus(m: Emitter, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = m("Mul", x, m.constant(beta, m.out.dtype))
    found = m("Div", m("Softplus", scaled), m.constant(beta, m.out.dtype))
    return m("Where", m("Greater", scaled, m.constant(threshold, m.out.dtype)), x, found)


@pointwise(aten.mish.default)
def _mish(m: Emitter, x: Value) -> Value:
    return m("Mish", x)


@pointwise(aten.hardswish.default)
def _hardswish(m: Emitter, x: Value) -> Value:
    return m("HardSwish", x)


@pointwise(aten.hardsigmoid.default)
def _hardsigmoid(m: Emitter, x: Value) -> Value:
    return m("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@pointwise(aten.native_dropout.default)
def _dropout(m: Emitter, x: Value, p: float, train: bool | None) -> Any:
    if not train:
        return x, m("Expand", m.constant(True, torch.bool), m("Shape", x))
    return m("Dropout", x, m.constant(p, dtype_of(x)), m.constant(True, torch.bool), outputs=2)


@pointwise(aten.dropout.default)
def _dropped(m: Emitter, x: Value, p: float, train: bool) -> Value:
    return m("Dropout", x, m.constant(p, dtype_of(x)), m.constant(True, torch.bool)) if train and p else x


# --- dtypes
@pointwise(aten._to_copy.default, aten.clone.default, aten.alias.default)
def _copy(m: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return _reals(m, x)[0]


@pointwise(aten.view.dtype)
def _reinterpreted(m: Emitter, x: Value, dtype: torch.dtype) -> Value:
    if dtype is dtype_of(x):
        return x
    if m.opset < 26:
        raise NoForm("the bits of a value as another dtype")
    return m("BitCast", x, to=dtype)
