"""iter, next, zip, map, sum and similar functions; itertools; generator objects."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from framesmith.util.errors import DataDependent, Unsupported

from .. import choices, data
from .. import trackers as t
from ..registry import calls
from ..sources import MISSING
from ..trackers import Args, Kwargs
from .builtin import callable_
from .containers import Sought, backwards, ordered


@calls(iter)
def _iter(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if len(args) == 2:
        if not callable_(tracer, args[0]):
            tracer.folded(iter, (0, 0))  # raises, in the words of the running version
        return t.Until(args[0], args[1])
    return args[0].iterate(tracer)


@calls(next)
def _next(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[0]
    if not isinstance(it, (t.Generator, t.Object)):
        if tracer.lookup(it.pytype(), "__next__") is MISSING:
            tracer.raise_(TypeError(f"'{it.pytype().__name__}' object is not an iterator"))
        v = it.next(tracer)
        return v if v is not None else args[1] if len(args) > 1 else tracer.raise_(StopIteration())
    if len(args) == 1:
        return tracer.call_special(it, "__next__", [])
    v = tracer.none_if_raised(StopIteration, tracer.call_special, it, "__next__", [])
    return args[1] if v is None else v


def _tuple(row: Iterable[t.Tracker]) -> t.Tracker:
    return t.Tuple(list(row))


def _values(tracer: Any, x: t.Tracker) -> Iterator[t.Tracker]:
    """Return a real iterator over the values of an iteration."""
    return t.steps(tracer, x.iterate(tracer))


def _called(tracer: Any, fn: t.Tracker) -> Callable[..., t.Tracker]:
    return lambda *args: fn.call(tracer, list(args), {})


def _holds(tracer: Any, fn: t.Tracker) -> Callable[[t.Tracker], bool]:
    """Return the truth of `fn(value)`, or of the value itself if `fn` is None."""
    return lambda v: (v if fn is t.NONE else fn.call(tracer, [v], {})).truth(tracer)


@calls(zip)
def _zip(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    strict = "strict" in kwargs and kwargs["strict"].truth(tracer)
    its = [a.iterate(tracer) for a in args]

    def plain(tracer: Any) -> t.Tracker:
        rows = zip(*[t.steps(tracer, it) for it in its], strict=strict)
        return t.Lazy(map(_tuple, rows), zip, its, ("strict=True",) if strict else ())

    if its and all(type(it) is t.LoopIterator for it in its):
        return t.zipped(its, plain)  # type: ignore[arg-type]
    return plain(tracer)


@calls(map)
def _map(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    its = [a.iterate(tracer) for a in args[1:]]
    return t.Lazy(map(_called(tracer, args[0]), *[t.steps(tracer, it) for it in its]), map, [args[0], *its])


@calls(enumerate)
def _enumerate(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    start = args[1] if len(args) > 1 else kwargs.get("start", t.Const(0))
    if start.constant and start.pytype() is not int:
        start = tracer.fold(operator.index, (start.real(tracer),))
    parts = [args[0].iterate(tracer), start]

    def plain(tracer: Any) -> t.Tracker:
        return t.Lazy(_enumerated(tracer, parts), enumerate, parts)

    it = parts[0]
    if type(it) is t.LoopIterator and type(start) is t.Const:
        return t.enumerated(it, start.value, plain)
    return plain(tracer)


def _enumerated(tracer: Any, parts: list[t.Tracker]) -> Iterator[t.Tracker]:
    """Make an `enumerate` of an iterator and the next number, which is kept up to date."""
    for n, v in enumerate(t.steps(tracer, parts[0]), tracer.index(parts[1])):
        parts[1] = t.Const(n + 1)
        yield t.Tuple([t.Const(n), v])


@calls(filter)
def _filter(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[1].iterate(tracer)
    return t.Lazy(filter(_holds(tracer, args[0]), t.steps(tracer, it)), filter, [args[0], it])


def _by_index(tracer: Any, x: t.Tracker) -> t.Tracker:
    """reversed() of an object with a length and a subscript."""
    for name in ("__len__", "__getitem__"):
        if tracer.lookup(x.pytype(), name) is MISSING:
            tracer.raise_(TypeError(f"'{x.pytype().__name__}' object is not reversible"))
    return t.Lazy((x.item(tracer, t.Const(i)) for i in range(x.size(tracer) - 1, -1, -1)), reversed)


@calls(reversed)
def _reversed(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    if type(x) is t.Range:
        x = x.backwards(tracer) or x.fixed(tracer)
        return x.iterate(tracer) if type(x) is t.Range else tracer.walk(x, reversed)
    if isinstance(x, t.Tensor):
        return x.get(tracer, "__reversed__").call(tracer, [], {})
    if x.constant:
        return tracer.walk(x, reversed)
    raw = tracer.lookup(x.pytype(), "__reversed__")
    if raw is not MISSING and raw is not None:
        return tracer.bound_special(x, "__reversed__", raw).call(tracer, [], {})
    if isinstance(x, t.Tuple):
        return t.Backward(x, x.size(tracer) - 1)
    if isinstance(x, t.Object) and raw is MISSING:
        return _by_index(tracer, x)
    return tracer.raise_(TypeError(f"'{x.pytype().__name__}' object is not reversible"))


def unordered(tracer: Any, x: t.Tracker, key: t.Tracker) -> Iterable[t.Tracker]:
    """Return the elements for a function that does not depend on their order, if they are constants with builtin
    comparison."""
    if isinstance(x, t.Set) and key is t.NONE:
        items = [tracer.unkey(k) for k in x.open(tracer)]
        if all(i.constant for i in items):
            return items
    return tracer.each(x)


@calls(sorted)
def _sorted(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    reverse = backwards(tracer, kwargs.get("reverse", t.FALSE))
    key = kwargs.get("key", t.NONE)
    items = tracer.listed(x) if isinstance(x, t.Object) else list(unordered(tracer, x, key))
    return t.List(ordered(tracer, items, key, reverse))


@calls(any)
def _any(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(any(map(_holds(tracer, t.NONE), _values(tracer, args[0]))))


@calls(all)
def _all(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(all(map(_holds(tracer, t.NONE), _values(tracer, args[0]))))


@calls(sum)
def _sum(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    total = args[1] if len(args) > 1 else kwargs.get("start", t.Const(0))
    it = args[0].iterate(tracer)
    for text in (str, bytes, bytearray):
        if type(total) is not t.Chosen and issubclass(total.pytype(), text):
            tracer.folded(sum, ((), text()))
    while (v := it.next(tracer)) is not None:
        total = tracer.binary("add", total, v)
    return total


@calls(functools.reduce)
def _reduce(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    if not tracer.is_iterable(args[1]):
        tracer.raise_(TypeError("reduce() arg 2 must support iteration"))
    return tracer.by_c(functools.reduce, _called(tracer, args[0]), _values(tracer, args[1]), *args[2:])


def _extreme(symbol: str, real: Any, symbolic: Any) -> Any:
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        key = kwargs.get("key", t.NONE)
        if len(args) > 1 and "default" in kwargs:
            tracer.folded(real, (None, None), {"default": None})
        items = args if len(args) > 1 else unordered(tracer, args[0], key)
        plain = isinstance(key, t.Const) and key.value is None
        best: Any = None
        best_key: Any = None
        for v in items:
            k = v if plain else key.call(tracer, [v], {})
            better: Any = None if best_key is None else tracer.compare(symbol, k, best_key)
            try:
                if better is None or better.truth(tracer):
                    best, best_key = v, k
            except DataDependent:
                sizes = [_size(tracer, x) for x in (v, best) if plain]
                if sizes and None not in sizes:
                    best = best_key = t.Sym(symbolic(*sizes))
                    continue
                if tracer.asks(better) or not choices.chooses(better):
                    raise
                best = t.Chosen(better, v, best)
                best_key = best if plain else t.Chosen(better, k, best_key)
        if best is None:
            return kwargs["default"] if "default" in kwargs else tracer.fold(real, ((),))
        return best

    return row


def _size(tracer: Any, x: t.Tracker) -> Any:
    """Return an integer that may be a size; None for other values."""
    if type(x) is t.Data and data.is_size(tracer, x):
        return data.size(tracer, x)
    return x.value if isinstance(x, t.Const | t.Sym) and type(x.value) in (int, torch.SymInt) else None


calls(max)(_extreme(">", max, torch.sym_max))
calls(min)(_extreme("<", min, torch.sym_min))


# --- itertools --------------------------------------------------------------------------------------------------------
@calls(itertools.chain)
def _chain(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    values = itertools.chain.from_iterable(map(functools.partial(_values, tracer), args))
    return t.Lazy(values, itertools.chain, list(args), (), itertools.chain)


@calls(itertools.repeat)
def _repeat(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    times = args[1:] or ([kwargs["times"]] if "times" in kwargs else [])
    return t.Lazy(itertools.repeat(args[0], *[tracer.index(n) for n in times]), itertools.repeat,
                  None if times else args)


@calls(itertools.count)
def _count(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    given = [a.real(tracer) for a in args], {k: v.real(tracer) for k, v in kwargs.items()}
    return t.Lazy(map(tracer.made, tracer.folded(itertools.count, *given)), itertools.count, args, (), itertools.count,
                  kwargs)


@calls(itertools.islice)
def _islice(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    it = args[0].iterate(tracer)
    bounds = [a.real(tracer) for a in args[1:]]
    steps = tracer.folded(itertools.islice, (t.steps(tracer, it), *bounds))
    return t.Lazy(steps, itertools.islice, [it, *args[1:]], (), itertools.islice)


@calls(itertools.product)
def _product(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    times = tracer.index(kwargs["repeat"]) if "repeat" in kwargs else 1
    rows = itertools.product(*[tracer.listed(a) for a in args], repeat=times)
    return t.Lazy((t.Tuple(list(r)) for r in rows), itertools.product)


def _combining(fn: Any) -> Any:
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        rows = fn(tracer.listed(args[0]), *[tracer.index(a) for a in args[1:]])
        return t.Lazy((t.Tuple(list(r)) for r in rows), fn)

    return row


for _fn in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    calls(_fn)(_combining(_fn))


def _iterates(fn: Any, over: Callable[..., Iterator[t.Tracker]], *places: int, cls: Any = None) -> None:
    """Let calls of `fn` make an iterator of class `cls` (default: `fn`), whose values `over` yields: it receives real
    iterators for the arguments at `places`, or for all if there are none. `iter` of these is called at once."""

    @calls(fn)
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        given = [a.iterate(tracer) if i in places or not places else a for i, a in enumerate(args)]
        real = [t.steps(tracer, a) if i in places or not places else a for i, a in enumerate(given)]
        try:
            values = over(tracer, *real, **kwargs)
        except TypeError as e:
            if e.__traceback__ is not None and e.__traceback__.tb_next is not None:
                raise
            tracer.folded(fn, (None,) * len(args), dict.fromkeys(kwargs))
            raise Unsupported(f"a call of {fn.__name__} with these arguments") from None
        return t.Lazy(values, cls or fn, given, (), fn, kwargs)


def _accumulated(tracer: Any, it: Iterator[t.Tracker], func: t.Tracker = t.NONE, *,
                 initial: t.Tracker = t.NONE) -> Iterator[t.Tracker]:
    join = functools.partial(tracer.binary, "add") if func is t.NONE else _called(tracer, func)
    return itertools.accumulate(it, join, initial=None if initial is t.NONE else initial)


class _Key(Sought):
    """A key of `groupby`, which compares neighbours."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self.tracer.equal(self.item, other.item)  # type: ignore[attr-defined]


