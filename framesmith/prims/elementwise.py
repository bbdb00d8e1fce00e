"""The pointwise prims: one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from framesmith.prims.core import ExternCall, Size, Spec, define
from framesmith.util.errors import VerifyError

aten = torch.ops.aten


def broadcast_shapes(first: tuple[Size, ...], second: tuple[Size, ...]) -> tuple[Size, ...]:
    """The common shape of two broadcast operands. Sizes agree when they are the same int or the same `Expr`."""
    if first == second:
        return first
    if len(first) < len(second):
        first, second = second, first
    lead = len(first) - len(second)
    out = list(first)
    for position, size in enumerate(second, lead):
        if size == 1 or size == out[position]:
            continue
        if out[position] != 1:
            raise VerifyError(f"shapes {first} and {second} do not broadcast")
        out[position] = size
    return tuple(out)


def pointwise_spec(*args: Any) -> Spec:
    """Broadcast shape; dtype of the tensors; device of the first tensor that has dimensions, else of the first."""
    lead = None
    shape: tuple[Size, ...] = ()
    for arg in args:
        other = getattr(arg, "shape", None)
        if other is None:
            continue
        if lead is None:
            lead, shape = arg, other
            continue
        if arg.dtype is not lead.dtype:
            raise VerifyError(f"pointwise operands of {lead.dtype} and {arg.dtype}")
        if shape != other:
            shape = broadcast_shapes(shape, other)
            if not lead.shape:
                lead = arg
    if lead is None:
        raise VerifyError("a pointwise prim wants at least one tensor")
    return Spec(shape, lead.dtype, lead.device)


def _unary_spec(x: Any) -> Spec:
    return Spec(x.shape, x.dtype, x.device)


def _bool_spec(*args: Any) -> Spec:
    spec = pointwise_spec(*args)
    spec.dtype = torch.bool
    return spec


def _where_spec(condition: Any, x: Any, y: Any) -> Spec:
    if condition.dtype is not torch.bool:
        raise VerifyError(f"where on a condition of {condition.dtype}")
    if not hasattr(x, "shape") and not hasattr(y, "shape"):
        raise VerifyError("where wants a tensor among its branches")
    spec = pointwise_spec(x, y)
    spec.shape = broadcast_shapes(spec.shape, condition.shape)
    if condition.shape:
        spec.device = condition.device
    return spec


def _convert_spec(x: Any, dtype: torch.dtype) -> Spec:
    return Spec(x.shape, dtype, x.device)


def _as_tensor(value: Any, like: torch.Tensor) -> torch.Tensor:
    """A scalar operand as a 0-dim tensor that does not take part in type promotion."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def _on_tensors(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """For torch functions that want tensors in both places."""

    def call(x: Any, y: Any) -> torch.Tensor:
        like = x if isinstance(x, torch.Tensor) else y
        return function(_as_tensor(x, like), _as_tensor(y, like))

    return call


def _where(condition: torch.Tensor, x: Any, y: Any) -> torch.Tensor:
    like = x if isinstance(x, torch.Tensor) else y
    return torch.where(condition, _as_tensor(x, like), _as_tensor(y, like))


def _tensors_only(op: torch._ops.OpOverload) -> Callable[..., ExternCall | None]:
    """The ATen overload of a prim whose operands are all tensors."""

    def extern(*args: Any) -> ExternCall | None:
        return (op, args) if all(hasattr(arg, "shape") for arg in args) else None

    return extern


# name of the prim, and its torch function. dtype in = dtype out; float unless noted.
_UNARY: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs,  # any number
    "neg": torch.neg,  # any number
    "sign": torch.sign,  # any number
    "bitwise_not": torch.bitwise_not,  # integers; logical not on bool
    "copy": torch.clone,  # any; the identity, as a value that aliases nothing
    "rounded": torch.clone,  # 16-bit floats; the nearest numbers of the dtype, where computation goes on in float32
    "reciprocal": torch.reciprocal,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "sigmoid": torch.sigmoid,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "round": torch.round,  # half to even
    "relu": torch.relu,  # numbers; keeps NaN
}

# either operand may be a scalar, not both. dtype in = dtype out.
_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,  # numbers, not bool
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,  # floats: true division
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),  # numbers, as Python's //
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),  # numbers, as C's integer division
    "remainder": torch.remainder,  # sign of the divisor, as Python's %
    "fmod": torch.fmod,  # sign of the dividend, as C's %
    "pow": torch.pow,
    "maximum": torch.maximum,  # NaN wins; any
    "minimum": torch.minimum,
    "fmax": torch.fmax,  # NaN loses
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "nextafter": torch.nextafter,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "bitwise_and": torch.bitwise_and,  # integers and bool
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,  # integers
    "shift_right": torch.bitwise_right_shift,  # arithmetic
}

# as _BINARY, with a bool result.
_COMPARE: dict[str, Callable[..., torch.Tensor]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}

_OVERLOADS: dict[str, torch._ops.OpOverload] = {
    "div_floor": aten.floor_divide.default,
    "copy": aten.clone.default,
    "rounded": aten.clone.default,
    "shift_left": aten.bitwise_left_shift.Tensor,
    "shift_right": aten.bitwise_right_shift.Tensor,
    "pow": aten.pow.Tensor_Tensor,
    **{name: getattr(aten, name).default
       for name in ("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "nextafter")},
}


def _overload(name: str, variant: str) -> Callable[..., ExternCall | None] | None:
    op = _OVERLOADS.get(name)
    if op is None and hasattr(aten, name):
        op = getattr(getattr(aten, name), variant, None)
    return None if op is None else _tensors_only(op)


def _fill() -> None:
    for name, function in _UNARY.items():
        define(name, "pointwise", function, _unary_spec, extern=_overload(name, "default"), doc=f"{name}(x)")
    for name, function in _BINARY.items():
        extern = _overload(name, "Tensor")
        define(name, "pointwise", _on_tensors(function), pointwise_spec, extern=extern, doc=f"{name}(x, y)")
    for name, function in _COMPARE.items():
        extern = _overload(name, "Tensor")
        define(name, "pointwise", _on_tensors(function), _bool_spec, extern=extern, doc=f"{name}(x, y) -> bool")
    for name in ("isnan", "isinf", "isfinite", "signbit"):
        define(name, "pointwise", getattr(torch, name), _bool_spec, extern=_overload(name, "default"),
               doc=f"{name}(x) -> bool")
    where = _tensors_only(aten.where.self)
    define("where", "pointwise", _where, _where_spec, extern=where, doc="where(condition: bool, x, y)")
    define(
        "convert",
        "pointwise",
        lambda x, dtype: x.to(dtype, copy=True),
        _convert_spec,
        extern=lambda x, dtype: (aten.to.dtype, (x, dtype)),
        doc="convert(x, dtype): C's value conversion; to bool: x != 0",
    )
    define(
        "bitcast",
        "pointwise",
        lambda x, dtype: x.contiguous().view(dtype).clone(),
        _convert_spec,
        doc="bitcast(x, dtype): the same bits read as another dtype of equal size",
    )


_fill()
