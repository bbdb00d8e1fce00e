"""Slices of tensors from before a loop that its rounds read and write at induction variables: `x[k]`, `out[:, k] = v`.

A round reads its own slice of an operand of the scan, so that the gradient of a slice is one slice. What it writes is
stacked, and copied into the tensor behind the loop. A slice that an earlier round has written is part of the state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from framesmith.fake.outputs import memory_of
from framesmith.fake.tensor import Storage, new_fake
from framesmith.symbolic.expr import ge
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import Unsupported

from . import trackers as t
from .arms import Arm
from .induction import Affine, affine, difference, tracker_of
from .looping import entered
from .trackers.tensors import get_item, set_item

Key = tuple[Node, int, Any, int]
"""The tensor's node, the dimension, the index in the first round, and its step."""
FARTHEST = 4
"""The maximal number of rounds between the write of a slice and its read."""


@dataclass(slots=True)
class _Slice:
    """`x.select(dim, index)`. `value`: the slice in the round that is followed; None: not read or written yet. `read`:
    the round that writes it also reads what was there before."""

    x: t.Tensor
    dim: int
    index: Affine
    value: t.Tensor | None = None
    read: bool = False

    @property
    def storage(self) -> Storage:
        return self.x.fake._alias.storage  # type: ignore[no-any-return]

    def distance(self, written: _Slice) -> int | None:
        """Return how many rounds before this read the same slice is written, if it is in one of them; None if never.
        Raises Unsupported where that is not known."""
        if self.storage is not written.storage:
            return None
        apart = difference(written.index.first, self.index.first)
        if (self.x.fake._alias is not written.x.fake._alias or self.dim != written.dim
                or self.index.step != written.index.step or apart is None):
            raise Unsupported("a loop reads and writes a tensor in ways of which it is not known that they are apart")
        return None if apart % self.index.step else apart // self.index.step

    def region(self, tracer: Any, rounds: Any) -> t.Tensor:
        """Return the view of the slices in all rounds, along the first dimension, the least index first."""
        step = abs(self.index.step)
        x = tracer.torch_call(torch.movedim, [self.x, t.Const(self.dim), t.Const(0)], {})
        x = tracer.torch_call(torch.narrow, [x, t.Const(0), tracker_of(self.index.least(rounds)),
                                             tracker_of((rounds - 1) * step + 1)], {})
        return x if step == 1 else tracer.torch_function(get_item, [x, t.Slice([t.NONE, t.NONE, t.Const(step)])], {})  # type: ignore[no-any-return]

    def ordered(self, tracer: Any, x: t.Tensor) -> t.Tensor:
        """Return the slices in the order of the rounds, or from that in the order of the indices."""
        return x if self.index.step > 0 else tracer.torch_call(torch.flip, [x, t.Tuple([t.Const(0)])], {})


