"""isinstance and issubclass: by the classes alone, or by what a class itself has to say."""

from __future__ import annotations

import _abc
import abc
import types
import weakref
from types import FunctionType
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..class_making import ONLY_CAPTURED
from ..registry import CONSTANT_METHODS, calls
from ..sources import Pinned
from ..trackers.opaque import Opaque

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


class SameRegistrations:
    """No class was registered with an abstract one since."""

    __slots__ = ("token",)

    def __init__(self) -> None:
        self.token = abc.get_cache_token()

    def __call__(self, _: Any) -> bool:
        return self.token == abc.get_cache_token()


def by_registration(cx: Any, kind: type, klass: Any) -> None:
    """Where an abstract class is not a base of `kind`, what is registered with it decides whether `kind` is a subclass: that is guarded."""
    for one in klass if isinstance(klass, tuple) else getattr(klass, "__args__", ()) if isinstance(klass, types.UnionType) else (klass,):
        if isinstance(one, (tuple, types.UnionType)):
            by_registration(cx, kind, one)
        elif issubclass(type(one), abc.ABCMeta) and one not in kind.__mro__:
            cx.registrations = cx.registrations or SameRegistrations()
            cx.guard(Pinned(abc), "callable", cx.registrations)


def class_test(cx: Any, kind: type, klass: Any, asked: Any = issubclass) -> bool:
    """issubclass of a class or nested tuple of classes; an error is that of `asked`."""
    by_registration(cx, kind, klass)
    _refuse_hooks(cx, klass)
    try:
        return issubclass(kind, klass)
    except TypeError:
        return bool(cx.folded(asked, (None, klass)))


def _refuse_hooks(cx: Any, klass: Any) -> None:
    """A class made in the frame is asked by name only if no function that may look at it has a say: it is not there yet."""
    for k in klass if isinstance(klass, tuple) else (klass,):
        if isinstance(k, tuple):
            _refuse_hooks(cx, k)
        elif cx.made_classes and k in cx.made_classes and type(k) is not type:
            hook = cx.lookup(k, "__subclasshook__")
            hook = getattr(hook, "__func__", hook)
            if id(hook) in cx.seen or isinstance(hook, FunctionType) and hook.__module__ != "_collections_abc":
                raise Unsupported(f"a __subclasshook__ of {k.__qualname__}, which the frame made")


_LIBRARY = ("abc", "typing", "typing_extensions", "torch", "enum")
"""Whose `__instancecheck__` looks at classes and has no effects."""


def _own_check(cx: Any, klass: t.Tracker, name: str) -> Any:
    """The `__instancecheck__` or `__subclasscheck__` that a class's metaclass has, if it may do more than look at classes; or None."""
    if not isinstance(klass, t.Class) or type(klass.value) is type:
        return None
    hook = cx.lookup(type(klass.value), name)
    library = isinstance(hook, FunctionType) and (hook.__module__ or "").partition(".")[0] in _LIBRARY
    if library and name == "__instancecheck__" and vars(klass.value).get("_is_protocol"):  # it looks at the object's attributes
        library = False
    return hook if isinstance(hook, FunctionType) and not library else None


def _value(x: t.Const | t.Static) -> Any:
    """A value of its class: of a number that varies, the present one."""
    return x.example if type(x) is t.Late else x.value


