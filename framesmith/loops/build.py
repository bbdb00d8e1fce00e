"""The builder of bodies, which turns closures into SSA operations.

Closures of lowering take a builder `b` and call `b.load(...)`, `b.scalar("add", x, y)`, `b.index(expr)` ...; equal
operations are merged and constants are folded. Bodies are rewritten by replaying them through another builder
(`Replay`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framesmith.loops.ir import (
    Bitcast,
    Cast,
    Const,
    Index,
    Indirect,
    Load,
    Op,
    Origin,
    Part,
    Pred,
    Reduce,
    Scalar,
    Scan,
    Store,
)
from framesmith.prims.scalars import SCALAR_OPS
from framesmith.symbolic.expr import Expr, Symbol, as_expr, linear, sum_
from framesmith.util.precision import HALF, compute_dtype


def _key(value: Any) -> Any:
    # 0.0 and -0.0, 1 and True and 1.0 are different constants
    return (type(value), repr(value)) if isinstance(value, float) else (type(value), value)


def _sides(difference: Expr) -> tuple[Expr, Expr]:
    """Return a canonical form of `difference` > 0 as `lhs < rhs`: subtracted terms on the left, all divided by their
    common divisor, and one constant, on the right if there is another term.

        4*i + 3 < 56   4*i + 4 < 57   0 < 13 - i    are    i < 13
    """
    terms, offset = linear(difference)
    common = math.gcd(*[k for _, k in terms])
    most = (offset - 1) // common  # the sum of the terms, divided, is no less than -most
    less = sum_([expr * (-k // common) for expr, k in terms if k < 0])
    more = sum_([expr * (k // common) for expr, k in terms if k > 0])
    return (as_expr(-most - 1), more) if less.is_const else (less, more + (most + 1))


class Builder:
    """Collects the operations of one block, in order. `ops` is the block; `mask` the condition under which loads now
    happen (None: always).

    `memo` and `origins` belong to the closures that build: elements built already, and where they come from.
    """

    __slots__ = ("_seen", "mask", "memo", "ops", "origins")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._seen: dict[Any, Op] = {}
        self.mask: Op | None = None
        self.memo: dict[Any, Op] = {}
        self.origins: dict[Origin, None] = {}

    def _emit(self, key: Any, make: Callable[..., Op], *fields: Any) -> Op:
        op = self._seen.get(key)
        if op is None:
            op = self._seen[key] = make(*fields)
            self.ops.append(op)
        return op

    def const(self, value: bool | int | float, dtype: torch.dtype) -> Op:
        dtype = compute_dtype(dtype)
        if dtype is torch.bool:
            value = bool(value)
        elif dtype.is_floating_point:
            value = float(value)
        else:
            least, bits = torch.iinfo(dtype).min, 8 * dtype.itemsize
            value = ((int(value) if math.isfinite(value) else 0) - least) % (1 << bits) + least
        return self._emit(("const", _key(value), dtype), Const, value, dtype)

    def index(self, expr: Expr | int, dtype: torch.dtype = torch.int64) -> Op:
        expr = as_expr(expr)
        if expr.is_const:
            return self.const(expr.const, dtype)
        op = self._emit(("index", expr), Index, expr, torch.int64)
        return op if dtype is torch.int64 else self.cast(op, dtype)

    def pred(self, lhs: Expr | int, rhs: Expr | int) -> Op:
        """lhs < rhs, folded if the ranges decide it."""
        difference = as_expr(rhs) - as_expr(lhs)
        if difference.lo is not None and difference.lo > 0:
            return self.const(True, torch.bool)
        if difference.hi is not None and difference.hi <= 0:
            return self.const(False, torch.bool)
        lhs, rhs = _sides(difference)
        return self._emit(("pred", lhs, rhs), Pred, lhs, rhs)

    def load(self, buffer: str, index: Expr | int, dtype: torch.dtype) -> Op:
        """Load an element; `dtype` is the storage type of the buffer."""
        index, mask = as_expr(index), self.mask
        args = () if mask is None else (mask,)
        return self._emit(("load", buffer, index, mask), Load, buffer, index, compute_dtype(dtype), args)

    def store(self, buffer: str, index: Expr | int, value: Op, mode: str | None = None, mask: Op | None = None) -> None:
        args = (value,) if mask is None else (value, mask)
        self.ops.append(Store(buffer, as_expr(index), args, value.dtype, mode))

    def scalar(self, name: str, *args: Op) -> Op:
        row = SCALAR_OPS[name]
        folded = _fold(self, name, args)
        if folded is not None:
            return folded
        dtype = torch.bool if row.result == "bool" else args[-1].dtype
        return self._emit((name, *args), Scalar, name, args, dtype)

    def cast(self, value: Op, dtype: torch.dtype) -> Op:
        """Cast to storage type `dtype`: bfloat16 and float16 round a float32 value."""
        to = compute_dtype(dtype)
        rounding = dtype if dtype in HALF and not _is_rounded(value, dtype) else None
        if rounding is None and value.dtype is to:
            return value
        if type(value) is Const and rounding is None:
            return self.const(torch.tensor(value.value, dtype=value.dtype, device="cpu").to(to).item(), to)
        return self._emit(("cast", value, to, rounding), Cast, (value,), to, rounding)

    def bitcast(self, value: Op, dtype: torch.dtype) -> Op:
        return self._emit(("bitcast", value, dtype), Bitcast, (value,), dtype)

    def indirect(self, value: Op, symbol: Symbol, size: Expr | int, wrap: bool, check: bool) -> Op:
        size = as_expr(size)
        return self._emit(("indirect", value, size, wrap, check), Indirect, (value,), symbol, size, wrap, check)

    def reduce(self, kind: str, args: tuple[Op, ...], dtype: torch.dtype) -> Op:
        return self._emit(("reduce", kind, args), Reduce, kind, args, compute_dtype(dtype))

    def scan(self, kind: str, value: Op, dtype: torch.dtype) -> Op:
        return self._emit(("scan", kind, value), Scan, kind, (value,), compute_dtype(dtype))

    def part(self, reduction: Op, part: int, dtype: torch.dtype) -> Op:
        return self._emit(("part", reduction, part), Part, (reduction,), part, compute_dtype(dtype))

    def both(self, a: Op | None, b: Op | None) -> Op | None:
        """Return a conjunction, where None is true."""
        if a is None or b is None:
            return a if b is None else b
        return self.scalar("logical_and", a, b)

    def masked(self, mask: Op, value: Callable[[], Op], other: bool | int | float) -> Op:
        """Return `value()` where `mask` holds (it loads only there), else the constant `other`."""
        if type(mask) is Const:
            if mask.value:
                return value()
            # the value is never used; only its type is, which tracing determines
            inner = Builder()
            inner.mask = inner.const(False, torch.bool)
            return self.const(other, value_type(self, value))
        saved = self.mask
        self.mask = self.both(saved, mask)
        try:
            result = value()
        finally:
            self.mask = saved
        return self.scalar("where", mask, result, self.const(other, result.dtype))


def value_type(b: Builder, value: Callable[[], Op]) -> torch.dtype:
    """Return the type of the operation that `value` would build, without changing `b`."""
    count, seen, memo = len(b.ops), dict(b._seen), dict(b.memo)
    dtype = value().dtype
    del b.ops[count:]
    b._seen, b.memo = seen, memo
    return dtype


def _is_rounded(value: Op, dtype: torch.dtype) -> bool:
    return type(value) is Cast and value.rounding is dtype


def _truth(op: Op) -> bool | None:
    return bool(op.value) if type(op) is Const and op.dtype is torch.bool else None


def _connective(neutral: bool) -> Callable[[Builder, Op, Op], Op | None]:
    """Make the rule of `and` (`neutral`: true) or `or`."""

    def fold(b: Builder, x: Op, y: Op) -> Op | None:
        for first, second in ((x, y), (y, x)):
            truth = _truth(first)
            if truth is not None:
                return second if truth is neutral else first
        return x if x is y else None

    return fold


def _fold_not(b: Builder, x: Op) -> Op | None:
    truth = _truth(x)
    return None if truth is None else b.const(not truth, torch.bool)


def _fold_where(b: Builder, cond: Op, x: Op, y: Op) -> Op | None:
    truth = _truth(cond)
    if truth is not None:
        return x if truth else y
    return x if x is y else None


def _is_number(op: Op, number: int) -> bool:
    return type(op) is Const and op.dtype is not torch.bool and op.value == number


def _fold_mul(b: Builder, x: Op, y: Op) -> Op | None:
    if _is_number(y, 1):
        return x
    return y if _is_number(x, 1) else _fold_int(b, x, y, lambda p, q: p * q)


def _fold_add(b: Builder, x: Op, y: Op) -> Op | None:
    # x + 0 -> x is wrong for -0.0 alone, where it gives 0.0: ints only
    if not x.dtype.is_floating_point:
        if _is_number(y, 0):
            return x
        if _is_number(x, 0):
            return y
    return _fold_int(b, x, y, lambda p, q: p + q)


def _fold_sub(b: Builder, x: Op, y: Op) -> Op | None:
    return x if _is_number(y, 0) else _fold_int(b, x, y, lambda p, q: p - q)


def _fold_int(b: Builder, x: Op, y: Op, compute: Callable[[Any, Any], Any]) -> Op | None:
    if type(x) is Const and type(y) is Const and x.dtype is torch.int64:
        return b.const(compute(x.value, y.value), x.dtype)
    return None


def _fold_div(b: Builder, x: Op, y: Op) -> Op | None:
    return x if _is_number(y, 1) else None


_COMPARE = {
    "lt": lambda b, x, y: b.pred(x, y),
    "ge": lambda b, x, y: b.scalar("logical_not", b.pred(x, y)),
    "gt": lambda b, x, y: b.pred(y, x),
    "le": lambda b, x, y: b.scalar("logical_not", b.pred(y, x)),
}


def _as_index(op: Op) -> Expr | None:
    if type(op) is Index:
        return op.expr
    return as_expr(int(op.value)) if type(op) is Const and op.dtype is torch.int64 else None


def _fold_compare(name: str) -> Callable[..., Op | None]:
    def fold(b: Builder, x: Op, y: Op) -> Op | None:
        left, right = _as_index(x), _as_index(y)
        if left is None or right is None:
            return None
        return _COMPARE[name](b, left, right)

    return fold


_INDEX_ARITHMETIC = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
}

_FOLDS: dict[str, Callable[..., Op | None]] = {
    "logical_and": _connective(True),
    "logical_or": _connective(False),
    "logical_not": _fold_not,
    "where": _fold_where,
    "mul": _fold_mul,
    "add": _fold_add,
    "sub": _fold_sub,
    "div": _fold_div,
    **{name: _fold_compare(name) for name in _COMPARE},
}


def _fold(b: Builder, name: str, args: Sequence[Op]) -> Op | None:
    fold = _FOLDS.get(name)
    folded = fold(b, *args) if fold is not None else None
    if folded is None and name in _INDEX_ARITHMETIC and any(type(a) is Index for a in args):
        left, right = _as_index(args[0]), _as_index(args[1])
        if left is not None and right is not None:
            return b.index(_INDEX_ARITHMETIC[name](left, right))
    return folded


class Replay:
    """Rebuilds operations in `builder`, with index symbols substituted by `sub`, and loads replaced on demand.

    `values` maps an old operation to a new one; `load(op, index, mask)` may return the new value of a load (None: an
    ordinary load).
    """

    __slots__ = ("b", "load", "rename", "sub", "values")

    def __init__(self, builder: Builder, sub: dict[Expr, Expr | int], values: dict[Op, Op],
                 load: Callable[[Load, Expr], Op | None] | None = None, rename: dict[str, str] | None = None) -> None:
        self.b, self.sub, self.values, self.load, self.rename = builder, sub, values, load, rename or {}

    def expr(self, e: Expr) -> Expr:
        return e.subs(self.sub) if self.sub else e

    def run(self, ops: Sequence[Op]) -> None:
        """Replay `ops` in order, including stores."""
        values = self.values
        for op in ops:
            values[op] = REPLAY[type(op)](self, op, tuple(values[a] for a in op.args))  # type: ignore[assignment]


def _replay_load(r: Replay, op: Load, args: tuple[Op, ...]) -> Op:
    index = r.expr(op.index)
    if r.load is not None:
        value = r.load(op, index)
        if value is not None:
            return value
    b, saved = r.b, r.b.mask
    b.mask = b.both(saved, args[0] if args else None)
    if type(b.mask) is Const and b.mask.value:
        b.mask = None
    result = b._emit(("load", r.rename.get(op.buffer, op.buffer), index, b.mask), Load,
                     r.rename.get(op.buffer, op.buffer), index, op.dtype, () if b.mask is None else (b.mask,))
    b.mask = saved
    return result


def _replay_store(r: Replay, op: Store, args: tuple[Op, ...]) -> Op:
    mask = args[1] if len(args) > 1 else None
    if mask is None or _truth(mask) is None:
        r.b.store(r.rename.get(op.buffer, op.buffer), r.expr(op.index), args[0], op.mode, mask)
    elif _truth(mask):
        r.b.store(r.rename.get(op.buffer, op.buffer), r.expr(op.index), args[0], op.mode)
    return args[0]


def _replay_indirect(r: Replay, op: Indirect, args: tuple[Op, ...]) -> Op:
    result = r.b.indirect(args[0], op.symbol, r.expr(op.size), op.wrap, op.check)
    if result.symbol is not op.symbol:  # type: ignore[attr-defined]
        r.sub = {**r.sub, op.symbol: result.symbol}  # type: ignore[attr-defined]
    return result


def _replay_cast(r: Replay, op: Cast, args: tuple[Op, ...]) -> Op:
    return r.b.cast(args[0], op.rounding or op.dtype)


REPLAY: dict[type, Callable[[Replay, Any, tuple[Op, ...]], Op]] = {
    Const: lambda r, op, a: r.b.const(op.value, op.dtype),
    Index: lambda r, op, a: r.b.index(r.expr(op.expr), op.dtype),
    Pred: lambda r, op, a: r.b.pred(r.expr(op.lhs), r.expr(op.rhs)),
    Indirect: _replay_indirect,
    Load: _replay_load,
    Store: _replay_store,
    Scalar: lambda r, op, a: r.b.scalar(op.name, *a),
    Cast: _replay_cast,
    Bitcast: lambda r, op, a: r.b.bitcast(a[0], op.dtype),
    Reduce: lambda r, op, a: r.b.reduce(op.kind, a, op.dtype),
    Scan: lambda r, op, a: r.b.scan(op.kind, a[0], op.dtype),
    Part: lambda r, op, a: r.b.part(a[0], op.part, op.dtype),
}