def _grouped(tracer: Any, it: Iterator[t.Tracker], key: t.Tracker = t.NONE) -> Iterator[t.Tracker]:
    def pair(row: tuple[_Key, Iterator[t.Tracker]]) -> t.Tracker:
        return t.Tuple([row[0].item, t.Lazy(row[1], type(row[1]))])

    return map(pair, itertools.groupby(it, lambda v: _Key(tracer, v if key is t.NONE else key.call(tracer, [v], {}))))


_iterates(itertools.accumulate, _accumulated, 0)
_iterates(itertools.compress, lambda tracer, data, selectors: itertools.compress(
    data, map(_holds(tracer, t.NONE), selectors)), 0, 1)
_iterates(itertools.cycle, lambda tracer, it: itertools.cycle(it), 0)
_iterates(itertools.dropwhile, lambda tracer, fn, it: itertools.dropwhile(
    lambda v: fn.call(tracer, [v], {}).truth(tracer), it), 1)
_iterates(itertools.takewhile, lambda tracer, fn, it: itertools.takewhile(
    lambda v: fn.call(tracer, [v], {}).truth(tracer), it), 1)
_iterates(itertools.filterfalse, lambda tracer, fn, it: itertools.filterfalse(_holds(tracer, fn), it), 1)
_iterates(itertools.starmap, lambda tracer, fn, it: itertools.starmap(
    _called(tracer, fn), map(operator.methodcaller("items_list", tracer), it)), 1)
_iterates(itertools.pairwise, lambda tracer, it: map(_tuple, itertools.pairwise(it)), 0)
if hasattr(itertools, "batched"):
    _batched: Any = itertools.batched  # type: ignore[attr-defined]
    _iterates(_batched, lambda tracer, it, n: map(_tuple, tracer.by_c(_batched, it, tracer.index(n))), 0)
_iterates(itertools.zip_longest, lambda tracer, *its, fillvalue=t.NONE: map(
    _tuple, itertools.zip_longest(*its, fillvalue=fillvalue)))
_iterates(itertools.chain.from_iterable, lambda tracer, its: itertools.chain.from_iterable(
    map(functools.partial(_values, tracer), its)), 0, cls=itertools.chain)
_iterates(itertools.groupby, _grouped, 0)


@calls(itertools.tee)
def _tee(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    made = tracer.by_c(itertools.tee, _values(tracer, args[0]), *[tracer.index(n) for n in args[1:]])
    return t.Tuple([t.Lazy(one, type(one)) for one in made])
