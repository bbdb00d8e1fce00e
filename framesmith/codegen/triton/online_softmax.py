"""A maximum over a row, and the sum of exponentials below it, in one pass instead of two (Milakov and Gimelshein 2018).

    for part of the row: m = max of x                  for part of the row: m, s = what they are with x as well
    for part of the row: s = sum of exp(x - m)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framesmith.codegen.triton.edges import VECTOR
from framesmith.codegen.triton.reductions import axis_text, keep_text, spread
from framesmith.codegen.triton.state import State
from framesmith.codegen.triton.steps import Block
from framesmith.codegen.triton.types import type_row
from framesmith.loops.ir import Cast, Const, Index, Load, Op, Reduce, Scalar


@dataclass(slots=True, eq=False)
class Online(Op):
    """The reductions `top` and `total` (the sum of exp(value - top)) of `args[0]`."""

    args: tuple[Op]
    top: Reduce
    total: Reduce


def merged(blocks: list[Block]) -> list[Block]:
    """Return `blocks` with such pairs of passes merged."""
    out: list[Block] = []
    last: Block | None = None
    for block in blocks:
        pair = _pair(last, block) if last is not None and block.loop else None
        if pair is not None:
            assert last is not None
            last.ops[last.ops.index(pair.top)] = pair
            last = None
            continue
        out.append(block)
        last = block if block.loop else last
    return out


def _pair(first: Block, second: Block) -> Online | None:
    """Return the operation that replaces the reductions of two passes that compute only a maximum and the sum of
    exponentials below it; None for others."""
    reduces = [[op for op in block.ops if type(op) is Reduce] for block in (first, second)]
    if len(reduces[0]) != 1 or len(reduces[1]) != 1 or first.nested or second.nested:
        return None
    (top,), (total,) = reduces
    e = total.args[0]
    below = e.args[0] if type(e) is Scalar and e.name == "exp" else None
    if (top.kind != "max" or total.kind != "sum" or type(below) is not Scalar or below.name != "sub"
        or below.args[1] is not top):
        return None
    return Online((top.args[0],), top, total) if _same(top.args[0], below.args[0]) else None


_FIELDS: dict[type, tuple[str, ...]] = {
    Const: ("value", "dtype"),
    Index: ("expr", "dtype"),
    Load: ("buffer", "index", "dtype"),
    Scalar: ("name", "dtype"),
    Cast: ("dtype", "rounding"),
}


def _same(a: Op, b: Op) -> bool:
    """Return whether two operations compute the same value."""
    if a is b:
        return True
    names = _FIELDS.get(type(a))
    if type(a) is not type(b) or names is None or len(a.args) != len(b.args) or any(getattr(a, n) != getattr(b, n)
                                                                                    for n in names):
        return False
    return all(map(_same, a.args, b.args))


# ------------------------------------------------------------------------------------------------------------- printing


def declare(s: State, op: Online) -> None:
    """Print the accumulators, before the loop."""
    shape, kind = s.shape(s.active), type_row(op.top.dtype).name
    if (group := _group(s, op)) > 1:
        shape = f"[RBLOCK // {group}]"
    for reduce, start in ((op.top, 'float("-inf")'), (op.total, "0")):
        s.dims[reduce] = frozenset(a for a in s.active if a != "r")
        s.out.line(f"{s.name(reduce)}s = tl.full({shape}, {start}, {kind})")


def accumulate(s: State, op: Online) -> None:
    """Print the update by one part of the row."""
    group = _group(s, op)
    function = "one_more_exponential" if group == 1 else "more_exponentials"
    s.functions.add(function)
    top, total, live = s.values[op.top], s.values[op.total], s.live.get("r")
    value = spread(s, op.args[0])
    if live:
        value = f'tl.where({live}, {value}, float("-inf"))'
    if group > 1:
        value = f"tl.reshape({value}, [RBLOCK // {group}, {group}])"
    s.out.line(f"{top}s, {total}s = {function}({top}s, {total}s, {value})")


def _group(s: State, op: Online) -> int:
    """Return the number of adjacent elements that share an accumulator: those that a thread loads at once."""
    if s.active != ("r",) or op.top.dtype is not torch.float32:
        return 1
    widths, todo = [], [op.args[0]]
    while todo:
        at = todo.pop()
        if type(at) is Load:
            widths.append(s.params[at.buffer].dtype.itemsize)
        todo += at.args
    return min(VECTOR // max(widths, default=4), s.block("r"))


def finish(s: State, op: Online) -> None:
    """Print the results, after the loop; a row with an infinite maximum has no sum."""
    s.functions.add("exponentials")
    top, total = s.values[op.top], s.values[op.total]
    s.out.line(f"{top}, {total} = tl.reduce(({top}s, {total}s), {axis_text(s)}, exponentials{keep_text(s)})")
    s.out.line(f'{total} = tl.where(tl.abs({top}) == float("inf"), float("nan"), {total})')
