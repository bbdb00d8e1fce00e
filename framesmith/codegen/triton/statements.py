"""Statements of a tile program as Triton text, one row a node type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framesmith.codegen.triton.literal_params import integer
from framesmith.codegen.triton.scalar_params import value_text
from framesmith.codegen.triton.scalars import cast_text, scalar_text
from framesmith.codegen.triton.state import State
from framesmith.codegen.triton.steps import Barrier
from framesmith.codegen.triton.types import operand, type_row
from framesmith.loops.ir import Bitcast, Cast, Const, Index, Indirect, Load, Op, Pred, Scalar, Store
from framesmith.symbolic.expr import Expr, Product, linear
from framesmith.util.precision import HALF


def _scalar(s: State, op: Scalar) -> None:
    if op in s.fast.spared:
        return
    if op in s.fast.sums:
        function, value = s.fast.sums[op]
        s.functions.add(function)
        s.define(op, s.dims_of(value), f"{function}({s.whole(value)})")
        return
    if _is_loaded_so(s, op):
        s.values[op], s.dims[op] = s.values[op.args[1]], s.dims[op.args[1]]
        return
    kind = op.args[-1].dtype
    operands = [s.text(a) for a in op.args]
    if all(type(a) is Const for a in (op.args[1:] if op.name == "where" else op.args)):
        operands[-1] = s.whole(op.args[-1])
    name = op.name
    if name == "random_bits":
        operands = _drawn(s, op)
        name = ("random_bits_of_four" if op.args[2].value % 4 == 0  # type: ignore[attr-defined]
                and _by_fours(s, op.args[4]) else name)
    elif name == "rshift" and type(op.args[1]) is Const and 0 <= op.args[1].value < 8 * kind.itemsize:
        name = "rshift_known"
    text = scalar_text(name, operands, kind, op in s.fast.ops)
    s.functions.add(text.partition("(")[0])
    s.define(op, s.dims_of(*op.args), text)


def _is_loaded_so(s: State, op: Scalar) -> bool:
    """Return whether `op` selects the value that a masked load returns anyway: zero where its condition is false."""
    if op.name != "where":
        return False
    condition, value, other = op.args
    zero = type(other) is Const and repr(other.value) in ("0", "0.0", "False")
    return zero and type(value) is Load and value.args == (condition,) and not s.params[value.buffer].host


def _drawn(s: State, op: Scalar) -> list[str]:
    """Return the operands of `random_bits`. Places are unsigned, and of 32 bits if they fit: then a division is a
    product."""
    seed, offset, vector, threads, place = op.args
    most = place.value if type(place) is Const else place.expr.hi if type(place) is Index else None
    kind = "tl.uint32" if most is not None and most < 1 << 31 else "tl.uint64"
    many = f"tl.full([], {threads.value}, {kind})" if type(threads) is Const else f"{s.whole(threads)}.to({kind})"
    assert type(vector) is Const
    return [s.whole(seed), s.whole(offset), str(vector.value), many, f"{s.whole(place)}.to({kind})"]


def _by_fours(s: State, place: Op) -> bool:
    """Return whether places are consecutive along the last dimension of the tile, from a multiple of four on."""
    if type(place) is not Index or not s.active or s.aligned is not None or len(s.active) > 2:
        return False
    last = next(d for d in (*s.form.grid, s.form.row) if d is not None and d.name == s.active[-1])
    inner = last.axes[-1]
    rest, offset = linear(place.expr - inner.symbol)
    if place.expr.coeff(inner.symbol) != 1 or offset % 4 or any(k % 4 for _, k in rest) or s.block(last.name) % 4:
        return False
    return len(last.axes) == 1 or inner.extent.is_const and inner.extent.const % 4 == 0


def _cast(s: State, op: Cast) -> None:
    (value,) = op.args
    text = cast_text(s.whole(value), value.dtype, op.dtype)
    if op.rounding is not None:
        text = f"{text}.to({type_row(op.rounding).name}).to({type_row(op.dtype).name})"
    s.define(op, s.dims_of(value), text)


def _bitcast(s: State, op: Bitcast) -> None:
    s.define(op, s.dims_of(*op.args), f"{s.whole(op.args[0])}.to({type_row(op.dtype).name}, bitcast=True)")


def _index(s: State, op: Index) -> None:
    text = s.expr(op.expr)
    text = f"({text})" if type(op.expr) is Product else text
    s.define(op, s.of(op.expr), f"{text}.to({type_row(op.dtype).name})")


def _pred(s: State, op: Pred) -> None:
    """Print a comparison with a constant on the right: Triton then sees over how many elements it is uniform."""
    loose = not s.of(op.lhs, op.rhs) & s.running
    low, high = (s.expr(op.rhs, loose), s.expr(op.lhs + 1, loose)) if op.lhs.is_const else (s.expr(op.lhs, loose),
                                                                                            s.expr(op.rhs, loose))
    text = f"{low} >= {high}" if op.lhs.is_const else f"{low} < {high}"
    s.define(op, s.of(op.lhs, op.rhs), text)


def _indirect(s: State, op: Indirect) -> None:
    """Print a loaded index: the value is int64; the symbol has 32 bits if the size allows it."""
    dims, size = s.dims_of(op.args[0]), s.expr(op.size)
    s.define(op, dims, f"{s.whole(op.args[0])}.to(tl.int64)")
    name = s.values[op]
    if op.wrap:
        s.out.line(f"{name} = tl.where({name} < 0, {name} + {size}, {name})")
    if op.check:
        s.asserts = True
        mask = s.mask(dims)
        s.out.line(f'tl.device_assert(({name} >= 0) & ({name} < {size}), "index out of '
                   f'range"{f", {mask}" if mask else ""})')
    near = not s.wide and op.size.hi is not None and op.size.hi < 1 << 31
    s.out.line(f"{op.symbol} = {name}{'.to(tl.int32)' if near else ''}")
    s.along[op.symbol], s.extents[op.symbol] = dims, op.size


# --------------------------------------------------------------------------------------------------------------- memory

WINDOW = 3  # accesses that are a number of elements apart, from which on these are counted from one place


def place(s: State, buffer: str, index: Expr, spread: frozenset[str] | None = None) -> str:
    """Return the pointers; `spread`: dimensions that their shape must have."""
    text = "(origin + at)" if s.is_shifted(index) else s.expr(index)
    if s.vector is not None and s.vector.symbol in index.free and index - s.vector.symbol is s.vector.base:
        text = f"tl.multiple_of({text}, {s.vector.width})"
    if spread is not None and spread - s.of(index):
        return f"{buffer} + tl.full({s.shape(spread)}, 0, tl.int32) + {text}"
    return buffer if text == "0" else _near(s, buffer, index) or f"{buffer} + {text}"


def _near(s: State, buffer: str, index: Expr) -> str:
    """Return the pointers as an offset from common base pointers: one addition, and shorter text. "" if few share the
    base."""
    offset = linear(index)[1]
    window = buffer, index - offset
    if s.windows[window] < WINDOW or not window[1].free:
        return ""
    if window not in s.values:
        s.values[window] = f"at{len(s.values)}"
        s.out.line(f"{s.values[window]} = {buffer} + {s.expr(window[1])}")
    return f"{s.values[window]} {'-' if offset < 0 else '+'} {integer(abs(offset))}" if offset else s.values[window]


def _load(s: State, op: Load) -> None:
    param = s.params[op.buffer]
    if param.host:
        _number(s, op)
        return
    dims = s.of(op.index)
    condition = op.args[0] if op.args else None
    if condition is not None:
        dims = dims | s.dims_of(condition)
    at = place(s, op.buffer, op.index, dims)
    vectors = condition is None and s.is_shifted(op.index)  # whole ones: what is not the row's is used nowhere
    mask = s.mask(dims, *([s.text(condition)] if condition is not None else []), row="r_near" if vectors else "")
    policy = s.policies[0] if "r" in dims else ""
    text = f"tl.load({at}{f', {mask}' if mask else ''}{', other=0' if condition is not None else ''}{policy})"
    s.define(op, dims, text + (".to(tl.float32)" if param.dtype in HALF else ""))


def _number(s: State, op: Load) -> None:
    """Print the value of a scalar parameter; 0 where the load is masked."""
    text = value_text(op.buffer, op.dtype)
    s.define(op, s.dims_of(*op.args),
             f"tl.where({s.text(op.args[0])}, {text}, {operand(0, op.dtype)})" if op.args else text)


def _store(s: State, op: Store) -> None:
    """Print a store. With a mode, each element of the tile adds its own value atomically."""
    dims = s.of(op.index) | s.dims_of(*op.args)
    if op.mode is not None:
        dims = dims | frozenset(a for a in s.active if a != "r" or op in s.nested)
    at = place(s, op.buffer, op.index, dims)
    mask = s.mask(dims, *(s.text(a) for a in op.args[1:]))
    tail = f", {mask}" if mask else ""
    value = s.text(op.args[0])
    if op.mode is None:
        if s.is_shifted(op.index) and len(op.args) == 1:
            s.out.line(f"tl.store({at}, {value}, {s.mask(dims, row='r_inner')})")
            tail += " & ~r_inner"
        s.out.line(f"tl.store({at}, {value}{tail}{s.policies[1] if op in s.nested else ''})")
        return
    name = type_row(s.params[op.buffer].dtype).name
    s.out.line(f"tl.atomic_add({at}, {s.whole(op.args[0])}.to({name}){tail}, sem='relaxed')")


STATEMENTS: dict[type, Callable[[State, Any], None]] = {
    Const: lambda s, op: None,
    Index: _index,
    Pred: _pred,
    Indirect: _indirect,
    Load: _load,
    Store: _store,
    Scalar: _scalar,
    Cast: _cast,
    Bitcast: _bitcast,
    Barrier: lambda s, op: s.out.line("tl.debug_barrier()"),
}


def statement(s: State, op: Op) -> None:
    """Print one operation."""
    STATEMENTS[type(op)](s, op)
