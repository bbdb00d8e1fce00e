"""Values to trackers: `wrap` for values from outside (guarded by their sources), `made` for values that capture
computed.

Rows are chosen by `type`: `isinstance` would read the value's own `__class__`, which is the program's code, and may
lie.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import gc
import inspect
import re
import threading
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from framesmith import _C
from framesmith.fake import FakeTensor
from framesmith.symbolic.node import SymNode
from framesmith.util.errors import Unsupported

from . import trackers as t
from .call_log import ObjectEvent
from .class_making import getattr_static
from .contents import entries_of, plain_names, plain_part
from .iterator_lookahead import WITH_LOOKAHEAD, allows_lookahead
from .registry import IDENTIFIED, OUTSIDE
from .session import Session
from .sources import Applied, Attr, Cell, DictAttr, Item, Local, Pinned, Source
from .trackers.locks import Lock
from .trackers.opaque import Opaque

CONSTANT_TYPES: set[type] = {
    int, bool, float, complex, str, bytes, type(None), type(...), type(NotImplemented), torch.dtype, torch.device,
    torch.layout,
    torch.memory_format, torch.finfo, torch.iinfo, range, re.Pattern, re.Match, types.CodeType, dataclasses.Field,
    inspect.Parameter,
    inspect.Signature, type(inspect.Parameter.KEYWORD_ONLY), type(dataclasses.MISSING), types.GenericAlias,
    types.UnionType,
    type(typing.Optional[int]), type(typing.List[int]), type(typing.Any), typing.TypeVar,  # noqa: UP006, UP007, UP045
    typing.ForwardRef,
    torch.Generator, type(torch.__version__),
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, type(typing.Union),
    type(typing.Callable), type(typing.Tuple), type(typing.List), type(typing.Callable[[int], int]),  # noqa: UP006
    type(typing.Literal["a"]),
    type(typing.Annotated[int, 1]), typing.ParamSpec, typing.NewType,
}
"""Immutable types: an instance read from outside is guarded by equality (or identity) once, and may then be folded."""

BY_EQUALITY = frozenset({int, bool, float, complex, str, bytes, torch.dtype, torch.device, torch.layout,
                         torch.memory_format, range,
                          datetime.date, datetime.datetime, datetime.time, datetime.timedelta, re.Pattern,
                         types.GenericAlias,
                          types.UnionType, type(typing.Optional[int]), type(typing.List[int])})  # noqa: UP006, UP045

MOST_GUARDED = 4000
"""The maximal number of elements of one container that guards compare: with more, plain Python is faster than the
guards."""
_PASSED = (Local, Cell, Item)
"""Sources of arguments: elsewhere a number seldom varies, and its value is a cheaper guard."""
ONE_OF_A_KIND = frozenset({dataclasses.Field, typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType,
                           typing.ForwardRef})
"""Types whose instances are guarded by identity: no two calls give the same one."""

STATIC_CALLABLES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
                    types.MethodWrapperType,
                    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
                    torch._ops.OpOverload, torch._ops.OpOverloadPacket, functools._lru_cache_wrapper)


class Values(Session):
    """The part of the session that makes trackers."""

    # --- from outside -------------------------------------------------------------------------------------------------
    def wrap(self, value: Any, source: Source | None) -> t.Tracker:
        """Return the tracker of a value read at `source`; guard what its kind assumes."""
        cls = type(value)
        row = WRAP.get(cls)
        if row is None:
            row = WRAP_CACHE.get(cls)
            if row is None:
                row = WRAP_CACHE[cls] = _row_of(cls)
        return row(self, value, source)

    def wrap_static(self, value: Any, source: Source | None) -> t.Tracker:
        """Like `wrap` for a value whose identity is guarded already (a class attribute, a default)."""
        cls = type(value)
        if cls in CONSTANT_TYPES or issubclass(cls, enum.Enum):
            return t.Const(value)
        if cls is tuple:
            items = [self.wrap_static(v, None if source is None else Item(source, i)) for i, v in enumerate(value)]
            return t.Tuple(items, value=value, source=Pinned(value))
        if issubclass(cls, STATIC_TYPES) or cls.__name__ in ("ufunc", "_ArrayFunctionDispatcher"):
            return self.static(value, source if source is not None else Pinned(value))
        return self.wrap(value, source if source is not None else Pinned(value))

    def static(self, value: Any, source: Source | None) -> t.Tracker:
        """Return a function, class, module or builtin whose identity is guarded elsewhere."""
        found = self.seen.get(id(value))
        if found is not None:
            if type(found) is t.Function:
                found.guard_identity()
            return found
        cls = type(value)
        if issubclass(cls, types.FunctionType):
            made: t.Tracker = t.Function(value.__code__, value.__globals__, value=value, source=source,
                                         name=value.__name__,
                                         qualname=value.__qualname__)
        elif issubclass(cls, type):
            made = t.Class(value, source)
        elif issubclass(cls, types.ModuleType):
            made = t.PyModule(value, source)
        else:
            made = t.Builtin(value, source)
        return self.remember(value, made)

    def remember(self, value: Any, tracker: t.Tracker) -> t.Tracker:
        """Keep one tracker for an object, for the whole capture."""
        self.seen[id(value)] = tracker
        self.keep.append(value)
        if tracker.source is not None:
            self.log.append(ObjectEvent(tracker.source))
        return tracker

    def reads_whole(self, container: Any) -> None:
        """Check that a container from outside, of which every element is about to be read and guarded, is small
        enough."""
        kind = next(base for base in _WHOLE if issubclass(type(container), base))
        self.many_guarded(kind.__len__(container), f"elements of a {type(container).__name__}")

    def many_guarded(self, n: int, what: str) -> None:
        """Raise Unsupported if too many values are to be guarded: `n` of them, which are `what`."""
        if n > MOST_GUARDED:
            raise Unsupported(f"more than {MOST_GUARDED} {what}")

    def known(self, value: Any, source: Source | None) -> t.Tracker | None:
        """Return the tracker of an object met before; guard that this path leads to the same object."""
        found = self.seen.get(id(value))
        if found is not None and source is not None and found.source is not None and found.source != source:
            self.guard(source, "same", found.source)
        return found

    # --- computed -----------------------------------------------------------------------------------------------------
    def made(self, value: Any) -> t.Tracker:
        """Return the tracker of a value that capture computed; nothing to guard."""
        cls = type(value)
        row = MADE.get(cls)
        if row is not None:
            return row(self, value)
        if cls in CONSTANT_TYPES or issubclass(cls, enum.Enum):
            return t.Const(value)
        if issubclass(cls, tuple) and not getattr(value, "__dict__", None) and not t.is_own_sequence(cls):
            return t.Tuple([self.made(v) for v in value], cls=cls)
        if issubclass(cls, STATIC_TYPES):
            if issubclass(cls, (types.BuiltinFunctionType, types.MethodWrapperType)):
                return t.Builtin(value, Pinned(value))
            return self.static(value, Pinned(value))
        if cls.__module__ in ("numpy", "numpy.dtypes") and cls.__name__ != "ndarray":
            return t.Const(value) if not callable(value) else t.Builtin(value)
        if issubclass(cls, types.MethodType):
            return t.Method(self.made(value.__func__), self.made(value.__self__))
        if issubclass(cls, BaseException):
            return self.made_error(value)
        if hasattr(cls, "__next__"):
            raise Unsupported(f"a new {cls.__name__}, which residual code could only share between calls")
        if self.made_classes and self.mentions_made(value):
            raise Unsupported(f"a {cls.__name__} of a class made in the frame")
        return self.wrap(value, Pinned(value))

    def fake(self, value: FakeTensor) -> t.Tracker:
        """Return the one tracker of a fake."""
        found = self.seen.get(id(value))
        return found if found is not None else self.remember(value, t.Tensor(value))

    def walk(self, x: t.Tracker, make: Any) -> t.Tracker:
        """iter() or reversed() of a constant."""
        return t.Walk(self.folded(make, (x.value,)), x, make)  # type: ignore[attr-defined]

    def list_iterator(self, sequence: t.Sequence) -> t.Tracker:
        return t.SeqIter(sequence)

    def unkey(self, key: Any) -> t.Tracker:
        """Return the tracker that a stored dict key stands for."""
        if isinstance(key, t.Tracker):
            return key
        if isinstance(key, (t.Hashed, t.AddressKey)):
            return key.tracker
        if isinstance(key, tuple):
            return t.Tuple([self.unkey(k) for k in key], cls=type(key))
        if not t.lasts(key) and id(key) in self.seen:
            return self.seen[id(key)]
        return t.Set(key, cls=frozenset) if type(key) is frozenset else self.made(key)


def _number(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    if source is not None and tracer.varies(source):
        tracer.guard(source, "type", type(value))
        return t.SymbolicNumber(tracer, value, source)
    if type(value) is int and source is not None and all(type(s) in _PASSED for s in source.chain()):
        return tracer.open_int(value, source)
    return _const_equal(tracer, value, source)


def _const_equal(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "equals", value)
    return t.Const(value, source)


def _const_id(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "id", value)
    return t.Const(value, source)


def _none(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "none")
    return t.NONE


def by_identity(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    """Return the tracker of a function, class, module or builtin; guard its identity."""
    tracer.guard(source, "id", value)
    return tracer.static(value, source)


def _once(row: Callable[..., t.Tracker]) -> Callable[..., t.Tracker]:
    """Make a row by which an object has one tracker, wherever it is found."""

    def once(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
        found = tracer.known(value, source)
        return found if found is not None else tracer.remember(value, row(tracer, value, source))

    return once


@_once
def _list(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", list)
    return t.List(None, value=value, source=source)


def _tuple(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", type(value))
    return t.Tuple(None, cls=type(value), value=value, source=source)


def _dict(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    found = tracer.known(value, source)
    if found is None:
        found = tracer.as_instance_dict(value, source)
    if found is None:
        if tracer.global_writes and any(space is value for space, _ in tracer.global_writes.values()):
            raise Unsupported("a namespace as a dict, to which names were assigned")
        tracer.guard(source, "type", type(value))
        d = t.Dict(None, cls=type(value), value=value, source=source)
        found = tracer.remember(value, d)
        _factory(tracer, value, source, d)
    return found


def _factory(tracer: Any, value: Any, source: Source | None, d: t.Dict) -> None:
    """Return the default factory of a defaultdict."""
    if isinstance(value, collections.defaultdict):
        factory = tracer.wrap(value.default_factory, None if source is None else Attr(source, "default_factory"))
        d.factory = None if factory is t.NONE else factory


@_once
def _set(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", type(value))
    return t.Set(None, cls=type(value), value=value, source=source)


@_once
def _deque(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", type(value))
    tracer.wrap(value.maxlen, None if source is None else Attr(source, "maxlen"))
    return t.Deque(None, value.maxlen, value=value, source=source)


def _tensor(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    return tracer.input(value, source)


@_once
def _object(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    cls = type(value)
    tracer.guard(source, "type", cls)
    family = t.Module if issubclass(cls, nn.Module) else t.Error if issubclass(cls, BaseException) else t.Object
    obj = family(cls, value=value, source=source)
    if not plain_names(obj.own):
        return _opaque(tracer, value, source)
    tracer.register_owner(obj)
    if issubclass(cls, dict):
        obj.payload = t.Dict(None, cls=_base_of(cls, (collections.OrderedDict, collections.defaultdict, dict)),
                             value=value, source=source)
        _factory(tracer, value, source, obj.payload)
    elif issubclass(cls, list):
        obj.payload = t.List(None, value=value, source=source)
    elif issubclass(cls, tuple):
        obj.payload = t.Tuple(None, value=value, source=source)
    elif issubclass(cls, (set, frozenset)):
        obj.payload = t.Set(None, cls=_base_of(cls, (set, frozenset)), value=value, source=source)
    elif issubclass(cls, (str, int, float)):
        obj.payload = t.Const(plain_part(value))
        # of the value itself a guard would run the program's `__eq__`, and keep it alive
        tracer.guard(source and Applied(source, plain_part, "the plain {}"), "equals", obj.payload.value)
    return obj


def _base_of(cls: type, bases: tuple[type, ...]) -> type:
    return next(b for b in cls.__mro__ if b in bases)


def _compiled(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    """Return the tracker of a compiled function: it is captured with its caller, unless it is disabled."""
    tracer.guard(source, "id", value)
    if value.callback is None:
        return t.Disabled(value, source)
    return tracer.wrap(value.function, None if source is None else Attr(source, "function"))


@_once
def _method(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", types.MethodType)
    func = tracer.wrap(value.__func__, None if source is None else Attr(source, "__func__"))
    obj = tracer.wrap(value.__self__, None if source is None else Attr(source, "__self__"))
    return t.Method(func, obj, source, value)


def _builtin(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    """Return the tracker of a builtin function, or of a bound method, which is a new object at each reading."""
    owner, name = value.__self__, value.__name__
    if source is None or owner is None or issubclass(type(owner), (type, types.ModuleType)):
        return by_identity(tracer, value, source)
    raw = getattr_static(type(owner), name)
    if not isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return by_identity(tracer, value, source)
    tracer.guard(source, "type", type(value))
    tracer.guard(Attr(source, "__name__"), "equals", name)
    obj = tracer.wrap(owner, Attr(source, "__self__"))
    if isinstance(obj, t.SymbolicNumber):
        obj.settle()  # calls of the method are folded
    if obj.constant:
        return t.Builtin(value, source)
    return obj.get(tracer, name) if isinstance(obj, t.Tensor) else t.Bound(obj, name, raw if isinstance(obj, t.Object)
                                                                           else None)


@_once
def _partial(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", functools.partial)

    def at(name: str) -> Source | None:
        return None if source is None else Attr(source, name)

    func = tracer.wrap(value.func, at("func"))
    args = tracer.wrap(value.args, at("args")).open(tracer)
    kwargs = tracer.wrap(value.keywords, at("keywords")).open(tracer)
    return t.Partial(func, args, kwargs, value=value, source=source)


def _cell(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    return tracer.cell(value, source)


@_once
def _slice(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "equals", value)
    return t.Slice([tracer.made(p) for p in (value.start, value.stop, value.step)], value, source)


@_once
def _iterator(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    if not allows_lookahead(value):
        return _object(tracer, value, source)
    tracer.guard(source, "type", type(value))
    if type(value) in (zip, enumerate):
        parts = None if source is None else Applied(source, allows_lookahead, "what {} reads from")
        tracer.guard(parts, "equals", True)
    return t.Outside(value, source)


@_once
def _opaque(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", type(value))
    return Opaque(type(value), value, source)


@_once
def _lock(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "type", type(value))
    return Lock(type(value), value, source)


def _scripted(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    tracer.guard(source, "id", value)
    return t.Scripted(value, source)


def _fake(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    return tracer.fake(value)


@_once
def _numpy(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    row = OUTSIDE.get(f"{type(value).__module__}.{type(value).__name__}")
    if row is not None:
        return row(tracer, value, source)
    raise Unsupported(f"NumPy value {source}", hint="convert it to a tensor before the call")


def _proxied(tracer: Any, key: Any) -> Any:
    return tracer.stored_key(key) if tracer.has_own_hash(key) else key


def _proxy(tracer: Any, value: Any, source: Source | None) -> t.Tracker:
    """Return the tracker of a mapping proxy: one in a class, or of a class, is as constant as the class."""
    if type(next(iter(gc.get_referents(value)), None)) not in (dict, collections.OrderedDict):
        return _opaque(tracer, value, source)
    if source is None or isinstance(source, Pinned):
        entries = {_proxied(tracer, k): tracer.wrap_static(v, None) for k, v in value.items()}
        return t.Dict(entries, cls=types.MappingProxyType, value=value, source=Pinned(value))
    found = tracer.known(value, source)
    if found is None:
        tracer.guard(source, "type", types.MappingProxyType)
        tracer.guard(entries_of(source), "keys", tuple(value))
        entries = {_proxied(tracer, k): tracer.wrap(v, Item(entries_of(source), k)) for k, v in value.items()}
        found = tracer.remember(value, t.Dict(entries, cls=types.MappingProxyType, value=value, source=source))
    return found


def _row_of(cls: type) -> Callable[..., t.Tracker]:
    """Return the row for a class not in WRAP: by the nearest kind that it is a subclass of."""
    if issubclass(cls, torch.Tensor) and (own := OUTSIDE.get(f"{cls.__module__}.{cls.__qualname__}")) is not None:
        return own
    for base, row in _BY_BASE:
        if issubclass(cls, base):
            return row
    if f"{cls.__module__}.{cls.__qualname__}" in IDENTIFIED:
        return _const_id
    if cls.__module__ == "numpy" or cls.__module__.startswith("numpy."):
        if cls.__name__ in ("ufunc", "_ArrayFunctionDispatcher"):
            return by_identity
        if any(b.__name__ == "dtype" for b in cls.__mro__):
            return _const_equal
        kinds = {b.__name__ for b in cls.__mro__}
        return (_numpy if "generic" not in kinds else _const_equal if kinds.isdisjoint(("floating", "integer"))
                else _number)
    return _object


def _symbolic(v: Any) -> t.Tracker:
    if not isinstance(v.node, SymNode):  # of another class: the ragged size of a nested tensor, and its comparisons
        return t.boolean(bool(v)) if type(v) is torch.SymBool else t.Sym(v)
    known = v.node.constant
    return t.Sym(v) if known is None else t.boolean(known) if type(known) is bool else t.Const(known)


_WHOLE: tuple[Any, ...] = (list, tuple, dict, set, frozenset, collections.deque)
STATIC_TYPES = (types.FunctionType, type, types.ModuleType, *STATIC_CALLABLES)

WRAP: dict[type, Callable[..., t.Tracker]] = {
    **{c: (_const_equal if c in BY_EQUALITY else _const_id) for c in CONSTANT_TYPES},
    int: _number, float: _number,
    type(None): _none, list: _list, tuple: _tuple, torch.Size: _tuple, dict: _dict, collections.OrderedDict: _dict,
    collections.defaultdict: _dict, set: _set, frozenset: _set, collections.deque: _deque, types.MethodType: _method,
    functools.partial: _partial, types.CellType: _cell, slice: _slice, torch.Tensor: _tensor, nn.Parameter: _tensor,
    FakeTensor: _fake,
    torch._C.ScriptFunction: _scripted, types.MappingProxyType: _proxy, _C.CompiledFunction: _compiled,
    **dict.fromkeys((*weakref.ProxyTypes, super, threading.local), _opaque),
    type(threading.Lock()): _lock, type(threading.RLock()): _lock, **dict.fromkeys(STATIC_TYPES, by_identity),
    types.BuiltinFunctionType: _builtin, **dict.fromkeys(WITH_LOOKAHEAD, _iterator),
}
WRAP_CACHE: weakref.WeakKeyDictionary[type, Callable[..., t.Tracker]] = weakref.WeakKeyDictionary()

_BY_BASE: list[tuple[Any, Callable[..., t.Tracker]]] = [
    (threading.local, _opaque),
    (enum.Enum, _const_id), (torch.Tensor, _tensor), (type, by_identity), (types.FunctionType, by_identity),
    (types.ModuleType, by_identity),
    (tuple, lambda tracer, v, source: (_object if t.is_own_sequence(type(v)) else _tuple)(tracer, v, source)),
]

MADE: dict[type, Callable[[Any, Any], t.Tracker]] = {
    **{c: (lambda tracer, v: t.Const(v)) for c in CONSTANT_TYPES},
    type(None): lambda tracer, v: t.NONE,
    bool: lambda tracer, v: t.TRUE if v else t.FALSE,
    FakeTensor: lambda tracer, v: tracer.fake(v),
    tuple: lambda tracer, v: t.Tuple([tracer.made(x) for x in v]),
    torch.Size: lambda tracer, v: t.Tuple([tracer.made(x) for x in v], cls=torch.Size),
    list: lambda tracer, v: t.List([tracer.made(x) for x in v]),
    dict: lambda tracer, v: t.Dict({tracer.made(k).key(tracer): tracer.made(x) for k, x in v.items()}),
    set: lambda tracer, v: t.Set({tracer.made(x).element(tracer) for x in v}),
    frozenset: lambda tracer, v: t.Set(frozenset([tracer.made(x).element(tracer) for x in v]), cls=frozenset),
    collections.deque: lambda tracer, v: t.Deque([tracer.made(x) for x in v], v.maxlen),
    slice: lambda tracer, v: t.Slice([tracer.made(p) for p in (v.start, v.stop, v.step)]),
    **dict.fromkeys((torch.SymInt, torch.SymFloat, torch.SymBool), lambda tracer, v: _symbolic(v)),
}

__all__ = ["CONSTANT_TYPES", "DictAttr", "STATIC_TYPES", "Values"]
