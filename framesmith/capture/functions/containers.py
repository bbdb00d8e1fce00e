"""list and tuple: constructors and methods."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch

from .. import trackers as t
from ..registry import calls, method
from ..sources import MISSING

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(list)
def _list(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.List(cx.listed(args[0]) if args else [])


@calls(tuple)
def _tuple(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if args and type(args[0]) is t.Tuple and args[0].cls is tuple:
        return args[0]
    return t.Tuple(cx.listed(args[0]) if args else [])


@calls(torch.Size)
def _size(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Tuple(cx.listed(args[0]) if args else [], cls=torch.Size)


@calls(tuple.__new__)
def _tuple_new(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    cls = args[0].real(cx)
    return cx.blank(cls, args[1:]) if t.is_own_sequence(cls) else t.Tuple(cx.listed(args[1]) if len(args) > 1 else [], cls=cls)


# --- tuple and list ---------------------------------------------------------------------------------------------------
@method(t.Sequence, "__len__")
def _len(cx: Any, self: t.Sequence) -> t.Tracker:
    return t.Const(self.size(cx))


@method(t.Sequence, "__getitem__")
def _getitem(cx: Any, self: t.Sequence, key: t.Tracker) -> t.Tracker:
    return self.item(cx, key)


@method(t.Sequence, "__iter__")
def _iter(cx: Any, self: t.Sequence) -> t.Tracker:
    return self.iterate(cx)


@method(t.Sequence, "__contains__")
def _contains(cx: Any, self: t.Sequence, item: t.Tracker) -> t.Tracker:
    return t.boolean(any(cx.equal(v, item) for _, v in present(cx, self, "__contains__")))


class _Clears:
    """Takes all elements out of a deque that compares them with it."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        self.of.clear()
        return False

    __hash__ = None  # type: ignore[assignment]


def present(cx: Any, self: t.Sequence, name: str) -> Iterator[tuple[int, t.Tracker]]:
    """Each element and its place, for the method `name`, as long as there are any: what is done with one may change the sequence."""
    items = self.open(cx)
    version = self.version if isinstance(self, t.Deque) else 0
    i = 0
    while i < len(items):
        yield i, items[i]
        i += 1
        if isinstance(self, t.Deque) and self.version != version:
            real = collections.deque([None])
            cx.folded(getattr(real, name), (_Clears(real),))  # raises, in the words of the running version


@method(t.Sequence, "index")
def _index(cx: Any, self: t.Sequence, item: t.Tracker, *rest: t.Tracker) -> t.Tracker:
    items = self.open(cx)
    bounds = slice(*[cx.index(r) for r in rest]) if len(rest) > 1 else slice(cx.index(rest[0]), None) if rest else slice(None)
    places = range(*bounds.indices(len(items)))
    for i, v in present(cx, self, "index"):
        if i in places and cx.equal(v, item):
            return t.Const(i)
    kind = _KINDS.get(type(self))
    return cx.raise_(ValueError(f"{cx.text(item, '__repr__').real(cx)} is not in {kind}" if kind else "tuple.index(x): x not in tuple"))


_KINDS: dict[type, str] = {t.List: "list", t.Deque: "deque"}


@method(t.Sequence, "count")
def _count(cx: Any, self: t.Sequence, item: t.Tracker) -> t.Tracker:
    return t.Const(sum(cx.equal(v, item) for _, v in present(cx, self, "count")))


