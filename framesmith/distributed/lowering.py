"""Lowering of collectives: a call that begins one gives memory of its own, and the wait keeps alive what is sent."""

from __future__ import annotations

from typing import Any

from torch import fx

from framesmith.distributed.operators import ALL_REDUCE, BROADCAST, STARTS, WAIT, Wait
from framesmith.loops.ir import Ref
from framesmith.loops.nest import Call
from framesmith.loops.uses import names_in
from framesmith.lower.context import Context
from framesmith.lower.geometry import row_major
from framesmith.lower.layouts import ARGUMENT_LAYOUTS, CUDA_ARGUMENT_LAYOUTS, RESULT_LAYOUTS
from framesmith.lower.table import lowers_extern
from framesmith.lower.values import Stored

_COPYING = frozenset((ALL_REDUCE, BROADCAST))
"""Operators that send a copy of their operand."""

for _start in STARTS:
    RESULT_LAYOUTS[_start] = lambda spec, values: row_major(spec.shape)
    ARGUMENT_LAYOUTS[_start] = lambda position, value, frozen: row_major(value.shape)
    CUDA_ARGUMENT_LAYOUTS[_start] = lambda position, values: row_major(values[position].shape)


@lowers_extern(WAIT)
def lower_wait(ctx: Context, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stored | None:
    """Append the call; what reads the value comes behind it, since it writes the memory. None if the collective has
    begun in another graph."""
    value = args[0]
    start = next((item for item in reversed(ctx.items)
                  if isinstance(item, Call) and isinstance(value, Stored) and value.buffer in item.outputs), None)
    if start is None:
        return None
    sent = [] if start.target in _COPYING else names_in(start.args)
    reads, writes = start.reads | {value.buffer}, frozenset([value.buffer])
    refs = (ctx.ref(value), *map(Ref, sent))
    ctx.items.append(Call(Wait(str(start.target)), refs, {}, (), (value.buffer,), reads, writes, ctx.origin))
    return value
