"""Iterations of a symbolic number of rounds: ranges, iterators over slices of tensors, lists that a loop has filled.
`counted_loops` records a loop over them as one node; any other use takes their present number of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from framesmith.graph.cse import value_key
from framesmith.symbolic.layout import expected
from framesmith.symbolic.node import expr_of
from framesmith.util.errors import FramesmithError, Unsupported

from .base import Tracker
from .constants import Const
from .iterators import Iter, Walk
from .sequences import List, Tuple
from .symbolic_size import Sym

Place = tuple[CodeType, int]
"""The instruction that begins a round of a loop."""


class LoopUnrolled(FramesmithError):
    """A loop at this place cannot be a node: the frame is captured with its rounds one after the other. `at`: the
    user's line that prevents it."""

    def __init__(self, place: Place, why: str, at: tuple[str, int, str] | None = None) -> None:
        super().__init__(why)
        self.place = place
        self.at = at


class FirstRoundApart(LoopUnrolled):
    """A loop that data enters cannot be a node: the frame is captured with its first round on a path of a branch. Its
    place is no instruction, but the complement of the loop's first one."""


class BranchApart(LoopUnrolled):
    """A branch on a size takes a guard. Its place is no instruction, but the complement of the one behind it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What rounds take: `count`, their number; a slice of each of `operands`, of which `value(tracer, slices)` makes
    the value of a round. Of a range `first` is the first value and `step` the distance of the next one."""

    count: Any
    operands: list[Any]
    value: Callable[[Any, list[Tracker]], Tracker]
    first: Any = None
    step: int = 0


class LoopIterator(Walk):
    """An iterator of which no value was taken. `plan(tracer)` says what a round takes; `ordinary(tracer)` is the
    iterator over the present number of values, which it becomes where one is taken outside of a loop."""

    __slots__ = ("concrete", "cls", "looping", "ordinary", "plan", "read")

    def __init__(self, cls: type, plan: Callable[[Any], Plan], ordinary: Callable[[Any], Tracker],
                 read: Sequence[LoopIterator] = ()) -> None:
        self.cls = cls
        self.read = read
        self.plan = plan
        self.ordinary = ordinary
        self.concrete: Tracker | None = None
        self.looping = False

    def fixed(self, tracer: Any) -> Tracker:
        """Return the iterator over the present number of values."""
        if self.looping:
            raise Unsupported("a loop's body takes values of the loop's iterator")
        if self.concrete is None:
            self.concrete = self.ordinary(tracer)
        return self.concrete

    def ends_by_data(self, tracer: Any) -> bool:
        """Return whether data tells the number of values of a range of which none was taken."""
        if self.cls is not type(iter(range(0))) or self.looping or self.concrete is not None:
            return False
        count = self.plan(tracer).count
        return isinstance(count, torch.SymInt) and not tracer.shapes.data.isdisjoint(expr_of(count).free)

    def iterators(self) -> list[LoopIterator]:
        """Return this iterator and those that it reads, directly or not."""
        return [self, *[x for it in self.read for x in it.iterators()]]

    def begin(self) -> bool:
        """Let a loop take all values; False if some were taken, or if one iterator is read for two values of a round.
        """
        its = self.iterators()
        if any(it.looping for it in its):
            raise Unsupported("a loop over the iterator of a loop around it")
        if any(it.concrete is not None for it in its) or len({id(it) for it in its}) != len(its):
            return False
        for it in its:
            it.looping = True
        return True

    def end(self) -> None:
        """Note that a loop has taken all values."""
        for it in self.iterators():
            it.concrete, it.looping = Iter([]), False

    def next(self, tracer: Any) -> Tracker | None:
        return self.fixed(tracer).next(tracer)


def over_slices(x: Tracker, items: Callable[[Any], list[Tracker]] | None = None,
                each: Callable[[Any, Tracker], Tracker] | None = None) -> LoopIterator:
    """Return the iterator over a tensor of a symbolic number of slices; outside of a loop its values are `items`.
    `each`: makes the value of a slice."""

    def plan(tracer: Any) -> Plan:
        return Plan(x.fake.shape[0], [x], lambda tracer, slices:  # type: ignore[attr-defined]
                    slices[0] if each is None else each(tracer, slices[0]))

    def ordinary(tracer: Any) -> Tracker:
        return Iter(tracer.torch_call(torch.unbind, [x], {}).items if items is None else items(tracer))

    return LoopIterator(type(iter(())) if items is None else type(iter([])), plan, ordinary)


