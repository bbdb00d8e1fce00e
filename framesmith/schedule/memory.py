"""The memory plan: every buffer that only the program sees gets a place in one arena; places are reused when lifetimes do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framesmith.loops.ir import Batch, Extern, Launch, Ref, Release, Step
from framesmith.loops.nest import LoopGraph, Storage
from framesmith.symbolic.expr import Expr, as_expr

ALIGN = 64


def names_in(arg: Any) -> list[str]:
    """Buffer names in a nested argument."""
    if type(arg) is Ref:
        return [arg.name]
    if isinstance(arg, (tuple, list)):
        return [n for a in arg for n in names_in(a)]
    return []


def touched(step: Step, storages: dict[str, Storage]) -> list[str]:
    """Buffers (views resolved to their bases) that a step uses."""
    if type(step) is Launch:
        names = list(step.args)
    elif type(step) is Batch:
        names = [n for row in step.rows for n in row]
    elif type(step) is Extern:
        names = names_in(step.args) + names_in(tuple(step.kwargs.values()))
        names += [o for o in step.outputs if o is not None] + list(step.mutates)
    else:
        names = []
    return [storages[n].base or n for n in names]


def element_span(s: Storage) -> Expr | int:
    """Elements from the first to the last of a buffer."""
    span: Any = 1
    for size, stride in zip(s.size, s.stride, strict=True):
        if type(size) is int and size == 0:
            return 0
        span = (as_expr(size) - 1) * stride + span
    return span.const if isinstance(span, Expr) and span.is_const else span


class Plan:
    """Offsets in the arena; static sizes are packed best fit, symbolic ones stand behind each other."""

    def __init__(self) -> None:
        self.offset: dict[str, Any] = {}
        self.nbytes: dict[str, Any] = {}
        self.size: Any = 0
        self._free: list[tuple[int, int]] = []  # (offset, bytes), sorted, of the static part

    def take(self, name: str, nbytes: int) -> None:
        best = None
        for k, (_, room) in enumerate(self._free):
            if room >= nbytes and (best is None or room < self._free[best][1]):
                best = k
        if best is not None:
            offset, room = self._free.pop(best)
            if room > nbytes:
                self._free.insert(best, (offset + nbytes, room - nbytes))
        elif self._free and sum(self._free[-1]) == self.size:
            offset, _ = self._free.pop()
            self.size = offset + nbytes
        else:
            offset, self.size = self.size, self.size + nbytes
        self.offset[name], self.nbytes[name] = offset, nbytes

    def give(self, name: str) -> None:
        offset, nbytes = self.offset[name], self.nbytes[name]
        self._free.append((offset, nbytes))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for at, room in self._free:
            if merged and sum(merged[-1]) == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((at, room))
        self._free = merged


def aligned(nbytes: Any) -> Any:
    """Rounded up to the alignment, plus room for a vector read past the end."""
    if type(nbytes) is int:
        return -(-max(nbytes, 1) // ALIGN) * ALIGN
    return (nbytes + (ALIGN - 1)) // ALIGN * ALIGN


def plan(graph: LoopGraph, steps: Sequence[Step]) -> tuple[list[Step], Plan]:
    """Steps with `Release` inserted, and the place of every arena buffer that the steps use."""
    storages = graph.storages
    uses = [touched(s, storages) for s in steps]
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for k, names in enumerate(uses):
        for n in names:
            last[n] = k
            first.setdefault(n, k)
    kept = {storages[n].base or n for n in names_in(graph.outputs)}
    result = Plan()
    symbolic: list[tuple[str, Any]] = []
    out: list[Step] = []
    for k, step in enumerate(steps):
        mine = list(dict.fromkeys(uses[k]))
        for n in mine:
            if storages[n].kind == "arena" and first[n] == k:
                nbytes = aligned(element_span(storages[n]) * storages[n].dtype.itemsize)
                if type(nbytes) is int:
                    result.take(n, nbytes)
                else:
                    symbolic.append((n, nbytes))
        out.append(step)
        ended = [n for n in mine if last[n] == k]
        for n in ended:
            if n in result.offset:
                result.give(n)
        released = tuple(n for n in ended if storages[n].kind == "result" and n not in kept)
        if released:
            out.append(Release(released))
    for n, nbytes in symbolic:
        result.offset[n], result.nbytes[n] = result.size, nbytes
        result.size = nbytes + result.size
    return out, result
