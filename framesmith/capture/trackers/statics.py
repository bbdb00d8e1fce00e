"""Objects known by their identity: builtin callables, classes, Python modules."""

from __future__ import annotations

import enum
from types import FunctionType, ModuleType
from typing import Any

from framesmith.util.errors import Unsupported

from ..registry import CALLS
from ..sources import MISSING, name_of
from .base import Tracker, always
from .iterators import Iter


class Static(Tracker):
    """An object that represents itself; its reader has guarded its identity."""

    __slots__ = ("source", "value")
    truth = always

    def __init__(self, value: Any, source: Any = None) -> None:
        self.value = value
        self.source = source

    def pytype(self) -> type:
        return type(self.value)

    def real(self, tracer: Any) -> Any:
        return self.value

    def identity(self) -> Any:
        return self.value

    def key(self, tracer: Any) -> Any:
        return self.value

    def describe(self) -> str:
        v = self.value
        if issubclass(type(v), type):
            return f"{type.__getattribute__(v, '__module__')}.{name_of(v)}"
        name = getattr(v, "__qualname__", None) or getattr(v, "__name__", None) or repr(v)
        module = getattr(v, "__module__", None)
        return f"{module}.{name}" if isinstance(module, str) else str(name)

    def get(self, tracer: Any, name: str) -> Tracker:
        return tracer.fold(getattr, (self.value, name))


class Builtin(Static):
    """A callable written in C, or one that a table row handles whole."""

    __slots__ = ()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.call_builtin(self.value, args, kwargs)


class Disabled(Static):
    """A function that must run in plain Python."""

    __slots__ = ()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        raise Unsupported(f"call of {getattr(self.value, '__qualname__', 'a function')}, which is disabled")


class Scripted(Static):
    """A function compiled by torch.jit.script: captured as the Python that it was made of."""

    __slots__ = ()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.call_scripted(self.value, args, kwargs)


class PyModule(Static):
    """A Python module."""

    __slots__ = ()

    def describe(self) -> str:
        return f"module {name_of(self.value)}"

    def get(self, tracer: Any, name: str) -> Tracker:
        if type(self.value) is not ModuleType and isinstance(tracer.lookup(type(self.value), "__getattribute__"),
                                                             FunctionType):
            raise Unsupported(f"{name!r} of {self.describe()}, whose class has a __getattribute__")
        return tracer.module_attr(self.value, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        if type(self.value) is not ModuleType and isinstance(tracer.lookup(type(self.value), "__setattr__"),
                                                             FunctionType):
            raise Unsupported(f"assignment to {name!r} of {self.describe()}, whose class has a __setattr__")
        if type(self.value) is not ModuleType and hasattr(type(tracer.lookup(type(self.value), name)), "__set__"):
            raise Unsupported(f"assignment to {name!r} of {self.describe()}, which is a property")
        tracer.store_global(self.value.__dict__, name, value)


class Class(Static):
    """A class."""

    __slots__ = ()

    def call(self, tracer: Any, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        return tracer.instantiate(self, args, kwargs)

    def get(self, tracer: Any, name: str) -> Tracker:
        return tracer.class_attr(self, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        tracer.set_class_attr(self, name, value)

    def delete(self, tracer: Any, name: str) -> None:
        tracer.set_class_attr(self, name, None)

    def builtin_method(self, tracer: Any, name: str, args: list[Tracker], kwargs: dict[str, Tracker]) -> Tracker:
        if name not in type.__dict__:
            return tracer.call_builtin(getattr(self.value, name), args, kwargs)
        raw = type.__dict__[name]
        return tracer.call_builtin(raw, [self, *args],
                                   kwargs) if raw in CALLS else tracer.call_builtin(raw.__get__(self.value), args,
                                                                                    kwargs)

    def item(self, tracer: Any, key: Tracker) -> Tracker:
        return tracer.class_item(self, key)

    def truth(self, tracer: Any) -> bool:
        meta = type(self.value)
        if tracer.lookup(meta, "__bool__") is not MISSING:
            return tracer.call_special(self, "__bool__", []).truth(tracer) if not _is_enum(meta) else True
        return _is_enum(meta) or tracer.lookup(meta, "__len__") is MISSING or self.size(tracer) != 0

    def iterate(self, tracer: Any) -> Tracker:
        if not _is_enum(type(self.value)):
            return super().iterate(tracer)
        return Iter([tracer.made(v) for v in tracer.folded(list, (self.value,))])

    def size(self, tracer: Any) -> int:
        if _is_enum(type(self.value)):
            return tracer.folded(len, (self.value,))
        return tracer.call_special(self, "__len__", []).real(tracer)


def _is_enum(meta: type) -> bool:
    return issubclass(meta, enum.EnumMeta)
