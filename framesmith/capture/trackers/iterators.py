"""Iterators: over known values, CPython's own iterators over others, and lazy generators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

from framesmith.util.errors import Unsupported

from ..iterator_lookahead import Ahead, Component, components, containers_of, upcoming
from ..sources import Applied, Item, Source
from .base import NULL, Tracker, always
from .constants import NONE, Const, boolean
from .sequences import Sequence


class Walk(Tracker):
    """The base of iterators with only the methods of CPython's builtin ones."""

    __slots__ = ()
    truth = always
    get = Tracker.builtin_attribute

    def iterate(self, tracer: Any) -> Tracker:
        return self

    def real(self, tracer: Any) -> Any:
        """Return the remaining values as a list, for a function that is run for real."""
        return [v.real(tracer) for v in self.items_list(tracer)]

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.iterator_method(self, name, args)


def steps(tracer: Any, it: Tracker) -> Iterator[Tracker]:
    """Yield the values of an iterator."""
    return iter(functools.partial(it.next, tracer), None)


class Iter(Walk):
    """An iterator over a list of trackers, from `index`; it sees later growth of the list, as a list iterator does."""

    __slots__ = ("index", "values")
    cls: type = type(iter([]))

    def __init__(self, values: list[Tracker], index: int = 0) -> None:
        self.values = values
        self.index = index

    def next(self, tracer: Any) -> Tracker | None:
        i = self.index
        if i >= len(self.values):
            return None
        self.index = i + 1
        return self.values[i]

    def rest(self, tracer: Any) -> list[Tracker]:
        """Return the remaining values."""
        return self.values[self.index:]


class SeqIter(Iter):
    """An iterator over a list or tuple; it sees later changes of a list, as a list iterator does."""

    __slots__ = ("owner", "sequence")
    step = 1

    def __init__(self, sequence: Sequence, index: int = 0) -> None:
        super().__init__([], index)
        self.sequence = sequence
        self.owner: Tracker | None = None
        """The object made in the frame that the sequence belongs to."""

    def pytype(self) -> type:
        return type(self.sequence.kind.__iter__(self.sequence.kind()))

    def next(self, tracer: Any) -> Tracker | None:
        if self.index < 0:
            return None
        found = self.sequence.peek(tracer, self.index)
        self.index = -1 if found is None else self.index + self.step
        return found

    def rest(self, tracer: Any) -> list[Tracker]:
        return [] if self.index < 0 else self.sequence.open(tracer)[self.index:]


class Backward(SeqIter):
    """A reversed iterator over a list or tuple; it sees later changes of a list, as `reversed` does."""

    __slots__ = ()
    step = -1

    def pytype(self) -> type:
        return type(reversed(self.sequence.kind()))

    def rest(self, tracer: Any) -> list[Tracker]:
        items = self.sequence.open(tracer)
        return items[self.index::-1] if 0 <= self.index < len(items) else []


class Outside(Iter):
    """An iterator from outside that allows lookahead: captured code reads its values, `effects` advances it afterwards.

    `real_iter` is the iterator; `index` the number of values read, one more when the end was found; `taken`: another
    one reads from it.
    """

    __slots__ = ("over", "real_iter", "seen", "source", "taken")

    def __init__(self, value: Any, source: Source | None) -> None:
        super().__init__([])
        self.real_iter = value
        self.source = source
        self.over = False
        self.taken = False
        self.seen: tuple[int, list[Any]] = 0, []
        """The lookahead distance, and the values found there."""

    def pytype(self) -> type:
        return type(self.real_iter)

    def take(self, tracer: Any) -> None:
        """Claim the iterators that it reads from, before the first value is read: no other may read them."""
        for i, part in enumerate(components(self.real_iter)):
            at = None if self.source is None else Applied(self.source, Component(i), f"iterator {i} of {{}}")
            inner = tracer.wrap(part, at)
            if inner.index or inner.taken:
                raise Unsupported("an iterator from outside that reads from another one")
            inner.taken = True
            inner.take(tracer)

    def look(self, tracer: Any) -> tuple[list[Any], Source | None]:
        """Return the values up to the next one, and the source of their list."""
        tracer.changes_outside += 1
        if self.taken:
            raise Unsupported("an iterator from outside that another one reads from")
        if self.index == 0:
            self.take(tracer)
        if tracer.mutated and any(id(tracer.seen.get(id(x))) in tracer.mutated for x in containers_of(self.real_iter)):
            raise Unsupported("an iterator from outside over a container that was changed")
        n = 1 << self.index.bit_length()  # index < n: a few lists serve all values
        if n != self.seen[0]:
            tracer.many_guarded(self.index, "values of an iterator")
            try:
                self.seen = n, upcoming(self.real_iter, n)
            except RuntimeError as e:
                raise Unsupported(f"an iterator from outside that raises {e}") from None
            tracer.keep.append(self.seen)
        return self.seen[1], None if self.source is None else Applied(self.source, Ahead(n), f"the next {n} of {{}}")

    def pull(self, tracer: Any, read: Callable[[Any, Source | None], Tracker]) -> Tracker | None:
        """Return the next value, as `read(value, source)`."""
        if self.over:
            return None
        found, at = self.look(tracer)
        i = self.index
        tracer.mutated[id(self)] = self
        self.index = i + 1
        if i < len(found):
            return read(found[i], None if at is None else Item(at, i))
        tracer.guard(at, "len", len(found))
        self.over = True
        return None

    def next(self, tracer: Any) -> Tracker | None:
        return self.pull(tracer, tracer.wrap)

    def skip(self, tracer: Any) -> Tracker | None:
        """Skip a value that is never read, and return NULL."""

        def unread(value: Any, at: Source | None) -> Tracker:
            tracer.guard(at, "type", type(value))
            return NULL

        return self.pull(tracer, unread)

    def rest(self, tracer: Any) -> list[Tracker]:
        out: list[Tracker] = []
        while (v := self.next(tracer)) is not None:
            out.append(v)
        return out


