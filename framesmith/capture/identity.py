"""The identity of objects from outside: which are the same object, and which are not. It is guarded where captured code
depends on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from framesmith.fake.tensor import FakeTensor, guard_layout_assumptions

from . import data
from . import trackers as t
from .break_points import StopAt
from .closures import cells_apart
from .sources import Attr, Guard, Pinned, Source


def same_object(tracer: Any, a: t.Tracker, b: t.Tracker) -> bool:
    """`a is b`; the result is guarded if both came from outside."""
    if type(a) is t.Data or type(b) is t.Data:
        return data.same(a, b)
    if type(a) is t.SymbolicNumber or type(b) is t.SymbolicNumber:
        return a is b or a.pytype() is b.pytype() and a.value is b.value  # type: ignore[attr-defined]
    if t.Function in (type(a), type(b)) and a.pytype() is not b.pytype():
        return False  # whatever function it is
    same = a.identity() is b.identity()
    if not same and isinstance(a, t.Tensor) and isinstance(b, t.Tensor):
        if tracer.shared:
            _refuse_results(tracer, a, b)
        for x in (a, b):
            if type(x.fake) is FakeTensor:
                storage = x.fake._alias.storage
                guard_layout_assumptions(storage.copy_of + storage.copied)
    left, right = _place(a), _place(b)
    if left is None or right is None or left == right or a.constant or b.constant or a.pytype() is not b.pytype():
        return same
    if not same:
        pair = (left, right)
        tracer.guards.setdefault((None, "distinct", pair), Guard(None, "distinct", pair))
    elif type(a) is t.Tuple:  # the tuples at two places have trackers of their own
        tracer.guard(right, "same", left)
    return same


def _refuse_results(tracer: Any, a: t.Tensor, b: t.Tensor) -> None:
    """Stop before a branch or loop on data of which one of two tensors is a result: they may be one tensor."""
    both = {id(x.fake._alias.storage) for x in (a, b)}
    for one in tracer.shared:
        if id(one.result) in both:
            raise StopAt("the identity of a result of a branch or loop on data", one.stop, one.at)


def kept_apart(tracer: Any) -> Iterator[Guard]:
    """Guard that an object that is changed is none of the other objects of its type, whose changes would be its own;
    likewise for elements and keys by identity."""
    if len(tracer.keyed) > 1:
        yield Guard(None, "distinct", tuple(x.source for x in tracer.keyed.values()))
    yield from cells_apart(tracer)
    changed = {id(v) for x in tracer.mutated.values() if (v := getattr(x, "value", None)) is not None}
    if not changed:
        return
    kinds: dict[type, dict[int, Source]] = defaultdict(dict)
    for x in tracer.seen.values():
        if not isinstance(x, (t.Static, t.Function, t.Tensor)) and (place := _place(x)) is not None:
            kinds[type(x.value)][id(x.value)] = place
    for found in kinds.values():
        if len(found) > 1 and not changed.isdisjoint(found):
            yield Guard(None, "distinct", tuple(found.values()))


def _place(x: t.Tracker) -> Source | None:
    """Return where a value from outside was read, if another could be there in another call; else None."""
    if isinstance(x, t.InstanceDict):
        owner = _place(x.obj)
        return None if owner is None else Attr(owner, "__dict__")
    place = None if getattr(x, "value", None) is None else x.source
    return None if isinstance(place, Pinned) else place