@calls(isinstance)
def _isinstance(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    obj, want = args
    if isinstance(want, t.Tuple) and any(_own_check(cx, k, "__instancecheck__") for k in want.open(cx)):
        return t.boolean(any(_isinstance(cx, [obj, k], {}) is t.TRUE for k in want.open(cx)))
    hook = _own_check(cx, want, "__instancecheck__")
    if hook is not None and obj.pytype() is not want.value:  # type: ignore[attr-defined]
        return t.boolean(cx.class_function(hook).call(cx, [want, obj], {}).truth(cx))
    klass = want.real(cx)
    if isinstance(obj, (t.Const, t.Static)):
        by_registration(cx, type(_value(obj)), klass)
    if isinstance(obj, t.Const):
        return t.boolean(cx.folded(isinstance, (_value(obj), klass)))
    if isinstance(obj, t.Tensor) and obj.pyclass is torch.Tensor:
        return t.boolean(_tensor_kind(cx, obj, klass))
    if isinstance(obj, t.Static):
        return t.boolean(cx.folded(isinstance, (obj.value, klass)))
    if class_test(cx, obj.pytype(), klass, isinstance):
        return t.TRUE
    if isinstance(obj, t.Object) and cx.class_info(obj.cls).getattribute is not None:
        return t.boolean(_says_instance(cx, obj, klass))
    if cx.lookup(obj.pytype(), "__class__") is not object.__dict__["__class__"] or isinstance(obj, Opaque):
        raise Unsupported(f"isinstance of {obj.describe()}, which has a __class__ of its own")
    return t.FALSE


def _says_instance(cx: Any, obj: t.Object, klass: Any) -> bool:
    """isinstance by the `__class__` that an object's own `__getattribute__` gives."""
    if type(klass) is not type:
        raise Unsupported(f"isinstance of {obj.describe()}, which has a __getattribute__ of its own")
    try:
        said = obj.get(cx, "__class__")
    except t.CapturedError as e:
        if issubclass(e.tracker.pytype(), AttributeError):
            return False
        raise
    return isinstance(said, t.Class) and klass in said.value.__mro__


def _tensor_kind(cx: Any, obj: t.Tensor, klass: Any) -> bool:
    """isinstance of a tensor: torch.FloatTensor and its kin ask for a dtype."""
    if isinstance(klass, tuple):
        return any(_tensor_kind(cx, obj, k) for k in klass)
    if type(klass).__name__ == "tensortype":
        return obj.fake.type() == f"{klass.__module__}.{klass.__name__}"
    return class_test(cx, torch.Tensor, klass)


@calls(issubclass)
def _issubclass(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    kind, want = args
    if isinstance(want, t.Tuple) and any(_own_check(cx, k, "__subclasscheck__") for k in want.open(cx)):
        return t.boolean(any(_issubclass(cx, [kind, k], {}) is t.TRUE for k in want.open(cx)))
    hook = _own_check(cx, want, "__subclasscheck__")
    if hook is not None:
        return t.boolean(cx.class_function(hook).call(cx, [want, kind], {}).truth(cx))
    real = kind.real(cx)
    _refuse_hooks(cx, want.real(cx))
    if isinstance(real, type):
        by_registration(cx, real, want.real(cx))
    return t.boolean(cx.folded(issubclass, (real, want.real(cx))))


@calls(_abc._abc_instancecheck)
def _abstract_instance(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    klass, obj = args
    if isinstance(obj, Opaque) or isinstance(obj, t.Object) and (
            cx.class_info(obj.cls).getattribute is not None or cx.lookup(obj.cls, "__class__") is not object.__dict__["__class__"]):
        raise Unsupported(f"isinstance of {obj.describe()}, which has a __class__ of its own")
    _refuse_hooks(cx, klass.real(cx))
    real = cx.stand_in(obj)
    if type(real) is not obj.pytype():
        raise Unsupported(f"isinstance of {obj.describe()} by an abstract class")
    return t.boolean(cx.folded(abc.ABCMeta.__instancecheck__, (klass.real(cx), real)))  # by its name: typing looks at who asks


@calls(type.__instancecheck__)
def _plain_instance(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(args[0].real(cx) in args[1].pytype().__mro__)


@calls(type.__subclasscheck__)
def _plain_subclass(cx: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(args[0].real(cx) in args[1].real(cx).__mro__)


class HasSubclasses:
    """A class has these direct subclasses."""

    __slots__ = ("known",)

    def __init__(self, known: list[type]) -> None:
        self.known = [weakref.ref(k) for k in known]

    def __call__(self, kind: type) -> bool:
        return [r() for r in self.known] == type.__subclasses__(kind)


def _subclasses(cx: Any, kind: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    found = cx.folded(type.__subclasses__, (kind.value, *args), kwargs)
    if any(k in ONLY_CAPTURED for k in found):
        raise Unsupported(f"the subclasses of {kind.value.__qualname__}, of which captured code makes one")
    cx.guard(Pinned(kind.value), "callable", HasSubclasses(found))
    return t.List([cx.made(k) for k in found])


for _meta in (type, abc.ABCMeta):
    CONSTANT_METHODS[(_meta, "__subclasses__")] = _subclasses

__all__ = ["class_test"]
