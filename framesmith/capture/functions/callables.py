"""Callable objects of the standard library: operator's getters, caches, single dispatch, guarded reprs."""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
import reprlib
import types
import weakref
from dataclasses import dataclass
from typing import Any

from framesmith.util.errors import FirstCall, Unsupported

from .. import trackers as t
from ..cached_results import SameResult, is_plain, keeps
from ..contents import referent, target_of
from ..identity import same_object
from ..registry import BUILTIN_KINDS, CACHED, CODES, CONSTANT_METHODS, OPAQUE, calls, method, opaque
from ..sources import Pinned
from ..surroundings import Answer
from ..trackers import Args, Kwargs


# --- operator ---------------------------------------------------------------------------------------------------------
def _parts(obj: t.Object) -> list[Any]:
    """Return the arguments that a getter was made with."""
    return list(obj.value.__reduce__()[1])


def _itemgetter(tracer: Any, obj: t.Object, of: t.Tracker) -> t.Tracker:
    got = [of.item(tracer, tracer.made(k)) for k in _parts(obj)]
    return got[0] if len(got) == 1 else t.Tuple(got)


def _attrgetter(tracer: Any, obj: t.Object, of: t.Tracker) -> t.Tracker:
    got = []
    for path in _parts(obj):
        x = of
        for name in path.split("."):
            x = x.get(tracer, name)
        got.append(x)
    return got[0] if len(got) == 1 else t.Tuple(got)


def _methodcaller(tracer: Any, obj: t.Object, of: t.Tracker) -> t.Tracker:
    make, parts = obj.value.__reduce__()[:2]
    named = make.keywords if isinstance(make, functools.partial) else {}
    name, *args = (*make.args, *parts) if isinstance(make, functools.partial) else parts
    return of.get(tracer, name).call(tracer, [tracer.made(a) for a in args],
                                     {k: tracer.made(v) for k, v in named.items()})


OPAQUE[(operator.itemgetter, "__call__")] = _itemgetter
OPAQUE[(operator.attrgetter, "__call__")] = _attrgetter
OPAQUE[(operator.methodcaller, "__call__")] = _methodcaller