class LoopSlices:
    """The slices of one loop. Following a round finds them; then they are `fixed`, and the body may use no others."""

    def __init__(self, tracer: Any, loop: Any) -> None:
        self.tracer, self.loop = tracer, loop
        self.before = set(tracer.recorder.graph.nodes)
        self.reads: dict[Key, _Slice] = {}
        self.writes: dict[Key, _Slice] = {}
        self.earlier: dict[Key, list[t.Tensor]] = {}
        """For slices that later rounds read, those written in the last rounds, the latest first."""
        self.fixed = False
        self.grads = torch.is_grad_enabled()

    def indexed(self, x: t.Tensor, key: t.Tracker) -> tuple[int, Affine, list[t.Tracker]] | None:
        """Return the dimension and the induction variable by which `key` takes a slice of `x`, and the subscripts of
        that slice; None for other subscripts."""
        parts = key.open(self.tracer) if type(key) is t.Tuple else [key]
        found = [(k, a) for k, p in enumerate(parts) if (a := affine(self.tracer, p)) is not None and a.step]
        if len(found) != 1 or x.pyclass not in (torch.Tensor, torch.nn.Parameter) or x.attrs:
            return None
        (at, index), = found
        rest, dim = parts[:at] + parts[at + 1:], at
        if at and type(parts[0]) is t.Const and parts[0].value is ...:
            dim = x.fake.dim() - len(parts) + at
            if at > 1 or not all(type(p) is t.Slice for p in parts[at + 1:]):
                return None
        elif not all(type(p) is t.Slice for p in parts[:at]):
            return None
        return (dim, index, rest) if 0 <= dim < x.fake.dim() else None

    def read(self, x: t.Tensor, key: t.Tracker) -> t.Tracker | None:
        """Return `x[key]` from a slice of `x`; None where that is not possible."""
        found = self.indexed(x, key)
        if found is None:
            return None
        dim, index, rest = found
        part = index.loop.slices.part(x, dim, index)
        return part if part is None or not rest else part.item(self.tracer, t.Tuple(rest))

    def write(self, x: t.Tensor, key: t.Tracker, value: t.Tracker) -> bool:
        """Note `x[key] = value`; False where that is not possible."""
        tracer, found = self.tracer, self.indexed(x, key)
        if found is None or found[1].loop is not self.loop or (at := self._key(x, *found[:2])) is None:
            return False
        dim, index, rest = found
        if self.fixed and at not in self.writes:
            raise Unsupported("a loop writes a slice that it did not write the first time")
        whole = False
        row, always = self.writes.get(at, _Slice(x, dim, index)), tracer.touched is self.loop.scope
        if torch.is_grad_enabled() is not self.grads or self.fixed and not always and not row.read:
            raise Unsupported("a write of a slice in some rounds of a loop, or in another grad mode")
        if row.value is None:
            shape = list(x.fake.shape)
            del shape[dim]
            whole = always and all(type(p) is t.Slice and all(q is t.NONE for q in p.parts) for p in rest)
            how = {"dtype": tracer.made(x.fake.dtype), "device": tracer.made(x.fake.device)}
            row.value = (self.part(x, dim, index) if not whole or at in self.reads
                         else tracer.torch_call(torch.empty, [tracer.made(tuple(shape))], how))
        tracer.torch_function(set_item, [row.value, t.Tuple(rest or [tracer.made(...)]), value], {})
        if whole:  # it may be the node of another tensor, of which later writes would be writes
            row.value = tracer.torch_call(torch.clone, [row.value], {})
        self.writes[at] = row
        return True

    def part(self, x: t.Tensor, dim: int, index: Affine) -> t.Tensor | None:
        """Return `x.select(dim, index)` in this round; None if `x` is no tensor from before the loop, or the index may
        be counted from its end."""
        tracer, key = self.tracer, self._key(x, dim, index)
        if key is None:
            return None
        if key in self.writes and self.writes[key].value is not None:
            return self.writes[key].value
        own = _Slice(x, dim, index)
        if self.fixed:
            for at, row in self.writes.items():
                if (apart := own.distance(row)) is not None and apart > 0:
                    if apart > len(self.earlier.get(at, ())):
                        raise Unsupported("a loop reads a slice that it did not read the first time")
                    return self.earlier[at][apart - 1]
        if key not in self.reads:
            if self.fixed:
                raise Unsupported("a loop reads a slice that it did not read the first time")
            shape, stride = list(x.fake.shape), list(x.fake.stride())
            del shape[dim], stride[dim]
            val = new_fake(tuple(shape), tuple(stride), x.fake.dtype, x.fake.device)
            own.value = entered(tracer, val, tracer.wants_grad(x.fake))
            self.reads[key] = own
        return self.reads[key].value

    def _key(self, x: t.Tensor, dim: int, index: Affine) -> Key | None:
        node = self.tracer.recorder.nodes(x.fake)
        rounds = self.loop.count  # not known yet: the body is followed again when it is
        least = index.first if rounds is None else index.least(rounds)
        from_start = index.step < 0 and rounds is None or self._is_from_start(least)
        return (node, dim, expr_of(index.first), index.step) if node in self.before and from_start else None

    def _is_from_start(self, least: Any) -> bool:
        """Return whether an index is not negative; one that depends on sizes of inputs is guarded."""
        shapes, rel = self.tracer.shapes, ge(expr_of(least), 0)
        known = shapes.known(rel)
        return shapes.guard(rel) if known is None and shapes.data.isdisjoint(rel.free) else known is True

    def note_writes(self, trial: Arm) -> None:
        """Note those of the slices read that the round has written in place."""
        for key, row in self.reads.items():
            if id(row.value.fake._alias.storage) in trial.written:  # type: ignore[union-attr]
                self.writes.setdefault(key, _Slice(row.x, row.dim, row.index))
            if key in self.writes:
                self.writes[key].read = True

    def fix(self, wholes: Collection[Storage]) -> list[t.Tensor]:
        """Take the slices found so far for those of all rounds, and return the first values of those that later rounds
        read. `wholes`: of tensors that are written as a whole, no slice is taken before the loop."""
        tracer, self.fixed = self.tracer, True
        self.reads = {key: row for key, row in self.reads.items()
                      if not any(row.storage is x for x in wholes) or key in self.writes}
        rows = list(self.writes.items())
        if any(a.distance(b) is not None for k, (_, a) in enumerate(rows) for _, b in rows[:k]):
            raise Unsupported("rounds of a loop write the same slice of a tensor")
        far: dict[Key, int] = {}
        for key, read in list(self.reads.items()):
            for at, row in rows:
                if (apart := read.distance(row)) is not None and apart > 0:
                    far[at] = max(far.get(at, 0), apart)
                    self.reads.pop(key, None)
        if max(far.values(), default=0) > FARTHEST:
            raise Unsupported("a loop reads a slice that it wrote many rounds before")
        self.earlier = {at: [tracer.torch_call(torch.select, [
            self.writes[at].x, t.Const(self.writes[at].dim), tracker_of(self.writes[at].index.after(-k))], {})
            for k in range(1, apart + 1)] for at, apart in far.items()}
        return [x for rows in self.earlier.values() for x in rows]

    def operands(self) -> list[t.Tensor]:
        """Return the slices that the rounds read, of each tensor along the first dimension."""
        return [row.ordered(self.tracer, row.region(self.tracer, self.loop.count)) for row in self.reads.values()]

    def begin(self, earlier: Iterator[t.Tensor], own: Iterator[t.Tensor]) -> None:
        """Begin a round with these values of what earlier rounds wrote, and these slices."""
        self.earlier = {at: [next(earlier) for _ in rows] for at, rows in self.earlier.items()}
        for row in self.reads.values():
            row.value = next(own)
        for key, row in self.writes.items():
            row.value = self.tracer.torch_call(torch.clone, [self.reads[key].value], {}) if row.read else None

    def written(self) -> list[t.Tensor]:
        """Return what the round has written."""
        return [row.value for row in self.writes.values()]  # type: ignore[misc]

    def later(self) -> list[t.Tensor]:
        """Return what the next round takes for `earlier`."""
        return [x for at, rows in self.earlier.items() for x in [self.writes[at].value, *rows[:-1]]]  # type: ignore[misc]

    def storages(self) -> list[Storage]:
        """Return the storages that the loop writes by slices."""
        return [row.storage for row in self.writes.values()]

    def check(self, arm: Arm) -> None:
        """Refuse a body that reads what it writes by slices in another way."""
        nodes = self.tracer.recorder.nodes
        roots = {memory_of(nodes(row.x.fake))[0] for row in self.writes.values()}
        own = set(arm.region)
        if any(memory_of(a)[0] in roots for n in own for a in n.all_input_nodes if a not in own):
            raise Unsupported("a loop reads a tensor of which it writes slices")

    def origins(self) -> dict[int, Storage]:
        """Return by the storages of slices in a round the storages of the tensors."""
        rows = [*self.reads.values(), *self.writes.values()]
        found = {id(row.value.fake._alias.storage): row.storage for row in rows if row.value is not None}
        return found | {id(x.fake._alias.storage): self.writes[at].storage
                        for at, earlier in self.earlier.items() for x in earlier}

    def finish(self, stacks: Iterator[t.Tensor]) -> None:
        """Copy the stacks of what the rounds have written into the tensors."""
        for row, stack in zip(self.writes.values(), stacks):
            target = row.region(self.tracer, self.loop.count)
            self.tracer.torch_call(torch.Tensor.copy_, [target, row.ordered(self.tracer, stack)], {})
