"""isinstance and issubclass: by the classes alone, or by a class's own hook."""

from __future__ import annotations

import _abc
import abc
import types
import weakref
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from framesmith.util.errors import Unsupported

from .. import trackers as t
from ..class_making import ONLY_CAPTURED
from ..registry import CONSTANT_METHODS, calls
from ..settings import read_setting
from ..sources import Pinned
from ..trackers import Args, Kwargs
from ..trackers.opaque import Opaque


def by_registration(tracer: Any, kind: type, klass: Any) -> None:
    """Guard the registrations with abstract classes that are no bases of `kind`: they decide whether `kind` is a
    subclass."""
    for one in klass if isinstance(klass, tuple) else getattr(klass, "__args__",
                                                              ()) if isinstance(klass, types.UnionType) else (klass,):
        if isinstance(one, (tuple, types.UnionType)):
            by_registration(tracer, kind, one)
        elif issubclass(type(one), abc.ABCMeta) and one not in kind.__mro__:
            read_setting(tracer, abc.get_cache_token, [], {})


def class_test(tracer: Any, kind: type, klass: Any, asked: Any = issubclass) -> bool:
    """issubclass of a class or nested tuple of classes; an error is that of `asked`."""
    by_registration(tracer, kind, klass)
    _refuse_hooks(tracer, klass)
    try:
        return issubclass(kind, klass)
    except TypeError:
        return bool(tracer.folded(asked, (None, klass)))


def _refuse_hooks(tracer: Any, klass: Any) -> None:
    """Refuse a class made in the frame where a function that may inspect it decides: it does not exist yet."""
    for k in klass if isinstance(klass, tuple) else (klass,):
        if isinstance(k, tuple):
            _refuse_hooks(tracer, k)
        elif tracer.made_classes and k in tracer.made_classes and type(k) is not type:
            hook = tracer.lookup(k, "__subclasshook__")
            hook = getattr(hook, "__func__", hook)
            if id(hook) in tracer.seen or isinstance(hook, FunctionType) and hook.__module__ != "_collections_abc":
                raise Unsupported(f"a __subclasshook__ of {k.__qualname__}, which the frame made")


_LIBRARY = ("abc", "typing", "typing_extensions", "torch", "enum")
"""Metaclasses whose `__instancecheck__` inspects classes only and has no effects."""


def _own_check(tracer: Any, klass: t.Tracker, name: str) -> Any:
    """Return the `__instancecheck__` or `__subclasscheck__` of a class's metaclass, if it may do more than inspect
    classes; or None."""
    if not isinstance(klass, t.Class) or type(klass.value) is type:
        return None
    hook = tracer.lookup(type(klass.value), name)
    library = isinstance(hook, FunctionType) and (hook.__module__ or "").partition(".")[0] in _LIBRARY
    # it looks at the object's attributes
    if library and name == "__instancecheck__" and vars(klass.value).get("_is_protocol"):
        library = False
    return hook if isinstance(hook, FunctionType) and not library else None