class Lazy(Walk):
    """An iterator backed by a real iterator over trackers (zip, map, enumerate, itertools, …).

    `parts` and `options` are the arguments of `cls` for an iterator over the rest; parts is None if there are none.
    `made_by`: the function that makes it from them and `keywords` as long as no value was taken. `stop`: the point at
    which capture could have stopped to let plain Python make it.
    """

    __slots__ = ("cls", "count", "keywords", "made_by", "options", "parts", "steps", "stop")

    def __init__(self, steps: Iterator[Tracker], cls: type, parts: list[Tracker] | None = None,
                 options: tuple[str, ...] = (),
                 made_by: Any = None, keywords: dict[str, Tracker] | None = None) -> None:
        self.steps = steps
        self.cls = cls
        self.parts = parts
        self.options = options
        self.made_by = made_by
        self.keywords = keywords or {}
        self.stop: Any = None
        self.count = 0
        """The number of values requested so far."""

    def next(self, tracer: Any) -> Tracker | None:
        self.count += 1
        if self.made_by is not None:
            self.made_by = self.parts = None
        return tracer.none_if_raised(StopIteration, tracer.by_c, next, self.steps, None)

    def real(self, tracer: Any) -> Any:
        if self.cls in _ENDLESS:
            raise Unsupported(f"an iterator of {self.cls.__name__} as an argument of a function that cannot be "
                              "followed")
        return super().real(tracer)


_ENDLESS = (itertools.count, itertools.cycle, itertools.repeat)


class Until(Walk):
    """iter(fn, sentinel); `fn` is None at the end."""

    __slots__ = ("fn", "sentinel")
    cls = type(iter(int, 1))

    def __init__(self, fn: Tracker, sentinel: Tracker) -> None:
        self.fn: Tracker | None = fn
        self.sentinel = sentinel

    def next(self, tracer: Any) -> Tracker | None:
        if self.fn is None:
            return None
        value = tracer.none_if_raised(StopIteration, self.fn.call, tracer, [], {})
        # the call may have come to the end of this very iterator
        if value is None or self.fn is None or tracer.equal(self.sentinel, value):
            self.fn = None
            return None
        return value


class Generator(Tracker):
    """A generator object: its frame runs to the next yield when asked."""

    __slots__ = ("done", "frame", "handled", "result", "running", "started")
    cls = GeneratorType
    truth = always

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.started = False
        self.running = False
        self.done = False
        self.result: Tracker | None = None
        self.handled: list[Tracker] = []
        """The exceptions that it was handling when it yielded."""

    def iterate(self, tracer: Any) -> Tracker:
        return self

    def next(self, tracer: Any) -> Tracker | None:
        return self.send(tracer, None)

    def real(self, tracer: Any) -> Any:
        return [v.real(tracer) for v in self.items_list(tracer)]

    def send(self, tracer: Any, value: Tracker | None) -> Tracker | None:
        """Resume with `value`; return None when the generator returns (`result` is its value)."""
        if self.done:
            return None
        if not self.started and value is not None and value is not NONE:
            tracer.raise_(TypeError("can't send non-None value to a just-started generator"))
        return tracer.resume_generator(self, value)

    def delegate(self) -> Tracker | None:
        """Return the iterator of the `yield from` at which it is suspended."""
        frame = self.frame
        instrs = frame.dec.instrs
        if frame.ip < len(instrs) and instrs[frame.ip].name == "RESUME" and instrs[frame.ip].arg & 3 >= 2:
            return frame.stack[-1]
        return None

    def leave_delegate(self) -> None:
        """Leave a `yield from` whose iterator has ended: the value that the generator is resumed with is the value of
        the expression."""
        frame = self.frame
        frame.stack.pop()
        frame.ip = frame.dec.instrs[frame.ip - 2].target

    def get(self, tracer: Any, name: str) -> Tracker:
        row = _GENERATOR_ATTRS.get(name)
        return row(self) if row is not None else self.builtin_attribute(tracer, name)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.generator_method(self, name, args)


_GENERATOR_ATTRS: dict[str, Callable[[Generator], Tracker]] = {
    "__name__": lambda g: Const(g.frame.fn.name),
    "__qualname__": lambda g: Const(g.frame.fn.qualname),
    "gi_running": lambda g: boolean(g.running),
    "gi_code": lambda g: Const(g.frame.code),
    "gi_yieldfrom": lambda g: (g.delegate() if g.started and not g.done else None) or NONE,
    "gi_suspended": lambda g: boolean(g.started and not g.done and not g.running),
}
