"""super(): attributes looked up after a class in the mro of an instance or a class."""

from __future__ import annotations

import typing
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

from framesmith.util.errors import Unsupported

from ..sources import MISSING
from .base import Tracker, always
from .functions import Method
from .objects import DESCRIPTORS, Object
from .statics import Class
from .tensors import is_accessor


class Super(Tracker):
    """super(cls, obj): `start` is the class whose mro is searched; it is `obj` itself if that is a class."""

    __slots__ = ("cls", "obj", "start")
    truth = always

    def __init__(self, cls: type, obj: Tracker, start: type) -> None:
        self.cls = cls
        self.obj = obj
        self.start = start

    def pytype(self) -> type:
        return super

    def get(self, tracer: Any, name: str) -> Tracker:
        mro = self.start.__mro__
        for base in mro[mro.index(self.cls) + 1:] if name != "__class__" else ():
            tracer.note_class(base, name)
            raw = tracer.own_raw(base, name)
            if raw is not MISSING:
                return self.bind(tracer, raw, name)
        own = _OWN.get(name)
        return own(tracer, self) if own is not None else tracer.no_attribute(self, name)

    def bind(self, tracer: Any, raw: Any, name: str) -> Tracker:
        """Return the attribute found, bound as a descriptor would."""
        start = self.start
        on_class = isinstance(self.obj, Class) and start is self.obj.value
        if isinstance(raw, classmethod):
            return Method(tracer.class_function(raw.__func__), tracer.made(start))
        if isinstance(raw, _BOUND):
            if not on_class or isinstance(raw, staticmethod):
                return tracer.bound_special(self.obj, name, raw)
            if isinstance(raw, property):
                return tracer.class_value(start, name, raw)
            return tracer.class_function(raw) if isinstance(raw, FunctionType) else tracer.made(raw)
        if is_accessor(raw) and not on_class:
            return tracer.accessor(raw.__get__, [self.obj])
        if isinstance(raw, (GetSetDescriptorType,
                            MemberDescriptorType)) and isinstance(self.obj, Object) and not on_class:
            return DESCRIPTORS[type(raw)](tracer, self.obj, raw, name, None)
        if isinstance(raw, BuiltinFunctionType) or not hasattr(type(raw), "__get__"):
            return tracer.class_value(start, name, raw)
        if isinstance(raw, ClassMethodDescriptorType):
            if name == "__init_subclass__":
                of_generic = _OF_GENERIC.get(raw.__objclass__)
                return tracer.no_hook(start) if of_generic is None else Method(tracer.made(of_generic),
                                                                               tracer.made(start))
            return tracer.made(raw.__get__(None, start))
        if isinstance(getattr(type(raw), "__get__", None), FunctionType):
            return tracer.call_special(tracer.class_value(start, name, raw), "__get__",
                                       [tracer.made(None) if on_class else self.obj, tracer.made(start)])
        raise Unsupported(f"super().{name}: {type(raw).__name__}")


_BOUND = (FunctionType, staticmethod, property, MethodDescriptorType, WrapperDescriptorType)
_OF_GENERIC = {typing.Generic: getattr(typing, "_generic_init_subclass", None)}
"""The function that C calls in place of the class's method, from Python 3.12 on."""


def super_of(tracer: Any, cls: Tracker, obj: Tracker) -> Tracker:
    """`super(cls, obj)`"""
    if not isinstance(cls, Class):
        return tracer.raise_(TypeError(f"super() argument 1 must be a type, not {cls.pytype().__name__}"))
    start = obj.pytype()
    if isinstance(obj, Class) and obj.value.__mro__ is None:
        raise Unsupported("super() of a class whose mro is being made")
    if isinstance(obj, Class) and cls.value in obj.value.__mro__:
        start = obj.value
    elif cls.value not in start.__mro__:
        if tracer.lookup(start, "__class__") is not object.__dict__["__class__"]:
            raise Unsupported(f"super() of {obj.describe()}, which has a __class__ of its own")
        return tracer.raise_(TypeError("super(type, obj): obj must be an instance or subtype of type"))
    return Super(cls.value, obj, start)


_OWN = {
    "__class__": lambda tracer, self: tracer.made(super),
    "__thisclass__": lambda tracer, self: tracer.made(self.cls),
    "__self__": lambda tracer, self: self.obj,
    "__self_class__": lambda tracer, self: tracer.made(self.start),
}