def zipped(its: list[LoopIterator], ordinary: Callable[[Any], Tracker]) -> LoopIterator:
    """Return `zip` of iterators."""

    def plan(tracer: Any) -> Plan:
        plans = [it.plan(tracer) for it in its]
        if any(bool(p.count != plans[0].count) for p in plans):
            raise Unsupported("iterators of different lengths")
        keys = [[value_key(tracer.recorder.nodes(x.fake)) for x in p.operands] for p in plans]
        operands = {key: x for p, own in zip(plans, keys) for key, x in zip(own, p.operands)}  # equal ones are one

        def value(tracer: Any, slices: list[Tracker]) -> Tracker:
            given = dict(zip(operands, slices))
            return Tuple([p.value(tracer, [given[key] for key in own]) for p, own in zip(plans, keys)])

        return Plan(plans[0].count, list(operands.values()), value)

    return LoopIterator(zip, plan, ordinary, its)


class Range(Tracker):
    """A range with bounds that vary; only iteration leaves them open."""

    __slots__ = ("bounds", "value")
    cls = range

    def __init__(self, bounds: list[Tracker]) -> None:
        self.bounds = bounds
        self.value: Tracker | None = None

    def fixed(self, tracer: Any) -> Tracker:
        """Return the range of the present bounds."""
        if self.value is None:
            self.value = tracer.fold(range, tuple([tracer.index(b) for b in self.bounds]))
        return self.value  # type: ignore[return-value]

    def iterate(self, tracer: Any) -> Tracker:
        bounds = self.bounds
        start, stop, step = ([Const(0), *bounds, Const(1)] if len(bounds) == 1 else [*bounds, Const(1)])[:3]
        by = step.value if type(step) is Const and type(step.value) is int else 0
        if self.value is not None or not by:
            return self.fixed(tracer).iterate(tracer)

        def plan(tracer: Any) -> Plan:
            first, last = tracer.size_or_real(start), tracer.size_or_real(stop)
            return counted(tracer, first, (last - first + by - 1) // by if by > 0 else (first - last - by - 1) // -by,
                           by)

        return LoopIterator(type(iter(range(0))), plan, lambda tracer: self.fixed(tracer).iterate(tracer))

    def backwards(self, tracer: Any) -> Tracker | None:
        """Return the range in the opposite order, if its step is 1."""
        if len(self.bounds) == 3 or self.value is not None:
            return None
        start, stop = self.bounds if len(self.bounds) == 2 else [Const(0), *self.bounds]
        return Range([tracer.binary("sub", x, Const(1)) for x in (stop, start)] + [Const(-1)])

    def real(self, tracer: Any) -> Any:
        return self.fixed(tracer).real(tracer)

    def truth(self, tracer: Any) -> bool:
        return self.fixed(tracer).truth(tracer)

    def key(self, tracer: Any) -> Any:
        return self.fixed(tracer).key(tracer)

    def size(self, tracer: Any) -> Any:
        return self.fixed(tracer).size(tracer)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        return self.fixed(tracer).item(tracer, key)

    def get(self, tracer: Any, name: str) -> Tracker:
        return self.fixed(tracer).get(tracer, name)

    def items_list(self, tracer: Any) -> list[Tracker]:
        return self.fixed(tracer).items_list(tracer)


def counted(tracer: Any, first: Any, count: Any, step: int) -> Plan:
    """Return the plan of the integers `first`, `first + step`, …"""
    made = tracer.torch_call(torch.arange, [_size(count)], {})
    if step != 1:
        made = tracer.binary("mul", made, Const(step))
    if type(first) is not int or first:
        made = tracer.binary("add", made, _size(first))
    return Plan(count, [made], lambda tracer, slices: tracer.counting[-1].counter(slices[0], first, step), first, step)


