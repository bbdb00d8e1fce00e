"""Attention with modified scores: tiled kernels where the device has them, else a call of its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from framesmith.graph.attention import LISTS, Attention, AttentionGradient
from framesmith.loops.attention import (
    BATCH,
    COLUMN,
    HEAD,
    INPUTS,
    LIST_NAMES,
    ROW,
    SCORES,
    TANGENT,
    AttentionTiles,
    Layout,
)
from framesmith.loops.build import Builder
from framesmith.loops.ir import Cast, Const, Index, Op, needed
from framesmith.loops.nest import Call
from framesmith.lower.context import Context
from framesmith.lower.geometry import row_major
from framesmith.lower.table import PRIM_ROWS
from framesmith.lower.values import Computed, Lowered, Stored, broadcast_index
from framesmith.prims.core import Prim
from framesmith.prims.decompose import decompose
from framesmith.symbolic.expr import Expr, Symbol, as_expr
from framesmith.util.errors import Unsupported
from framesmith.util.precision import HALF

WIDEST = 256
"""The largest width of a row of the query, and of the values, for which tiles have whole rows."""
_NEAR = 1 << 31


def lower_attention(ctx: Context, node: fx.Node, args: Sequence[Any]) -> tuple[Stored, ...] | None:
    """Return the results in memory; None if no tiled kernel supports this call."""
    whole: Any = node.target
    kinds = ("forward",) if isinstance(whole, Attention) else ("rows", "columns")
    inputs, lists, operands = args[:(count := len(INPUTS[kinds[0]]))], args[count:count + LISTS], args[count + LISTS:]
    specs = node.meta["val"]
    if ctx.device.type != "cuda" or not _fits(inputs, specs, whole.scores.tf32):
        return None
    try:
        named = {f"operand{i}": ctx.realise(x) for i, x in enumerate(operands)}
        blocks = _Blocks(whole, inputs, list(named.values()), list(named)).all()
    except Unsupported:
        return None
    values = dict(zip(INPUTS[kinds[0]], map(ctx.realise, inputs), strict=True))
    values |= {name: ctx.realise(x, row_major(x.shape)) for name, x in zip(LIST_NAMES, lists) if x is not None}
    results = [ctx.storage(s.shape, s.stride or row_major(s.shape), s.dtype) for s in specs]
    names = ("out", "total") if kinds == ("forward",) else ("dq", "dk", "dv")
    written = dict(zip(names, results, strict=True))
    for kind in kinds:
        _call(ctx, kind, whole, {**values, **named}, written, blocks)
    return tuple(results)


def _call(ctx: Context, kind: str, whole: Any, read: dict[str, Stored], results: dict[str, Stored],
          blocks: Any) -> None:
    tiles = AttentionTiles(kind, whole, {}, *blocks)
    written = {name: results[name] for name in tiles.results}
    given = {**read, **written}
    layouts = {name: Layout(x.shape, x.stride, x.dtype) for name, x in given.items()}
    tiles = AttentionTiles(kind, whole, layouts, *blocks)
    changed = tuple([x.buffer for x in written.values()])
    reads = frozenset([x.buffer for x in given.values()])
    ctx.items.append(Call(tiles, tuple(map(ctx.ref, given.values())), {}, (), changed, reads, frozenset(changed),
                          ctx.origin))


def _fits(inputs: Sequence[Lowered], specs: Sequence[Any], tf32: bool) -> bool:
    query, key, value = inputs[:3]
    sizes = [*query.shape, *key.shape, *value.shape]
    kinds = {*HALF, torch.float32} if tf32 else {*HALF}
    if not all(type(s) is int and s > 0 for s in sizes) or {x.dtype for x in (query, key, value)} - kinds:
        return False
    alike = len({x.dtype for x in (query, key, value)}) == 1 and key.shape[0] in (1, query.shape[0])
    gathers = len(specs) == 3 and key.shape[0] != query.shape[0]
    return alike and not gathers and max(query.shape[-1], value.shape[-1]) <= WIDEST


# --------------------------------------------------------------------------------------------------------------- blocks


class _Blocks:
    """The graphs of a call's modifications as blocks of the loop IR."""

    def __init__(self, whole: Attention | AttentionGradient, inputs: Sequence[Lowered], operands: list[Stored],
                 names: list[str]) -> None:
        query, key = inputs[:2]
        self.scores = whole.scores
        self.shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        self.operands = [Stored(name, x.shape, x.stride, 0, x.dtype) for name, x in zip(names, operands)]
        self.index = [Symbol(name, 0, size - 1) if size > 1 else 0 for name,
                      size in zip((BATCH, HEAD, ROW, COLUMN), self.shape)]

    def all(self) -> tuple[tuple[Op, ...], tuple[Op, ...], tuple[Op, ...]]:
        scores, tangent = self.element(SCORES), self.element(TANGENT)
        places = [self.place(dim) for dim in range(4)]
        s = self.scores
        return (
            self.block(s.score, [scores, *places, *s.operands(self.operands, 0)]),
            self.block(s.gradient, [scores, *places, tangent, *s.operands(self.operands, 1)]),
            self.block(s.mask, [*places, *s.operands(self.operands, 2)]),
        )

    def element(self, name: str) -> Lowered:
        return Stored(name, self.shape, row_major(self.shape), 0, torch.float32)

    def place(self, dim: int) -> Lowered:
        """Return the index along a dimension."""
        shape = tuple([size if k == dim else 1 for k, size in enumerate(self.shape)])
        return Computed(shape, torch.int64, lambda b, i: b.index(as_expr(i[dim])), 0, {})

    def block(self, graph: fx.Graph | None, given: Sequence[Lowered]) -> tuple[Op, ...]:
        """Return the operations that compute the graph's one result, the last of them its value."""
        if graph is None:
            return ()
        value = _evaluated(decompose(graph), given)
        b = _Tile()
        result = value.element(b, broadcast_index(self.index, value.shape))
        read = needed(b.ops, [result])
        return (*[op for op in b.ops if op in read and op is not result], result)


