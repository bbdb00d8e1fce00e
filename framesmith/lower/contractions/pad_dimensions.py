"""Pad dimensions of products that are no multiple of a vector, on a CUDA device: the libraries compute the padded
products at more than twice the rate.

    d: bfloat16[m, 50257], in rows of 50264 (see `padding`)
    mm(d, w)      ->  mm(d', w')        d': [m, 50264], w': [50264, n], a copy; zero where they are longer
    mm(d^T, x)    ->  mm(d'^T, x)       the last rows of the result are nobody's
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from framesmith.loops.build import Builder
from framesmith.loops.ir import Axis, Ref
from framesmith.loops.nest import Call, Compute, Item, LoopGraph, Storage
from framesmith.lower.contractions.pad_strides import KINDS, copied, in_vectors, renamed, vector
from framesmith.lower.geometry import flat, row_major

aten = torch.ops.aten
PRODUCTS = frozenset((aten.mm.default, aten.mm.dtype))
LARGE, SIDE = 1 << 26, 64  # multiplications, and results along each side, from which it matters
ENOUGH = 512  # multiplications of each element of a copy that take as much longer as it takes


def pad_dimensions(graph: LoopGraph) -> LoopGraph:
    """Return `graph` with padded products."""
    return _Growing(graph).run()


class _Growing:
    """The state of the pass, which visits calls from the last to the first, so that places of items stay valid;
    insertions are collected.

    `rows`: matrix in wide rows -> how much of each row it is. `fills`: such a matrix -> the first call that reads its
    padding. `copies`: matrix -> its longer copy, and the first call that reads that.
    """

    def __init__(self, graph: LoopGraph) -> None:
        self.graph = graph
        self.items: list[Item] = list(graph.items)
        self.storages = dict(graph.storages)
        self.rows = {s.name: s.size[-1] for s in self.storages.values() if _is_wide(s)}
        self.fills: dict[str, int] = {}
        self.copies: dict[str, tuple[str, int]] = {}

    def run(self) -> LoopGraph:
        for place in reversed(range(len(self.items))):
            item = self.items[place]
            if isinstance(item, Call) and item.target in PRODUCTS and not item.kwargs:
                self._grow(place, item)
        before: dict[int, list[Item]] = {}
        for name, place in self.fills.items():
            before.setdefault(place, []).append(self._fill(self.storages[name], self.rows[name], self.items[place]))
        for name, (copy, place) in self.copies.items():
            before.setdefault(place, []).extend(self._copy(self.storages[name], self.storages[copy], self.items[place]))
        if not before and self.rows == {s.name: s.size[-1] for s in self.storages.values() if _is_wide(s)}:
            return self.graph
        items = [x for place, item in enumerate(self.items) for x in (*before.get(place, ()), item)]
        return replace(self.graph, storages=self.storages, items=items)

    def _grow(self, place: int, call: Call) -> None:
        """Pad one product along each misaligned dimension, where its operands allow it."""
        a, b, out = call.args[0].name, call.args[1].name, call.outputs[0]
        if out is None or not all(type(n) is int for name in (a, b) for n in self.storages[name].size):
            return
        (m, k), n = self.storages[a].size, self.storages[b].size[1]
        if self.storages[a].dtype not in KINDS or m * n * k < LARGE or min(m, n, k) < SIDE:
            return
        unit = vector(self.storages[a].dtype)
        if k % unit and self._may_grow(a, 1) and (self._may_grow(b, 0) or m >= ENOUGH and self._may_copy(b, place)):
            self._fill_before(a, place)
            a = self._longer(a, 1)
            if self._may_grow(b, 0):
                self._fill_before(b, place)
                b = self._longer(b, 0)
            else:
                b = self._copied(b, place)
        if m % unit and self._may_grow(a, 0) and self._is_free(out):
            a = self._longer(a, 0)
            s = self.storages[out]
            self.storages[out] = replace(s, size=(self.storages[a].size[0], *s.size[1:]))
        if n % unit and self._may_grow(b, 1) and self._may_grow(out, 1) and self._row(b) == self._row(out):
            b, out = self._longer(b, 1), self._longer(out, 1)
        reads = frozenset(self.storages[x].base or x for x in (a, b))
        call = self.items[place]  # type: ignore[assignment]
        self.items[place] = replace(call, args=(Ref(a), Ref(b), *call.args[2:]), outputs=(out,), reads=reads)

    # --------------------------------------------------------------------------------------------------- longer windows

    def _may_grow(self, name: str, dim: int) -> bool:
        """Return whether a window has whole rows of a padded matrix along `dim`."""
        s = self.storages[name]
        base = s.base or name
        if base not in self.rows or s.dtype.itemsize != self.storages[base].dtype.itemsize:
            return False
        wide = self.storages[base].stride[-2]
        across = s.stride[1 - dim] % wide == 0 and (s.offset if s.base else 0) % wide == 0
        return across and s.stride[dim] == 1 and s.size[dim] == self.rows[base]

    def _row(self, name: str) -> int:
        """Return the row stride of the matrix that a window is on."""
        return self.storages[self.storages[name].base or name].stride[-2]  # type: ignore[no-any-return]

    def _longer(self, name: str, dim: int) -> str:
        """Return the window extended over the padding of rows."""
        s = self.storages[name]
        base = s.base or name
        wide = self.storages[base].stride[-2]
        if self.storages[base].size[-1] != wide:
            self._open(base, wide)
        size = tuple([wide if d == dim else n for d, n in enumerate(s.size)])
        return self._new(Storage("", s.dtype, size, s.stride, "view", base=base, offset=s.offset if s.base else 0))

    def _open(self, name: str, wide: int) -> None:
        """Widen the rows of a matrix to include their padding; calls that read it get a window on the former
        columns."""
        s = self.storages[name]
        window = self._new(replace(s, kind="view", base=name, offset=0))
        self.storages[name] = replace(s, size=(*s.size[:-1], wide))
        self.items = [renamed(i, {name: window}) if isinstance(i, Call) else i for i in self.items]

    def _new(self, s: Storage) -> str:
        name = f"long_{len(self.storages)}"
        self.storages[name] = replace(s, name=name)
        return name

    def _is_free(self, out: str) -> bool:
        """Return whether a result may have more rows: only kernels read it, and they read only the rows that they
        know."""
        s = self.storages[out]
        if s.kind != "arena" or tuple(s.stride) != row_major(s.size) or any(x.base == out
                                                                            for x in self.storages.values()):
            return False
        return sum(isinstance(i, Call) and out in i.reads | i.writes for i in self.items) == 1

    # ------------------------------------------------------------------------------------------ what is behind a matrix

    def _fill_before(self, name: str, place: int) -> None:
        self.fills[self.storages[name].base or name] = place

    def _may_copy(self, name: str, place: int) -> bool:
        s = self.storages[name]
        base = s.base or name
        whole = self.storages[base].dtype is s.dtype and s.stride[1] == 1
        return whole and all(base not in item.writes for item in self.items[place:])

    def _copied(self, name: str, place: int) -> str:
        """Return a copy of a matrix with more rows, to be filled before `place`."""
        known = self.copies.get(name)
        if known is None:
            s = self.storages[name]
            size = (in_vectors(s.size[0], s.dtype), s.size[1])
            copy = self._new(Storage("", s.dtype, size, tuple(row_major(size)), "arena"))
        else:
            copy = known[0]
        self.copies[name] = copy, place
        return copy

    def _copy(self, own: Storage, longer: Storage, reader: Item) -> list[Compute]:
        return [copied(own, longer, reader),
                _zeros(longer, (longer.size[0] - own.size[0], own.size[1]), own.size[0] * own.size[1], reader)]

    def _fill(self, s: Storage, row: int, reader: Item) -> Compute:
        return _zeros(s, (*s.size[:-1], s.size[-1] - row), row, reader)


def _is_wide(s: Storage) -> bool:
    """Return whether a matrix has rows that `pad_strides` padded."""
    if s.kind != "arena" or s.dtype not in KINDS or len(s.size) < 2 or any(type(n) is not int for n in s.size):
        return False
    wide = in_vectors(s.size[-1], s.dtype)
    return s.size[-1] != wide and tuple(s.stride) == row_major((*s.size[:-1], wide))


def _zeros(s: Storage, shape: Sequence[int], offset: int, reader: Item) -> Compute:
    axes = [Axis.of(f"c{d}", n) for d, n in enumerate(shape)]
    b = Builder()
    b.store(s.name, flat([a.symbol for a in axes], s.stride, offset), b.const(0.0, s.dtype))
    return Compute(tuple(axes), (), (), tuple(b.ops), reader.origins)
