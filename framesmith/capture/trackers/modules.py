"""torch.nn.Module instances: parameters, buffers and submodules are read straight from the module's dicts."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..sources import DictAttr, Item, Source
from .base import Tracker
from .dicts import Dict
from .objects import Object

_WHERE = ("_parameters", "_buffers", "_modules")
_getattr = nn.Module.__getattr__
_setattr = nn.Module.__setattr__


class Module(Object):
    """An nn.Module."""

    __slots__ = ("subs",)

    def __init__(self, cls: type, *, value: Any = None, source: Source | None = None) -> None:
        super().__init__(cls, value=value, source=source)
        self.subs: dict[str, Tracker] = {}

    def missing(self, tracer: Any, name: str, info: Any) -> Tracker:
        """nn.Module.__getattr__, without interpreting its Python."""
        if info is None or info.getattr is not _getattr:
            return super().missing(tracer, name, info)
        return self.registered(tracer, name)

    def registered(self, tracer: Any, name: str) -> Tracker:
        """Return the parameter, buffer or submodule of this name, or AttributeError."""
        for where in _WHERE:
            found = self.entry(tracer, where, name)
            if found is not None:
                return found
        self.lacks(tracer, name)
        return tracer.no_attribute(self, name)

    def entry(self, tracer: Any, where: str, name: str) -> Tracker | None:
        """Return the entry `name` of `_parameters`, `_buffers` or `_modules`."""
        tracked = self.attrs.get(where)
        if isinstance(tracked, Dict):
            return tracked.lookup(tracer, name)
        known = self.subs.get(name)
        if known is not None:
            return known
        real = self.own.get(where)
        if not real or name not in real:
            return None
        src = None if self.source is None else Item(DictAttr(self.source, where), name)
        t = self.subs[name] = tracer.wrap(real[name], src)
        return t

    def lacks(self, tracer: Any, name: str) -> None:
        """Assume that no parameter, buffer or submodule has this name."""
        for where in _WHERE:
            if self.source is not None and where not in self.attrs and where in self.own:
                tracer.guard(DictAttr(self.source, where), "not_contains", name)

    def own_attr(self, tracer: Any, name: str) -> Tracker | None:
        # names of parameters, buffers and submodules are never in the instance dict: nn.Module keeps them apart
        if self.value is not None and name not in self.attrs and name not in self.own:
            for where in _WHERE:
                real = self.own.get(where)
                if real and name in real:
                    return None
        return super().own_attr(tracer, name)

    def set(self, tracer: Any, name: str, value: Tracker) -> None:
        info = tracer.class_info(self.cls)
        if info.setattr is _setattr and self.stores(tracer, name, value):
            self.generic_set(tracer, name, value)
        else:
            super().set(tracer, name, value)

    def stores(self, tracer: Any, name: str, value: Tracker) -> bool:
        """Return whether nn.Module.__setattr__ would store `value` in the instance dict."""
        if issubclass(value.pytype(), (nn.Parameter, nn.Module)):
            return False
        for where in _WHERE:
            tracked = self.attrs.get(where)
            if isinstance(tracked, Dict):
                if tracked.lookup(tracer, name) is not None:
                    return False
            elif name in self.own.get(where, (name,)):
                return False
        self.lacks(tracer, name)
        return True
