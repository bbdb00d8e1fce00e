"""The memory plan: every buffer that only the program sees gets a place in one arena; places are reused when lifetimes
do not overlap. Of buffers whose sizes are not known, one takes the place of another.

With `scoped` memory, large buffers are allocated separately instead, from their first to their last use, and results
when they are first written: this minimises the peak, including memory that the caller gives up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from framesmith.loops.ir import ARENA, Allocate, Extern, Release, Step
from framesmith.loops.nest import LoopGraph, Storage
from framesmith.loops.uses import named, names_in
from framesmith.symbolic.expr import Expr, as_expr, max_, typical

ALIGN = 64
SLACK = 0.02  # of the height of what a call makes: many small allocations take their time, too
FEW = 8  # values with memory of their own that the arena could have had
PACKED = 512  # buffers of an arena that are repacked, in quadratic time
_ALWAYS = frozenset({"input", "output", "constant"})


def touched(step: Step, storages: dict[str, Storage]) -> list[str]:
    """Return the buffers (views resolved to their bases) that a step uses."""
    return [storages[n].base or n for n in named(step)]


def element_span(s: Storage) -> Expr | int:
    """Return the number of elements from the first to the last of a buffer."""
    span: Any = 1
    for size, stride in zip(s.size, s.stride, strict=True):
        if type(size) is int and size == 0:
            return 0
        span = (as_expr(size) - 1) * stride + span
    return span.const if isinstance(span, Expr) and span.is_const else span


def lasts(s: Storage, little: int) -> bool:
    """Return whether a buffer is live during all of the program, or at most `little` bytes of scratch memory."""
    span = element_span(s)
    return s.kind in _ALWAYS or s.kind == "arena" and type(span) is int and span * s.dtype.itemsize <= little


class MemoryPlan:
    """Offsets in the arena; static sizes are packed best fit in order of steps, and repacked if that leaves gaps. Slots
    of symbolic sizes follow: each is as large as its largest buffer. `scratch`: buffers outside the arena."""

    def __init__(self) -> None:
        self.offset: dict[str, Any] = {}
        self.nbytes: dict[str, Any] = {}
        self.size: Any = 0
        self.scratch: set[str] = set()
        self._free: list[tuple[int, int]] = []  # (offset, bytes), sorted, of the static part
        self._slots: list[Expr] = []
        self._slot: dict[str, int] = {}
        self._idle: list[int] = []  # numbers of slots, the last that was left at the end

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

    def take_slot(self, name: str, nbytes: Expr) -> None:
        """Give a buffer of symbolic size a free slot: the smallest that is large enough, else the largest, which grows;
        a new one if none is free."""
        size = typical(nbytes)
        fits = [k for k in self._idle if max_(self._slots[k], nbytes) is self._slots[k]]
        if fits:
            slot = min(fits, key=lambda k: typical(self._slots[k]))
        elif self._idle:
            slot = max(self._idle, key=lambda k: (min(typical(self._slots[k]), size), k))
            self._slots[slot] = max_(self._slots[slot], nbytes)
        else:
            slot = len(self._slots)
            self._slots.append(nbytes)
            self._idle.append(slot)
        self._idle.remove(slot)
        self._slot[name], self.nbytes[name] = slot, nbytes

    def give_slot(self, name: str) -> None:
        self._idle.append(self._slot[name])

    def place_slots(self) -> None:
        """Place the slots after the static buffers."""
        ends = list(accumulate(self._slots, initial=self.size))
        self.offset.update({name: ends[slot] for name, slot in self._slot.items()})
        self.size = ends[-1]

    def pack(self, lives: Mapping[str, tuple[int, int]]) -> None:
        """Repack all buffers, the largest first, each as low as simultaneously live ones allow (`lives`: from the first
        step to the last), if the arena is smaller for it.

        Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020), section 4.3.
        """
        placed: list[tuple[int, int, str]] = []  # (offset, end, name), sorted
        for name in sorted(lives, key=lambda n: (-self.nbytes[n], lives[n])):
            (first, last), offset = lives[name], 0
            for at, end, other in placed:
                if lives[other][0] <= last and first <= lives[other][1]:
                    if at - offset >= self.nbytes[name]:
                        break
                    offset = max(offset, end)
            insort(placed, (offset, offset + self.nbytes[name], name))
        if (size := max((end for _, end, _ in placed), default=0)) < self.size:
            self.size = size
            self.offset.update({name: at for at, _, name in placed})


def aligned(nbytes: Any) -> Any:
    """Round up to the alignment, plus room for a vector read past the end."""
    if type(nbytes) is int:
        return -(-max(nbytes, 1) // ALIGN) * ALIGN
    return (nbytes + (ALIGN - 1)) // ALIGN * ALIGN


class _Lifetimes:
    """The buffers (views resolved to their bases) that each step uses, the first and last step of each, and its bytes
    if they are known."""

    def __init__(self, graph: LoopGraph, steps: Sequence[Step]) -> None:
        self.uses = [list(dict.fromkeys(touched(s, graph.storages))) for s in steps]
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for k, names in enumerate(self.uses):
            for n in names:
                self.last[n] = k
                self.first.setdefault(n, k)
        self.sizes = {n: b for n in self.first if type(b := _nbytes(graph.storages[n])) is int}

    def begin(self, k: int) -> list[str]:
        return [n for n in self.uses[k] if self.first[n] == k]

    def end(self, k: int) -> list[str]:
        return [n for n in self.uses[k] if self.last[n] == k]


def _nbytes(s: Storage) -> Any:
    return aligned(element_span(s) * s.dtype.itemsize)


def _is_large(s: Storage, enough: int) -> bool:
    nbytes = _nbytes(s)
    return type(nbytes) is not int or nbytes >= enough


def plan(
    graph: LoopGraph, steps: Sequence[Step], large: int | None = None, tight: bool = False, visits: bool = False
) -> tuple[list[Step], MemoryPlan]:
    """Steps with `Allocate` and `Release` inserted, and the place of every arena buffer that the steps use. `large`:
    bytes from which memory is scoped; None: none is. `visits`: the arena may be allocated after the peak of other
    memory, and released before a large result is written, if that lowers the peak. `tight`: smaller memory may be
    scoped for that, too."""
    lives = _Lifetimes(graph, steps)
    if large is None or not (tight or visits):
        return _planned(graph, steps, lives, large)
    end = _end(graph, lives) if visits else None
    ways = [(large, None), *([] if end is None else [(large, end)]),
            *[(large >> smaller, None) for smaller in (3, 6) if tight]]
    found = [_Candidate(graph, steps, lives, *way) for way in ways]
    free = end is not None and found[1].places.scratch == found[0].places.scratch
    if visits:
        found = [_late(graph, steps, lives, *way, c) for way, c in zip(ways, found, strict=True)]
    if free:
        found[:2] = [min(found[:2], key=lambda c: c.height)]
    enough = min(c.height for c in found) + SLACK * min(_height(c, _levels(graph, lives, c.steps, less=False))
                                                        for c in found)
    best = next(c for c in found if c.height <= enough)
    return best.steps, best.places


class _Candidate:
    """A plan, the bytes live in each of its steps outside the arena, and the peak of a call."""

    def __init__(
        self, graph: LoopGraph, steps: Sequence[Step], lives: _Lifetimes, large: int, end: int | None = None,
        begin: int = 0
    ) -> None:
        self.steps, self.places = _planned(graph, steps, lives, large, end, begin)
        self.levels = _levels(graph, lives, self.steps)
        self.height = _height(self, self.levels)


def _crowd(lives: Mapping[str, tuple[int, int]], nbytes: Mapping[str, int]) -> int:
    """Return the peak of live bytes."""
    change: Counter[int] = Counter()
    for name, (first, last) in lives.items():
        change[first] += nbytes[name]
        change[last + 1] -= nbytes[name]
    return max(accumulate(change[k] for k in sorted(change)), default=0)


def _end(graph: LoopGraph, lives: _Lifetimes) -> int | None:
    """Return the step that first writes the largest result, if few values are used after it."""
    storages = graph.storages
    made = {n: _nbytes(storages[n]) for n in lives.first if storages[n].kind in ("output", "result")}
    results = {storages[n].base or n for n in names_in(graph.outputs)}
    known = {n: b for n, b in made.items() if n in results and type(b) is int}
    if not known:
        return None
    end = lives.first[max(known, key=lambda n: known[n])]
    return end if sum(_outlives(n, end, lives, storages) for n in lives.first) <= FEW else None


def _late(
    graph: LoopGraph, steps: Sequence[Step], lives: _Lifetimes, large: int, end: int | None, found: _Candidate
) -> _Candidate:
    """Return `found`, or a plan with a late arena if that lowers the peak."""
    begin = _begin(lives, found, large)
    return min(found, _Candidate(graph, steps, lives, large, end, begin), key=lambda c: c.height) if begin else found


def _begin(lives: _Lifetimes, found: _Candidate, price: int) -> int:
    """Return the best step before which to allocate the arena. The few values that are used earlier are allocated
    separately, each of which counts as `price` bytes of peak."""
    places = found.places
    if type(places.size) is not int:
        return 0
    held: list[int] = []  # by step: what lives in it, if the arena does
    for step, level in zip(found.steps, found.levels):
        if type(step) is Release and ARENA in step.names:
            break
        if type(step) not in (Allocate, Release):
            held.append(level + places.size)
    # by step before which it is taken
    heights = [*accumulate(reversed(held), max, initial=max(found.levels, default=0))][::-1]
    first = sorted(lives.first[n] for n in places.offset)
    latest = min([len(held), *first[FEW : FEW + 1]])
    return min(range(latest + 1), key=lambda k: heights[k] + price * bisect_left(first, k))


def _height(found: _Candidate, levels: Sequence[int]) -> int:
    """Return the peak of live bytes, given the `levels` outside the arena."""
    steps, size = found.steps, found.places.size
    arena = size if type(size) is int else 0
    there = 0 if any(type(s) is Allocate and ARENA in s.names for s in steps) else arena
    top = 0
    for step, level in zip(steps, levels):
        if type(step) in (Allocate, Release) and ARENA in step.names:  # type: ignore[union-attr]
            there = arena if type(step) is Allocate else 0
        top = max(top, level + there)
    return top


def _levels(graph: LoopGraph, lives: _Lifetimes, steps: Sequence[Step], less: bool = True) -> list[int]:
    """Return the bytes live in each step outside the arena and the call's arguments; unknown sizes do not count.
    `less`: arguments that have died are subtracted."""
    storages, sizes = graph.storages, lives.sizes
    late = {n for s in steps if type(s) is Allocate for n in s.names}
    now, levels = sum(b for n, b in sizes.items() if storages[n].kind == "output" and n not in late), []
    for step in steps:
        if type(step) is Extern:
            made = [n for n in step.outputs if n is not None and storages[n].kind == "result"]
        else:
            made = list(step.names) if type(step) is Allocate else []
        now += sum(sizes.get(n, 0) for n in made)
        levels.append(now)
        if type(step) is Release:
            died = [n for n in step.names if n != ARENA
                    and (storages[n].kind != "input" or storages[n].given_up and less)]
            now -= sum(sizes.get(n, 0) for n in died)
    return levels


def _outlives(name: str, end: int, lives: _Lifetimes, storages: dict[str, Storage]) -> bool:
    """Return whether buffer `name` cannot be in the arena if that is released before step `end`, or the buffer is a
    result of later steps."""
    kind = storages[name].kind
    return kind == "arena" and lives.last[name] >= end or kind == "output" and lives.first[name] >= end


def _planned(
    graph: LoopGraph, steps: Sequence[Step], lives: _Lifetimes, large: int | None, end: int | None = None,
    begin: int = 0
) -> tuple[list[Step], MemoryPlan]:
    """Return a plan. `begin`, `end`: the steps before which the arena is allocated and released."""
    storages = graph.storages
    kept = {storages[n].base or n for n in names_in(graph.outputs)}
    scoped = {n for n in lives.first if large is not None and _is_large(storages[n], large)}
    if end is not None:
        scoped |= {n for n in lives.first if _outlives(n, end, lives, storages)}
    scoped |= {n for n, k in lives.first.items() if k < begin and storages[n].kind == "arena"}
    late = {n for n in scoped if storages[n].kind in ("arena", "output")}
    given = {n for n in lives.first if storages[n].kind == "input" and large is not None
             and (n in scoped or storages[n].given_up)}
    result = MemoryPlan()
    result.scratch = {n for n in late if storages[n].kind == "arena"}
    mortal = (result.scratch | given | {n for n in lives.first if storages[n].kind == "result"}) - kept
    out: list[Step] = []
    for k, step in enumerate(steps):
        begun, ended = lives.begin(k), lives.end(k)
        if k == end and result.offset:
            out.append(Release((ARENA,)))
        if 0 < k == begin and any(storages[n].kind == "arena" and n not in late for n in lives.first):
            out.append(Allocate((ARENA,)))
        for n in begun:
            if storages[n].kind != "arena" or n in late:
                continue
            if type(nbytes := _nbytes(storages[n])) is int:
                result.take(n, nbytes)
            else:
                result.take_slot(n, nbytes)
        if asked := tuple(n for n in begun if n in late):
            out.append(Allocate(asked))
        out.append(step)
        for n in ended:
            if n in result.offset:
                result.give(n)
            elif n in result.nbytes:
                result.give_slot(n)
        if released := tuple(n for n in ended if n in mortal):
            out.append(Release(released))
    spans = {n: (lives.first[n], lives.last[n]) for n in result.offset}
    if len(spans) <= PACKED and result.size > _crowd(spans, result.nbytes):
        result.pack(spans)
    result.place_slots()
    return out, result
