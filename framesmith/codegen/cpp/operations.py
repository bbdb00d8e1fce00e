"""Statements of a kernel's body as C++, one row a node type."""

from __future__ import annotations

from collections.abc import Callable

import torch

from framesmith.codegen.cpp.index import divisor, expr_text, lane_step, near_text, split, vector_text
from framesmith.codegen.cpp.scalars import by_power_of_two, scalar_text
from framesmith.codegen.cpp.state import State
from framesmith.codegen.cpp.types import type_row
from framesmith.loops.ir import Bitcast, Cast, Const, Index, Indirect, Load, Op, Pred, Reduce, Scalar, Store
from framesmith.symbolic.expr import Expr


def assign(s: State, op: Op, lanes: bool, single: bool, make: Callable[[int], str]) -> None:
    """Print `op` as a constant: once if it is the same for every vector in flight, else once for each; `make(copy)`
    returns the text."""
    copies = 1 if single else s.copies
    name = f"v{s.number(op)}"
    texts = (name,) if copies == 1 else tuple(f"{name}_{k}" for k in range(copies))
    kind = s.ctype(op, lanes)
    for k, text in enumerate(texts):
        s.out.line(f"const {kind} {text} = {make(k)};")
    s.define(op, texts, lanes)


def _single(s: State, op: Op, *exprs: Expr) -> bool:
    return all(s.is_single(a) for a in op.args) and not any(s.moves(e) for e in exprs)


def _one_plus(op: Scalar) -> tuple[str, Op] | None:
    """Return the special forms of 1 + erf(x) and 1 + tanh(x), which GELU uses: cheaper, and exact near zero."""
    if op.name != "add" or op.dtype is not torch.float32:
        return None
    for one, other in (op.args, op.args[::-1]):
        if type(one) is Const and one.value == 1 and type(other) is Scalar and other.name in ("erf", "tanh"):
            return f"one_plus_{other.name}", other.args[0]
    return None


def _sum_of_exponentials(op: Op) -> bool:
    """Return whether `op` is softmax's sum of exp(x - max x): at least 1, so that its reciprocal is accurate."""
    if type(op) is not Reduce or op.kind != "sum" or op.dtype is not torch.float32:
        return False
    e = op.args[0]
    shift = e.args[0] if type(e) is Scalar and e.name == "exp" else None
    return (type(shift) is Scalar and shift.name == "sub" and type(shift.args[1]) is Reduce
            and shift.args[1].kind == "max")


def _scalar(s: State, op: Scalar) -> None:
    lanes = any(s.is_vector(a) for a in op.args)
    kind = op.args[0].dtype

    shifted = _one_plus(op)
    if shifted is not None:
        name, inner = shifted
        assign(s, op, lanes, _single(s, op), lambda k: f"{name}({s.operand(inner, k, lanes)})")
        return
    divide = lanes and op.name == "div" and _sum_of_exponentials(op.args[1])

    divisor = op.args[1].value if len(op.args) == 2 and type(op.args[1]) is Const and not kind.is_floating_point else 0

    def make(k: int) -> str:
        operands = [s.operand(a, k, lanes) for a in op.args]
        shifted = by_power_of_two(op.name, operands[0], int(divisor), lanes, kind)
        if shifted is not None:
            return shifted
        if divide and not s.is_vector(op.args[1]):
            return f"{operands[0]} * splat(1.0f / {s.operand(op.args[1], k, False)})"
        if op.name == "where" and not s.is_vector(op.args[0]):
            operands[0] = s.operand(op.args[0], k, False)
        return scalar_text(op.name, operands, kind, op.dtype)

    assign(s, op, lanes, _single(s, op), make)


def _cast(s: State, op: Cast) -> None:
    lanes = s.is_vector(op.args[0])
    name = type_row(op.rounding or op.dtype).convert
    if op.rounding:
        name = "to_" + type_row(op.rounding).storage
        inner = type_row(op.dtype).convert
        assign(s, op, lanes, _single(s, op), lambda k: f"{name}({inner}({s.operand(op.args[0], k, lanes)}))")
    else:
        assign(s, op, lanes, _single(s, op), lambda k: f"{name}({s.operand(op.args[0], k, lanes)})")


def _bitcast(s: State, op: Bitcast) -> None:
    lanes = s.is_vector(op.args[0])
    kind = s.ctype(op, lanes)
    assign(s, op, lanes, _single(s, op), lambda k: f"bits<{kind}>({s.operand(op.args[0], k, lanes)})")


def _varies(s: State, e: Expr) -> bool:
    """Return whether `e` differs from lane to lane."""
    if not e.free.isdisjoint(s.lane_symbols):
        return True
    if s.axis is None or s.axis not in e.free:
        return False
    step = lane_step(e, s.axis, s.target.width)
    return step is None or not step.is_const or step.const != 0