@method(t.Sequence, "__add__")
def _add(cx: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
    if isinstance(other, t.Object) and other.payload is not None:
        other = other.payload
    if type(other) is not type(self):
        return None
    made = self if getattr(other, "cls", None) is not torch.Size else other  # a plain tuple and a torch.Size give a torch.Size
    return made.make(self.open(cx) + other.open(cx))  # type: ignore[attr-defined]


@method(t.Tuple, "__radd__")
def _size_radd(cx: Any, self: t.Tuple, other: t.Tracker) -> t.Tracker | None:
    return self.make(other.open(cx) + self.open(cx)) if self.cls is torch.Size and isinstance(other, t.Tuple) else None


@method(t.Sequence, "__mul__", "__rmul__")
def _mul(cx: Any, self: t.Sequence, n: t.Tracker) -> t.Tracker | None:
    if cx.lookup(n.pytype(), "__index__") is MISSING:
        return None
    return self.make(self.open(cx) * cx.index(n))


@method(t.List, "__imul__")
def _imul(cx: Any, self: t.List, n: t.Tracker) -> t.Tracker | None:
    if cx.lookup(n.pytype(), "__index__") is MISSING:
        return None
    items = self.touch(cx)
    items[:] = items * cx.index(n)
    return self


@method(t.Sequence, "__eq__")
def _eq(cx: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
    if type(other) is not type(self):
        return None
    a, b = self.open(cx), other.open(cx)  # type: ignore[attr-defined]
    return t.boolean(len(a) == len(b) and all(cx.equal(x, y) for x, y in zip(a, b)) and len(a) == len(b))


def _ordering(symbol: str) -> Any:
    def row(cx: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
        if type(other) is not type(self):
            return None
        a, b = self.open(cx), other.open(cx)  # type: ignore[attr-defined]
        for x, y in zip(a, b):
            if not cx.equal(x, y):
                return cx.compare(symbol, x, y)
        return cx.compare(symbol, t.Const(len(a)), t.Const(len(b)))

    return row


for _symbol, _name in (("<", "__lt__"), ("<=", "__le__"), (">", "__gt__"), (">=", "__ge__")):
    method(t.Sequence, _name)(_ordering(_symbol))


@method(t.Tuple, "__hash__")
def _hash(cx: Any, self: t.Tuple) -> t.Tracker:
    return t.Const(cx.hash_of(self))


@method(t.List, "__reversed__")
def _reversed(cx: Any, self: t.List) -> t.Tracker:
    return t.Backward(self, self.size(cx) - 1)


@method(t.Slice, "__eq__")
def _slice_eq(cx: Any, self: t.Slice, other: t.Tracker) -> t.Tracker | None:
    if not isinstance(other, t.Slice):
        return None
    return t.boolean(all(cx.equal(a, b) for a, b in zip(self.parts, other.parts)))


@method(t.Tuple, "numel")
def _numel(cx: Any, self: t.Tuple) -> t.Tracker:
    out: t.Tracker = t.Const(1)
    for v in self.open(cx):
        out = cx.binary("mul", out, v)
    return out


# --- list -------------------------------------------------------------------------------------------------------------
@method(t.List, "append")
def _append(cx: Any, self: t.List, item: t.Tracker) -> t.Tracker:
    self.extend(cx, [item])
    return t.NONE


def extended(cx: Any, self: t.List, other: t.Tracker) -> None:
    """`self.extend(other)`: the list grows with each value, so code that makes the next one sees it."""
    if isinstance(other, (t.Sequence, t.Set, t.Dict)):
        self.extend(cx, other.items_list(cx))
        return
    for v in cx.hinted(other):
        self.extend(cx, [v])


@method(t.List, "extend")
def _extend(cx: Any, self: t.List, other: t.Tracker) -> t.Tracker:
    extended(cx, self, other)
    return t.NONE


@method(t.List, "__iadd__")
def _iadd(cx: Any, self: t.List, other: t.Tracker) -> t.Tracker:
    extended(cx, self, other)
    return self


@method(t.List, "insert")
def _insert(cx: Any, self: t.List, at: t.Tracker, item: t.Tracker) -> t.Tracker:
    self.touch(cx).insert(cx.index(at), item)
    return t.NONE


@method(t.List, "pop")
def _pop(cx: Any, self: t.List, *at: t.Tracker) -> t.Tracker:
    return cx.folded(self.touch(cx).pop, tuple([cx.index(a) for a in at]))


@method(t.List, "remove")
def _remove(cx: Any, self: t.List, item: t.Tracker) -> t.Tracker:
    items = self.touch(cx)
    for i, v in present(cx, self, "remove"):
        if cx.equal(v, item):
            del items[i:i + 1]
            return t.NONE
    return cx.raise_(ValueError("list.remove(x): x not in list"))


@method(t.List, "clear")
def _clear(cx: Any, self: t.List) -> t.Tracker:
    self.touch(cx).clear()
    return t.NONE


@method(t.List, "copy", "__copy__")
def _copy(cx: Any, self: t.List) -> t.Tracker:
    return t.List(list(self.open(cx)))


@method(t.List, "reverse")
def _reverse(cx: Any, self: t.List) -> t.Tracker:
    self.touch(cx).reverse()
    return t.NONE


@method(t.List, "sort")
def _sort(cx: Any, self: t.List, *, key: t.Tracker = t.NONE, reverse: t.Tracker = t.FALSE) -> t.Tracker:
    descending = backwards(cx, reverse)
    items = self.touch(cx)
    sorting = items[:]
    items.clear()  # as CPython does: a key function sees an empty list
    try:
        order(cx, sorting, key, descending)
    finally:
        changed = bool(items)
        items[:] = sorting
    if changed:
        cx.raise_(ValueError("list modified during sort"))
    return t.NONE


@method(t.List, "__init__")
def _init(cx: Any, self: t.List, *args: t.Tracker) -> t.Tracker:
    self.touch(cx).clear()
    if args:
        extended(cx, self, args[0])
    return t.NONE


@method(t.List, "__setitem__")
def _setitem(cx: Any, self: t.List, key: t.Tracker, value: t.Tracker) -> t.Tracker:
    self.set_item(cx, key, value)
    return t.NONE


@method(t.List, "__delitem__")
def _delitem(cx: Any, self: t.List, key: t.Tracker) -> t.Tracker:
    self.del_item(cx, key)
    return t.NONE


class _Ordered:
    """An element for sorted(): compares as the captured program would."""

    __slots__ = ("cx", "item", "key")

    def __init__(self, cx: Any, key: t.Tracker, item: t.Tracker) -> None:
        self.cx = cx
        self.key = key
        self.item = item

    def __lt__(self, other: _Ordered) -> bool:
        return self.cx.compare("<", self.key, other.key).truth(self.cx)


def ordered(cx: Any, items: list[t.Tracker], key: t.Tracker, reverse: bool) -> list[t.Tracker]:
    """sorted()"""
    out = items[:]
    order(cx, out, key, reverse)
    return out


def backwards(cx: Any, reverse: t.Tracker) -> bool:
    """The truth of `reverse`, unless this Python takes only numbers for it."""
    if reverse.constant:
        cx.folded([].sort, (), {"reverse": reverse.real(cx)})
    return reverse.truth(cx)


def order(cx: Any, items: list[t.Tracker], key: t.Tracker, reverse: bool) -> None:
    """Sort in place; if a comparison raises, the items are left as CPython leaves them."""
    plain = key is t.NONE
    wrapped = [_Ordered(cx, i if plain else key.call(cx, [i], {}), i) for i in items]
    try:
        wrapped.sort(reverse=reverse)
    finally:
        items[:] = [w.item for w in wrapped]