# --- functools.lru_cache ----------------------------------------------------------------------------------------------
def _cached(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Call a function wrapped by lru_cache. With constants the call runs for real: the cache is filled as in plain
    Python, and hits are guarded. With an object the cache must have the result. With other keys by identity, such as
    tensors, the call ends the graph."""
    given = [*args, *kwargs.values()]
    for a in given:
        if isinstance(a, (t.List, t.Dict, t.Set)):
            a.key(tracer)  # most cannot be: the program's error
    fixed = all(_is_fixed(tracer, a) for a in given)
    if not fixed:
        for row in CACHED:
            if (out := row(tracer, fn, args, kwargs)) is not None:
                return out
        strange = next((a for a in given if not _is_fixed(tracer, a) and not _is_known(tracer, a)), None)
        if strange is not None:
            told = f"a call with {strange.describe()} of {fn.__qualname__}, which lru_cache made"
            raise Unsupported(told, hint="call the function beneath")
    if tracer.made_classes and any(tracer.mentions_made(_real(tracer, a)) for a in given):
        raise Unsupported(f"{fn.__qualname__}, which caches its results, of a class made in the frame")
    real, named = tuple([_real(tracer, a) for a in args]), {k: _real(tracer, v) for k, v in kwargs.items()}
    if (not fixed or tracer.mutated or tracer.global_writes) and not keeps(fn, real, named):
        raise FirstCall(f"a call of {fn.__qualname__}, which has no result for these arguments yet, after changes "
                        "still to be made")
    for a in given:
        if isinstance(a, t.Object):
            tracer.guard(a.source, "id", a.value)
    with tracer.recorder.off():
        result = tracer.folded(fn, real, named)
        again = tracer.folded(fn, real, named)
    if again is not result and not is_plain(result):
        raise Unsupported(f"{fn.__qualname__}, whose cache does not keep its results")
    tracer.guard(Pinned(fn), "callable", SameResult.of(fn, real, named, result))
    if is_plain(result):
        tracer.surroundings.answers.append(Answer(fn, real, named, result))
        return tracer.made(result)
    return tracer.wrap(result, Pinned(result))


def _is_fixed(tracer: Any, x: t.Tracker) -> bool:
    """Return whether an argument is a constant, or a tuple of constants."""
    if type(x) is t.Tuple:
        return all(_is_fixed(tracer, part) for part in x.open(tracer))
    return x.constant or isinstance(x, t.Static)


def _is_known(tracer: Any, x: t.Tracker) -> bool:
    """Return whether an argument is an object from outside that is hashed by identity."""
    return isinstance(x, t.Object) and x.value is not None and all(
        tracer.lookup(x.cls, name) is getattr(object, name) for name in ("__hash__", "__eq__"))


def _real(tracer: Any, x: t.Tracker) -> Any:
    return x.value if isinstance(x, t.Object) else x.real(tracer)


BUILTIN_KINDS["_lru_cache_wrapper"] = _cached


# --- functools.singledispatch -----------------------------------------------------------------------------------------
_find_impl: Any = functools._find_impl  # type: ignore[attr-defined]


def _dispatching(dispatch: Any) -> tuple[Any, Any, Any]:
    """Return the registry of a generic function, its cache, and the ABC cache token for which the cache is valid."""
    space = {name: cell.cell_contents for name, cell in zip(dispatch.__code__.co_freevars, dispatch.__closure__)}
    return space["registry"], space["dispatch_cache"], space["cache_token"]


def _choice(dispatch: Any, kind: type) -> Any:
    """Return the function that a generic function chooses for a class; its cache is read and not written, as neither
    capture nor guards change anything."""
    registry, cache, token = _dispatching(dispatch)
    chosen = cache.get(kind) if token is None or token == abc.get_cache_token() else None
    if chosen is None:
        chosen = registry[kind] if kind in registry else _find_impl(kind, registry)
    return chosen


@dataclass(frozen=True, slots=True)
class SameChoice:
    """The function that a generic function chooses for a class."""

    kind: type
    chosen: Any

    def __call__(self, dispatch: Any) -> bool:
        return _choice(dispatch, self.kind) is self.chosen


def _choose(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    if fn.value is None:
        return tracer.inline(fn, args, kwargs)
    registry, cache, _ = _dispatching(fn.value)
    if type(cache) is not weakref.WeakKeyDictionary:
        return tracer.inline(fn, args, kwargs)
    if any(id(tracer.seen.get(id(x))) in tracer.mutated for x in (registry, vars(cache)["data"])):
        raise Unsupported("a call of a generic function that the frame has changed")
    kind = args[0].real(tracer)
    chosen = tracer.folded(_choice, (fn.value, kind))
    tracer.guard(Pinned(fn.value), "callable", SameChoice(kind, chosen))
    return tracer.made(chosen)


CODES[id(functools.singledispatch(lambda x: x).dispatch.__code__)] = _choose


# --- functools.cached_property ----------------------------------------------------------------------------------------
def _cached_property(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Compute a cached property without its lock: no other thread sees the instance before the changes are replayed."""
    prop, obj = args[:2]
    name = prop.get(tracer, "attrname").real(tracer)
    if not isinstance(obj, t.Object) or not obj.cls.__dictoffset__ or name is None:
        return tracer.inline(fn, args, kwargs)
    found = obj.own_attr(tracer, name)
    if found is None:
        found = prop.get(tracer, "func").call(tracer, [obj], {})
        obj.put(tracer, name, found)
    return found


CODES[id(functools.cached_property.__get__.__code__)] = _cached_property


# --- reprs that stop at themselves ------------------------------------------------------------------------------------
def _recursive_repr(tracer: Any, fn: t.Function, args: Args, kwargs: Kwargs) -> t.Tracker:
    assert fn.value is not None
    own = dict(zip(fn.value.__code__.co_freevars, [c.cell_contents for c in fn.value.__closure__ or ()]))
    running = own["repr_running"]
    if id(fn.value) in tracer.of_made:
        tracer.of_made.setdefault(id(own["user_function"]), None)
    if id(running) in tracer.seen:  # the frame itself is one of this wrapper's
        return tracer.inline(fn, args, kwargs)
    if running:
        raise Unsupported("text within the text of an object")
    if id(fn.value) not in tracer.of_made:
        tracer.guard(Pinned(running), "len", 0)
    if any(x is args[0] and by is running for x, by in tracer.repeating):
        return t.Const(own.get("fillvalue", "..."))
    tracer.repeating.append((args[0], running))
    try:
        return tracer.made(own["user_function"]).call(tracer, args, kwargs)
    finally:
        tracer.repeating.pop()


CODES[id(reprlib.recursive_repr()(lambda self: "").__code__)] = _recursive_repr
if hasattr(dataclasses, "_recursive_repr"):
    CODES[id(dataclasses._recursive_repr(lambda self: "").__code__)] = _recursive_repr


# --- weak references --------------------------------------------------------------------------------------------------
def _deref(tracer: Any, obj: t.Object) -> t.Tracker:
    target = referent(obj.value)
    if target is not None and obj.source is not None and tracer.may_have_died(target):
        raise Unsupported("a weak reference to an object that the frame may have dropped")
    if target is None:
        tracer.guard(obj.source, "callable", _is_dead)
        return t.NONE
    return tracer.wrap(target, Pinned(target) if obj.source is None else target_of(obj.source))


def _is_dead(ref: Any) -> bool:
    """Return whether the referent of a weak reference is dead."""
    return referent(ref) is None


OPAQUE[(weakref.ReferenceType, "__call__")] = _deref


@calls(weakref.ref)
def _ref(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    target = args[0]
    if len(args) > 1 or kwargs or target.source is None or not isinstance(target, (t.Object, t.Static, t.Dict)):
        raise Unsupported("a weak reference to an object that only the frame holds, or with a callback")
    return t.WeakRef(target)


def _target(tracer: Any, ref: Any) -> t.Tracker:
    return ref.target if isinstance(ref, t.WeakRef) else _deref(tracer, ref)


@method(t.WeakRef, "__eq__")
@opaque(weakref.ReferenceType, "__eq__")
def _same_referent(tracer: Any, ref: t.Tracker, other: t.Tracker) -> t.Tracker | None:
    """Compare weak references: live ones by their referents, dead ones by identity."""
    if not issubclass(other.pytype(), weakref.ReferenceType):
        return None
    first, second = _target(tracer, ref), _target(tracer, other)
    if first is t.NONE or second is t.NONE:
        return t.boolean(same_object(tracer, ref, other))
    return tracer.compare("==", first, second)


@opaque(weakref.ReferenceType, "__ne__")
def _other_referent(tracer: Any, obj: t.Object, other: t.Tracker) -> t.Tracker | None:
    same = _same_referent(tracer, obj, other)
    return None if same is None else t.boolean(not same.truth(tracer))


def _of_type(tracer: Any, self: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    """Read an attribute of a class by `type`'s descriptor, as `inspect` reads `__mro__` in Python 3.12."""
    x, name = args[0], self.value.__name__
    if self.value.__objclass__ is not type:
        return None
    if x is not t.NONE and not issubclass(x.pytype(), type):
        tracer.raise_(TypeError(f"descriptor '{name}' for 'type' objects doesn't apply to a '{x.pytype().__name__}' "
                                "object"))
    if name == "__dict__" and tracer.made_classes and x.identity() in tracer.made_classes:
        raise Unsupported("the dict of a class that the frame made, by its descriptor")
    return x.get(tracer, name) if isinstance(x, t.Class) else None


for _kind in (types.GetSetDescriptorType, types.MemberDescriptorType):
    CONSTANT_METHODS[(_kind, "__get__")] = _of_type
CONSTANT_METHODS[(types.FunctionType, "__get__")] = lambda tracer, self, args, kwargs: (
    tracer.made(self.value) if args[0] is t.NONE else t.Method(tracer.made(self.value), args[0]))