def lane_text(s: State, e: Expr, k: int) -> str:
    """Return the values of `e` in the lanes of vector `k`, as a vl."""
    if s.axis is not None and e.free.isdisjoint(s.lane_symbols):
        step = lane_step(e, s.axis, s.target.width)
        if step is not None:
            base = expr_text(e, s.names_of(k))
            return (f"iota({base})" if step.is_const
                    and step.const == 1 else f"iota({base}, {expr_text(step, s.names_of(k))})")
    return vector_text(e, s.names_of(k), s.lanes_of(k))


def _index(s: State, op: Index) -> None:
    lanes = _varies(s, op.expr)
    convert = type_row(op.dtype).convert
    one = lane_text if lanes else lambda s, e, k: f"i64({expr_text(e, s.names_of(k))})"
    assign(s, op, lanes, _single(s, op, op.expr), lambda k: f"{convert}({one(s, op.expr, k)})")


_INT32 = 2**31 - 1


def _narrow_lanes(s: State, e: Expr, k: int) -> str | None:
    """Return `e` per lane as vi, if its range and shape allow it: comparisons of positions then take one register."""
    step = lane_step(e, s.axis, s.target.width) if s.axis is not None and e.free.isdisjoint(s.lane_symbols) else None
    if step is None or not step.is_const or e.lo is None or e.hi is None or max(-e.lo, e.hi) > _INT32:
        return None
    base = f"splat(int({expr_text(e, s.names_of(k))}))"
    return base if step.const == 0 else f"({base} + iota32(){'' if step.const == 1 else f' * {step.const}'})"


def _pred(s: State, op: Pred) -> None:
    sides = (op.lhs, op.rhs)
    lanes = any(_varies(s, e) for e in sides)

    def make(k: int) -> str:
        if not lanes:
            return " < ".join(f"i64({expr_text(e, s.names_of(k))})" for e in sides)
        narrow = [_narrow_lanes(s, e, k) for e in sides]
        texts = narrow if all(narrow) else [lane_text(s, e, k) for e in sides]
        return f"lt({texts[0]}, {texts[1]})"

    assign(s, op, lanes, _single(s, op, *sides), make)


def _indirect(s: State, op: Indirect) -> None:
    lanes = s.is_vector(op.args[0])
    value, flag = op.args[0], "error" if op.check else "nullptr"
    s.checks = s.checks or op.check
    wrap = "true" if op.wrap else "false"

    def make(k: int) -> str:
        size = f"i64({expr_text(op.size, s.names_of(k))})"
        tail = f", {s.live}" if lanes else ""
        inner = f"to_i64({s.operand(value, k, lanes)})"
        return f"position<{wrap}>({inner}, {size}, {flag}{tail})" if op.wrap or op.check else inner

    assign(s, op, lanes, _single(s, op, op.size), make)
    texts = s.values[op].texts
    if lanes:
        s.lane_symbols[op.symbol] = texts
        return
    s.names[op.symbol] = texts
    if op.symbol is s.owned:
        s.out.line(f"if ({texts[0]} < owned_from || {texts[0]} >= owned_to) continue;")


# --------------------------------------------------------------------------------------------------------------- memory


def access(s: State, e: Expr) -> tuple[str, Expr | None]:
    """Classify how lanes access memory at `e`: "one" (all the same element), "run" (consecutive elements), "strided"
    with the stride, or "any"."""
    if not e.free.isdisjoint(s.lane_symbols):
        return "any", None
    if s.axis is None or s.axis not in e.free:
        return "one", None
    step = lane_step(e, s.axis, s.target.width)
    if step is None:
        return "any", None
    if step.is_const and step.const in (0, 1):
        return ("run" if step.const else "one"), None
    return "strided", step


def _place(s: State, buffer: str, e: Expr, k: int) -> str:
    text = expr_text(e, s.names_of(k))
    return (buffer if text == "0"
            else f"{buffer} + {text[1:-1] if text[0] == '(' and text.find(')') == len(text) - 1 else text}")


def _gathered(s: State, op: Load | Store, k: int) -> str:
    """Return the pointer and positions of arbitrary lanes: the uniform part is added to the pointer."""
    moving = frozenset(s.lane_symbols) | ({s.axis} if s.axis is not None else frozenset())
    still, rest = split(op.index, moving)  # type: ignore[arg-type]
    pointer = _place(s, op.buffer, still, k)
    masked = len(op.args) > (type(op) is Store)
    near = None if masked or type(op) is Store else near_text(rest, s.names_of(k), s.near_lanes_of(k))
    return f"{pointer}, {near or lane_text(s, rest, k)}"


