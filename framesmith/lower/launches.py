"""Launches of the program's own kernels, which write into buffers of this graph.

A buffer is written in place if its old value has no later reader: one that the graph computed, or an input that the
graph writes anyway. Otherwise the kernel writes a copy.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from framesmith.graph.launch import InPlace, Launch, Memory
from framesmith.loops.nest import Call
from framesmith.lower.context import Context
from framesmith.lower.geometry import same_layout
from framesmith.lower.table import unsupported_dtype
from framesmith.lower.values import Computed, Lowered, Stored, reads_of
from framesmith.util.errors import Unsupported

_COPY = torch.ops.aten.copy_.default


def lower_launch(ctx: Context, node: fx.Node, args: tuple[Any, ...]) -> tuple[Stored, ...]:
    """Append the call, and return the buffers that it writes."""
    launch: Any = node.target
    buffers = []
    for k, (how, value) in enumerate(zip(launch.memories, args, strict=True)):
        buffers.append(_written(ctx, node, k, how, value) if k in launch.written else ctx.realise(value, how.stride))
    written = [buffers[k].buffer for k in launch.written]
    refs = tuple([ctx.ref(b) for b in buffers])
    reads = frozenset([b.buffer for b in buffers])
    ctx.items.append(Call(InPlace(launch), refs, {}, (), tuple(written), reads, frozenset(written), ctx.origin))
    return tuple([buffers[k] for k in launch.written])


def _written(ctx: Context, node: fx.Node, k: int, how: Memory, value: Lowered | None) -> Stored:
    """Return the buffer that the kernel writes, with its old value."""
    if value is None:
        return ctx.storage(how.size, how.stride, how.dtype, device=how.device)
    if isinstance(value, Stored) and _is_whole(ctx, value, how) and not _is_read_later(ctx, node, value.buffer):
        kind = ctx.storages[value.buffer].kind
        if kind in ("arena", "result") or kind == "input" and _goes_back(node, k):
            return value
    if unsupported_dtype(how.dtype):
        raise Unsupported(f"a kernel that writes a tensor of {how.dtype}")
    return ctx.materialise(value, how.stride, written=True)


def _is_whole(ctx: Context, value: Stored, how: Memory) -> bool:
    """Return whether a window is all of its buffer, in the layout that the launch states."""
    base = ctx.storages[value.buffer]
    same = value.dtype is base.dtype and value.shape == base.size == how.size
    return same and value.offset == 0 and all(same_layout(value.shape, value.stride, stride)
                                              for stride in (base.stride, how.stride))


def _is_read_later(ctx: Context, node: fx.Node, buffer: str) -> bool:
    """Return whether a value that reads the buffer is used after `node` (except for the write-back to that buffer)."""
    after = set(_after(node))
    for one, value in ctx.env.items():
        later = any(user in after and not (user.target is _COPY and user.args[0] is one) for user in one.users)
        if later and any(_touches(ctx, v, buffer) for v in (value if isinstance(value, tuple) else (value,))):
            return True
    return False


def _touches(ctx: Context, value: Any, buffer: str) -> bool:
    if isinstance(value, Computed):
        value = ctx.stored(value)
    return buffer in reads_of(value)


def _after(node: fx.Node) -> Iterator[fx.Node]:
    node = node.next
    while node.op != "root":
        yield node
        node = node.next


def _goes_back(node: fx.Node, k: int) -> bool:
    """Return whether the new value of memory `k`, an input, is written back to that input at the end, and only kernels
    read it before."""
    place = node.args[k]
    while True:
        assert isinstance(node.target, Launch)
        result = next((u for u in node.users if u.target is operator.getitem
                       and u.args[1] == node.target.written.index(k)), None)
        if result is None or any(user.op != "call_function" or getattr(user.target, "kind", "") == "view"
                                 for user in result.users):
            return False
        if any(user.target is _COPY and user.args[:2] == (place, result) for user in result.users):
            return True
        following = [u for u in result.users if isinstance(u.target, Launch)
                     and result in [u.args[j] for j in u.target.written]]
        if len(following) != 1:
            return False
        node = following[0]
        k = node.args.index(result)
