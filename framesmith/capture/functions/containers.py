"""list and tuple: constructors and methods."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch

from .. import trackers as t
from ..registry import calls, method
from ..sources import MISSING
from ..trackers import Args, Kwargs


@calls(list)
def _list(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.List(tracer.listed(args[0]) if args else [])


@calls(tuple)
def _tuple(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and type(args[0]) is t.Tuple and args[0].cls is tuple:
        return args[0]
    return t.Tuple(tracer.listed(args[0]) if args else [])


@calls(torch.Size)
def _size(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Tuple(tracer.listed(args[0]) if args else [], cls=torch.Size)


@calls(tuple.__new__)
def _tuple_new(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cls = args[0].real(tracer)
    return tracer.blank(cls, args[1:]) if t.is_own_sequence(cls) else t.Tuple(tracer.listed(args[1]) if len(args) > 1
                                                                              else [], cls=cls)


# --- tuple and list ---------------------------------------------------------------------------------------------------
@method(t.Sequence, "__contains__")
def _contains(tracer: Any, self: t.Sequence, item: t.Tracker) -> t.Tracker:
    return t.boolean(any(tracer.equal(v, item) for _, v in present(tracer, self, "__contains__")))


class _Clears:
    """Takes all elements out of a deque that compares them with it."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        self.of.clear()
        return False

    __hash__ = None  # type: ignore[assignment]


def present(tracer: Any, self: t.Sequence, name: str) -> Iterator[tuple[int, t.Tracker]]:
    """Each element and its place, for the method `name`, as long as there are any: what is done with one may change the
    sequence."""
    items = self.open(tracer)
    version = self.version if isinstance(self, t.Deque) else 0
    i = 0
    while i < len(items):
        yield i, items[i]
        i += 1
        if isinstance(self, t.Deque) and self.version != version:
            real = collections.deque([None])
            tracer.folded(getattr(real, name), (_Clears(real),))  # raises, in the words of the running version


@method(t.Sequence, "index")
def _index(tracer: Any, self: t.Sequence, item: t.Tracker, *rest: t.Tracker) -> t.Tracker:
    items = self.open(tracer)
    bounds = slice(*[tracer.index(r) for r in rest]) if len(rest) > 1 else slice(tracer.index(rest[0]),
                                                                                 None) if rest else slice(None)
    places = range(*bounds.indices(len(items)))
    for i, v in present(tracer, self, "index"):
        if i in places and tracer.equal(v, item):
            return t.Const(i)
    kind = _KINDS.get(type(self))
    return tracer.raise_(ValueError(f"{tracer.text(item, '__repr__').real(tracer)} is not in {kind}" if kind
                                    else "tuple.index(x): x not in tuple"))


_KINDS: dict[type, str] = {t.List: "list", t.Deque: "deque"}


@method(t.Sequence, "count")
def _count(tracer: Any, self: t.Sequence, item: t.Tracker) -> t.Tracker:
    return t.Const(sum(tracer.equal(v, item) for _, v in present(tracer, self, "count")))


