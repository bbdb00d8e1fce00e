"""`__torch_function__`: calls of torch functions on objects that are no tensors go where these say, and those on
tensors of classes that leave it as it is give tensors of their class."""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

import torch
from torch.overrides import get_default_nowrap_functions

from framesmith.util.errors import Unsupported

from . import trackers as t

Args = list[t.Tracker]
Kwargs = dict[str, t.Tracker]


def overriding(tracer: Any, args: Args) -> Args:
    """The arguments, also within lists and tuples, whose classes override torch functions; subclasses before their
    bases."""
    found: Args = []
    for x in args:
        if isinstance(x, t.Sequence) and x._items is not None:
            found.extend(y for y in overriding(tracer, x.items) if y not in found)
        elif isinstance(x, t.Object) and _hook(tracer, x) is not None and all(x.cls is not y.pytype() for y in found):
            at = next((i for i, y in enumerate(found) if issubclass(x.cls, y.pytype())), len(found))
            found.insert(at, x)
    return found


def _hook(tracer: Any, x: t.Object) -> Any:
    raw = tracer.lookup(x.cls, "__torch_function__")
    return raw.__func__ if isinstance(raw, classmethod) and isinstance(raw.__func__, FunctionType) else None


def overridden(tracer: Any, fn: Any, args: Args, kwargs: Kwargs) -> t.Tracker | None:
    """What the arguments' own `__torch_function__` makes of a call of `fn`; None if none has one."""
    found = overriding(tracer, [*args, *kwargs.values()])
    if not found:
        return None
    if getattr(fn, "__module__", None) in (operator.add.__module__, "builtins"):
        raise Unsupported("an operator between a tensor and an object with __torch_function__")
    kinds = tracer.tuple([tracer.made(x.pytype()) for x in found])
    for x in found:
        assert isinstance(x, t.Object)
        call = t.Method(tracer.class_function(_hook(tracer, x)), tracer.made(x.cls))
        out = call.call(tracer, [tracer.made(fn), kinds, tracer.tuple(args), t.Dict(dict(kwargs))], {})
        if not (isinstance(out, t.Const) and out.value is NotImplemented):
            return out
    raise Unsupported(f"no __torch_function__ takes {getattr(fn, '__name__', fn)}")


def is_followed(cls: type) -> bool:
    """Whether a class of tensors has nothing of its own but what its instances' attributes are found by: methods,
    properties, values."""
    bases = [base for base in cls.__mro__[:cls.__mro__.index(torch.Tensor)] if base is not torch.nn.Parameter]
    return type(cls) in _PLAIN_METAS and all(_HOOKS.isdisjoint(vars(base)) for base in bases)


def converts(cls: type) -> bool:
    """Whether results of torch functions on tensors of the class are of the class: torch.Tensor's own
    `__torch_function__` does it."""
    mine, own = (getattr(getattr(k, "__torch_function__", None), "__func__", None) for k in (cls, torch.Tensor))
    return cls is not torch.Tensor and mine is own


def converted(tracer: Any, fn: Any, args: Args, kwargs: Kwargs, out: t.Tracker) -> t.Tracker:
    """What torch.Tensor's `__torch_function__` makes of `out`, which `fn` gave for tensors as they are."""
    given = _tensors([*args, *kwargs.values()])
    kinds = {x.pyclass for x in given if converts(x.pyclass)}
    if not kinds or fn is getattr and args[1].real(tracer) in _NOT_WRAPPED:
        return out
    cls = max(kinds, key=lambda kind: len(kind.__mro__))
    if not all(issubclass(cls, kind) for kind in kinds):
        raise Unsupported(f"{getattr(fn, '__name__', fn)} of tensors of classes of which none is a subclass of the "
                          "others")
    for x in _tensors([out]):
        if not issubclass(x.pyclass, cls):
            if x.source is not None or any(x is y for y in given):
                raise Unsupported(f"a {x.pyclass.__name__} that becomes a {cls.__name__}")
            x.pyclass = cls
    return out


def _tensors(values: Args) -> list[t.Tensor]:
    found: list[t.Tensor] = []
    for x in values:
        if isinstance(x, t.Sequence) and x._items is not None:
            found += _tensors(x.items)
        elif isinstance(x, t.Tensor):
            found.append(x)
    return found


_PLAIN_METAS = (type(torch.Tensor), type(torch.nn.Parameter), type(torch.nn.Buffer))
_HOOKS = frozenset((
    "__torch_function__", "__torch_dispatch__", "__new__", "__getattribute__", "__getattr__", "__setattr__",
    "__delattr__", "__slots__",
    "__del__", "__iter__", "__len__", "__bool__", "__getitem__", "__setitem__", "__hash__", "__eq__",
))
"""What a class may not have of its own, if its tensors are to be followed."""
_NOT_WRAPPED = {f.__self__.__name__ for f in get_default_nowrap_functions()}  # type: ignore[attr-defined]


def as_class(x: torch.Tensor, cls: type) -> Any:
    """`x` as an instance of `cls`, with `x`'s history whatever the grad mode."""
    with torch.enable_grad():
        return x.as_subclass(cls)


def plain_inputs(inputs: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """A graph's inputs, of which those at `places` are of classes that `converts` says."""
    return tuple([as_class(x, torch.Tensor) if k in places else x for k, x in enumerate(inputs)])


__all__ = ["as_class", "converted", "converts", "is_followed", "overridden", "overriding", "plain_inputs"]
