"""iter, next, zip, map, sum and their kin; itertools; generator objects."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from framesmith.util.errors import DataDependent

from .. import choices
from .. import trackers as t
from ..registry import calls
from ..sources import MISSING
from .builtin import callable_
from .containers import backwards, ordered

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


@calls(iter)
def _iter(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 2:
        if not callable_(cx, args[0]):
            cx.folded(iter, (0, 0))  # raises, in the words of the running version
        return t.Until(args[0], args[1])
    return args[0].iterate(cx)


@calls(next)
def _next(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[0]
    if not isinstance(it, (t.Generator, t.Object)):
        if cx.lookup(it.pytype(), "__next__") is MISSING:
            cx.raise_(TypeError(f"'{it.pytype().__name__}' object is not an iterator"))
        v = it.next(cx)
        return v if v is not None else args[1] if len(args) > 1 else cx.raise_(StopIteration())
    try:
        return it.builtin_method(cx, "__next__", [], {}) if isinstance(it, t.Generator) else cx.call_special(it, "__next__", [])
    except t.CapturedError as e:
        if len(args) > 1 and issubclass(e.tracker.pytype(), StopIteration):
            return args[1]
        raise


@calls(zip)
def _zip(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    strict = "strict" in kwargs and kwargs["strict"].truth(cx)
    its = [a.iterate(cx) for a in args]
    return t.Lazy(t.zipped(cx, its, strict), zip, its, ("strict=True",) if strict else ())


@calls(map)
def _map(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    its = [a.iterate(cx) for a in args[1:]]
    return t.Lazy(t.mapped(cx, args[0], its), map, [args[0], *its])


@calls(enumerate)
def _enumerate(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    start = args[1] if len(args) > 1 else kwargs.get("start", t.Const(0))
    if start.constant and start.pytype() is not int:
        start = cx.fold(operator.index, (start.real(cx),))
    parts = [args[0].iterate(cx), start]
    return t.Lazy(t.enumerated(cx, parts), enumerate, parts)


@calls(filter)
def _filter(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    fn = args[0]
    plain = isinstance(fn, t.Const)
    it = args[1].iterate(cx)
    return t.Lazy(t.filtered(cx, lambda v: (v if plain else fn.call(cx, [v], {})).truth(cx), it), filter, [fn, it])


def _by_index(cx: Any, x: t.Tracker) -> t.Tracker:
    """reversed() of an object with a length and a subscript."""
    for name in ("__len__", "__getitem__"):
        if cx.lookup(x.pytype(), name) is MISSING:
            cx.raise_(TypeError(f"'{x.pytype().__name__}' object is not reversible"))
    return t.Lazy((x.item(cx, t.Const(i)) for i in range(x.size(cx) - 1, -1, -1)), reversed)


@calls(reversed)
def _reversed(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    if isinstance(x, t.Tensor):
        return x.get(cx, "__reversed__").call(cx, [], {}).iterate(cx)
    if x.constant:
        return cx.walk(x, reversed)
    raw = cx.lookup(x.pytype(), "__reversed__")
    if raw is not MISSING and raw is not None:
        return cx.bound_special(x, "__reversed__", raw).call(cx, [], {})
    if isinstance(x, t.Tuple):
        return t.Backward(x, x.size(cx) - 1)
    if isinstance(x, t.Object) and raw is MISSING:
        return _by_index(cx, x)
    return cx.raise_(TypeError(f"'{x.pytype().__name__}' object is not reversible"))


def unordered(cx: Any, x: t.Tracker, key: t.Tracker) -> Iterable[t.Tracker]:
    """The elements for a function to which their order makes no difference, if they are constants compared by themselves."""
    if isinstance(x, t.Set) and key is t.NONE:
        items = [cx.unkey(k) for k in x.open(cx)]
        if all(i.constant for i in items):
            return items
    return cx.each(x)


@calls(sorted)
def _sorted(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    reverse = backwards(cx, kwargs.get("reverse", t.FALSE))
    key = kwargs.get("key", t.NONE)
    items = cx.listed(x) if isinstance(x, t.Object) else list(unordered(cx, x, key))
    return t.List(ordered(cx, items, key, reverse))


@calls(any)
def _any(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[0].iterate(cx)
    while (v := it.next(cx)) is not None:
        if v.truth(cx):
            return t.TRUE
    return t.FALSE


@calls(all)
def _all(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[0].iterate(cx)
    while (v := it.next(cx)) is not None:
        if not v.truth(cx):
            return t.FALSE
    return t.TRUE


@calls(sum)
def _sum(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    total = args[1] if len(args) > 1 else kwargs.get("start", t.Const(0))
    it = args[0].iterate(cx)
    for text in (str, bytes, bytearray):
        if type(total) is not t.Chosen and issubclass(total.pytype(), text):
            cx.folded(sum, ((), text()))
    while (v := it.next(cx)) is not None:
        total = cx.binary("add", total, v)
    return total


@calls(functools.reduce)
def _reduce(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not cx.is_iterable(args[1]):
        cx.raise_(TypeError("reduce() arg 2 must support iteration"))
    it = args[1].iterate(cx)
    first = args[2] if len(args) > 2 else it.next(cx)
    acc: t.Tracker = first if first is not None else cx.raise_(TypeError("reduce() of empty iterable with no initial value"))
    while (v := it.next(cx)) is not None:
        acc = args[0].call(cx, [acc, v], {})
    return acc


def _extreme(symbol: str, real: Any) -> Any:
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        key = kwargs.get("key", t.NONE)
        if len(args) > 1 and "default" in kwargs:
            cx.folded(real, (None, None), {"default": None})
        items = args if len(args) > 1 else unordered(cx, args[0], key)
        plain = isinstance(key, t.Const) and key.value is None
        best: Any = None
        best_key: Any = None
        for v in items:
            k = v if plain else key.call(cx, [v], {})
            better: Any = None if best_key is None else cx.compare(symbol, k, best_key)
            try:
                if better is None or better.truth(cx):
                    best, best_key = v, k
            except DataDependent:
                if not choices.chooses(better):
                    raise
                best = t.Chosen(better, v, best)
                best_key = best if plain else t.Chosen(better, k, best_key)
        if best is None:
            return kwargs["default"] if "default" in kwargs else cx.fold(real, ((),))
        return best

    return row


calls(max)(_extreme(">", max))
calls(min)(_extreme("<", min))


# --- itertools --------------------------------------------------------------------------------------------------------
def _chained(cx: Any, its: Iterator[t.Tracker]) -> Iterator[t.Tracker]:
    for x in its:
        it = x.iterate(cx)
        while (v := it.next(cx)) is not None:
            yield v


@calls(itertools.chain)
def _chain(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.Lazy(_chained(cx, iter(args)), itertools.chain, list(args), (), itertools.chain)


@calls(itertools.repeat)
def _repeat(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    times = args[1:] or ([kwargs["times"]] if "times" in kwargs else [])
    return t.Lazy(itertools.repeat(args[0], *[cx.index(n) for n in times]), itertools.repeat, None if times else args)


@calls(itertools.count)
def _count(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = [a.real(cx) for a in args], {k: v.real(cx) for k, v in kwargs.items()}
    return t.Lazy(map(cx.made, cx.folded(itertools.count, *given)), itertools.count, args, (), itertools.count, kwargs)


@calls(itertools.islice)
def _islice(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[0].iterate(cx)
    bounds = [a.real(cx) for a in args[1:]]
    steps = cx.folded(itertools.islice, (iter(lambda: it.next(cx), None), *bounds))
    return t.Lazy(steps, itertools.islice, [it, *args[1:]], (), itertools.islice)


@calls(itertools.product)
def _product(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    times = cx.index(kwargs["repeat"]) if "repeat" in kwargs else 1
    rows = itertools.product(*[cx.listed(a) for a in args], repeat=times)
    return t.Lazy((t.Tuple(list(r)) for r in rows), itertools.product)


def _combining(fn: Any) -> Any:
    def row(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        rows = fn(cx.listed(args[0]), *[cx.index(a) for a in args[1:]])
        return t.Lazy((t.Tuple(list(r)) for r in rows), fn)

    return row


for _fn in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    calls(_fn)(_combining(_fn))