def _evaluated(graph: fx.Graph, given: Sequence[Lowered]) -> Lowered:
    """Return the result of a graph of prims as a closure."""
    ctx = _Scalars(torch.device("cpu"))
    env: dict[fx.Node, Any] = {}
    places = iter(given)

    def read(x: Any) -> Any:
        return env[x] if isinstance(x, fx.Node) else tuple(map(read, x)) if isinstance(x, (tuple, list)) else x

    for node in graph.nodes:
        if node.op == "placeholder":
            env[node] = next(places)
        elif node.op == "output":
            return read(node.args[0])[0]  # type: ignore[no-any-return]
        else:
            row = PRIM_ROWS.get(node.target.name) if isinstance(node.target, Prim) else None
            found = row(ctx, node.meta["val"], *read(node.args)) if row is not None else None
            if not isinstance(found, Lowered):
                raise Unsupported(f"{node.target} of single scores")
            env[node] = found
    raise AssertionError("a graph without an output")


class _Scalars(Context):
    """A lowering context in which no value is stored."""

    def settle(self, value: Any, users: int) -> Any:
        return value

    def small_operand(self, value: Any, size: Any) -> Any:
        return value

    def materialise(self, value: Lowered, stride: Any = None, kind: str = "arena", written: bool = False) -> Stored:
        raise Unsupported("a modification of scores that needs memory")


@dataclass(frozen=True, slots=True)
class _Known:
    """An index that is a known expression."""

    symbol: Expr


class _Tile(Builder):
    """Operations on a tile, whose indices have 32 bits, and are in range where their bounds prove it."""

    __slots__ = ()

    def indirect(self, value: Op, symbol: Symbol, size: Expr | int, wrap: bool, check: bool) -> Any:
        expr = (value.expr if type(value) is Index else as_expr(value.value)  # type: ignore[arg-type]
                if type(value) is Const
                else None)
        end = as_expr(size) - 1
        if (expr is not None and expr.lo is not None and expr.lo >= 0 and expr.hi is not None and end.is_const
            and expr.hi <= end.const):
            return _Known(expr)
        return super().indirect(value, symbol, size, wrap, check)

    def cast(self, value: Op, dtype: torch.dtype) -> Op:
        if type(value) is Index and dtype.is_floating_point and _is_near(value.expr):
            narrow = self._emit(("narrow", value.expr), Index, value.expr, torch.int32)
            value = narrow
            rounding = dtype if dtype in HALF else None
            to = torch.float32 if rounding is not None else dtype
            return self._emit(("cast", value, to, rounding), Cast, (value,), to, rounding)
        return super().cast(value, dtype)


def _is_near(e: Expr) -> bool:
    return e.lo is not None and e.hi is not None and e.lo >= -_NEAR and e.hi < _NEAR