@calls(isinstance)
def _isinstance(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    obj, want = args
    if isinstance(want, t.Tuple) and any(_own_check(tracer, k, "__instancecheck__") for k in want.open(tracer)):
        return t.boolean(any(_isinstance(tracer, [obj, k], {}) is t.TRUE for k in want.open(tracer)))
    hook = _own_check(tracer, want, "__instancecheck__")
    if hook is not None and obj.pytype() is not want.value:  # type: ignore[attr-defined]
        return t.boolean(tracer.class_function(hook).call(tracer, [want, obj], {}).truth(tracer))
    klass = want.real(tracer)
    if isinstance(obj, (t.Const, t.Static)):
        by_registration(tracer, type(t.present_value(obj)), klass)
    if isinstance(obj, t.Const):
        return t.boolean(tracer.folded(isinstance, (t.present_value(obj), klass)))
    if isinstance(obj, t.Tensor) and obj.pytype() is torch.Tensor:
        return t.boolean(_tensor_kind(tracer, obj, klass))
    if isinstance(obj, t.Static):
        return t.boolean(tracer.folded(isinstance, (obj.value, klass)))
    if class_test(tracer, obj.pytype(), klass, isinstance):
        return t.TRUE
    if isinstance(obj, t.Object) and tracer.class_info(obj.cls).getattribute is not None:
        return t.boolean(_says_instance(tracer, obj, klass))
    if tracer.lookup(obj.pytype(), "__class__") is not object.__dict__["__class__"] or isinstance(obj, Opaque):
        raise Unsupported(f"isinstance of {obj.describe()}, which has a __class__ of its own")
    return t.FALSE


def _says_instance(tracer: Any, obj: t.Object, klass: Any) -> bool:
    """Decide isinstance by the `__class__` that an object's own `__getattribute__` returns."""
    if type(klass) is not type:
        raise Unsupported(f"isinstance of {obj.describe()}, which has a __getattribute__ of its own")
    said = tracer.none_if_raised(AttributeError, obj.get, tracer, "__class__")
    return isinstance(said, t.Class) and klass in said.value.__mro__


def _tensor_kind(tracer: Any, obj: t.Tensor, klass: Any) -> bool:
    """Decide isinstance of a tensor: torch.FloatTensor and similar classes test the dtype."""
    if isinstance(klass, tuple):
        return any(_tensor_kind(tracer, obj, k) for k in klass)
    if type(klass).__name__ == "tensortype":
        return obj.fake.type() == f"{klass.__module__}.{klass.__name__}"
    return class_test(tracer, torch.Tensor, klass)


@calls(issubclass)
def _issubclass(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    kind, want = args
    if isinstance(want, t.Tuple) and any(_own_check(tracer, k, "__subclasscheck__") for k in want.open(tracer)):
        return t.boolean(any(_issubclass(tracer, [kind, k], {}) is t.TRUE for k in want.open(tracer)))
    hook = _own_check(tracer, want, "__subclasscheck__")
    if hook is not None:
        return t.boolean(tracer.class_function(hook).call(tracer, [want, kind], {}).truth(tracer))
    real = kind.real(tracer)
    _refuse_hooks(tracer, want.real(tracer))
    if isinstance(real, type):
        by_registration(tracer, real, want.real(tracer))
    return t.boolean(tracer.folded(issubclass, (real, want.real(tracer))))


@calls(_abc._abc_instancecheck)
def _abstract_instance(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    klass, obj = args
    if isinstance(obj, Opaque) or isinstance(obj, t.Object) and (
            tracer.class_info(obj.cls).getattribute is not None
            or tracer.lookup(obj.cls, "__class__") is not object.__dict__["__class__"]):
        raise Unsupported(f"isinstance of {obj.describe()}, which has a __class__ of its own")
    _refuse_hooks(tracer, klass.real(tracer))
    real = tracer.stand_in(obj)
    if type(real) is not obj.pytype():
        raise Unsupported(f"isinstance of {obj.describe()} by an abstract class")
    # by its name: typing looks at who asks
    return t.boolean(tracer.folded(abc.ABCMeta.__instancecheck__, (klass.real(tracer), real)))


@calls(type.__instancecheck__)
def _plain_instance(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(args[0].real(tracer) in args[1].pytype().__mro__)


@calls(type.__subclasscheck__)
def _plain_subclass(tracer: Any, args: Args, kwargs: Kwargs) -> t.Tracker:
    return t.boolean(args[0].real(tracer) in args[1].real(tracer).__mro__)


@dataclass(frozen=True, slots=True)
class HasSubclasses:
    """A class has these direct subclasses."""

    known: list[weakref.ref[type]]

    def __call__(self, kind: type) -> bool:
        return [r() for r in self.known] == type.__subclasses__(kind)


def _subclasses(tracer: Any, kind: t.Const, args: Args, kwargs: Kwargs) -> t.Tracker:
    found = tracer.folded(type.__subclasses__, (kind.value, *args), kwargs)
    if any(k in ONLY_CAPTURED for k in found):
        raise Unsupported(f"the subclasses of {kind.value.__qualname__}, of which captured code makes one")
    tracer.guard(Pinned(kind.value), "callable", HasSubclasses([weakref.ref(k) for k in found]))
    return t.List([tracer.made(k) for k in found])


for _meta in (type, abc.ABCMeta):
    CONSTANT_METHODS[(_meta, "__subclasses__")] = _subclasses
