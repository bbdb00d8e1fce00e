"""Lowering rows of pointwise prims: each becomes a closure over its operands' elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.lower.context import Context
from framesmith.lower.geometry import numel
from framesmith.lower.table import lowers, unsupported_dtype
from framesmith.lower.values import Computed, Lowered, broadcast_index, cost_of, merge_reads
from framesmith.prims.scalars import SCALAR_OPS, ScalarOp
from framesmith.symbolic.expr import Expr

_DIVISIONS = frozenset({"floordiv", "truncdiv", "mod", "fmod"})
Operand = Callable[[Builder, Sequence[Any]], Op]


def operand(value: Any, shape: tuple[Any, ...], dtype: torch.dtype) -> Operand:
    """Return the element of an operand of a result of `shape`: a broadcast tensor, a symbolic integer or a number of
    type `dtype`."""
    if isinstance(value, Lowered):
        if value.shape == shape:
            return value.element
        small = value.shape
        return lambda b, index: value.element(b, broadcast_index(index, small))
    if isinstance(value, Expr) and not value.is_const:
        return lambda b, index: b.index(value, dtype)
    number = value.const if isinstance(value, Expr) else value
    return lambda b, index: b.const(number, dtype)


def pointwise(ctx: Context, shape: tuple[Any, ...], dtype: torch.dtype, args: Sequence[Any], cost: int,
              build: Any) -> Computed:
    """Return a closure of `shape` that gives `build(b, *elements)`."""
    size = numel(shape)
    args = [ctx.small_operand(a, size) for a in args]
    tensors = [a for a in args if isinstance(a, Lowered)]
    kind = tensors[-1].dtype if tensors else dtype
    elements = [operand(a, shape, kind) for a in args]
    total = cost + sum(map(cost_of, tensors))
    if len(elements) == 1:
        (only,) = elements
        return Computed(shape, dtype, lambda b, i: build(b, only(b, i)), total, merge_reads(tensors), ctx.origin)
    return Computed(shape, dtype, lambda b, i: build(b, *[e(b, i) for e in elements]), total, merge_reads(tensors),
                    ctx.origin)


def _builder(first: str, *then: str) -> Callable[..., Op]:
    """Return a builder that applies the operation `first` to the elements, and the others to its result."""

    def build(b: Builder, *elements: Op) -> Op:
        op = b.scalar(first, *elements)
        for name in then:
            op = b.scalar(name, op)
        return op

    return build


def _divisor(ctx: Context, y: Any) -> Any:
    """Return the divisors `y` after a check: their nest fails if one is zero, as eager's division raises."""
    if not isinstance(y, Lowered) or ctx.device.type != "cpu" or y.dtype.is_floating_point:
        return y

    def fault(b: Builder, i: Sequence[Any]) -> Op:
        """Return 2, an index out of range for 2, where the divisor is zero."""
        zero = b.scalar("eq", y.element(b, i), b.const(0, y.dtype))
        zero = zero if b.mask is None else b.scalar("logical_and", zero, b.mask)
        return b.scalar("where", zero, b.const(2, torch.int64), b.const(0, torch.int64))

    def element(b: Builder, i: Sequence[Any]) -> Op:
        found = (checked.element(b, i) if ctx.writes
                 else b.indirect(fault(b, i), ctx.indirect_symbol(2), 2, wrap=False, check=True))
        return b.scalar("add", y.element(b, i), b.cast(found, y.dtype))

    faults = Computed(y.shape, torch.int64, fault, cost_of(y) + 2, merge_reads([y]), ctx.origin)
    checked = ctx.checked(faults, 2, wrap=False) if ctx.writes else faults
    return Computed(y.shape, y.dtype, element, cost_of(y) + 4, merge_reads([y, checked]), ctx.origin)


def _register(scalar: ScalarOp) -> None:
    build = _builder(scalar.name)
    on_bool = _builder(*scalar.on_bool) if scalar.on_bool else build

    @lowers(scalar.name)
    def row(ctx: Context, spec: Any, *args: Any) -> Computed | None:
        first = next(a for a in args if isinstance(a, Lowered))
        if scalar.name in _DIVISIONS:
            args = (args[0], _divisor(ctx, args[1]))
        one = on_bool if first.dtype is torch.bool else build
        return pointwise(ctx, spec.shape, spec.dtype, args, scalar.cost, one)


for _scalar in SCALAR_OPS.values():
    if _scalar.is_prim and _scalar.name != "pow":
        _register(_scalar)


_POWERS: dict[float, Callable[[Builder, Op], Op]] = {
    -1.0: lambda b, x: b.scalar("reciprocal", x),
    -2.0: lambda b, x: b.scalar("reciprocal", b.scalar("mul", x, x)),
    2.0: lambda b, x: b.scalar("mul", x, x),
    3.0: lambda b, x: b.scalar("mul", b.scalar("mul", x, x), x),
    4.0: lambda b, x: b.scalar("mul", b.scalar("mul", x, x), b.scalar("mul", x, x)),
}


@lowers("pow")
def power(ctx: Context, spec: Any, base: Any, exponent: Any) -> Computed | None:
    if isinstance(exponent, (int, float)) and spec.dtype.is_floating_point and float(exponent) in _POWERS:
        return pointwise(ctx, spec.shape, spec.dtype, (base,), 3, _POWERS[float(exponent)])
    if isinstance(exponent, int) and exponent in (2, 3):
        return pointwise(ctx, spec.shape, spec.dtype, (base,), 2, _POWERS[float(exponent)])
    return pointwise(ctx, spec.shape, spec.dtype, (base, exponent), SCALAR_OPS["pow"].cost, _builder("pow"))


@lowers("copy")
def copy(ctx: Context, spec: Any, x: Lowered) -> Computed | None:
    return None if unsupported_dtype(x.dtype) else pointwise(ctx, spec.shape, spec.dtype, (x,), 0, lambda b, v: v)


@lowers("rounded")
def rounded(ctx: Context, spec: Any, x: Lowered) -> Computed:
    return pointwise(ctx, spec.shape, spec.dtype, (x,), 1, lambda b, v: b.cast(v, spec.dtype))


@lowers("convert")
def convert(ctx: Context, spec: Any, x: Lowered, dtype: torch.dtype) -> Any:
    if x.dtype is dtype:
        return x
    return pointwise(ctx, spec.shape, dtype, (x,), 1, lambda b, v: b.cast(v, dtype))


@lowers("bitcast")
def bitcast(ctx: Context, spec: Any, x: Lowered, dtype: torch.dtype) -> Computed | None:
    if any(d in (torch.bool, torch.bfloat16, torch.float16) for d in (x.dtype, dtype)):
        return None
    return pointwise(ctx, spec.shape, dtype, (x,), 0, lambda b, v: b.bitcast(v, dtype))


@lowers("where")
def where(ctx: Context, spec: Any, condition: Lowered, x: Any, y: Any) -> Computed | None:
    shape, size = spec.shape, numel(spec.shape)
    values = [ctx.small_operand(v, size) for v in (condition, x, y)]
    test = operand(values[0], shape, torch.bool)
    yes, no = (operand(v, shape, spec.dtype) for v in values[1:])
    tensors = [v for v in values if isinstance(v, Lowered)]
    cost = 1 + sum(map(cost_of, tensors))
    return Computed(shape, spec.dtype, lambda b, i: b.scalar("where", test(b, i), yes(b, i), no(b, i)), cost,
                    merge_reads(tensors), ctx.origin)

