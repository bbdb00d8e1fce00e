"""Lowering rows of scans (running sums and products) on devices whose kernels support them: one nest each, its operand
inlined."""

from __future__ import annotations

from typing import Any

from framesmith.loops.build import Builder
from framesmith.loops.nest import Compute
from framesmith.lower.context import Context
from framesmith.lower.geometry import flat, numel
from framesmith.lower.reductions import Domain
from framesmith.lower.table import Row, lowers
from framesmith.lower.values import Lowered, Stored

LONG = 1 << 14  # elements of a row from which few rows leave a device idle: the library's kernel shares out a row
ROWS = 256


def _row(kind: str) -> Row:
    def scan(ctx: Context, spec: Any, x: Lowered, dim: int) -> Stored | None:
        if not ctx.limits.scans or not x.shape or 0 in x.shape:
            return None
        length, rows = x.shape[dim], numel([*x.shape[:dim], *x.shape[dim + 1 :]])
        if type(length) is not int or length > LONG and (type(rows) is not int or rows < ROWS):
            return None
        domain, out, b = Domain(ctx, x.shape, (dim,)), ctx.join_target(spec), Builder()
        b.store(out.buffer, flat(domain.index, out.stride), b.scan(kind, x.element(b, domain.index), x.dtype))
        origins = tuple(dict.fromkeys((*b.origins, *ctx.origin)))
        ctx.items.append(Compute(domain.axes, domain.raxes, tuple(b.ops), (), origins))
        return out

    return scan


lowers("cumsum")(_row("sum"))
lowers("cumprod")(_row("prod"))
