"""Functions of instances and functions: methods of `object`, dataclasses, functools, copy, warnings, typing."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from torch import nn

from framesmith._C import instance_dict
from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..binary_slots import NOT_IMPLEMENTED
from ..class_making import builtin_part
from ..identity import same_object
from ..registry import PLAIN, by_position, calls, folds, method, opaque
from ..sources import MISSING, Pinned
from ..trackers import Args, Kwargs
from .builtin import callable_
from .torch_making import other_memory, same_memory


# --- object -----------------------------------------------------------------------------------------------------------
@method(t.Object, "__setattr__")
def _setattr(tracer: Any, self: t.Object, name: t.Tracker, value: t.Tracker) -> t.Tracker:
    self.generic_set(tracer, name.real(tracer), value)
    return t.NONE


@method(t.Object, "__getattribute__")
def _getattribute(tracer: Any, self: t.Object, name: t.Tracker) -> t.Tracker:
    return self.generic_get(tracer, name.real(tracer))


@method(t.Object, "__delattr__")
def _delattr(tracer: Any, self: t.Object, name: t.Tracker) -> t.Tracker:
    self.generic_delete(tracer, name.real(tracer))
    return t.NONE


@method(t.Object, "__init__")
def _init(tracer: Any, self: t.Object, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    if self.payload is not None and not isinstance(self.payload, (t.Tuple, t.Const)):
        self.payload.builtin_method(tracer, "__init__", list(args), kwargs)
    elif issubclass(self.cls, types.SimpleNamespace):
        if args:
            tracer.raise_(TypeError("no positional arguments expected"))
        self.attrs.update(kwargs)
    elif builtin_part(self.cls) is object:
        tracer.takes_nothing(self.cls, "__init__", bool(args or kwargs))
    elif self.payload is None:
        raise Unsupported(f"__init__ of {self.describe()}")
    return t.NONE


@opaque(types.SimpleNamespace, "__eq__")
def _namespace_eq(tracer: Any, self: t.Object, other: t.Tracker) -> t.Tracker:
    if not isinstance(other, t.Object) or not issubclass(other.cls, types.SimpleNamespace):
        return t.Const(NotImplemented)
    return tracer.compare("==", t.Dict(tracer.instance_dict(self).open(tracer)),
                          t.Dict(tracer.instance_dict(other).open(tracer)))


PLAIN.add(types.SimpleNamespace)


@method(t.Object, "__init_subclass__", "__subclasshook__")
def _nothing(tracer: Any, self: t.Object, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    return t.NONE


def _text(name: str) -> Any:
    def row(tracer: Any, self: t.Object) -> t.Tracker:
        if issubclass(self.cls, types.SimpleNamespace):
            return tracer.opaque_method(self, "__repr__", [], {})
        if self.payload is not None:
            return tracer.text(self.payload, name)
        raise Unsupported(f"repr of {self.describe()}, which shows its address")

    return row


for _name in ("__repr__", "__str__"):
    method(t.Object, _name)(_text(_name))


@method(t.Object, "__eq__")
def _eq(tracer: Any, self: t.Object, other: t.Tracker) -> t.Tracker:
    if self.payload is None:
        return t.TRUE if same_object(tracer, self, other) else t.Const(NotImplemented)
    result = tracer.attempt(self.payload, "__eq__", [other.plain()])
    return t.Const(NotImplemented) if result is NOT_IMPLEMENTED else result


@method(t.Object, "__ne__")
def _ne(tracer: Any, self: t.Object, other: t.Tracker) -> t.Tracker:
    result = tracer.attempt(self, "__eq__", [other]) if self.payload is None else _eq(tracer, self, other)
    if result is NOT_IMPLEMENTED or isinstance(result, t.Const) and result.value is NotImplemented:
        return t.Const(NotImplemented)
    return t.boolean(not result.truth(tracer))


@method(t.Object, "__hash__")
def _hash(tracer: Any, self: t.Object) -> t.Tracker:
    if self.payload is not None:
        return t.Const(tracer.hash_of(self.payload))
    raise Unsupported("hash of an object's address")


def _generic(x: t.Tracker) -> t.Object:
    """Return `x`, on which a method of `object` is called by name; raise Unsupported if it is not an instance: only an
    instance's own lookup is followed."""
    if not isinstance(x, t.Object):
        raise Unsupported(f"a method of object, called on {x.describe()}")
    return x