def progression(values: range) -> Plan:
    """Return the plan of known integers, which have no slices."""
    return Plan(len(values), [], lambda tracer, slices: slices[0], values.start, values.step)


class RangeIterator(Walk):
    """An iterator over a range in a loop that data may end: `position` is the number of the next value, and data, too.
    It is immutable: the iterator behind a value is another one."""

    __slots__ = ("cls", "plan", "position")

    def __init__(self, cls: type, plan: Plan, position: Tracker) -> None:
        self.cls = cls
        self.plan = plan
        self.position = position

    def at(self, position: Tracker) -> RangeIterator:
        """Return the iterator at another position."""
        return RangeIterator(self.cls, self.plan, position)

    def has_next(self, tracer: Any) -> Tracker:
        """Return whether there is another value."""
        return tracer.compare("<", self.position, _size(self.plan.count))  # type: ignore[no-any-return]

    def taken(self, tracer: Any) -> list[Tracker]:
        """Return the iterator behind the next value, and that value."""
        return [self.at(tracer.binary("add", self.position, Const(1))), self.bounds(tracer)[0]]

    def bounds(self, tracer: Any) -> list[Tracker]:
        """Return the next value, and the first one that is not of the range."""
        return [tracer.binary("add", _size(self.plan.first), tracer.binary("mul", k, Const(self.plan.step)))
                for k in (self.position, _size(self.plan.count))]


def _size(n: Any) -> Tracker:
    return Sym(n) if isinstance(n, torch.SymInt) else Const(n)


def enumerated(it: LoopIterator, start: int, ordinary: Callable[[Any], Tracker]) -> LoopIterator:
    """Return `enumerate` of an iterator."""

    def plan(tracer: Any) -> Plan:
        values = it.plan(tracer)
        numbers = counted(tracer, start, values.count, 1)

        def value(tracer: Any, slices: list[Tracker]) -> Tracker:
            return Tuple([numbers.value(tracer, slices), values.value(tracer, slices[1:])])

        return Plan(values.count, [*numbers.operands, *values.operands], value)

    return LoopIterator(enumerate, plan, ordinary, [it])


class StackedItems(Tracker):
    """Elements of a list: all slices of a stack. `last`: the last of them as the program knows it, if it does;
    `watched`: storages that they may share memory with; `place`: the loop or branch; `kind`: the class of numbers;
    `each`: makes the element of a slice, where it is not the slice itself."""

    __slots__ = ("each", "kind", "last", "place", "stack", "watched")

    def __init__(self, stack: Tracker, last: Tracker | None, watched: Sequence[Any], place: Place,
                 kind: type | None = None, each: Callable[[Any, Tracker], Tracker] | None = None) -> None:
        self.stack = stack
        self.each = each
        self.last = last
        self.place = place
        self.kind = kind
        self.watched = [(x, x.version) for x in watched]

    def check(self) -> None:
        """Raise LoopUnrolled if elements may have been written since the loop: the stack has their values there."""
        if any(x.version != version for x, version in self.watched):
            raise LoopUnrolled(self.place, "a tensor in a list that a loop has filled is written later")

    @property
    def rows(self) -> Tracker:
        """Return a tensor with a slice for each element."""
        return self.stack

    def iterator(self, items: Callable[[Any], list[Tracker]]) -> LoopIterator:
        """Return the iterator over the elements; outside of a loop they are `items`."""
        return over_slices(self.stack, items, self.each)


class SplitItems(StackedItems):
    """Elements of a list or tuple: the parts of a tensor along `dim` whose lengths are the elements of the tensor
    `lengths`."""

    __slots__ = ("dim", "lengths")

    def __init__(self, whole: Tracker, dim: int, lengths: Tracker, watched: Sequence[Any], place: Place) -> None:
        super().__init__(whole, None, watched, place)
        self.dim = dim
        self.lengths = lengths

    @property
    def rows(self) -> Tracker:
        return self.lengths

    def iterator(self, items: Callable[[Any], list[Tracker]]) -> LoopIterator:
        def plan(tracer: Any) -> Plan:
            n = self.lengths
            starts = tracer.binary("sub", tracer.torch_call(torch.cumsum, [n, Const(0)], {}), n)
            return Plan(n.fake.shape[0], [starts, n], value)  # type: ignore[attr-defined]

        def value(tracer: Any, slices: list[Tracker]) -> Tracker:
            where = [tracer.integer_in(x) for x in slices]
            return tracer.torch_call(torch.narrow, [self.stack, Const(self.dim), *where], {})  # type: ignore[no-any-return]

        return LoopIterator(type(iter([])), plan, lambda tracer: Iter(items(tracer)))


