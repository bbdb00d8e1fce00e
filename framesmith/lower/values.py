"""The values of nodes under lowering: a strided window on a buffer, or a closure that computes one element."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Op, Origin
from framesmith.lower.geometry import Size, flat, numel, row_major
from framesmith.symbolic.expr import as_expr, simplify_int

Element = Callable[[Builder, Sequence[Any]], Op]


class Lowered:
    """A tensor under lowering. `element(b, index)` builds the element at a logical index (ints or Exprs, one a dim)."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[Size, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype

    @property
    def numel(self) -> Size:
        return numel(self.shape)

    def element(self, b: Builder, index: Sequence[Any]) -> Op:
        raise NotImplementedError


class Stored(Lowered):
    """Element `index` is at `offset + sum(index * stride)` of storage `buffer`."""

    __slots__ = ("buffer", "offset", "stride")

    def __init__(
        self, buffer: str, shape: tuple[Size, ...], stride: tuple[Size, ...], offset: Size, dtype: torch.dtype
    ) -> None:
        super().__init__(shape, dtype)
        self.buffer = buffer
        self.stride = stride
        self.offset = offset

    def element(self, b: Builder, index: Sequence[Any]) -> Op:
        return b.load(self.buffer, flat(index, self.stride, self.offset), self.dtype)


class Computed(Lowered):
    """A closure. `cost`: scalar work for one element; `reads`: the buffers it loads from, with their number of
    elements."""

    __slots__ = ("cost", "fn", "origins", "reads", "stride")

    def __init__(self, shape: tuple[Size, ...], dtype: torch.dtype, fn: Element, cost: int, reads: dict[str, Size],
                 origins: tuple[Origin, ...] = ()) -> None:
        super().__init__(shape, dtype)
        self.fn = fn
        self.cost = cost
        self.reads = reads
        self.origins = origins

    def element(self, b: Builder, index: Sequence[Any]) -> Op:
        key = (self, tuple(index), b.mask)
        found = b.memo.get(key)
        if found is None:
            found = b.memo[key] = self.fn(b, index)
            b.origins.update(dict.fromkeys(self.origins))
        return found


class Joined(Computed):
    """The value of `closure`: `pieces` side by side along `dim`, each of which is stored by a nest of its own."""

    __slots__ = ("dim", "pieces")

    def __init__(self, closure: Computed, pieces: Sequence[Lowered], dim: int) -> None:
        super().__init__(closure.shape, closure.dtype, closure.fn, closure.cost, closure.reads, closure.origins)
        self.pieces = pieces
        self.dim = dim

    def parts(self, target: Stored) -> Iterator[tuple[Lowered, Stored]]:
        """Yield each piece and its window of `target`, a window for all."""
        offset, step = as_expr(target.offset), as_expr(target.stride[self.dim])
        for piece in self.pieces:
            yield piece, Stored(target.buffer, piece.shape, target.stride, simplify_int(offset), target.dtype)
            offset = offset + step * piece.shape[self.dim]


def reads_of(value: Any) -> dict[str, Size]:
    """Buffers that one evaluation of every element reads, with element counts."""
    if isinstance(value, Stored):
        return {value.buffer: touched(value)}
    return value.reads if isinstance(value, Computed) else {}


def touched(value: Stored) -> Size:
    """Number of distinct elements behind a window (broadcast dims count once)."""
    return numel([s for s, t in zip(value.shape, value.stride) if not (type(t) is int and t == 0)])


def cost_of(value: Any) -> int:
    return value.cost if isinstance(value, Computed) else 0


def merge_reads(values: Sequence[Any]) -> dict[str, Size]:
    """Return the union of the reads of `values`."""
    if len(values) == 1:
        return reads_of(values[0])
    out: dict[str, Size] = {}
    for value in values:
        for name, count in reads_of(value).items():
            before = out.get(name)
            if before is None or (type(before) is int and type(count) is int and count > before):
                out[name] = count
    return out


def broadcast_index(index: Sequence[Any], shape: Sequence[Size]) -> Sequence[Any]:
    """Return the index into an operand of `shape` that is broadcast to the rank of `index`."""
    lead = len(index) - len(shape)
    return [0 if size == 1 else i for i, size in zip(index[lead:], shape)]


def whole(buffer: str, shape: tuple[Size, ...], dtype: torch.dtype) -> Stored:
    """Return a window on all of a contiguous buffer."""
    return Stored(buffer, shape, row_major(shape), 0, dtype)
