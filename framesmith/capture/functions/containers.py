"""Lists, tuples and deques: constructors and methods. CPython's own methods run over real containers of trackers
wherever they can."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from framesmith.symbolic.expr import and_, eq
from framesmith.symbolic.node import env_of, expr_of, symbool

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
    return (tracer.new_instance(cls, args[1:]) if t.is_own_sequence(cls)
            else t.Tuple(tracer.listed(args[1]) if len(args) > 1 else [], cls=cls))


# --- what real containers of trackers answer --------------------------------------------------------------------------
class Sought:
    """A stand-in for the value that a method of a real container searches: it equals the elements that the value equals
    in the program."""

    __slots__ = ("item", "tracer")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tracer: Any, item: t.Tracker) -> None:
        self.tracer = tracer
        self.item = item

    def __eq__(self, other: object) -> bool:
        return self.tracer.equal(other, self.item)

    def __repr__(self) -> str:
        return self.tracer.repr_text(self.item)


def _element(tracer: Any, x: t.Tracker) -> t.Tracker:
    return x


def _index(tracer: Any, x: t.Tracker) -> Any:
    return tracer.index(x)


def _asks(family: type, name: str, *kinds: Callable[[Any, t.Tracker], Any], changes: bool = False) -> None:
    """Make a row that runs CPython's own method over the trackers of the elements; `kinds`: the conversion of each
    argument."""

    @method(family, name)
    def row(tracer: Any, self: t.Sequence, *args: t.Tracker) -> t.Tracker:
        items: Any = self.touch(tracer) if changes else self.open(tracer)  # type: ignore[attr-defined]
        given = [kind(tracer, a) for kind, a in zip(kinds, args)] + list(args[len(kinds):])
        out = tracer.by_c(getattr(tuple(items) if self.kind is tuple else items, name), *given)
        if changes:
            self.changed(name)  # type: ignore[attr-defined]
        return out if isinstance(out, t.Tracker) else tracer.made(out)


for _name, _kinds in {"__contains__": (Sought,), "index": (Sought, _index, _index), "count": (Sought,)}.items():
    _asks(t.Sequence, _name, *_kinds)
for _name, _kinds in {"insert": (_index, _element), "pop": (_index,), "remove": (Sought,), "reverse": (),
                      "clear": ()}.items():
    _asks(t.List, _name, *_kinds, changes=True)
for _name, _kinds in {"append": (_element,), "appendleft": (_element,), "insert": (_index, _element),
                      "remove": (Sought,), "pop": (), "popleft": (), "rotate": (_index,), "reverse": (),
                      "clear": ()}.items():
    _asks(t.Deque, _name, *_kinds, changes=True)


# --- special methods --------------------------------------------------------------------------------------------------
@method(t.Sequence, "__len__")
@method(t.Dict, "__len__")
@method(t.Set, "__len__")
@method(t.DictView, "__len__")
def _len(tracer: Any, self: Any) -> t.Tracker:
    return t.Const(self.size(tracer))


@method(t.Sequence, "__iter__")
@method(t.Dict, "__iter__")
@method(t.Set, "__iter__")
@method(t.DictView, "__iter__")
def _iter(tracer: Any, self: t.Tracker) -> t.Tracker:
    return self.iterate(tracer)


@method(t.Set, "__contains__")
@method(t.DictView, "__contains__")
def _contains(tracer: Any, self: Any, item: t.Tracker) -> t.Tracker:
    return t.boolean(self.contains(tracer, item))


@method(t.Sequence, "__getitem__")
@method(t.Dict, "__getitem__")
def _getitem(tracer: Any, self: t.Tracker, key: t.Tracker) -> t.Tracker:
    return self.item(tracer, key)


@method(t.List, "__setitem__")
@method(t.Dict, "__setitem__")
def _setitem(tracer: Any, self: t.Tracker, key: t.Tracker, value: t.Tracker) -> t.Tracker:
    self.set_item(tracer, key, value)
    return t.NONE


@method(t.List, "__delitem__")
@method(t.Dict, "__delitem__")
def _delitem(tracer: Any, self: t.Tracker, key: t.Tracker) -> t.Tracker:
    self.del_item(tracer, key)
    return t.NONE


@method(t.Sequence, "__add__")
def _add(tracer: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
    other = other.plain()
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
@method(t.Deque, "__imul__")
def _imul(tracer: Any, self: Any, n: t.Tracker) -> t.Tracker | None:
    if tracer.lookup(n.pytype(), "__index__") is MISSING:
        return None
    items = self.touch(tracer)
    items *= tracer.index(n)
    self.changed("__imul__")
    return self


@method(t.Sequence, "__eq__")
def _eq(tracer: Any, self: t.Sequence, other: t.Tracker) -> t.Tracker | None:
    if type(other) is not type(self):
        return None
    a, b = self.open(tracer), other.open(tracer)  # type: ignore[attr-defined]
    if len(a) == len(b) and (found := _sizes_equal(tracer, a, b)) is not None:
        return found
    return t.boolean(len(a) == len(b) and all(tracer.equal(x, y) for x, y in zip(a, b)) and len(a) == len(b))


def _sizes_equal(tracer: Any, a: list[t.Tracker], b: list[t.Tracker]) -> t.Tracker | None:
    """Return whether sizes are equal in pairs, without a guard; None for other values, and for sizes of data."""
    values: list[Any] = [x.value if type(x) is t.Const or type(x) is t.Sym else None for x in (*a, *b)]
    env = env_of(*values)
    if env is None or not all(type(v) is int or isinstance(v, torch.SymInt) for v in values):
        return None
    relations = [eq(expr_of(m), expr_of(n)) for m, n in zip(values[:len(a)], values[len(a):])]
    known = [env.known(rel) for rel in relations]
    if False in known:
        return t.FALSE
    left = and_(*[rel for rel, truth in zip(relations, known) if truth is None])
    return tracer.made(symbool(left, env)) if env.data.isdisjoint(left.free) else None  # type: ignore[no-any-return]


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


@method(t.Tuple, "numel")
def _numel(tracer: Any, self: t.Tuple) -> t.Tracker:
    out: t.Tracker = t.Const(1)
    for v in self.open(tracer):
        out = tracer.binary("mul", out, v)
    return out


# --- deque ------------------------------------------------------------------------------------------------------------
@calls(collections.deque)
def _deque(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = dict(zip(("iterable", "maxlen"), args), **kwargs)
    most = given["maxlen"].real(tracer) if "maxlen" in given else None
    tracer.folded(collections.deque, ((), most))
    return t.Deque(tracer.each(given["iterable"]) if "iterable" in given else [], most)


def _adding(name: str, by: str) -> None:
    @method(t.Deque, name)
    def row(tracer: Any, self: t.Deque, other: t.Tracker) -> t.Tracker:
        values = other.items_list(tracer) if other is self else tracer.each(other)
        tracer.by_c(getattr(self.touch(tracer), by), values)
        self.changed(name)
        return self if name == "__iadd__" else t.NONE


for _name, _by in (("extend", "extend"), ("extendleft", "extendleft"), ("__iadd__", "extend")):
    _adding(_name, _by)


@method(t.Deque, "__reversed__")
def _deque_reversed(tracer: Any, self: t.Deque) -> t.Tracker:
    return self.walk(tracer, True)


# --- list -------------------------------------------------------------------------------------------------------------
@method(t.List, "append")
def _append(tracer: Any, self: t.List, item: t.Tracker) -> t.Tracker:
    self.extend(tracer, [item])
    return t.NONE


def extended(tracer: Any, self: t.List, other: t.Tracker) -> None:
    """`self.extend(other)`: the list grows with each value, which code that computes the next one sees."""
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


@method(t.List, "copy", "__copy__")
@method(t.Deque, "copy", "__copy__")
def _copy(tracer: Any, self: t.Sequence) -> t.Tracker:
    return self.make(self.open(tracer).copy())


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
    """Return the truth of `reverse`; raise the error of versions of Python that accept only numbers."""
    if reverse.constant:
        tracer.folded([].sort, (), {"reverse": reverse.real(tracer)})
    return reverse.truth(tracer)


def order(tracer: Any, items: list[t.Tracker], key: t.Tracker, reverse: bool) -> None:
    """Sort in place; if a comparison raises, the items keep the order that CPython leaves."""
    plain = key is t.NONE
    wrapped = [_Ordered(tracer, i if plain else key.call(tracer, [i], {}), i) for i in items]
    try:
        wrapped.sort(reverse=reverse)
    finally:
        items[:] = [w.item for w in wrapped]