def _load(s: State, op: Load) -> None:
    if op in s.tiles:
        assign(s, op, True, False, lambda k: f"load({s.tiles[op]}, full)")
        return
    how, step = access(s, op.index)
    mask = op.args[0] if op.args else None
    masked = mask is not None and s.is_vector(mask)
    lanes = how != "one" or masked

    def make(k: int) -> str:
        at = _place(s, op.buffer, op.index, k) if how != "any" and not masked or how == "run" else ""
        if masked:
            m = s.operand(mask, k, True)  # type: ignore[arg-type]
            return f"load_if({at}, {m}, {s.live})" if how == "run" else f"gather({_gathered(s, op, k)}, {m}, {s.live})"
        forms = {
            "one": lambda: f"load({at})",
            "run": lambda: f"load({at}, {s.live})",
            "strided": lambda: f"load_strided({at}, {expr_text(step, s.names_of(k))}, {s.live})",  # type: ignore[arg-type]
            "any": lambda: f"gather({_gathered(s, op, k)}, {s.live})",
        }
        text = forms[how]()
        return f"{s.operand(mask, k, False)} ? {text} : {s.ctype(op, lanes)}{{}}" if mask is not None else text

    assign(s, op, lanes, _single(s, op, op.index), make)


def _private(s: State, op: Store) -> bool:
    """Return whether threads that share the loop over columns add to different elements: index = column + multiple of
    the number of columns."""
    if s.columns is None or s.kernel.outer:
        return False
    still, rest = split(op.index, frozenset((s.columns.symbol,)))
    extent = s.columns.extent
    return rest is s.columns.symbol and extent.is_const and divisor(still, s.columns.symbol, 1) % extent.const == 0


def _unrounded(s: State, op: Store) -> Op:
    """Return the value to store, before an explicit rounding to the buffer's type, since the store rounds it."""
    value, param = op.args[0], s.params.get(op.buffer)
    rounded = type(value) is Cast and value.rounding is not None and param is not None and value.rounding is param.dtype
    return value.args[0] if rounded and value.args[0].dtype is torch.float32 and op.mode is None else value


def _store_text(s: State, op: Store, k: int) -> str:
    how, step = access(s, op.index)
    mask = op.args[1] if len(op.args) > 1 else None
    stored = _unrounded(s, op)
    masked = mask is not None and s.is_vector(mask)
    lanes = how != "one" or masked or s.is_vector(stored)
    value = s.operand(stored, k, lanes)
    prefix = "" if op.mode is None else "atomic_" if s.parallel and not (s.disjoint_adds or _private(s, op)) else "add_"
    one = _place(s, op.buffer, op.index, k) if how != "any" else ""
    if not lanes:
        text = f"{prefix}to({one}, {value})" if prefix else f"store({one}, {value})"
    elif masked or s.owned in s.lane_symbols:
        m = _among_owned(s, s.operand(mask, k, True) if mask is not None else None, k)
        run = how == "run" and not prefix
        text = f"store_if({one}, {value}, {m}, {s.live})" if run else (f"{prefix}scatter({_gathered(s, op, k)}, "
                                                                       f"{value}, {m}, {s.live})")
    elif how == "run" and prefix != "atomic_":
        text = f"{'add_run' if prefix else 'store'}({one}, {value}, {s.live})"
    elif how == "strided" and not prefix:
        text = f"store_strided({one}, {expr_text(step, s.names_of(k))}, {value}, {s.live})"  # type: ignore[arg-type]
    else:
        text = f"{prefix}scatter({_gathered(s, op, k)}, {value}, {s.live})"
    return f"if ({s.operand(mask, k, False)}) {text};" if mask is not None and not masked else f"{text};"


def _among_owned(s: State, mask: str | None, k: int) -> str:
    """Return the mask of lanes to write: `mask`, restricted to indices of the thread if threads own indices."""
    at = s.lanes_of(k).get(s.owned) if s.owned is not None else None
    own = f"(~lt({at}, splat(owned_from)) & lt({at}, splat(owned_to)))" if at is not None else None
    return " & ".join(text for text in (mask, own) if text is not None)


def _store(s: State, op: Store) -> None:
    if op in s.tiles:
        s.out.line(f"store({s.tiles[op]}, {s.operand(op.args[0], 0, True)}, full);")
        return
    single = _single(s, op, op.index) and op.mode is None
    for k in range(1 if single else s.copies):
        s.out.line(_store_text(s, op, k))


STATEMENTS: dict[type, Callable[[State, Op], None]] = {
    Const: lambda s, op: None,
    Index: _index,  # type: ignore[dict-item]
    Pred: _pred,  # type: ignore[dict-item]
    Indirect: _indirect,  # type: ignore[dict-item]
    Load: _load,  # type: ignore[dict-item]
    Store: _store,  # type: ignore[dict-item]
    Scalar: _scalar,  # type: ignore[dict-item]
    Cast: _cast,  # type: ignore[dict-item]
    Bitcast: _bitcast,  # type: ignore[dict-item]
}
