"""Lowering rows of factories: values without operands."""

from __future__ import annotations

from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op
from framesmith.lower.context import Context
from framesmith.lower.pointwise import operand
from framesmith.lower.table import lowers
from framesmith.lower.values import Computed
from framesmith.symbolic.expr import Expr, as_expr


@lowers("iota")
def iota(ctx: Context, spec: Any, length: Any, start: Any, step: Any, dtype: torch.dtype,
         device: Any) -> Computed | None:
    if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
        return Computed(spec.shape, dtype, lambda b, i: b.index(as_expr(start) + as_expr(i[0]) * step, dtype), 0, {},
                        ctx.origin)

    def element(b: Builder, index: Any) -> Op:
        double = torch.float64
        scaled = b.scalar("mul", b.index(index[0], double), b.const(float(step), double))
        return b.cast(b.scalar("add", scaled, b.const(float(start), double)), dtype)

    return Computed(spec.shape, dtype, element, 3, {}, ctx.origin)


@lowers("full")
def full(ctx: Context, spec: Any, shape: Any, value: Any, dtype: torch.dtype, device: Any) -> Computed | None:
    constant = operand(value, spec.shape, dtype)
    return Computed(spec.shape, dtype, constant, 0, {}, ctx.origin)