@calls(object.__getattribute__)
def _object_getattribute(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    obj, name = args[0], args[1].real(tracer)
    if isinstance(obj, (t.Const, t.Tensor)):  # their classes look up as `object` does
        return obj.get(tracer, name)
    return _generic(obj).generic_get(tracer, name)


_static_entry: Any = getattr(inspect, "_check_instance")  # noqa: B009
_absent = getattr(inspect, "_sentinel")  # noqa: B009


@calls(_static_entry)
def _entry_of_tensor(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    """Look up a name in an instance dict as inspect.getattr_static does; a tensor's is not followed as a dict."""
    obj, name = args
    if not isinstance(obj, t.Tensor):
        return tracer.inline(tracer.made(_static_entry), args, kwargs)  # type: ignore[no-any-return]
    try:
        return obj.own(tracer, name.real(tracer))
    except t.CapturedError:
        return tracer.made(_absent)  # type: ignore[no-any-return]


# --- nn.Module --------------------------------------------------------------------------------------------------------
@calls(nn.ModuleList.__getitem__)
def _module_list_item(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    obj, key = args
    assert isinstance(obj, t.Module)
    modules = obj.own_attr(tracer, "_modules")
    assert isinstance(modules, t.Dict)
    index = tracer.index(key)
    if isinstance(index, slice):
        part = t.Module(obj.cls)
        names = list(modules.open(tracer).values())[index]
        for name, raw in nn.Module().__dict__.items():
            part.attrs[name] = tracer.made(raw) if not isinstance(raw, dict) else t.Dict({})
        part.attrs["_modules"] = t.Dict({str(i): m for i, m in enumerate(names)})
        return part
    n = len(modules.value) if not modules.complete else len(modules.entries)
    if not -n <= index < n:
        tracer.raise_(IndexError(f"index {index} is out of range"))
    found = modules.lookup(tracer, str(index % n))
    if index < 0 and modules.source is not None:
        tracer.guard(modules.source, "len", n)
    assert found is not None
    return found


# --- dataclasses ------------------------------------------------------------------------------------------------------
def _class_of(x: t.Tracker) -> type:
    return x.value if isinstance(x, t.Class) else x.pytype()


# --- functools --------------------------------------------------------------------------------------------------------
def _has_dict(tracer: Any, x: t.Partial) -> bool:
    """Return whether a partial has an instance dict: then one made of it calls it."""
    if x.value is None:
        return x.space is not None
    has = instance_dict(x.value) is not None
    tracer.guard(x.source, "callable", _with_dict if has else _without_dict)
    return has


def _with_dict(x: Any) -> bool:
    """Answer for a version of Python whose partials have an instance dict."""
    return instance_dict(x) is not None


def _without_dict(x: Any) -> bool:
    """Answer for a version of Python whose partials have no instance dict."""
    return instance_dict(x) is None


@calls(functools.partial)
def _partial(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    fn, rest = args[0], args[1:]
    if not callable_(tracer, fn):
        tracer.raise_(TypeError("the first argument must be callable"))
    if isinstance(fn, t.Partial) and not _has_dict(tracer, fn):
        return t.Partial(fn.func, [*fn.args, *rest], {**fn.kwargs, **kwargs})
    return t.Partial(fn, rest, kwargs)


# --- copy, typing, warnings, the environment --------------------------------------------------------------------------
@calls(copy.copy)
def _copy(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    x = args[0]
    if isinstance(x, t.Tensor):
        return same_memory(tracer, x)
    if isinstance(x, (t.Const, t.Static, t.Function, t.Tuple, t.Slice, t.WeakRef)):
        return x
    if isinstance(x, (t.List, t.Dict, t.Set, t.Deque)):
        return x.builtin_method(tracer, "copy", [], {})
    if isinstance(x, t.Object):
        return _duplicate(tracer, x, ("__copy__", []), {}, lambda v: v, lambda v: _copy(tracer, [v], {}))
    raise Unsupported(f"copy of {x.describe()}")


def _duplicate(tracer: Any, x: t.Object, hook: tuple[str, Args], memo: dict[int, t.Tracker],
               copied: Callable[[t.Tracker], t.Tracker], contents: Callable[[t.Tracker], t.Tracker]) -> t.Tracker:
    """Copy an instance by its own method, by what it reduces to, or by its state: `copied` gives the attributes'
    copies, `contents` that of its builtin part. `memo` has the copy before that of its parts."""
    made = _by_hook(tracer, x, *hook)
    if made is None and not _reduces_plainly(tracer, x.cls):
        made = _by_reduce(tracer, x, copied)
    if made is not None:
        memo[id(x)] = made
        return made
    new = type(x)(x.cls)
    memo[id(x)] = new
    for name, v in _state(tracer, x).items():
        new.attrs[name] = copied(v)
    if x.payload is not None:
        new.payload = contents(x.payload)
    return new


def _reduces_plainly(tracer: Any, cls: type) -> bool:
    """Return whether a copy of an instance is a new one with the same contents, without any method of the copy
    protocol."""
    if cls in copyreg.dispatch_table or builtin_part(cls) not in _COPIED:
        return False
    own = any(tracer.lookup(cls, name) is not tracer.lookup(object, name)
              for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
    return not own and all(tracer.lookup(cls, n) is MISSING
                           for n in ("__getnewargs__", "__getnewargs_ex__", "__setstate__"))


_COPIED = frozenset({object, dict, list, set, frozenset, tuple, str, int, float, types.SimpleNamespace})
"""Classes written in C whose subclasses' instances are copied by their tracked state."""


def _by_hook(tracer: Any, x: t.Object, name: str, args: Args) -> t.Tracker | None:
    """Call the user's `__copy__` or `__deepcopy__`; None if the class has none."""
    hook = tracer.lookup(x.cls, name)
    return tracer.class_function(hook).call(tracer, [x, *args], {}) if isinstance(hook, types.FunctionType) else None


def _by_reduce(tracer: Any, x: t.Object, copied: Any) -> t.Tracker:
    """Copy an object by the user's `__reduce__`: by a call, whose arguments are `copied`, and a state for the instance
    dict."""
    hook = tracer.lookup(x.cls, "__reduce__")
    if not isinstance(hook, types.FunctionType) or tracer.lookup(x.cls, "__reduce_ex__") is not object.__reduce_ex__:
        raise Unsupported(f"copy of {x.describe()}")
    parts = tracer.class_function(hook).call(tracer, [x], {}).items_list(tracer)
    if len(parts) > 3 or len(parts) == 3 and (not isinstance(parts[2], t.Dict)
                                              or tracer.lookup(x.cls, "__setstate__") is not MISSING):
        raise Unsupported(f"copy of {x.describe()}")
    made = parts[0].call(tracer, [copied(v) for v in parts[1].items_list(tracer)], {})
    for name, value in parts[2].open(tracer).items() if len(parts) == 3 else ():
        made.attrs[name] = copied(value)
    return made


@calls(copy.deepcopy)
def _deepcopy(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    memo = args[1] if len(args) > 1 else kwargs.get("memo", t.NONE)
    if isinstance(memo, Memo) and not memo.entries:
        return deep_copy(tracer, args[0], memo.done)
    if memo is not t.NONE:
        raise Unsupported("deepcopy with a memo of the program's own")
    return deep_copy(tracer, args[0], {})


class Memo(t.Dict):
    """The memo that a `__deepcopy__` receives. `done`: the objects copied so far."""

    __slots__ = ("done",)

    def __init__(self, done: dict[int, t.Tracker]) -> None:
        super().__init__({})
        self.done = done


def deep_copy(tracer: Any, x: t.Tracker, memo: dict[int, t.Tracker]) -> t.Tracker:
    """copy.deepcopy of containers and plain instances; others refuse."""
    found = memo.get(id(x))
    if found is not None:
        return found
    if isinstance(x, (t.Const, t.Static, t.Function, t.WeakRef)):
        return x
    if isinstance(x, t.Tensor):
        copied = memo[id(x)] = other_memory(tracer, x)
        return copied
    if isinstance(x, (t.List, t.Deque)):
        sequence = t.List([]) if isinstance(x, t.List) else t.Deque([], x.maxlen)
        memo[id(x)] = sequence
        sequence.items.extend(deep_copy(tracer, v, memo) for v in x.open(tracer))
        return sequence
    if isinstance(x, t.Tuple):
        parts = [deep_copy(tracer, v, memo) for v in x.open(tracer)]
        if id(x) in memo:
            return memo[id(x)]
        same = x.cls is tuple and all(a.identity() is b.identity() for a, b in zip(parts, x.open(tracer)))
        made = memo[id(x)] = x if same else t.Tuple(parts, cls=x.cls)
        return made
    if isinstance(x, t.Dict):
        new_dict = t.Dict({}, cls=x.cls)
        memo[id(x)] = new_dict
        new_dict.factory = x.factory
        for k, v in x.open(tracer).items():
            new_dict.entries[k] = deep_copy(tracer, v, memo)
        return new_dict
    if isinstance(x, t.Set):
        return t.Set(x.base(x.open(tracer)), cls=x.cls)
    if isinstance(x, t.Object) and not isinstance(x, t.Module):
        deeply = functools.partial(deep_copy, tracer, memo=memo)
        return _duplicate(tracer, x, ("__deepcopy__", [Memo(memo)]), memo, deeply, deeply)
    raise Unsupported(f"deepcopy of {x.describe()}")


def _state(tracer: Any, x: t.Object) -> dict[Any, t.Tracker]:
    """Return the state that a plain copy of an object copies: its instance dict and its slots."""
    if tracer.lookup(x.cls, "__getstate__") is not tracer.lookup(object, "__getstate__") and not _slots_only(x.cls):
        raise Unsupported(f"copy of {x.describe()}, which defines its own state")
    state = dict(tracer.instance_dict(x).open(tracer)) if x.cls.__dictoffset__ else {}
    for name in copyreg._slotnames(x.cls):  # type: ignore[attr-defined]
        if (found := tracer.none_if_raised(AttributeError, x.get, tracer, name)) is not None:
            state[tracer.lookup(x.cls, name)] = found
    return state


def _slots_only(cls: type) -> bool:
    """Return whether the class is a dataclass with slots: its __getstate__ lists its fields."""
    return dataclasses.is_dataclass(cls) and not cls.__dictoffset__


def _environment(tracer: Any, key: t.Tracker, default: t.Tracker = t.NONE) -> t.Tracker:
    """Return the value of an environment variable, guarded."""
    name = key.real(tracer)
    value = os.environ.get(name)
    tracer.guard(Pinned(os.environ), "callable", _SameVariable(name, value))
    return default if value is None else t.Const(value)


@dataclasses.dataclass(frozen=True, slots=True)
class _SameVariable:
    """The environment still has this value."""

    name: str
    value: str | None

    def __call__(self, environ: Any) -> bool:
        return bool(environ.get(self.name) == self.value)


_LOOK_INSIDE = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def _asks_kind(fn: Any) -> Any:
    def row(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
        x = args[0]
        if isinstance(x, t.Method):
            if fn not in _LOOK_INSIDE:
                return t.boolean(fn in (inspect.ismethod, inspect.isroutine))
            x = x.func
        if isinstance(x, t.Bound):
            if x.raw is not None and not isinstance(x.raw, types.MethodDescriptorType):
                raise Unsupported(f"the kind of {x.describe()}")
            return t.boolean(fn in (inspect.isbuiltin, inspect.isroutine))
        if isinstance(x, t.Object):
            plain = (fn is not inspect.isroutine or tracer.lookup(x.cls, "__get__") is MISSING
                     or tracer.lookup(x.cls, "__set__") is not MISSING)
            return t.boolean(not plain)
        return t.boolean(bool(fn(tracer.stand_in(x))))

    return row


for _fn in (inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin,
            inspect.isroutine, *_LOOK_INSIDE):
    calls(_fn)(_asks_kind(_fn))


@calls(importlib.import_module)
def _import_module(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    name = args[0].real(tracer)
    module = sys.modules.get(name)
    if len(args) > 1 or kwargs or module is None:
        raise Unsupported(f"import of {name}, which is not loaded yet", hint="import it before the call")
    return tracer.made(module)


folds(importlib.util.find_spec, importlib.metadata.version)


def _object_setattr(tracer: Any, x: t.Tracker, name: t.Tracker, value: t.Tracker) -> t.Tracker:
    _generic(x).generic_set(tracer, name.real(tracer), value)
    return t.NONE


def _object_init(tracer: Any, x: t.Tracker, *args: t.Tracker, **kwargs: t.Tracker) -> t.Tracker:
    tracer.takes_nothing(x.pytype(), "__init__", bool(args or kwargs))
    return t.NONE


by_position({
    **{kind.__new__: lambda tracer, cls, *args, **kwargs: tracer.new_instance(cls.real(tracer), list(args))
       for kind in (dict, list, set, BaseException, Exception, str, int, float, frozenset)},
    object.__new__: lambda tracer, cls, *args, **kwargs: tracer.new_instance(cls.real(tracer), list(args), kwargs),
    object.__init__: _object_init,
    object.__setattr__: _object_setattr,
    nn.Module.__getattr__: lambda tracer, x, name: x.registered(tracer, name.real(tracer)),
    dataclasses.fields: lambda tracer, x: tracer.fold(dataclasses.fields, (_class_of(x),)),
    dataclasses.is_dataclass: lambda tracer, x: t.boolean(dataclasses.is_dataclass(_class_of(x))),
    types.MethodType: lambda tracer, fn, obj: t.Method(fn, obj),
    typing.cast: lambda tracer, kind, x: x,
    os.getenv: _environment,
    os.environ.get: _environment,
})