class GrowingList(List):
    """A list that a loop fills, during a round: nothing can be read of it."""

    __slots__ = ()

    def _refuse(self, *args: Any) -> Any:
        raise Unsupported("a loop reads a list that it fills")

    open = peek = truth = size = item = iterate = _refuse  # type: ignore[assignment]


class FilledList(List):
    """A list that loops have filled: some of its elements are `StackedItems`. Its number of elements, its last one and
    what stacks and joins all of them are known; any other use unrolls the loop."""

    __slots__ = ()

    def open(self, tracer: Any) -> list[Tracker]:
        place = next(x for x in self.items if isinstance(x, StackedItems)).place
        raise LoopUnrolled(place, "a list that a loop fills is used other than by torch.stack, torch.cat or a loop")

    def peek(self, tracer: Any, index: int) -> Tracker | None:
        return self.open(tracer)[index]

    def truth(self, tracer: Any) -> bool:
        return bool(self.size(tracer) != 0)

    def size(self, tracer: Any) -> Any:
        slices = [x.rows for x in self.items if isinstance(x, StackedItems)]
        return sum([x.fake.shape[0] for x in slices], len(self.items) - len(slices))  # type: ignore[attr-defined]

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        last = self.items[-1]
        if isinstance(last, StackedItems):
            last = last.last  # type: ignore[assignment]
        if type(key) is Const and key.value == -1 and type(key.value) is int and last is not None:
            return last
        return self.open(tracer)[0]

    def iterate(self, tracer: Any) -> Tracker:
        first = self.items[0]
        if len(self.items) != 1 or not isinstance(first, StackedItems) or first.kind is not None and first.each is None:
            return Iter(self.open(tracer))
        first.check()
        return first.iterator(self.open)

    def numbers(self, tracer: Any, *kinds: type) -> Tracker:
        """Return a tensor of the elements, which are numbers of one of these classes."""
        if len(self.items) != 1 or self.items[0].kind not in kinds:  # type: ignore[attr-defined]
            self.open(tracer)
        self.items[0].check()  # type: ignore[attr-defined]
        return self.items[0].stack  # type: ignore[attr-defined, no-any-return]

    def whole(self, tracer: Any, dim: int) -> Tracker | None:
        """Return the tensor of which the elements are the parts along `dim`; None if they are no parts."""
        if len(self.items) != 1 or not isinstance(parts := self.items[0], SplitItems):
            return None
        if dim not in (parts.dim, parts.dim - parts.stack.fake.dim()):  # type: ignore[attr-defined]
            self.open(tracer)
        parts.check()
        return parts.stack

    def stacks(self, tracer: Any) -> list[Tracker]:
        """Return tensors of which the elements are the slices, in order."""
        if not all(type(x) is StackedItems and x.kind is None or hasattr(x, "fake") for x in self.items):
            self.open(tracer)
        if not expected(self.size(tracer) >= 1):
            raise Unsupported("torch.stack or torch.cat of an empty list")
        for x in self.items:
            if isinstance(x, StackedItems):
                x.check()
        return [x.stack if isinstance(x, StackedItems) else tracer.torch_call(torch.unsqueeze, [x, Const(0)], {})
                for x in self.items]


class FilledTuple(FilledList):
    """A tuple of the parts of a tensor, of a number that data tell."""

    __slots__ = ()
    cls = tuple  # type: ignore[assignment]


__all__ = ["BranchApart", "FilledList", "FilledTuple", "FirstRoundApart", "GrowingList", "LoopIterator", "LoopUnrolled",
           "Place", "Plan", "Range", "RangeIterator", "SplitItems", "StackedItems", "counted", "enumerated",
           "over_slices", "progression", "zipped"]
