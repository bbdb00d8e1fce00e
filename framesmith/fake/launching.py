"""Launches of the program's own kernels on fakes: a node for each, and writes into the kernel's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.recording import Recording
from framesmith.fake.tensor import FakeTensor, new_fake
from framesmith.graph.launch import Launch, Memory, MemoryWindow
from framesmith.symbolic.layout import is_dense
from framesmith.util.errors import Unsupported

aten = torch.ops.aten
_BLANK = frozenset((aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
                    aten.empty_strided.default,
                    aten.new_empty_strided.default))


class Memories:
    """The memories of a kernel's tensor arguments, of which it may write `written`."""

    def __init__(self, tensors: Sequence[FakeTensor], written: Sequence[FakeTensor]) -> None:
        self.storages = {id(x._alias.storage) for x in written}
        self.numbers: dict[int, int] = {}
        self.owners: list[FakeTensor] = []
        self.windows = {id(x): self._window(x) for x in tensors}
        self.written = tuple([k for k, owner in enumerate(self.owners) if id(owner._alias.storage) in self.storages])
        self.descriptions = tuple([self._description(k, owner) for k, owner in enumerate(self.owners)])

    def _window(self, x: FakeTensor) -> MemoryWindow:
        if id(x._alias.storage) not in self.storages:
            return MemoryWindow(self._number(x), _ints(x.shape), _ints(x.stride()))
        base = x._alias.root.val
        if x.dtype is not base.dtype or not is_dense(tuple(base.shape), base.stride()):
            raise Unsupported("a kernel that writes into memory with gaps, or seen as another dtype")
        return MemoryWindow(self._number(base), _ints(x.shape), _ints(x.stride()),
                            int(x.storage_offset() - base.storage_offset()))

    def _number(self, owner: FakeTensor) -> int:
        if id(owner) not in self.numbers:
            self.numbers[id(owner)] = len(self.owners)
            self.owners.append(owner)
        return self.numbers[id(owner)]

    def _description(self, k: int, owner: FakeTensor) -> Memory:
        blank = k in self.written and owner._alias.node.target in _BLANK
        return Memory(_ints(owner.shape), _ints(owner.stride()), owner.dtype, owner.device, blank)


def _ints(sizes: Any) -> tuple[int, ...]:
    return tuple(map(int, sizes))


def record_launch(rec: Recording, target: Launch, owners: Sequence[FakeTensor]) -> None:
    """Record the launch over the memories of `owners`, and its writes."""
    given = tuple([None if how.blank else rec.nodes(owner) for how, owner in zip(target.memories, owners, strict=True)])
    layouts = [target.memories[k] for k in target.written]
    vals = tuple([new_fake(how.size, how.stride, how.dtype, how.device) for how in layouts])
    rec.results(rec.emit(target, given, vals), vals)
    for k, made in zip(target.written, vals, strict=True):
        rec.write(owners[k]._alias, made._alias.node)


def again(rec: Recording, node: Node, args: Sequence[Any]) -> tuple[FakeTensor, ...]:
    """Record a node `OfOneGraph` of another recorder on this one's fakes, and return its results."""
    vals = tuple([new_fake(tuple(x.shape), x.stride(), x.dtype, x.device) for x in node.meta["val"]])
    return rec.results(rec.emit(node.target, tuple([rec.nodes(a) for a in args]), vals),  # type: ignore[no-any-return]
                       vals)