@method(t.Sequence, "__add__")
def _add(tracer: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
    if isinstance(other, t.Object) and other.payload is not None:
        other = other.payload
    if type(other) is not type(self):
        return None
    # a plain tuple and a torch.Size give a torch.Size
    made = self if getattr(other, "cls", None) is not torch.Size else other
    return made.make(self.open(tracer) + other.open(tracer))  # type: ignore[attr-defined]


@method(t.Tuple, "__radd__")
def _size_radd(tracer: Any, self: t.Tuple, other: t.Tracker) -> t.Tracker | None:
    return self.make(other.open(tracer)
                     + self.open(tracer)) if self.cls is torch.Size and isinstance(other, t.Tuple) else None


@method(t.Sequence, "__mul__", "__rmul__")
def _mul(tracer: Any, self: t.Sequence, n: t.Tracker) -> t.Tracker | None:
    if tracer.lookup(n.pytype(), "__index__") is MISSING:
        return None
    return self.make(self.open(tracer) * tracer.index(n))


@method(t.List, "__imul__")
def _imul(tracer: Any, self: t.List, n: t.Tracker) -> t.Tracker | None:
    if tracer.lookup(n.pytype(), "__index__") is MISSING:
        return None
    items = self.touch(tracer)
    items[:] = items * tracer.index(n)
    return self


@method(t.Sequence, "__eq__")
def _eq(tracer: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
    if type(other) is not type(self):
        return None
    a, b = self.open(tracer), other.open(tracer)  # type: ignore[attr-defined]
    return t.boolean(len(a) == len(b) and all(tracer.equal(x, y) for x, y in zip(a, b)) and len(a) == len(b))


def _ordering(symbol: str) -> Any:
    def row(tracer: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
        if type(other) is not type(self):
            return None
        a, b = self.open(tracer), other.open(tracer)  # type: ignore[attr-defined]
        for x, y in zip(a, b):
            if not tracer.equal(x, y):
                return tracer.compare(symbol, x, y)
        return tracer.compare(symbol, t.Const(len(a)), t.Const(len(b)))

    return row


for _symbol, _name in (("<", "__lt__"), ("<=", "__le__"), (">", "__gt__"), (">=", "__ge__")):
    method(t.Sequence, _name)(_ordering(_symbol))


@method(t.Tuple, "__hash__")
def _hash(tracer: Any, self: t.Tuple) -> t.Tracker:
    return t.Const(tracer.hash_of(self))


@method(t.List, "__reversed__")
def _reversed(tracer: Any, self: t.List) -> t.Tracker:
    return t.Backward(self, self.size(tracer) - 1)


@method(t.Slice, "__eq__")
def _slice_eq(tracer: Any, self: t.Slice, other: t.Tracker) -> t.Tracker | None:
    if not isinstance(other, t.Slice):
        return None
    return t.boolean(all(tracer.equal(a, b) for a, b in zip(self.parts, other.parts)))


@method(t.Tuple, "numel")
def _numel(tracer: Any, self: t.Tuple) -> t.Tracker:
    out: t.Tracker = t.Const(1)
    for v in self.open(tracer):
        out = tracer.binary("mul", out, v)
    return out


# --- list -------------------------------------------------------------------------------------------------------------
@method(t.List, "append")
def _append(tracer: Any, self: t.List, item: t.Tracker) -> t.Tracker:
    self.extend(tracer, [item])
    return t.NONE


def extended(tracer: Any, self: t.List, other: t.Tracker) -> None:
    """`self.extend(other)`: the list grows with each value, so code that makes the next one sees it."""
    if isinstance(other, (t.Sequence, t.Set, t.Dict)):
        self.extend(tracer, other.items_list(tracer))
        return
    for v in tracer.hinted(other):
        self.extend(tracer, [v])


@method(t.List, "extend")
def _extend(tracer: Any, self: t.List, other: t.Tracker) -> t.Tracker:
    extended(tracer, self, other)
    return t.NONE


@method(t.List, "__iadd__")
def _iadd(tracer: Any, self: t.List, other: t.Tracker) -> t.Tracker:
    extended(tracer, self, other)
    return self


@method(t.List, "insert")
def _insert(tracer: Any, self: t.List, at: t.Tracker, item: t.Tracker) -> t.Tracker:
    self.touch(tracer).insert(tracer.index(at), item)
    return t.NONE


@method(t.List, "pop")
def _pop(tracer: Any, self: t.List, *at: t.Tracker) -> t.Tracker:
    return tracer.folded(self.touch(tracer).pop, tuple([tracer.index(a) for a in at]))


@method(t.List, "remove")
def _remove(tracer: Any, self: t.List, item: t.Tracker) -> t.Tracker:
    items = self.touch(tracer)
    for i, v in present(tracer, self, "remove"):
        if tracer.equal(v, item):
            del items[i:i + 1]
            return t.NONE
    return tracer.raise_(ValueError("list.remove(x): x not in list"))


@method(t.List, "copy", "__copy__")
def _copy(tracer: Any, self: t.List) -> t.Tracker:
    return t.List(list(self.open(tracer)))


@method(t.List, "reverse")
def _reverse(tracer: Any, self: t.List) -> t.Tracker:
    self.touch(tracer).reverse()
    return t.NONE


@method(t.List, "sort")
def _sort(tracer: Any, self: t.List, *, key: t.Tracker = t.NONE, reverse: t.Tracker = t.FALSE) -> t.Tracker:
    descending = backwards(tracer, reverse)
    items = self.touch(tracer)
    sorting = items[:]
    items.clear()  # as CPython does: a key function sees an empty list
    try:
        order(tracer, sorting, key, descending)
    finally:
        changed = bool(items)
        items[:] = sorting
    if changed:
        tracer.raise_(ValueError("list modified during sort"))
    return t.NONE


@method(t.List, "__init__")
def _init(tracer: Any, self: t.List, *args: t.Tracker) -> t.Tracker:
    self.touch(tracer).clear()
    if args:
        extended(tracer, self, args[0])
    return t.NONE


class _Ordered:
    """An element for sorted(): compares as the captured program would."""

    __slots__ = ("tracer", "item", "key")

    def __init__(self, tracer: Any, key: t.Tracker, item: t.Tracker) -> None:
        self.tracer = tracer
        self.key = key
        self.item = item

    def __lt__(self, other: _Ordered) -> bool:
        return self.tracer.compare("<", self.key, other.key).truth(self.tracer)


def ordered(tracer: Any, items: list[t.Tracker], key: t.Tracker, reverse: bool) -> list[t.Tracker]:
    """sorted()"""
    out = items[:]
    order(tracer, out, key, reverse)
    return out


def backwards(tracer: Any, reverse: t.Tracker) -> bool:
    """The truth of `reverse`, unless this Python takes only numbers for it."""
    if reverse.constant:
        tracer.folded([].sort, (), {"reverse": reverse.real(tracer)})
    return reverse.truth(tracer)


def order(tracer: Any, items: list[t.Tracker], key: t.Tracker, reverse: bool) -> None:
    """Sort in place; if a comparison raises, the items are left as CPython leaves them."""
    plain = key is t.NONE
    wrapped = [_Ordered(tracer, i if plain else key.call(tracer, [i], {}), i) for i in items]
    try:
        wrapped.sort(reverse=reverse)
    finally:
        items[:] = [w.item for w in wrapped]
